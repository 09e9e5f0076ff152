"""Predicting training rows: a model and a plan from the columns, one simulated iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.validation.columns import TRAINING
from experiments.validation.machines import machines_for
from experiments.validation.outcome import Outcome, infeasible
from experiments.validation.recipes import recipe
from topologies.catalogue import catalogue
from topologies.clusters import Cluster
from topologies.errors import InputError
from workloads.model import Experts, Model
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan import ParallelPlan

USUAL: Mapping[str, int | str] = {
    "vocab": 51200,
    "gated_mlp": 1,
    "tied_embeddings": 0,
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "ep": 1,
    "zero": 1,
    "sequence_parallel": 1,
    "schedule": "1f1b",
    "microbatch": 1,
    "precision": "bf16",
    "recompute": "none",
    "overlap": "dp",
    "experts": 0,
    "experts_per_token": 0,
    "shared_experts": 0,
    "dense_layers": 0,
}
"""What an empty cell is taken to be: the usual default of Megatron-like frameworks."""


SAME_RATE = {
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half"),
    "fp8": ("fp8", "float8", "mxfp8", "e4m3", "hybrid"),
}
"""Precisions that run at one rate, by how rows spell them before a blank or a dash."""
COUNTED_BY_CORE = "trn1"
"""Chip whose rows count cores in their degrees."""
MOST = {"chips": 2**20, "layers": 2**12}
"""Of one row: twice the largest machine there is, and thirty times the deepest model."""
LAYERS_OF_A_CHUNK = 2
"""Of an interleaved schedule that does not say; large models are trained with one to four."""
FEWEST = 4
"""Least microbatches of the period from which two runs stand for a longer one."""


@dataclass(frozen=True)
class Stated:
    """A row with its empty cells filled in.

    Attributes
    ----------
    values : mapping
    assumed : tuple of str
        Columns that were empty.
    """

    values: Mapping[str, Any]
    assumed: tuple[str, ...]


def predict(values: Mapping[str, Any]) -> Outcome:
    """Time of an optimizer step [s] and peak memory [B] of one row.

    ``memory_bytes`` is what tensors need at the worst moment, ``reserved_bytes`` what the
    framework's allocator holds, fragments included. A row that states a measured time or peak did
    run, so it is run here too when the memory model finds it too large; one that does not is
    infeasible then.
    """
    row = filled(values)
    model, plan = model_of(row.values), plan_of(row.values)
    used = recipe(row.values)
    machine = machines_for(row.values["cluster"], row.values["chips"], used.numbers())
    step, seconds = steady(model, machine, plan)
    predicted = {
        "iteration_s": seconds,
        "memory_bytes": float(step.memory.allocated),
        "reserved_bytes": float(step.memory.reserved),
    }
    known = _provenance(step, row, used.told)
    ran = any(values.get(name) is not None for name in TRAINING.published)
    if step.memory.total > step.memory.capacity and not ran:
        return infeasible(_too_large(step), predicted)
    return Outcome(predicted, provenance=known)


def steady(model: Model, machine: Cluster, plan: ParallelPlan) -> tuple[Iteration, float]:
    """Simulate an iteration; of many microbatches so many that the pipeline's period shows.

    Once the pipeline is full every further microbatch takes the same time, so two shorter runs
    give the longer one's time.

    Returns
    -------
    Iteration
        The one that was run, the longer of two.
    float
        Time of the plan's own number of microbatches [s].
    """
    period = plan.pp * -(-FEWEST // plan.pp)  # whole rounds of an interleaved schedule
    base = 2 * period
    if plan.microbatches <= base + 2 * period:
        step = iteration(model, machine, plan, allow_oversized=True, partial=True)
        return step, step.iteration_s
    once = plan.dp * plan.microbatch
    short, long = (
        iteration(
            model,
            machine,
            replace(plan, global_batch=count * once),
            allow_oversized=True,
            partial=True,
        )
        for count in (base, base + period)
    )
    each = (long.iteration_s - short.iteration_s) / period
    return long, long.iteration_s + (plan.microbatches - base - period) * each


def filled(values: Mapping[str, Any]) -> Stated:
    """Fill empty cells by what is usual, and by what follows from the others.

    Raises
    ------
    InputError
        When the degrees do not divide the ranks.
    """
    row = {**values}
    for name, limit in MOST.items():
        if row[name] > limit:
            raise InputError(f"{name} {row[name]:,} are over the limit of {limit:,}. Correct it.")
    assumed = [name for name in USUAL if row.get(name) is None]
    row |= {name: USUAL[name] for name in assumed}
    if "vpp" in assumed and row["schedule"] == "interleaved" and row["pp"] > 1:
        most = row["layers"] // row["pp"]
        row["vpp"] = max(1, min(most, max(2, round(most / LAYERS_OF_A_CHUNK))))
    row["precision"] = _precision(str(row["precision"]))
    follows = {
        "kv_heads": row["heads"],
        "head_dim": row["hidden"] // row["heads"],
        "ffn": row.get("moe_ffn") or 4 * row["hidden"],
        "dp": _replicas(row),
    }
    assumed += [name for name in follows if row.get(name) is None]
    row |= {name: value for name, value in follows.items() if row.get(name) is None}
    if row.get("etp") is None and row["ep"] > 1 and row["tp"] > 1:
        row["etp"] = _expert_tp(row)
        assumed.append("etp")
    if row.get("global_batch") is None:
        row["global_batch"] = row["dp"] * row["microbatch"]
        assumed.append("global_batch")
    return Stated(row, tuple(assumed))


def _replicas(row: Mapping[str, Any]) -> int:
    """Data-parallel degree that fills the chips, or their cores where ranks are cores."""
    inner = row["tp"] * row["pp"] * row["cp"]
    by_core = str(row["cluster"]).startswith(COUNTED_BY_CORE)
    each = catalogue().integer(COUNTED_BY_CORE, "ranks_per_chip") if by_core else 1
    room = row["chips"] * each
    if row.get("dp") is None and room % inner:
        raise InputError(
            f"{room} ranks on {row['chips']} chips are not a multiple of tp {row['tp']} × "
            f"pp {row['pp']} × cp {row['cp']} = {inner}. State dp or correct the degrees."
        )
    return int(room // inner) or 1


def _expert_tp(row: Mapping[str, Any]) -> int:
    """Tensor parallel degree of experts: that of the rest where ranks suffice, else none."""
    ranks = row["tp"] * row["cp"] * row["dp"]
    return int(1 if ranks % (row["ep"] * row["tp"]) else row["tp"])


def _precision(text: str) -> str:
    """Rate at which a precision runs; what is not known is left for the plan to refuse."""
    first = text.lower().replace("-", " ").split()[0]
    return next((rate for rate, names in SAME_RATE.items() if first in names), text.lower())


def model_of(row: Mapping[str, Any]) -> Model:
    """Model of a row: Llama-like with a gated feed-forward part, GPT-like without."""
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
        **recomputation(row),
        overlap=row["overlap"],
        attention=recipe(row).attention,
        ranks_per_chip=max(1, ranks_per_chip),
        etp=row.get("etp") or 0,
    )


def recomputation(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a plan computes again; *selective* is what the row's framework calls so."""
    if row["recompute"] == "selective" and recipe(row).selective == "layers":
        return {"recompute": "full", "recompute_every": 2}
    return {"recompute": row["recompute"]}


def _too_large(step: Iteration) -> str:
    needed, capacity = step.memory.total / 1e9, step.memory.capacity / 1e9
    return f"it needs {needed:.1f} GB a rank and a rank has {capacity:.1f} GB."


def _provenance(step: Iteration, row: Stated, framework: str) -> dict[str, str]:
    known = dict(step.provenance)
    if row.assumed:
        known["columns"] = f"assumed: {', '.join(row.assumed)}"
    if framework:
        known["framework"] = f"assumed: {framework}"
    if step.memory.total > step.memory.capacity:
        known["memory"] = _too_large(step)
    return known
