"""Predictions of rows of plans: the simulated step, its memory, and one layer of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from experiments.validation.reading.rows import (
    OF_MODEL,
    PLAN,
    TRAINING,
    Outcome,
    infeasible,
    machines_for,
    model_for,
    unsupported,
)
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from topologies.support.units import PS_PER_S
from workloads.kernels.chip_share import worst
from workloads.models.model import Experts, Model
from workloads.training.frameworks.conditions import CONDITIONS, Conditions
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import Iteration, iteration
from workloads.training.layers.layer import backward, forward
from workloads.training.layers.steps import LayerOp, RankShapes
from workloads.training.memory.memory import Memory
from workloads.training.memory.memory import worst as worst_rank
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.program.groups import SharedParts, group_of, group_ps
from workloads.training.program.ops import block_s
from workloads.training.program.stage import as_tried
from workloads.training.usual_plan import alternatives, complete, hull, ranks_per_chip

Cells = Mapping[str, Any]

SAME_RATE = {
    "mxfp8": ("mxfp8",),
    "fp8": ("fp8", "float8", "e4m3", "hybrid"),
    "bf16": ("bf16", "bfloat16", "fp16", "float16", "half", "mixed", "amp"),
}
"""Precisions, each with parts of its spellings; narrow ones come first, so that *mixed fp8* is
fp8."""
MOST = {"chips": 2**20, "layers": 2**12, "hidden": 2**20, "seq": 2**24}
"""Limits of one row: twice the largest machine there is, thirty times the deepest and the widest
model, and longer sequences than any are trained on."""
WIDE = {False: 8 / 3, True: 7 / 2}
"""Feed-forward over hidden width of gated models, without shared key-value heads (Llama, Llama 2)
and with them (Llama 3, Mistral)."""
WHOLE_COLUMNS = 256  # divisor of such a width


@dataclass(frozen=True)
class Stated:
    """A row with its empty cells filled in."""

    values: Cells
    assumed: tuple[str, ...]  # columns that were empty, or that could not be taken as they were


MODEL: Mapping[str, int | str] = {
    "vocab": 51200,
    "tied_embeddings": 0,
    "experts": 0,
    "experts_per_token": 0,
    "shared_experts": 0,
    "dense_layers": 0,
}
DEGREES = ("tp", "pp", "cp", "ep")
"""Columns of a plan that are 1 where they are empty."""


def filled(values: Cells) -> Stated:
    """Fill empty cells of the model and its sizes; cells of the plan stay as they are stated."""
    # A measured plan did run, so none is refused here for a remainder: frameworks pad sizes and
    # round batches.
    row = {**values}
    if row.get("model"):
        shipped = model_for(row["model"])
        sizes = {
            name: getattr(shipped, name) for name in (*OF_MODEL, "kv_heads", "ffn", "head_dim")
        }
        row |= {name: size for name, size in sizes.items() if row.get(name) is None}
    for name, limit in MOST.items():
        if row[name] > limit:
            raise InputError(f"{name} {row[name]:,} are over the limit of {limit:,}. Correct it.")
    published = dict(row)
    for filled_in in (_widths, _usual, _degrees, _batch, _padded):
        row |= filled_in(row)
    return Stated(row, tuple(name for name in row if row[name] != published.get(name)))


def _widths(row: Cells) -> Cells:
    """Heads and feed-forward part; of GPT if of its width and without shared key-value heads."""
    hidden, heads, ffn = row["hidden"], row["heads"], row.get("ffn")
    kv_heads = row.get("kv_heads") or heads
    gated = row.get("gated_mlp")
    if gated is None:
        gated = int(ffn != 4 * hidden or kv_heads < heads or bool(row.get("experts")))
    if ffn is None:
        columns = WIDE[kv_heads < heads] * hidden / WHOLE_COLUMNS
        usual = round(-(-columns // 1)) * WHOLE_COLUMNS if gated else 4 * hidden
        ffn = row.get("moe_ffn") or usual
    head_dim = row.get("head_dim") or max(1, hidden // heads)
    return {"kv_heads": kv_heads, "gated_mlp": gated, "ffn": ffn, "head_dim": head_dim}


def _usual(row: Cells) -> Cells:
    usual = {**MODEL, **dict.fromkeys(DEGREES, 1)}
    missing = {name: value for name, value in usual.items() if row.get(name) is None}
    precision = row.get("precision")
    if precision:  # the plan refuses an unknown one
        low = str(precision).lower()
        rates = (rate for rate, names in SAME_RATE.items() if any(name in low for name in names))
        missing["precision"] = next(rates, low)
    return missing


def _degrees(row: Cells) -> Cells:
    """Data parallel degree, such that all chips are used, and tensor parallel degree of experts."""
    # Some sources count dp without ep, which divides it here, and some multiply it by cp.
    fills, dp = _replicas(row), row.get("dp")
    if dp is None or dp * row["ep"] == fills or dp == fills * row["cp"]:
        dp = fills or dp
    degrees = {"dp": dp}
    if row.get("etp") is None and row["ep"] > 1 and row["tp"] > 1:
        ranks = row["tp"] * row["cp"] * dp
        degrees["etp"] = 1 if ranks % (row["ep"] * row["tp"]) else row["tp"]
    return degrees


def _replicas(row: Cells) -> int:
    """Data parallel degree that uses all chips, or all cores where ranks are cores; 0 if none."""
    inner = row["tp"] * row["pp"] * row["cp"]
    each = ranks_per_chip(machines_for(row["cluster"], 1))
    room = row["chips"] * each
    if room % inner and row.get("dp") is None:
        raise InputError(
            f"{room} ranks on {row['chips']} chips are not a multiple of tp {row['tp']} × "
            f"pp {row['pp']} × cp {row['cp']} = {inner}. State dp or correct the degrees."
        )
    return 0 if room % inner else int(room // inner)


def _batch(row: Cells) -> Cells:
    """Global batch of whole microbatches on each replica, nearest to the stated one."""
    dp, stated = row["dp"], row.get("microbatch")
    whole = row.get("global_batch")
    if whole is None:
        return {"global_batch": dp * (stated or 1)}
    microbatch = min(stated or 1, max(1, whole // dp))
    count = max(1, round(whole / (dp * microbatch)))
    return {"microbatch": stated and microbatch, "global_batch": count * dp * microbatch}


def _padded(row: Cells) -> Cells:
    """Sizes padded to multiples of the degrees; sequence parallelism only where it divides."""
    tp, cp, etp = row["tp"], row["cp"], row.get("etp") or row["tp"]
    heads, kv_heads = _multiple(row["heads"], tp), row["kv_heads"]
    if (kv_heads % tp and tp % kv_heads) or heads % kv_heads:
        fitting = [count for count in range(tp, heads + 1, tp) if heads % count == 0]
        kv_heads = min(fitting, key=lambda count: abs(count - kv_heads))
    seq = _multiple(row["seq"], 2 * cp) if cp > 1 else row["seq"]
    sizes = {"heads": heads, "kv_heads": kv_heads, "ffn": _multiple(row["ffn"], tp), "seq": seq}
    if row.get("sequence_parallel"):
        sizes["sequence_parallel"] = int(seq // cp % tp == 0)
    if row["experts"]:
        width = row.get("moe_ffn") or row["ffn"]
        sizes["moe_ffn"] = _multiple(width, max(tp, etp) if row["shared_experts"] else etp)
        sizes["experts"] = _multiple(row["experts"], row["ep"])
    return sizes


def _multiple(size: int, of: int) -> int:
    return -(-size // of) * of


FEWEST = 4  # smallest period, in microbatches, for extrapolating a longer run from two


class LongStep(NamedTuple):
    """Results kept of a simulated step: its time, the memory of the fullest rank, provenance."""

    seconds: float
    memory: Memory
    provenance: Mapping[str, str]


def long_step(
    model: Model, machine: Cluster, plan: ParallelPlan, shared: SharedParts | None = None
) -> LongStep:
    """Simulate a step; one of many microbatches by two runs of few."""
    # Once the pipeline is full every further microbatch takes the same time, so the time of a long
    # run follows from those of two shorter ones, both of whole rounds of an interleaved schedule.
    # ``shared`` has parts that several steps on the machine have in common.
    parts, period = shared or SharedParts(), plan.pp * -(-FEWEST // plan.pp)

    def run(microbatches: int) -> Iteration:
        part = replace(plan, global_batch=microbatches * plan.microbatch * plan.dp)
        return iteration(model, machine, part, shared=parts, allow_oversized=True, partial=True)

    if plan.microbatches <= 4 * period:
        step = run(plan.microbatches)
        seconds = step.iteration_s
    else:
        short, step = run(2 * period), run(3 * period)
        each_s = (step.iteration_s - short.iteration_s) / period
        seconds = step.iteration_s + (plan.microbatches - 3 * period) * each_s
    return LongStep(seconds, step.memory, step.provenance)


class Steps:
    """Steps of the rows of one table, shared by rows of the same model, machine and plan."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Model, Cluster, ParallelPlan], LongStep] = {}
        self._shared: dict[Cluster, SharedParts] = {}

    def predict(self, values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
        """Predict the time of an optimizer step [s] and the peak memory [B] of one row."""
        # ``memory_bytes`` is the peak of all tensors, ``reserved_bytes`` the memory that the
        # framework's allocator holds, fragments included. A row that states a measured time or peak
        # did run, so it is run here too when the memory model finds it too large, and its
        # provenance says so; one that does not is infeasible then.
        ran = any(values.get(name) is not None for name in TRAINING.published)
        row = filled(values)
        model, machine, plan = question(row.values, catalogue)
        step = self._step(model, machine, plan)
        predicted = {
            "iteration_s": step.seconds,
            "memory_bytes": float(step.memory.allocated),
            "reserved_bytes": float(step.memory.reserved),
        }
        if not step.memory.fits and not ran:
            return infeasible(_too_large(step), predicted)
        others = alternatives(
            plan, model, machine, lambda other: self._step(model, machine, other).seconds
        )
        least, most = hull(others)
        ends = (step.seconds * least, step.seconds * most) if others else None
        return Outcome(predicted, provenance=_provenance(step, row, plan), ends=ends)

    def _step(self, model: Model, machine: Cluster, plan: ParallelPlan) -> LongStep:
        key = model, machine, plan
        if key not in self._steps:
            if machine not in self._shared:
                self._shared[machine] = SharedParts()
            self._steps[key] = long_step(model, machine, plan, self._shared[machine])
        return self._steps[key]


def question(
    row: Mapping[str, Any], catalogue: Catalogue | None = None
) -> tuple[Model, Cluster, ParallelPlan]:
    """Return the model, cluster and plan that a row asks ``train`` about."""
    model = model_of(row).with_prediction_heads(row.get("prediction_heads") or 0)
    pairs = str(row.get("variant") or "").split(";")
    variants = {path: name for path, _, name in (pair.partition("=") for pair in pairs) if path}
    base = (catalogue or shipped_catalogue()).with_variants(variants) if variants else catalogue
    machine = machines_for(row["cluster"], row["chips"], base)
    plan = complete(stated_plan(row), model, machine, chips=row["chips"])
    return model, machine, plan


def model_of(row: Mapping[str, Any]) -> Model:
    """Model of a row: the shipped one that it names, else Llama-like where gated, or GPT-like."""
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
        shared, visited = width * row["shared_experts"], row["experts_per_token"] or 1
        dense = row["dense_layers"]
        experts = Experts(row["experts"], visited, width, shared, dense_layers=dense)
    return Model(
        name=str(row.get("name") or "row"),
        **{name: row[name] for name in (*OF_MODEL, "kv_heads", "head_dim", "ffn", "vocab")},
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


STATED = {
    column.name: column.holds
    for column in PLAN
    if column.name in PLAN_FIELDS and column.name != "framework"
}
"""Columns that are fields of a plan, with what they hold; a framework is read with its settings."""


def stated_plan(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a plan that a row states, its framework with all settings included."""
    used = row["tp"] * row["pp"] * row["dp"] * row["cp"]
    ranks_per_chip, rest = divmod(used, row["chips"])
    if ranks_per_chip and rest:
        raise InputError(
            f"tp × pp × dp × cp = {used} ranks are not a multiple of chips {row['chips']}. "
            "Correct one of them."
        )
    fields = {
        name: bool(row[name]) if holds == "flag" else row[name]
        for name, holds in STATED.items()
        if row.get(name) is not None
    }
    if row["tp"] == 1:
        fields.pop("sequence_parallel", None)  # there is nothing to divide
    if ranks_per_chip:
        fields.setdefault("ranks_per_chip", ranks_per_chip)
    conditions = Conditions(**{name: row.get(name) for name in CONDITIONS})
    fields |= {"framework": row["framework"]} if row.get("framework") else {}
    stack = conditions.framework_text(fields, machines_for(row["cluster"], 1))
    return {**fields, "framework": stack}


def _too_large(step: LongStep) -> str:
    needed, capacity = step.memory.total / 1e9, step.memory.capacity / 1e9
    return f"it needs {needed:.1f} GB a rank and a rank has {capacity:.1f} GB."


def _provenance(step: LongStep, row: Stated, plan: ParallelPlan) -> dict[str, str]:
    left = [name for name in plan.assumed if name in STATED]
    empty = [name for name in row.assumed if name not in left]
    grades = {**step.provenance, **_grades(plan, [*empty, *left])}
    if not step.memory.fits:
        grades["memory"] = _too_large(step)
    return grades


def _grades(plan: ParallelPlan, assumed: Sequence[str]) -> dict[str, str]:
    """Provenance of the framework of a row, and of its empty columns."""
    grades = {"framework": f"stated: {plan.framework}" if plan.names_framework else "assumed"}
    return grades | ({"columns": f"assumed: {', '.join(assumed)}"} if assumed else {})


def predict_layer(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time of a dense layer's passes over one microbatch [s], tensor parallelism included."""
    row = filled(values)
    model, machine, plan = question(row.values, catalogue)
    if plan.cp > 1 or model.experts:
        return unsupported("a layer with context parallelism or experts. Use iteration_s.")
    machine = framework_of(plan, machine).on(machine, model)
    time_s = partial(_time_s, machine=machine, tp=plan.tp)
    catalogue = machine.catalogue or shipped_catalogue()
    shapes = as_tried(RankShapes(model, plan, machine.chip, catalogue), time_s)
    there, back = forward(shapes), backward(shapes)
    kernels = worst(*(step.provenance for step in there if step.provenance))
    grades = {"kernels": kernels, **_grades(plan, row.assumed)}
    there_s, back_s = (block_s(steps, time_s) for steps in (there, back))
    return Outcome({"forward_s": there_s, "backward_s": back_s}, provenance=grades)


def _time_s(step: LayerOp, machine: Cluster, tp: int) -> float:
    """Time of a step's communication on the first ``tp`` chips [s]."""
    group = group_of(machine, np.arange(tp))
    return group_ps(group, step.collective, step.size_bytes) / PS_PER_S


def predict_memory(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Memory of the rank that needs most [B], by what was measured, and 1 if it fits."""
    row = filled(values)
    model, machine, plan = question(row.values, catalogue)
    # Frameworks with separate attention kernels date from when training used dropout.
    model = replace(model, dropout=plan.attention == "unfused")
    numbers = framework_of(plan, machine).on(machine, model).catalogue or shipped_catalogue()
    needed = worst_rank(model, plan, numbers, machine.chip)
    return Outcome(
        {
            "memory_bytes": float(needed.allocated),
            "reserved_bytes": float(needed.reserved),
            "activation_bytes": float(needed.activations),
            "states_bytes": float(needed.weights + needed.gradients + needed.optimizer),
            "fits": float(needed.fits),
        },
        provenance=_grades(plan, row.assumed),
    )
