"""Predictions of training rows: model and plan from the columns, one simulated iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from experiments.validation.conditions.recipes import recipe
from experiments.validation.conditions.row_defaults import Stated, filled
from experiments.validation.predictions.long_steps import SteadyStep, steady
from experiments.validation.predictions.outcome import Outcome, infeasible
from experiments.validation.reading.machines import machines_for, model_for
from experiments.validation.reading.schema import TRAINING
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Experts, Model
from workloads.training.memory.memory import worst
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.by_value import ByValue
from workloads.training.program.shared_parts import SharedParts

SAVINGS: Mapping[str, tuple[Any, ...]] = {
    "zero": (3,),
    "recompute": ("selective", "full"),
    "vpp": (1,),
}
"""Columns that can save memory, and their values that save more than the usual one."""


class Steps:
    """Steps of the rows of one table, shared by rows of the same model, machine and plan."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Model, Cluster, ParallelPlan], SteadyStep] = {}
        self._structures = ByValue()
        self._shared: dict[Cluster, SharedParts] = {}

    def predict(self, values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
        """Predict a row, see :func:`predict`."""
        return _predicted(values, catalogue, self._step)

    def _step(self, model: Model, machine: Cluster, plan: ParallelPlan) -> SteadyStep:
        key = model, machine, plan
        if key not in self._steps:
            if machine not in self._shared:
                self._shared[machine] = SharedParts(machine, self._structures)
            self._steps[key] = steady(model, machine, plan, self._shared[machine])
        return self._steps[key]


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time of an optimizer step [s] and peak memory [B] of one row.

    ``catalogue`` is a catalogue to use in place of the shipped one.

    ``memory_bytes`` is the peak of all tensors, ``reserved_bytes`` the memory that the
    framework's allocator holds, fragments included. A row that states a measured time or peak did
    run, so it is run here too when the memory model finds it too large; one that does not is
    infeasible then.
    """
    return Steps().predict(values, catalogue)


def _predicted(
    values: Mapping[str, Any],
    catalogue: Catalogue | None,
    step_of: Callable[[Model, Cluster, ParallelPlan], SteadyStep],
) -> Outcome:
    """Predict a row from its step, which ``step_of`` simulates, or returns if it already has."""
    ran = any(values.get(name) is not None for name in TRAINING.published)
    row = fitting(filled(values)) if ran else filled(values)
    model, plan = model_of(row.values), plan_of(row.values)
    used = recipe(row.values)
    machine = machines_for(row.values["cluster"], row.values["chips"], used.numbers(catalogue))
    step = step_of(model, machine, plan)
    predicted = {
        "iteration_s": step.seconds,
        "memory_bytes": float(step.memory.allocated),
        "reserved_bytes": float(step.memory.reserved),
    }
    grades = _provenance(step, row, used.label)
    if step.memory.total > step.memory.capacity and not ran:
        return infeasible(_too_large(step), predicted)
    return Outcome(predicted, provenance=grades)


def fitting(row: Stated) -> Stated:
    """Return the row with the least saving of memory that makes the plan fit.

    Where a row does not state them, these savings are tried: one chunk per stage, recomputation,
    and ZeRO-3 where only data parallelism divides the model. Where none suffices, the row is
    returned with one chunk per stage. Fragments do not count: an allocator without free memory
    returns its reserve.
    """
    saved = product(*(_savings(row, name, more) for name, more in SAVINGS.items()))
    for savings in saved:
        tried = {**row.values, **dict(zip(SAVINGS, savings, strict=True))}
        used, chip = recipe(tried), machines_for(tried["cluster"], 1).chip
        needed = worst(model_of(tried), plan_of(tried), used.numbers(), chip)
        if needed.total - needed.fragments <= needed.capacity:
            return Stated(tried, row.assumed)
    chunks = _savings(row, "vpp", SAVINGS["vpp"])[-1]
    return Stated({**row.values, "vpp": chunks}, row.assumed)


def _savings(row: Stated, name: str, more: tuple[Any, ...]) -> tuple[Any, ...]:
    """Values to try in a column: its own, and others where the row does not state it."""
    alone = row.values["tp"] * row.values["pp"] == 1
    free = name in row.assumed and (name != "zero" or alone)
    return (row.values[name], *more) if free else (row.values[name],)


def model_of(row: Mapping[str, Any]) -> Model:
    """Model of a row: the shipped one that it names, else Llama-like where gated, or GPT-like.

    Raises
    ------
    InputError
        For an unknown name, and for a model of other layers or another width than the row's.
    """
    if row.get("model"):
        shipped = model_for(row["model"])
        for column in ("layers", "hidden"):
            if row[column] != getattr(shipped, column):
                raise InputError(
                    f"{column} is {row[column]}, but {shipped.name} has "
                    f"{getattr(shipped, column)}. Correct it, or leave model empty."
                )
        return shipped
    gated = bool(row["gated_mlp"])
    experts = None
    if row["experts"]:
        width = row.get("moe_ffn") or row["ffn"]
        experts = Experts(
            count=row["experts"],
            per_token=row["experts_per_token"] or 1,
            ffn=width,
            shared_ffn=width * row["shared_experts"],
            dense_layers=row["dense_layers"],
        )
    return Model(
        name=str(row.get("name") or "row"),
        layers=row["layers"],
        hidden=row["hidden"],
        heads=row["heads"],
        kv_heads=row["kv_heads"],
        head_dim=row["head_dim"],
        ffn=row["ffn"],
        vocab=row["vocab"],
        gated_mlp=gated,
        tied_embeddings=bool(row["tied_embeddings"]),
        positions=0 if gated else row["seq"],
        norm="rms" if gated else "layer",
        qkv_bias=not gated,
        output_bias=not gated,
        mlp_bias=not gated,
        parallel=bool(row.get("parallel_layers")),
        norms=1 if row.get("parallel_layers") else 2,
        experts=experts,
    )


def plan_of(row: Mapping[str, Any]) -> ParallelPlan:
    """Plan of a row.

    Raises
    ------
    InputError
        For what the plan refuses, and when its ranks are not the same number on each chip.
    """
    names = ("tp", "pp", "vpp", "dp", "cp", "ep", "microbatch", "global_batch", "seq", "zero")
    used = row["tp"] * row["pp"] * row["dp"] * row["cp"]
    ranks_per_chip, rest = divmod(used, row["chips"])
    if ranks_per_chip and rest:
        raise InputError(
            f"tp × pp × dp × cp = {used} ranks are not a multiple of chips {row['chips']}. "
            "Correct one of them."
        )
    return ParallelPlan(
        **{name: row[name] for name in names},
        sequence_parallel=bool(row["sequence_parallel"]) and row["tp"] > 1,
        schedule=row["schedule"],
        precision=row["precision"],
        fp8_recipe=row.get("fp8_recipe") or "tensorwise",
        **recomputation(row),
        overlap=row["overlap"],
        attention=recipe(row).attention if row["cp"] == 1 else "fused",
        ranks_per_chip=max(1, ranks_per_chip),
        reshard=row["pp"] == 1,  # across a pipeline PyTorch's FSDP keeps what it gathers
        etp=row.get("etp") or 0,
        lora_rank=row.get("lora_rank") or 0,
        lora_on=row.get("lora_on") or "all",
        train_only=row.get("train_only") or "",
        runtime=row.get("runtime") or "compiled",
        optimizer=row.get("optimizer") or "adamw",
        routed_nodes=row.get("routed_nodes") or 0,
        fp8_exchange=bool(row.get("fp8_exchange")),
        capacity_factor=row.get("capacity_factor") or 0.0,
    )


def recomputation(row: Mapping[str, Any]) -> dict[str, Any]:
    """Recomputation of a plan; *selective* has the meaning of the row's framework."""
    if row["recompute"] == "selective" and recipe(row).selective == "layers":
        return {"recompute": "full", "recompute_every": 2}
    return {"recompute": row["recompute"]}


def _too_large(step: SteadyStep) -> str:
    needed, capacity = step.memory.total / 1e9, step.memory.capacity / 1e9
    return f"it needs {needed:.1f} GB a rank and a rank has {capacity:.1f} GB."


def _provenance(step: SteadyStep, row: Stated, framework: str) -> dict[str, str]:
    grades = dict(step.provenance)
    if row.assumed:
        grades["columns"] = f"assumed: {', '.join(row.assumed)}"
    if framework:
        grades["framework"] = f"assumed: {framework}"
    if step.memory.total > step.memory.capacity:
        grades["memory"] = _too_large(step)
    return grades
