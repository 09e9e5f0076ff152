"""Candidates: all plans that divide a model, a batch and a cluster and that no rule leaves out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cluster_sim.collectives.duration.nccl import reduces_in_switch
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import BoolArray, IntArray
from topologies.support.errors import InputError
from workloads.kernels.times import step_overhead_s
from workloads.models.model import Model, layer_flops, output_flops
from workloads.training.detail import chip_catalogue
from workloads.training.frameworks.framework import RUNS, framework, framework_text
from workloads.training.plan.other_tools import field_value
from workloads.training.plan.plan import (
    ORDER,
    PLAN_FIELDS,
    Overlap,
    ParallelPlan,
    Recompute,
    check_field,
)
from workloads.training.plan.schedules.registry import DEFAULT, pipeline_schedule, schedule_names
from workloads.training.plan.stages import check_model, check_runtime, chunk_numbers, even_layers
from workloads.training.program.groups import routing_mistake
from workloads.training.usual_plan import complete

# Table of combinations of fields, which grows field by field and is filtered on the way.

Columns = Mapping[str, IntArray]
"""An int64 array for each field of a plan, all of one length. A value that is not a number stands
as its place among the field's choices."""


def rows(columns: Columns) -> int:
    """Count the combinations."""
    return len(next(iter(columns.values())))


def crossed(columns: Columns, name: str, values: Sequence[int] | IntArray) -> Columns:
    """Return every row with each of some values of a further field."""
    grown = {key: np.repeat(column, len(values)) for key, column in columns.items()}
    return {**grown, name: np.tile(np.asarray(values, np.int64), rows(columns))}


def kept(columns: Columns, which: BoolArray) -> Columns:
    """Return the rows for which ``which`` is true."""
    return {key: column[which] for key, column in columns.items()}


def among(columns: Columns, names: Sequence[str], allowed: Sequence[tuple[Any, ...]]) -> BoolArray:
    """Return whether each row's values of some fields are one of these tuples."""
    listed = np.zeros(rows(columns), np.bool_)
    for values in allowed:
        same = [columns[name] == value for name, value in zip(names, values, strict=True)]
        listed |= np.logical_and.reduce(same)
    return listed


def divisors(size: int) -> list[int]:
    """Return all divisors of a number, ascending; 0 has none."""
    low = [part for part in range(1, int(size**0.5) + 1) if size % part == 0]
    return sorted({*low, *(size // part for part in low)})


DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero")
EXCHANGES = ("routed_nodes", "fp8_exchange")  # fields that only plans with expert parallelism have
VARIED = (
    *DEGREES, "sequence_parallel", "schedule", "recompute", "overlap", "order", "stage_layers",
    "global_batch",
)  # fmt: skip
SHARED = tuple(name for name in PLAN_FIELDS if name not in (*VARIED, *EXCHANGES))
"""Fields that are the same in all candidates: all but those that a search or its frame sets."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Plans that a search chooses from."""

    model: Model
    cluster: Cluster
    plans: tuple[ParallelPlan, ...]  # plans that no rule leaves out
    considered: int  # number of plans that divide model, batch and cluster
    pruned: Mapping[str, int]  # number of plans that were left out, by reason

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
    chips: int | None = None,
) -> Candidates:
    """Return the plans that use all of a cluster and divide the model and the batch."""
    # All of it are its first ``chips`` where their number is stated.
    # ``stated`` fields are not varied; None counts as not stated. Fields of ``spared`` leave out no
    # plan whatever their values; ``overlap`` is varied only if it is among them and not stated.
    chip_catalogue(cluster)  # refuses a plain shape
    entered = (stated or {}).items()
    fixed = {name: field_value(name, value) for name, value in entered if value is not None}
    for name, value in fixed.items():
        check_field(name, value)
    base = _base(model, cluster, global_batch, fixed, lnc=lnc, chips=chips)
    ranks = (chips or cluster.chips) * base.ranks_per_chip
    framework(base.framework).check_chip(cluster)
    on_stack = framework(base.framework).on(cluster, model)
    check_alone(model, base, fixed)
    check_runtime(base, on_stack)
    compared = "overlap" in spared and "overlap" not in fixed
    overlaps = range(3) if compared else [OVERLAPS.index(base.overlap)]
    grid = crossed(combinations(model, on_stack, base, fixed, ranks), "overlap", overlaps)
    frame = _able(grid, Frame(model, on_stack, base, ranks), fixed, cluster)
    left, unable = sieve(grid, frame, set(fixed), ABLE)
    left, pruned = sieve(left, frame, {*fixed, *spared}, RULES)
    plans = _routable(_plans(model, frame.base, left, fixed), frame.cluster)
    return Candidates(model, frame.cluster, plans, rows(grid), unable | pruned)


def _able(grid: Columns, frame: Frame, fixed: Stated, cluster: Cluster) -> Frame:
    """Return the frame with a framework that runs a combination, where its own runs none."""
    left, _ = sieve(grid, frame, set(fixed), ABLE)
    (first,) = _plans(frame.model, frame.base, kept(left, np.arange(rows(left)) == 0), fixed)
    stack = framework(frame.base.framework)
    if {name for name, _ in stack.lacks(first)} <= set(fixed):
        return frame
    if first.names_framework:
        stack.check_plan(first, cluster)
    usual = framework_text(fixed.get("framework", ""), cluster, vars(first))
    on_stack = framework(usual).on(cluster, frame.model)
    return replace(frame, base=replace(frame.base, framework=usual), cluster=on_stack)


def _base(
    model: Model, cluster: Cluster, global_batch: int, fixed: Stated, **size: int | None
) -> ParallelPlan:
    # With replicas of one rank each, every cluster has a plan, so defaults can be completed.
    sizes = {name: fixed[name] for name in ("seq", "ranks_per_chip") if name in fixed}
    usual = complete(sizes, model, cluster, **size)
    same = {name: fixed[name] for name in (*SHARED, "overlap") if name in fixed}
    sizes = {"seq": usual.seq, "ranks_per_chip": usual.ranks_per_chip}
    # All plans of a search are run by one framework, so that none wins by another's kernels.
    text = same.get("framework", "")
    same["framework"] = framework_text(text, cluster, {**fixed, **same})
    # Its way to issue work is the framework's, as in a step of train.
    issued = framework(same["framework"]).plan.get("runtime", usual.runtime)
    fields = {**sizes, "runtime": issued, **same, "global_batch": global_batch}
    return ParallelPlan(**fields, assumed=() if text[:1] not in ("", ":") else ("framework",))


def _routable(plans: tuple[ParallelPlan, ...], cluster: Cluster) -> tuple[ParallelPlan, ...]:
    """Plans whose experts can be reached by sending tokens once to each server."""
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
    names = schedule_names()
    same = {name: getattr(base, name) for name in (*SHARED, "global_batch")}
    same |= {name: fixed[name] for name in EXCHANGES if name in fixed}
    same["assumed"] = base.assumed
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


# Rules that leave out plans which cannot be the best, each with its reason.
# A rule judges the values of a field. It is not applied if the user stated that field, or if it
# would leave out all plans.

LEAST_TOKENS = 4096  # fewest tokens of a sequence on a rank for which context parallelism is tried
MOST_TOKENS = 32768
"""Most tokens of a microbatch of several sequences; larger products are no faster."""
MOST_UNEVEN = 1.25  # largest ratio of the layers of the longest stage to the mean of all stages


@dataclass(frozen=True)
class Frame:
    """Facts that all plans share and rules use besides the columns."""

    model: Model
    cluster: Cluster
    base: ParallelPlan
    ranks: int


@dataclass(frozen=True)
class Rule:
    """A reason to leave out plans, and the plans that it applies to."""

    reason: str  # reason in words, as the output lists it
    judges: str  # field whose values the rule judges
    # Function that returns the plans to leave out, bool (rows,)
    leaves_out: Callable[[Columns, Frame], BoolArray]


def _microbatches(c: Columns, frame: Frame) -> IntArray:
    return frame.base.global_batch // (c["dp"] * c["microbatch"])


def _longest(c: Columns, frame: Frame) -> IntArray:
    """Layers of the longest stage, where layers are divided evenly among chunks."""
    longest = np.zeros(rows(c), np.int64)
    for values in {*zip(*(c[name].tolist() for name in PIPELINE), strict=True)}:
        number, _ = chunk_numbers(schedule_names()[values[0]], *values[1:])
        counts = np.array(even_layers(frame.model, number.size))
        longest[among(c, PIPELINE, [values])] = counts[number].sum(axis=1).max()
    return longest


def _norms_again(c: Columns, frame: Frame) -> BoolArray:
    halves_as_fast = not reduces_in_switch(frame.cluster)
    could = halves_as_fast & (c["tp"] > 1) & (c["divides_sequence"] == 1)
    return np.asarray(could & (c["sequence_parallel"] == 0))


def _all_reduced(c: Columns, frame: Frame) -> BoolArray:
    # On some stacks a sharded optimizer takes seconds that a plain one does not.
    end_s = step_overhead_s(frame.cluster.chip, frame.ranks, catalogue=frame.cluster.catalogue)
    return np.asarray((end_s == 0) & (c["zero"] == 0) & (c["dp"] * c["cp"] > 1))


def _cut_experts(c: Columns, frame: Frame) -> BoolArray:
    count = frame.model.experts.count if frame.model.experts else 1
    parts = np.where(c["etp"] == 0, c["tp"], c["etp"])
    return np.asarray((parts > 1) & (count % (c["ep"] * parts) == 0) & (count > 1))


def _not_run(field: str) -> Callable[[Columns, Frame], BoolArray]:
    """Return the function that finds plans whose framework cannot run their value of a field."""

    def leaves_out(c: Columns, frame: Frame) -> BoolArray:
        """Look up the values of the framework that all plans have."""
        able = framework(frame.base.framework).runs.get(field)
        if able is None:
            return np.zeros(rows(c), np.bool_)
        if field == "schedule":
            return (c["pp"] > 1) & ~np.isin(c[field], [schedule_names().index(n) for n in able])
        return ~np.isin(c[field], able)

    return leaves_out


ABLE = tuple(Rule(f"{name} that the framework cannot run", name, _not_run(name)) for name in RUNS)
"""Rules that hold whatever fields are spared: the framework refuses the plans."""
RULES = (
    Rule(
        "tensor parallel groups wider than a scale-up domain",
        "tp",
        lambda c, of: c["tp"] > of.cluster.chips_per_domain * of.base.ranks_per_chip,
    ),
    Rule(
        f"sequences cut below {LEAST_TOKENS:,} tokens a rank",
        "cp",
        lambda c, of: (c["cp"] > 1) & (of.base.seq // c["cp"] < LEAST_TOKENS),
    ),
    Rule(
        f"several sequences at once of over {MOST_TOKENS:,} tokens a rank",
        "microbatch",
        lambda c, of: (
            (c["microbatch"] > 1) & (c["microbatch"] * of.base.seq // c["cp"] > MOST_TOKENS)
        ),
    ),
    Rule(
        "a bubble longer than the work",
        "pp",
        lambda c, of: np.asarray(c["pp"] - 1 > c["vpp"] * _microbatches(c, of)),
    ),
    Rule(
        "interleaving of fewer microbatches than stages",
        "vpp",
        lambda c, of: (c["vpp"] > 1) & (_microbatches(c, of) < c["pp"]),
    ),
    Rule(
        "a stage a quarter longer than the mean",
        "pp",
        lambda c, of: _longest(c, of) * c["pp"] > MOST_UNEVEN * of.model.layers,
    ),
    Rule(
        "tensor without sequence parallelism: the same bytes sent, norms repeated",
        "sequence_parallel",
        _norms_again,
    ),
    Rule("experts cut in parts where whole ones could be spread as far", "etp", _cut_experts),
    Rule("ZeRO 0: more bytes to send and to hold than ZeRO 1", "zero", _all_reduced),
)


def sieve(
    columns: Columns, frame: Frame, settled: Collection[str], rules: Sequence[Rule]
) -> tuple[Columns, dict[str, int]]:
    """Apply rules one after the other."""
    pruned: dict[str, int] = {}
    for rule in rules:
        out = rule.leaves_out(columns, frame)
        if rule.judges in settled or out.all() or not out.any():
            continue
        pruned[rule.reason] = int(out.sum())
        columns = kept(columns, ~out)
    return columns, pruned


# Messages for searches without any plan: the field in the way, and a value that works.

ALONE = (
    "tp", "pp", "dp", "cp", "ep", "etp", "vpp", "microbatch", "zero", "sequence_parallel",
    "schedule", "recompute",
)  # fmt: skip
"""Fields that can be wrong whatever the other fields are."""
PIPELINE = ("schedule", "pp", "vpp")  # fields that tell which stage holds which chunks
REPLICA = ("tp", "pp", "dp", "cp")  # degrees whose product is the number of ranks


def check_alone(model: Model, base: ParallelPlan, fixed: Mapping[str, Any]) -> None:
    """Refuse a stated field that is wrong whatever the other fields are."""
    # Each field is checked in a plan whose other fields allow as much as possible.
    check_model(base, model)
    alone = {name: fixed[name] for name in ALONE if name in fixed}
    alone.setdefault("vpp", pipeline_schedule(fixed.get("schedule", DEFAULT)).chunks_allowed[0])
    once = _positive(fixed.get("dp")) * _positive(fixed.get("microbatch"))
    # As many replicas as any division of experts needs, and two stages if there are chunks.
    room = _positive(fixed.get("ep")) * _positive(fixed.get("etp"))
    pipe = {"pp": 2} if _positive(alone["vpp"]) > 1 and "pp" not in fixed else {}
    wide = {"dp": room, "global_batch": room * once} if "dp" not in fixed else {}
    split = {"sequence_parallel": False} if "sequence_parallel" not in fixed else {}
    order = fixed.get("order", ORDER)
    ParallelPlan(**{"global_batch": once, **alone, **pipe, **wide, **split, "order": order})
    for name in ("tp", "pp", "cp", "ep", "etp", "vpp"):
        if name in fixed:
            stated = {name: fixed[name], **({"pp": fixed.get("pp", 2)} if name == "vpp" else {})}
            flags = bool(fixed.get("sequence_parallel", False)) and name == "tp"
            how = {"seq": base.seq, "sequence_parallel": flags, "attention": base.attention}
            replicas = {"dp": room, "global_batch": room} if name in ("ep", "etp") else {}
            check_model(ParallelPlan(**{**stated, **how, **replicas}), model)


def _positive(value: Any) -> int:
    """Value itself if it is a positive whole number, else 1."""
    return value if isinstance(value, int) and value > 0 else 1


def no_degrees(model: Model, cluster: Cluster, fixed: Mapping[str, Any], ranks: int) -> str:
    """Return the message for stated degrees that no others complete to the number of ranks."""
    stated = " × ".join(f"{name} {fixed[name]}" for name in REPLICA if name in fixed)
    if not stated:
        stated = ", ".join(f"{name} {fixed[name]}" for name in ("ep", "etp") if name in fixed)
    possible = divisors(ranks)
    shown = ", ".join(map(str, possible[:12])) + " …" * (len(possible) > 12)
    return (
        f"{stated} cannot be completed to the {ranks:,} ranks of {cluster.name} with degrees that "
        f"divide {model.name}. Use divisors of {ranks:,} ({shown}) or state fewer degrees."
    )


def no_batch(base: ParallelPlan, fewest: int, fixed: Mapping[str, Any]) -> str:
    """Return the message for a batch that no plan divides, with batches that work."""
    # ``fewest`` is the smallest number of replicas that a plan has.
    microbatch = fixed.get("microbatch", 1)
    sequences = fewest * microbatch
    below = base.global_batch // sequences * sequences
    near = f"{below:,} or {below + sequences:,}" if below else f"{sequences:,}"
    return (
        f"global batch {base.global_batch:,} is not a multiple of dp × microbatch for any plan: "
        f"the fewest replicas are dp {fewest:,} with microbatch {microbatch} = {sequences:,}. "
        f"Use {near}."
    )


def no_pipeline(model: Model, cluster: Cluster, fixed: Mapping[str, Any], ranks: int) -> str:
    """Return the message for stated chunks that no number of stages leaves a layer each."""
    chunks = fixed.get("vpp", 1)
    stages = fixed.get("pp") or next((degree for degree in divisors(ranks) if degree > 1), 1)
    stated = f"vpp {chunks} with pp {stages}" if "pp" in fixed else f"vpp {chunks}"
    if stages == 1 or model.layers < 2 * stages:
        return (
            f"{stated} divides the stages of a pipeline, and {model.name} with {model.layers} "
            f"layers has none to divide on the {ranks:,} ranks of {cluster.name}. Leave vpp out."
        )
    return (
        f"{stated} cannot divide the {model.layers} layers of {model.name} on the {ranks:,} ranks "
        f"of {cluster.name}: the fewest stages are {stages}, and each chunk needs a layer. Use vpp "
        f"{model.layers // stages} or less."
    )


# Combinations of a plan's fields that divide a model, a batch and a cluster.
# Fields that make no difference are not varied: without tensor parallelism there is no sequence
# parallelism, without pipeline stages no pipeline schedule, and with a single replica no sharding
# over replicas and no order of axes.

ORDERS = (ORDER, ("tp", "cp", "pp", "dp"))
"""Orders of the axes that are tried, with replicas or pipeline stages on neighbouring chips."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
OVERLAPS: tuple[Overlap, ...] = ("none", "dp", "all")
"""Overlaps by number. As they depend on the framework, they are varied only to be compared."""
EVEN, LIGHT_END = range(2)
"""Ways to divide layers among stages: evenly, or with fewer on the stage of the output layer."""

Stated = Mapping[str, Any]  # fields of a plan that the user stated


def combinations(
    model: Model, cluster: Cluster, base: ParallelPlan, fixed: Stated, ranks: int
) -> Columns:
    """Return the combinations that divide model, batch and ranks of a cluster."""
    columns = _degrees(model, base, fixed, ranks)
    if not rows(columns):
        raise InputError(no_degrees(model, cluster, fixed, ranks))
    dp = columns["dp"]
    sizes = _only(fixed, "microbatch", divisors(base.global_batch))
    columns = crossed(kept(columns, base.global_batch % dp == 0), "microbatch", sizes)
    columns = kept(columns, base.global_batch // columns["dp"] % columns["microbatch"] == 0)
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
    no_fields = {"row": np.zeros(1, np.int64)}
    columns = crossed(crossed(no_fields, "tp", tps), "cp", cps)
    columns = crossed(columns, "sequence_parallel", _only(fixed, "sequence_parallel", (0, 1)))
    names = ("tp", "cp", "sequence_parallel")
    pairs = {
        (tp, cp, split): _divides(model, replace(base, tp=tp, cp=cp, sequence_parallel=bool(split)))
        for tp, cp, split in zip(*(columns[name].tolist() for name in names), strict=True)
        if tp > 1 or split == columns["sequence_parallel"].min()
    }
    columns = kept(columns, among(columns, names, [pair for pair, fits in pairs.items() if fits]))
    # Rules ask whether sequence parallelism would be possible with these degrees.
    dividing = [pair[:2] for pair, fits in pairs.items() if fits and pair[2]]
    divides_sequence = among(columns, ("tp", "cp"), dividing).astype(np.int64)
    columns = {**columns, "divides_sequence": divides_sequence}
    layers = model.most_stages // max(1, fixed.get("vpp", 1))
    columns = crossed(columns, "pp", [d for d in _only(fixed, "pp", inner) if d <= layers])
    replica = columns["tp"] * columns["cp"] * columns["pp"]
    columns = {**columns, "dp": ranks // replica}
    whole_dp = (ranks % replica == 0) & (columns["dp"] == fixed.get("dp", columns["dp"]))
    return _experts(kept(columns, whole_dp), model, fixed)


def _divides(model: Model, plan: ParallelPlan) -> bool:
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
    grown = crossed(crossed(columns, "ep", degrees), "etp", _only(fixed, "etp", (0, 1)))
    if "etp" not in fixed:
        grown = kept(grown, (grown["tp"] > 1) | (grown["etp"] == 0))
    divided = np.where(grown["etp"] == 0, grown["tp"], grown["etp"])
    room = grown["tp"] * grown["cp"] * grown["dp"]
    return kept(grown, (room % (grown["ep"] * divided) == 0) & (experts.ffn % divided == 0))


def _pipelines(columns: Columns, model: Model, base: ParallelPlan, fixed: Stated) -> Columns:
    """Combinations with pipeline schedules, chunks, layers of stages and orders of the axes."""
    allowed = [(schedule_names().index(name), chunks) for name, chunks in _pairs(fixed)]
    numbers = sorted({number for number, _ in allowed})
    grown = crossed(columns, "schedule", numbers)
    numbers_of_chunks = sorted({fixed.get("vpp", 1), *(chunks for _, chunks in allowed)})
    grown = crossed(grown, "vpp", numbers_of_chunks)
    several = grown["pp"] > 1
    # A single stage has one schedule; several have each schedule with its numbers of chunks.
    alone = ~several & (grown["schedule"] == numbers[0]) & (grown["vpp"] == 1)
    pipe = several & among(grown, ("schedule", "vpp"), allowed)
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
    """Pipeline schedules that are tried, with each number of chunks a stage."""
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
    grown = crossed(columns, "zero", _only(fixed, "zero", range(4)))
    if "zero" not in fixed:
        shared = grown["dp"] * grown["cp"] > 1
        grown = kept(grown, shared | (grown["zero"] == 1))
    # A fused kernel keeps no scores, so selective recomputation is the same as none.
    kinds = RECOMPUTE[1:] if base.attention == "fused" else RECOMPUTE
    kinds = (fixed["recompute"],) if "recompute" in fixed else kinds
    return crossed(grown, "recompute", [RECOMPUTE.index(kind) for kind in kinds])


def light_end(model: Model, pp: int, seq: int) -> tuple[int, ...]:
    """Return the layers of each stage if the last has fewer, to make up for the output layer."""
    # Empty if layers are divided in this way anyway, or cannot be.
    # The output layer of llama-3.1-8b takes as long as two of its 32 layers:
    if pp == 1:
        return ()
    output = output_flops(model) / layer_flops(model, seq, moe=bool(model.experts))
    last = max(1, model.prediction_heads, round((model.layers + output) / pp - output))
    if model.layers - last < pp - 1:
        return ()
    most, more = divmod(model.layers - last, pp - 1)
    counts = (*(most + (stage < more) for stage in range(pp - 1)), last)
    return () if counts == even_layers(model, pp) else counts


def _only(fixed: Stated, name: str, values: Sequence[int]) -> list[int]:
    """Stated value of a field, or all values that are tried."""
    return [int(fixed[name])] if name in fixed else list(values)
