"""Combinations of a plan's fields that divide a model, a batch and a cluster.

Fields that make no difference are not varied: without tensor parallelism there is no sequence
parallelism, without pipeline stages no pipeline schedule, and with a single replica no sharding
over replicas and no order of axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.flops import layer_flops
from workloads.models.model import Model
from workloads.search.grid import Columns, among, crossed, divisors, kept, one_row, rows
from workloads.search.refusals import no_batch, no_degrees, no_pipeline
from workloads.training.plan.checks import check_model
from workloads.training.plan.fields import ORDER, Overlap, Recompute
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT, pipeline_schedule, schedule_names
from workloads.training.plan.stage_layers import layer_counts

ORDERS = (ORDER, ("tp", "cp", "pp", "dp"))
"""Orders of the axes that are tried, with replicas or pipeline stages on neighbouring chips."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
OVERLAPS: tuple[Overlap, ...] = ("none", "dp", "all")
"""Overlaps by number. As they depend on the framework, they are varied only to be compared."""
EXCHANGES = ("routed_nodes", "fp8_exchange")  # fields that only plans with expert parallelism have
EVEN, LIGHT_END = range(2)
"""Ways to divide layers among stages: evenly, or with fewer on the stage of the output layer."""

Stated = Mapping[str, Any]  # fields of a plan that the user stated


def combinations(model: Model, cluster: Cluster, base: ParallelPlan, fixed: Stated) -> Columns:
    """Return the combinations that divide model, batch and cluster."""
    ranks = cluster.chips * base.ranks_per_chip
    columns = _degrees(model, base, fixed, ranks)
    if not rows(columns):
        raise InputError(no_degrees(model, cluster, fixed, ranks))
    dp = columns["dp"]
    columns = _microbatches(columns, base, fixed)
    if not rows(columns):
        raise InputError(no_batch(base, int(dp.min()), fixed))
    columns = _pipelines(columns, model, base, fixed)
    if not rows(columns):
        raise InputError(no_pipeline(model, cluster, fixed, ranks))
    return _memory_savings(columns, base, fixed)


def _degrees(model: Model, base: ParallelPlan, fixed: Stated, ranks: int) -> Columns:
    """Combinations of tp, cp, pp and dp whose product is the number of ranks, with ep and etp."""
    inner, alone = divisors(ranks), replace(base, sequence_parallel=False)
    # A degree that does not divide the model by itself does not divide it in any pair.
    tps = [tp for tp in _only(fixed, "tp", inner) if _divides(model, replace(alone, tp=tp))]
    cps = [cp for cp in _only(fixed, "cp", inner) if _divides(model, replace(alone, cp=cp))]
    columns = crossed(crossed(one_row(), "tp", tps), "cp", cps)
    columns = crossed(columns, "sequence_parallel", _only(fixed, "sequence_parallel", (0, 1)))
    pairs = {
        (tp, cp, split): _divides(model, replace(base, tp=tp, cp=cp, sequence_parallel=bool(split)))
        for tp, cp, split in zip(
            *(columns[name].tolist() for name in ("tp", "cp", "sequence_parallel")), strict=True
        )
        if tp > 1 or split == columns["sequence_parallel"].min()
    }
    names = ("tp", "cp", "sequence_parallel")
    columns = kept(columns, among(columns, names, [pair for pair, fits in pairs.items() if fits]))
    # Rules ask whether sequence parallelism would be possible with these degrees.
    dividing = [pair[:2] for pair, fits in pairs.items() if fits and pair[2]]
    divides_sequence = among(columns, ("tp", "cp"), dividing).astype(np.int64)
    columns = {**columns, "divides_sequence": divides_sequence}
    layers = model.layers // max(1, fixed.get("vpp", 1))
    columns = crossed(columns, "pp", [d for d in _only(fixed, "pp", inner) if d <= layers])
    replica = columns["tp"] * columns["cp"] * columns["pp"]
    columns = {**columns, "dp": ranks // replica}
    whole_dp = (ranks % replica == 0) & (columns["dp"] == fixed.get("dp", columns["dp"]))
    return _experts(kept(columns, whole_dp), model, fixed)


def _divides(model: Model, plan: ParallelPlan) -> bool:
    """Return whether the degrees of a plan divide the model."""
    try:
        check_model(plan, model)
    except InputError:
        return False
    return True


def _experts(columns: Columns, model: Model, fixed: Stated) -> Columns:
    """Combinations with expert degrees; experts are whole on a rank or divided as ``tp`` says."""
    experts, exchanges = model.experts, [name for name in EXCHANGES if fixed.get(name)]
    if experts is None and exchanges:
        raise InputError(
            f"{exchanges[0].replace('_', ' ')} is about exchanges of experts, but {model.name} has "
            "none. Leave it out."
        )
    if experts is None:
        return crossed(crossed(columns, "ep", [1]), "etp", [fixed.get("etp", 0)])
    degrees = [ep for ep in _only(fixed, "ep", divisors(experts.count)) if ep > 1 or not exchanges]
    grown = crossed(columns, "ep", degrees)
    if "etp" in fixed:
        grown = crossed(grown, "etp", [fixed["etp"]])
    else:
        grown = crossed(grown, "etp", [0, 1])
        grown = kept(grown, (grown["tp"] > 1) | (grown["etp"] == 0))
    divided = np.where(grown["etp"] == 0, grown["tp"], grown["etp"])
    room = grown["tp"] * grown["cp"] * grown["dp"]
    return kept(grown, (room % (grown["ep"] * divided) == 0) & (experts.ffn % divided == 0))


def _microbatches(columns: Columns, base: ParallelPlan, fixed: Stated) -> Columns:
    """Combinations with microbatches that divide a replica's share of the batch."""
    sizes = _only(fixed, "microbatch", divisors(base.global_batch))
    grown = crossed(kept(columns, base.global_batch % columns["dp"] == 0), "microbatch", sizes)
    return kept(grown, base.global_batch // grown["dp"] % grown["microbatch"] == 0)


def _pipelines(columns: Columns, model: Model, base: ParallelPlan, fixed: Stated) -> Columns:
    """Combinations with pipeline schedules, chunks, layers of stages and orders of the axes."""
    names, allowed = schedule_names(), _pairs(fixed)
    numbers = sorted({names.index(name) for name, _ in allowed})
    grown = crossed(columns, "schedule", numbers)
    numbers_of_chunks = sorted({fixed.get("vpp", 1), *(chunks for _, chunks in allowed)})
    grown = crossed(grown, "vpp", numbers_of_chunks)
    several = grown["pp"] > 1
    # A single stage has one schedule; several have each schedule with its numbers of chunks.
    alone = ~several & (grown["schedule"] == numbers[0]) & (grown["vpp"] == 1)
    numbered = [(names.index(name), chunks) for name, chunks in allowed]
    pipe = several & among(grown, ("schedule", "vpp"), numbered)
    pipe &= (grown["vpp"] == 1) | (grown["pp"] * grown["vpp"] <= model.layers)
    grown = crossed(kept(grown, alone | pipe), "ends", [EVEN, LIGHT_END])
    light = {pp: bool(light_end(model, pp, base.seq)) for pp in set(grown["pp"].tolist())}
    can = np.array([light[pp] for pp in grown["pp"].tolist()], np.bool_) & (grown["vpp"] == 1)
    grown = kept(grown, (grown["ends"] == EVEN) | can)
    orders = [fixed["order"]] if "order" in fixed else ORDERS
    grown = crossed(grown, "order", range(len(orders)))
    differ = (grown["dp"] > 1) & (grown["pp"] > 1)
    return kept(grown, differ | (grown["order"] == 0))


def _pairs(fixed: Stated) -> list[tuple[str, int]]:
    """Pipeline schedules that are tried, with each number of chunks a stage.

    >>> _pairs({"schedule": "gpipe"}), _pairs({"vpp": 4}), _pairs({"vpp": 5})
    ([('gpipe', 1)], [('interleaved', 4)], [('interleaved', 5)])
    """
    stated, chunks = fixed.get("schedule"), fixed.get("vpp")
    names = schedule_names() if stated is None else (stated,)
    schedules = {name: pipeline_schedule(name) for name in names}
    if stated is None:
        schedules = {name: each for name, each in schedules.items() if each.searched}
    if chunks is None:
        return [(name, each) for name in schedules for each in schedules[name].chunks_searched]
    usual = [(name, chunks) for name in schedules if chunks in schedules[name].chunks_searched]
    if usual:
        return usual
    # A number that is not tried by default is kept all the same, by a schedule that can have it.
    able = [name for name in schedules if chunks in schedules[name].chunks_allowed]
    able.sort(key=lambda name: len(schedules[name].chunks_searched))
    return [(name, chunks) for name in able[-1:]] or [(stated or DEFAULT, 1)]


def _memory_savings(columns: Columns, base: ParallelPlan, fixed: Stated) -> Columns:
    """Combinations with sharding over replicas and recomputation."""
    grown = crossed(columns, "zero", _only(fixed, "zero", range(4)))
    if "zero" not in fixed:
        shared = grown["dp"] * grown["cp"] > 1
        grown = kept(grown, shared | (grown["zero"] == 1))
    useless = "none" if base.attention == "fused" else None
    kinds = [n for n, kind in enumerate(RECOMPUTE) if kind == fixed.get("recompute", kind)]
    if "recompute" not in fixed:
        # A fused kernel keeps no scores, so selective recomputation would save nothing.
        kinds = [n for n in kinds if RECOMPUTE[n] != useless]
    return crossed(grown, "recompute", kinds)


def with_overlaps(columns: Columns, base: ParallelPlan, *, compared: bool) -> Columns:
    """Return the combinations with the overlap that all plans share, or with each overlap."""
    return crossed(columns, "overlap", range(3) if compared else [OVERLAPS.index(base.overlap)])


def light_end(model: Model, pp: int, seq: int) -> tuple[int, ...]:
    """Return the layers of each stage if the last one has fewer, to make up for the output layer.

    Empty if layers are divided in this way anyway, or cannot be.

    The output layer of llama-3.1-8b takes as long as two of its 32 layers:
    """
    if pp == 1:
        return ()
    output = 2 * model.vocab * model.hidden / layer_flops(model, seq, moe=bool(model.experts))
    last = max(1, round((model.layers + output) / pp - output))
    if model.layers - last < pp - 1:
        return ()
    most, more = divmod(model.layers - last, pp - 1)
    counts = (*(most + (stage < more) for stage in range(pp - 1)), last)
    return () if counts == layer_counts(model.layers, pp) else counts


def _only(fixed: Stated, name: str, values: Sequence[int]) -> list[int]:
    """Stated value of a field, or all values that are tried."""
    return [int(fixed[name])] if name in fixed else list(values)
