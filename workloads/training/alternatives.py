"""Alternatives of a plan: other values of the fields that nobody stated, and the times they give.

A field that was not stated has a usual value, but the run that a user asks about may have another.
The hull of the plausible times is what such a question leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.confidence.answers import kernels_assumed
from workloads.confidence.interval import Interval
from workloads.confidence.kinds import BARE, FRAMEWORK, PLAN, Prediction, training_kind
from workloads.confidence.split_conformal import interval, margin
from workloads.models.model import Model
from workloads.training.frameworks.framework import framework, framework_of, names
from workloads.training.plan.checks import check_model
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT, schedule_of_chunks
from workloads.training.usual_plan import fits

Times = Callable[[ParallelPlan], float]  # function that returns the time of a step of a plan [s]


class Alternative(NamedTuple):
    """Another value of a field that nobody stated."""

    field: str  # field of the plan
    value: Any  # its other value
    ratio: float  # time of a step with it, over that of the plan as completed
    # Fields that it changes: a framework brings its own values of what nobody stated.
    changes: frozenset[str] = frozenset()


def alternatives(
    plan: ParallelPlan, model: Model, cluster: Cluster, times: Times
) -> tuple[Alternative, ...]:
    """Return the plausible values of each field that nobody stated, with their times."""
    # One field is changed at a time. A value that the plan refuses, or with which it does not fit
    # in memory, is not plausible. The cluster is that without the numbers of the plan's framework,
    # as others have their own. ``times`` is called for the plan itself too, so that all are of one
    # level of detail.
    if not plan.assumed:
        return ()
    others, seconds = [], times(plan)
    for changes in _changes(plan, model, cluster):
        other = _runnable(plan, changes, model, cluster)
        if other is None or other == plan:
            continue
        (name, value), *_ = changes.items()
        if changes.get("recompute_every", 1) > 1:
            value = f"{value} in every other layer"
        try:
            ratio = times(other) / seconds
        except InputError:
            continue
        moved = {field for field in PLAN_FIELDS if getattr(other, field) != getattr(plan, field)}
        others.append(Alternative(name, value, ratio, frozenset(moved)))
    return tuple(others)


def _runnable(
    plan: ParallelPlan, changes: Mapping[str, Any], model: Model, cluster: Cluster
) -> ParallelPlan | None:
    """Return the plan with changes if its framework runs it and it fits in memory, else None."""
    # Parameters that are sharded are gathered for each microbatch, so whoever shards them has few
    # and large ones: the largest that fits, where nobody stated its size.
    sizes = [plan.microbatch]
    if "microbatch" in plan.assumed and changes.get("zero") == 3 and plan.zero < 3 and plan.pp == 1:
        sizes = [
            each
            for each in range(plan.global_batch // plan.dp, 0, -1)
            if plan.global_batch // plan.dp % each == 0
        ]
    for size in sizes:
        try:
            other = replace(plan, **{"microbatch": size, **changes})
            check_model(other, model)
            on_stack = framework_of(other, cluster).on(cluster, model)
            if fits(model, other, on_stack):
                return other
        except InputError:
            continue
    return None


def hull(others: Sequence[Alternative]) -> tuple[float, float]:
    """Return the least and the greatest ratio that all fields together leave open."""
    return math.exp(-math.sqrt(_reach(others, -1))), math.exp(math.sqrt(_reach(others, 1)))


def _reach(others: Sequence[Alternative], side: int) -> float:
    """Return the greatest sum of squared logarithms of alternatives that go together."""
    # What one field is says nothing of another, so not all are at their ends at once and their
    # squares add. But a framework that shards parameters and sharded parameters under another are
    # one effect.
    if not others:
        return 0.0
    field = others[0].field
    rest = [other for other in others if other.field != field]
    squares = [_reach(rest, side)]
    for other in others:
        logarithm = side * math.log(other.ratio)
        if other.field == field and logarithm > 0:
            beside = [each for each in rest if not each.changes & other.changes]
            squares.append(logarithm**2 + _reach(beside, side))
    return max(squares)


MICROBATCHES = (2, 4)  # sequences of a microbatch that are usual where it has more than one


def _changes(plan: ParallelPlan, model: Model, cluster: Cluster) -> Iterator[dict[str, Any]]:
    """Yield changes of the plan, each of one field that nobody stated and what depends on it."""
    assumed, several = set(plan.assumed), plan.dp * plan.cp > 1
    if "framework" in assumed:
        stack = framework_of(plan, cluster)
        for name in common_frameworks(plan, cluster):
            if name == stack.name:
                continue
            usual = framework(name).plan.items()
            # Each framework with its own usual values of what is open as well.
            open_too = {key: value for key, value in usual if key in assumed}
            if plan.pp > 1 and "zero" in open_too:
                open_too["zero"] = min(1, open_too["zero"])
            settings = ",".join(word for word in stack.chosen if framework(name).has(word))
            yield {"framework": f"{name}:{settings}" if settings else name, **open_too}
    on_neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    if "runtime" in assumed and on_neuron and plan.ranks <= plan.ranks_per_chip:
        # Work on one chip is often run by PyTorch itself, or traced lazily.
        yield {"runtime": "eager"}
        traced_by = {"framework": "torch-neuronx"} if "framework" in assumed else {}
        yield {"runtime": "xla", **traced_by}
    if "recompute" in assumed:
        yield {"recompute": "full", "recompute_every": 1}
        yield {"recompute": "none", "recompute_every": 1}
        if framework_of(plan, cluster).selective == "layers":
            yield {"recompute": "full", "recompute_every": 2}
    if "overlap" in assumed:
        yield from ({"overlap": name} for name in ("none", "dp", "all"))
    if "zero" in assumed and several:
        stages = (0, 1, 3) if plan.tp == plan.pp == 1 else (0, 1)
        yield from ({"zero": stage} for stage in stages)
    if "sequence_parallel" in assumed and plan.tp > 1:
        yield {"sequence_parallel": not plan.sequence_parallel}
    if "microbatch" in assumed:
        sequences = plan.global_batch // plan.dp
        sizes = [size for size in MICROBATCHES if sequences % size == 0]
        # Nobody has fewer microbatches than stages, which then wait for most of the step.
        yield from ({"microbatch": size} for size in sizes if sequences // size >= plan.pp)
    if plan.pp > 1 and {"vpp", "schedule"} <= assumed:
        yield {"vpp": 1, "schedule": DEFAULT}
        layers = model.layers // plan.pp
        counts = {count for count in (2, layers) if 1 < count <= layers}
        yield from ({"vpp": count, "schedule": schedule_of_chunks(count)} for count in counts)


def common_frameworks(plan: ParallelPlan, cluster: Cluster) -> tuple[str, ...]:
    """Return the frameworks in use today that may run a plan on a cluster."""
    runtime = chip_family(cluster.chip, cluster.catalogue).runtime
    if plan.attention == "unfused":
        kinds = {"unfused"}
    elif plan.ranks == 1:
        kinds = {"alone"}
    elif plan.pp > 1:
        kinds = {"divided"}
    else:
        kinds = {"divided", "tensor"} if plan.tp > 1 else {"sharded"}
    stacks = (framework(name) for name in names())
    return tuple(
        stack.name for stack in stacks if runtime in stack.usual_on and kinds & {*stack.usual_for}
    )


# Interval of a step, which is wider where less was told of how it runs.

OPEN = frozenset({"recompute"})  # fields of a plan without which little is known of how it runs


def training_interval(
    model: Model,
    plan: ParallelPlan,
    cluster: Cluster,
    seconds: float,
    left_open: tuple[float, float] = (1.0, 1.0),
    share_of_peak: float = 0.0,
) -> Interval:
    """Interval of the predicted time of a training step [s]."""
    # ``left_open`` has the least and the greatest time that fields of no stated value leave open,
    # over the predicted one. No step is shorter than its arithmetic at the peak, of which it
    # reaches ``share_of_peak``.
    ends = interval(seconds, training_features(model, plan, cluster, left_open))
    return replace(ends, low=max(ends.low, seconds * share_of_peak))


def training_features(
    model: Model,
    plan: ParallelPlan,
    cluster: Cluster,
    left_open: tuple[float, float] = (1.0, 1.0),
) -> Prediction:
    """Return the features of a training step."""
    return Prediction(
        training_kind(
            experts=model.experts is not None,
            zero=plan.zero,
            unfused=plan.attention == "unfused",
            adapters=plan.lora_rank > 0,
        ),
        cluster.chip,
        tp=plan.tp,
        cp=plan.cp,
        ranks=max(1, plan.ranks // plan.ranks_per_chip),
        assumed=kernels_assumed(cluster.chip, cluster.catalogue),
        framework=framework_of(plan, cluster).name,
        stated=_told(plan),
        below=math.log(left_open[0]),
        above=math.log(left_open[1]),
    )


def _told(plan: ParallelPlan) -> str:
    """Return the level of what is told by a plan."""
    if OPEN & {*plan.assumed}:
        return FRAMEWORK if plan.names_framework else BARE
    if not plan.names_framework:
        return PLAN
    return "" if ":" in plan.framework else FRAMEWORK


# Plans that a search found for a step whose degrees of parallelism nobody stated.

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "stage_layers")
"""Fields of which one that is stated makes a plan the user's own."""
BATCH_TOKENS = 64_000_000
"""Most tokens of a step unless stated; published runs train on up to 16 M (Llama 3) or 63 M
(DeepSeek-V3) at once."""


class RunnerUp(NamedTuple):
    """Plan that comes after the best one."""

    plan: ParallelPlan
    ratio: float  # its estimated time over that of the best plan
    tied: bool  # whether the ratio is within the error of a ratio of two predictions


@dataclass(frozen=True)
class Choice:
    """Outcome of a search for a plan."""

    considered: int  # plans that divide model, batch and cluster
    best: ParallelPlan  # plan with the shortest estimated step among those that fit in memory
    others: tuple[RunnerUp, ...]  # the next best plans
    # Fields of a plan that were stated, and so are the same in all plans
    stated: Collection[str] = ()
    # Estimated time of the data-parallel plan that the step has, over that of the best; None where
    # the step has the best plan.
    default_ratio: float | None = None


def is_open(stated: Mapping[str, Any]) -> bool:
    """Return whether no degree of parallelism is stated."""
    return all(stated.get(name) in (None, "", ()) for name in DEGREES)


def tied(
    model: Model, cluster: Cluster, best: ParallelPlan, other: ParallelPlan, ratio: float
) -> bool:
    """Return whether a plan's time over that of the best is within the error of a ratio."""
    # Plans of one search share the errors of machine, model and kernels, so their ratio is more
    # certain than either time.
    one, two = (training_features(model, plan, cluster) for plan in (best, other))
    return math.log(ratio) <= margin(one, two)


def describe(plan: ParallelPlan) -> str:
    """Describe a plan in one line, without fields that have no influence on it."""
    words = [f"tp {plan.tp}", f"pp {plan.pp}", f"dp {plan.dp}"]
    words += [
        f"{name} {getattr(plan, name)}" for name in ("cp", "ep", "vpp") if getattr(plan, name) > 1
    ]
    words.append(f"microbatch {plan.microbatch}")
    words += [f"zero {plan.zero}"] * (plan.dp > 1)
    words += ["sequence parallel"] * (plan.tp > 1 and plan.sequence_parallel)
    words += [f"schedule {plan.schedule}"] * (plan.pp > 1)
    words.append(f"recompute {plan.recompute}")
    words += [f"order {'-'.join(plan.order)}"] * (plan.pp > 1 and plan.dp > 1)
    stages = [(len(list(same)), count) for count, same in groupby(plan.stage_layers)]
    alike = (f"{number} × {count}" if number > 1 else str(count) for number, count in stages)
    words += [f"layers {' + '.join(alike)}"] * bool(stages)
    return ", ".join(words)
