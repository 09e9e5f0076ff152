"""Predictions of training rows: model and plan from the columns, one simulated iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from experiments.validation.predictions.outcome import Outcome, infeasible
from experiments.validation.predictions.row_defaults import Stated, filled
from experiments.validation.reading.machines import machines_for, model_for
from experiments.validation.reading.schema import TRAINING
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Experts, Model
from workloads.training.alternatives import alternatives, hull
from workloads.training.frameworks.conditions import CONDITIONS, Conditions
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.shared_parts import ByValue, SharedParts
from workloads.training.steady import SteadyStep, steady
from workloads.training.usual_plan import complete


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
                self._shared[machine] = SharedParts(self._structures)
            self._steps[key] = steady(model, machine, plan, self._shared[machine])
        return self._steps[key]


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time of an optimizer step [s] and peak memory [B] of one row.

    ``catalogue`` is a catalogue to use in place of the shipped one.

    ``memory_bytes`` is the peak of all tensors, ``reserved_bytes`` the memory that the
    framework's allocator holds, fragments included. A row that states a measured time or peak did
    run, so it is run here too when the memory model finds it too large, and its provenance says so;
    one that does not is infeasible then.
    """
    return Steps().predict(values, catalogue)


def _predicted(
    values: Mapping[str, Any],
    catalogue: Catalogue | None,
    step_of: Callable[[Model, Cluster, ParallelPlan], SteadyStep],
) -> Outcome:
    """Predict a row from its step, which ``step_of`` simulates, or returns if it already has."""
    ran = any(values.get(name) is not None for name in TRAINING.published)
    row = filled(values)
    model, machine, plan = question(row.values, catalogue)
    step = step_of(model, machine, plan)
    predicted = {
        "iteration_s": step.seconds,
        "memory_bytes": float(step.memory.allocated),
        "reserved_bytes": float(step.memory.reserved),
    }
    if not step.memory.fits and not ran:
        return infeasible(_too_large(step), predicted)
    others = alternatives(
        plan, model, machine, lambda other: step_of(model, machine, other).seconds
    )
    least, most = hull(others)
    ends = (step.seconds * least, step.seconds * most) if others else None
    return Outcome(predicted, provenance=_provenance(step, row, plan), ends=ends)


def question(
    row: Mapping[str, Any], catalogue: Catalogue | None = None
) -> tuple[Model, Cluster, ParallelPlan]:
    """Return the model, cluster and plan that a row asks ``train`` about.

    ``row``: cells, those of the model and its sizes filled.

    Raises InputError for what the plan or its framework refuses.
    """
    model = model_of(row)
    variants = variants_of(row)
    base = (catalogue or shipped_catalogue()).with_variants(variants) if variants else catalogue
    machine = machines_for(row["cluster"], row["chips"], base)
    plan = complete(stated_plan(row), model, machine, chips=row["chips"])
    return model, machine, plan


def variants_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the catalogue variants that a row states, as ``--variant`` of a command does."""
    pairs = str(row.get("variant") or "").split(";")
    return {path: name for path, _, name in (pair.partition("=") for pair in pairs) if path}


def model_of(row: Mapping[str, Any]) -> Model:
    """Model of a row: the shipped one that it names, else Llama-like where gated, or GPT-like.

    Raises InputError for an unknown name, and for a model of other layers or another width than the
    row's.
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


STATED = (
    *("tp", "pp", "vpp", "dp", "cp", "ep", "etp", "microbatch", "global_batch", "seq", "zero"),
    *("schedule", "precision", "fp8_recipe", "recompute", "overlap", "attention", "lora_rank"),
    *("lora_on", "train_only", "optimizer", "runtime", "routed_nodes", "capacity_factor"),
)
"""Columns that are fields of a plan by the same name."""
FLAGS = ("sequence_parallel", "fp8_exchange")
"""Columns of 0 and 1 that are true or false in a plan."""


def stated_plan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that a row states, its framework with all settings included.

    Raises InputError when the ranks are not the same number on each chip.
    """
    used = row["tp"] * row["pp"] * row["dp"] * row["cp"]
    ranks_per_chip, rest = divmod(used, row["chips"])
    if ranks_per_chip and rest:
        raise InputError(
            f"tp × pp × dp × cp = {used} ranks are not a multiple of chips {row['chips']}. "
            "Correct one of them."
        )
    fields = {name: row[name] for name in STATED if row.get(name) is not None}
    fields |= {name: bool(row[name]) for name in FLAGS if row.get(name) is not None}
    if row["tp"] == 1:
        fields.pop("sequence_parallel", None)  # there is nothing to divide
    if ranks_per_chip:
        fields["ranks_per_chip"] = ranks_per_chip
    conditions = Conditions(**{name: row.get(name) for name in CONDITIONS})
    fields |= {"framework": row["framework"]} if row.get("framework") else {}
    stack = conditions.framework_text(fields, machines_for(row["cluster"], 1))
    return {**fields, "framework": stack}


def _too_large(step: SteadyStep) -> str:
    needed, capacity = step.memory.total / 1e9, step.memory.capacity / 1e9
    return f"it needs {needed:.1f} GB a rank and a rank has {capacity:.1f} GB."


def _provenance(step: SteadyStep, row: Stated, plan: ParallelPlan) -> dict[str, str]:
    grades = dict(step.provenance)
    left = [name for name in plan.assumed if name in (*STATED, *FLAGS)]
    empty = [name for name in row.assumed if name not in left]
    if empty or left:
        grades["columns"] = f"assumed: {', '.join((*empty, *left))}"
    grades["framework"] = f"stated: {plan.framework}" if plan.names_framework else "assumed"
    if not step.memory.fits:
        grades["memory"] = _too_large(step)
    return grades
