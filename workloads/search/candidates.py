"""Candidates: every plan that divides a model, a batch and a cluster, except those ruled out.

What makes no difference is not varied: a plan without tensor parallelism has no sequence
parallelism, one without pipeline stages no pipeline schedule, one with a single replica no
sharding over replicas and no order of axes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.flops import layer_flops
from workloads.models.model import Model
from workloads.search.grid import Columns, among, crossed, divisors, kept, one_row, rows
from workloads.search.refusals import check_alone, no_batch, no_degrees
from workloads.search.rules import Frame, sieve
from workloads.training.plan.checks import check_model, check_runtime
from workloads.training.plan.fields import ORDER, Overlap, Recompute
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.plan_file import complete
from workloads.training.plan.schedules import pipeline_schedule, schedule_names
from workloads.training.plan.schedules.registry import DEFAULT
from workloads.training.plan.stage_layers import layer_counts
from workloads.training.program.expert_exchange import routing_mistake

ORDERS = (ORDER, ("tp", "cp", "pp", "dp"))
"""Orders of the axes that are tried: replicas or pipeline stages next to each other."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
OVERLAPS: tuple[Overlap, ...] = ("none", "dp", "all")
"""Overlaps by number. They say what a framework does, so they are tried only to be compared."""
SHARED = (
    "seq", "precision", "fp8_recipe", "attention", "ranks_per_chip", "cp_exchange",
    "routing_skew", "capacity_factor", "bucket_bytes", "recompute_every", "reshard",
    "lora_rank", "lora_on", "train_only", "runtime",
)  # fmt: skip
"""Fields that are the same in all candidates."""
EXCHANGES = ("routed_nodes", "fp8_exchange")
"""Fields that only plans with expert parallelism have."""
DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero")
EVEN, LIGHT_END = range(2)
"""Ways to spread layers over stages: evenly, or with fewer before the output layer."""

Stated = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans to choose from.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    plans : tuple of ParallelPlan
    considered : int
        Plans that divide model, batch and cluster.
    pruned : mapping of str to int
        Number of plans that were left out, by reason.
    """

    model: Model
    cluster: Cluster
    plans: tuple[ParallelPlan, ...]
    considered: int
    pruned: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.plans)


def candidates(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    stated: Stated | None = None,
    spared: Collection[str] = (),
    lnc: int | None = None,
) -> Candidates:
    """Return the plans that use all of a cluster and divide the model and the batch.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    global_batch : int
        Sequences of one optimizer step.
    stated : mapping, optional
        Fields of :class:`~workloads.training.plan.plan.ParallelPlan` that are not to be varied;
        None counts as not stated.
    spared : collection of str
        Further fields by which no plan is left out; ``overlap`` is varied only if it is one.
    lnc : int, optional
        Physical cores of a logical one, which says how many ranks a chip has.

    Raises
    ------
    InputError
        For a field that is wrong by itself, and when no plan divides everything.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> searched = candidates(named("llama-3.1-8b"), cluster("trn2.48xlarge"), 64)
    >>> sorted({plan.tp for plan in searched.plans})
    [1, 2, 4, 8, 16]
    """
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    fixed = {name: value for name, value in (stated or {}).items() if value is not None}
    if isinstance(fixed.get("order"), str):
        fixed["order"] = tuple(fixed["order"].split("-"))
    base = _base(model, cluster, global_batch, fixed, lnc)
    check_alone(model, cluster, base, fixed)
    check_runtime(base, cluster)
    grid = _overlaps(_grid(model, cluster, base, fixed), base, compared="overlap" in spared)
    left, pruned = sieve(grid, Frame(model, cluster, base), {*fixed, *spared})
    plans = _routable(_plans(model, base, left, fixed), cluster)
    return Candidates(model, cluster, plans, rows(grid), pruned)


def _base(
    model: Model, cluster: Cluster, global_batch: int, fixed: Stated, lnc: int | None
) -> ParallelPlan:
    """Facts that all candidates share."""
    # A replica of one rank on every rank of the cluster is a plan of any cluster.
    sizes = {name: fixed[name] for name in ("seq", "ranks_per_chip") if name in fixed}
    usual = complete(sizes, model, cluster, lnc=lnc)
    same = {name: fixed[name] for name in (*SHARED, "overlap") if name in fixed}
    sizes = {"seq": usual.seq, "ranks_per_chip": usual.ranks_per_chip}
    return ParallelPlan(**{**sizes, **same, "global_batch": global_batch})


def _grid(model: Model, cluster: Cluster, base: ParallelPlan, fixed: Stated) -> Columns:
    """All plans that divide everything, by the places of their fields' values."""
    ranks = cluster.chips * base.ranks_per_chip
    columns = _degrees(model, base, fixed, ranks)
    if not rows(columns):
        raise InputError(no_degrees(model, cluster, fixed, ranks))
    dp = columns["dp"]
    columns = _microbatches(columns, base, fixed)
    if not rows(columns):
        raise InputError(no_batch(base, int(dp.min()), fixed))
    return _memory_savings(_pipelines(columns, model, base, fixed), base, fixed)


def _degrees(model: Model, base: ParallelPlan, fixed: Stated, ranks: int) -> Columns:
    """tp, cp, pp and dp whose product is the number of ranks, then ep and etp within a stage."""
    inner, alone = divisors(ranks), replace(base, sequence_parallel=False)
    # What one degree does not divide by itself, no pair with it does.
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
    whole = [pair[:2] for pair, fits in pairs.items() if fits and pair[2]]
    columns = {**columns, "divides_sequence": among(columns, ("tp", "cp"), whole).astype(np.int64)}
    layers = model.layers // max(1, fixed.get("vpp", 1))
    columns = crossed(columns, "pp", [d for d in _only(fixed, "pp", inner) if d <= layers])
    replica = columns["tp"] * columns["cp"] * columns["pp"]
    columns = {**columns, "dp": ranks // replica}
    whole_dp = (ranks % replica == 0) & (columns["dp"] == fixed.get("dp", columns["dp"]))
    return _experts(kept(columns, whole_dp), model, fixed)


def _divides(model: Model, plan: ParallelPlan) -> bool:
    """Return whether the trainer takes these degrees."""
    try:
        check_model(plan, model)
    except InputError:
        return False
    return True


def _experts(columns: Columns, model: Model, fixed: Stated) -> Columns:
    """Expert parallel degrees; an expert is whole on a rank, or divided by tensor parallelism."""
    some, exchanges = model.experts, [name for name in EXCHANGES if fixed.get(name)]
    if some is None and exchanges:
        raise InputError(
            f"{exchanges[0].replace('_', ' ')} is about exchanges of experts, but {model.name} has "
            "none. Leave it out."
        )
    if some is None:
        return crossed(crossed(columns, "ep", [1]), "etp", [fixed.get("etp", 0)])
    degrees = [ep for ep in _only(fixed, "ep", divisors(some.count)) if ep > 1 or not exchanges]
    grown = crossed(columns, "ep", degrees)
    if "etp" in fixed:
        grown = crossed(grown, "etp", [fixed["etp"]])
    else:
        grown = crossed(grown, "etp", [0, 1])
        grown = kept(grown, (grown["tp"] > 1) | (grown["etp"] == 0))
    divided = np.where(grown["etp"] == 0, grown["tp"], grown["etp"])
    room = grown["tp"] * grown["cp"] * grown["dp"]
    return kept(grown, (room % (grown["ep"] * divided) == 0) & (some.ffn % divided == 0))


def _microbatches(columns: Columns, base: ParallelPlan, fixed: Stated) -> Columns:
    """Microbatches that divide a replica's share of the batch."""
    sizes = _only(fixed, "microbatch", divisors(base.global_batch))
    grown = crossed(kept(columns, base.global_batch % columns["dp"] == 0), "microbatch", sizes)
    return kept(grown, base.global_batch // grown["dp"] % grown["microbatch"] == 0)


def _pipelines(columns: Columns, model: Model, base: ParallelPlan, fixed: Stated) -> Columns:
    """Schedules, chunks, layers of the stages and order of the axes."""
    names, allowed = schedule_names(), _pairs(fixed)
    numbers = sorted({names.index(name) for name, _ in allowed})
    grown = crossed(columns, "schedule", numbers)
    numbers_of_chunks = sorted({fixed.get("vpp", 1), *(chunks for _, chunks in allowed)})
    grown = crossed(grown, "vpp", numbers_of_chunks)
    several = grown["pp"] > 1
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
    """Pipeline schedules that are tried, each with each of its numbers of chunks a stage.

    Examples
    --------
    >>> _pairs({"schedule": "gpipe"}), _pairs({"vpp": 4})
    ([('gpipe', 1)], [('interleaved', 4)])
    """
    stated, chunks = fixed.get("schedule"), fixed.get("vpp")
    pairs = []
    for name in schedule_names() if stated is None else (stated,):
        schedule = pipeline_schedule(name)
        if stated is None and not schedule.searched:
            continue
        tried = schedule.chunks_searched if stated is None else schedule.chunks_allowed
        if chunks is None:
            pairs += [(name, each) for each in schedule.chunks_searched]
        elif chunks in tried:
            pairs.append((name, chunks))
    return pairs or [(stated or DEFAULT, 1)]


def _memory_savings(columns: Columns, base: ParallelPlan, fixed: Stated) -> Columns:
    """Sharding over replicas, and recomputation."""
    grown = crossed(columns, "zero", _only(fixed, "zero", range(4)))
    if "zero" not in fixed:
        shared = grown["dp"] * grown["cp"] > 1
        grown = kept(grown, shared | (grown["zero"] == 1))
    useless = "none" if base.attention == "fused" else None
    kinds = [n for n, kind in enumerate(RECOMPUTE) if kind == fixed.get("recompute", kind)]
    if "recompute" not in fixed:
        # A fused kernel keeps no scores, so there is nothing selective to compute again.
        kinds = [n for n in kinds if RECOMPUTE[n] != useless]
    return crossed(grown, "recompute", kinds)


def _overlaps(columns: Columns, base: ParallelPlan, *, compared: bool) -> Columns:
    """The overlap that all share, or each of them."""
    return crossed(columns, "overlap", range(3) if compared else [OVERLAPS.index(base.overlap)])


def light_end(model: Model, pp: int, seq: int) -> tuple[int, ...]:
    """Layers of each stage with as many fewer in the last as the output layer weighs.

    Returns
    -------
    tuple of int
        Empty where that is how they are spread anyway.

    Examples
    --------
    The output layer of llama-3.1-8b is worth two of its 32 layers:

    >>> from workloads.models.huggingface import named
    >>> light_end(named("llama-3.1-8b"), 4, 4096)
    (9, 9, 8, 6)
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
    return [int(fixed[name])] if name in fixed else list(values)


def _routable(plans: tuple[ParallelPlan, ...], cluster: Cluster) -> tuple[ParallelPlan, ...]:
    """Return the plans whose experts are on at least as many servers as tokens are sent to."""
    routed = [plan for plan in plans if plan.routed_nodes]
    if not routed:
        return plans
    reasons = {plan: routing_mistake(plan, cluster) for plan in routed}
    if all(reasons.values()):
        raise InputError(next(iter(reasons.values())))
    return tuple(plan for plan in plans if not reasons[plan])


def _plans(
    model: Model, base: ParallelPlan, columns: Columns, fixed: Stated
) -> tuple[ParallelPlan, ...]:
    """The rows as plans."""
    names = schedule_names()
    same = {name: getattr(base, name) for name in (*SHARED, "global_batch")}
    same |= {name: fixed[name] for name in EXCHANGES if name in fixed}
    orders = [fixed["order"]] if "order" in fixed else ORDERS
    listed = {name: column.tolist() for name, column in columns.items()}
    spread = {pp: light_end(model, pp, base.seq) for pp in set(listed["pp"])}
    return tuple(
        ParallelPlan(
            **same,
            **{name: listed[name][row] for name in DEGREES},
            sequence_parallel=bool(listed["sequence_parallel"][row]),
            schedule=names[listed["schedule"][row]],
            recompute=RECOMPUTE[listed["recompute"][row]],
            overlap=OVERLAPS[listed["overlap"][row]],
            order=orders[listed["order"][row]],
            stage_layers=spread[listed["pp"][row]] if listed["ends"][row] == LIGHT_END else (),
        )
        for row in range(rows(columns))
    )
