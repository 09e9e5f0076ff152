"""Times of communication in estimates: those that the simulation has for groups at these places.

Groups of an axis may differ in their geometry: some lie within one scale-up domain, and others
reach from one to the next. The slowest stands for all, as the others wait for it sooner or later.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.duration.duration import geometries
from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import FloatArray, IntArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from workloads.models.model import Layer, Model
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import LayerOp, collective
from workloads.training.plan.placement import usual_chips
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.schedule import BACKWARD, FORWARD, WEIGHT
from workloads.training.program.groups import GroupCosts
from workloads.training.program.ops import Catalog, Ops
from workloads.training.program.stage import StagePasses

# Time of one microbatch on a stage in each phase, as a linear function of its layers.
# The ops of a simulated pass are built for a chunk of one layer and for a chunk of two, and timed
# by following their dependencies. Every further layer takes as long as the second one.

CommunicationTime = Callable[[LayerOp], float]
"""Function that returns the time of a step's communication [s]."""
FIRST, MIDDLE, DOUBLE, LAST = 0, 1, 2, -1
"""Chunks that are timed: with one layer at the ends of a model and in between, and with two."""
STAGES = 4  # stages of the model that is timed
INSIDE = ("tp", "cp", "ep", "etp")
"""Axes of communication within a pass. Transfers between stages are timed by the pipeline model,
and exchanges of replicas apart."""


@dataclass(frozen=True)
class Stage:
    """Plan whose passes are timed; its numbers of stages and replicas do not matter."""

    model: Model
    plan: ParallelPlan
    chip: str  # catalogue part of the chip
    catalogue: Catalogue
    # Time of a step's communication [s]; it is called only for axes of ``INSIDE``
    time_s: CommunicationTime

    @cached_property
    def times_of_chunks(self) -> dict[tuple[Layer, int], FloatArray]:
        """Cache of the times of chunks, by the kind of their layers."""
        return {}

    @cached_property
    def shapes_of_kinds(self) -> dict[Layer, RankShapes]:
        """Cache of the shapes of the model that is timed, by the kind of its layers."""
        return {}


def layer_s(stage: Stage, *, moe: bool) -> FloatArray:
    """Return the time of one layer, dense or with experts, by phase, float64 (3,) [s]."""
    # Of layers that differ otherwise, such as by their windows, it is the mean.
    kinds = [kind for kind in stage.model.kinds if kind.experts == moe]
    counts = np.array([stage.model.each_layer.count(kind) for kind in kinds], np.float64)
    if not kinds:
        return np.zeros(3)
    times = [_through(stage, DOUBLE, kind) - _through(stage, MIDDLE, kind) for kind in kinds]
    return np.asarray(counts @ np.array(times) / counts.sum())


def ends_s(stage: Stage) -> FloatArray:
    """Return the time of the model's ends besides layers, by phase, float64 (2, 3) [s]."""
    kind = replace(stage.model.kinds[0], experts=False)  # its time cancels out
    middle = _through(stage, MIDDLE, kind)
    return np.stack([_through(stage, end, kind) - middle for end in (FIRST, LAST)])


def _through(stage: Stage, number: int, kind: Layer) -> FloatArray:
    """Time of a chunk by phase: forward, backward, and gradients of weights if split [s]."""
    if (kind, number) not in stage.times_of_chunks:
        stage.times_of_chunks[kind, number] = _timed(stage, number, kind)
    return stage.times_of_chunks[kind, number]


def _shapes(stage: Stage, kind: Layer) -> RankShapes:
    """Shapes of a small model of layers of one kind, in chunks of one layer and one of two."""
    plan = stage.plan
    vpp = plan.pipeline.chunks_allowed[0]
    counts = tuple(2 if chunk == DOUBLE else 1 for chunk in range(STAGES * vpp))
    alone = replace(
        plan,
        pp=STAGES,
        vpp=vpp,
        # Copies of sharded parameters and sums of gradients are kernels of a pass as well.
        zero=3 if plan.sharding == 3 else 0,
        global_batch=plan.dp * plan.microbatch * min(2, plan.microbatches),
        stage_layers=counts,
    )
    few = replace(stage.model.of_kind(kind), layers=sum(counts))
    return RankShapes(few, alone, stage.chip, stage.catalogue)


def _timed(stage: Stage, number: int, kind: Layer) -> FloatArray:
    """Time of the chunk of this number of the small model, by phase [s]."""
    plan, splits = stage.plan, stage.plan.pipeline.splits_weights
    if kind not in stage.shapes_of_kinds:
        stage.shapes_of_kinds[kind] = _shapes(stage, kind)
    shapes = stage.shapes_of_kinds[kind]
    number %= len(shapes.plan.stage_layers)
    at, chunk = plan.pipeline.stage(STAGES, number), number // STAGES
    builder = StagePasses(shapes, at, Catalog(), plan)
    times = np.zeros(3)
    for phase in (FORWARD, BACKWARD, WEIGHT)[: 3 if splits else 2]:
        ops = builder.pass_ops(phase, chunk, last=False)
        times[phase] = span(ops, builder.catalog.steps, stage.time_s)
    return times


def span(ops: Ops, steps: list[LayerOp], time_s: CommunicationTime) -> float:
    """Return the time from the start of the first op to the end of the last [s]."""
    # An op starts when its stream is free and the op that it waits for has ended.
    free: dict[int, float] = {}
    ends: list[float] = []
    numbers = ops.step.tolist()
    lengths = {number: _length_s(steps[number], time_s) for number in dict.fromkeys(numbers)}
    for number, back in zip(numbers, ops.back.tolist(), strict=True):
        stream = steps[number].stream
        ready = ends[-back] if 0 < back <= len(ends) else 0.0
        end = max(ready, free.get(stream, 0.0)) + lengths[number]
        free[stream] = end
        ends.append(end)
    return float(np.max(ends, initial=0.0))


def _length_s(step: LayerOp, time_s: CommunicationTime) -> float:
    """Time of a kernel, or of a communication within a pass [s]."""
    if not step.axis:
        return step.seconds
    return time_s(step) if step.axis in INSIDE else 0.0


PLACE_FIELDS = ("order", "tp", "cp", "dp", "pp", "ep", "expert_tp", "ranks_per_chip")
"""Fields that the chips of a group's ranks depend on."""

_place: Callable[[ParallelPlan], tuple[Hashable, ...]] = attrgetter(*PLACE_FIELDS, "norm_axes")


class Communication:
    """Cache of the times of communication of plans on one cluster."""

    def __init__(self, cluster: Cluster, per_token: int):
        self.cluster, self.per_token = cluster, per_token
        self._costs = GroupCosts(cluster)
        self._groups: dict[tuple[Hashable, ...], IntArray] = {}

    def times(self, plan: ParallelPlan) -> CommunicationTime:
        """Return a function that times the steps of a plan."""
        # The group that is slowest in the first step of an axis is taken as slowest in all of them.
        slowest: dict[str, IntArray] = {}

        @cache
        def time_s(step: LayerOp) -> float:
            """Time of a step in the slowest group [s]."""
            groups = slowest.get(step.axis, self.groups(plan, step.axis))
            times_s = self._times_s(groups, step, plan)
            slowest[step.axis] = groups[[np.argmax(times_s)]]
            return max(times_s)

        return time_s

    def hops_s(self, plan: ParallelPlan, size_bytes: int) -> FloatArray:
        """Return the time of a send from each stage to the next, last to first, (stages,) [s]."""
        pipelines = self.groups(plan, "pp")
        step = collective("hop", "pp", "send", size_bytes)
        pairs = np.stack([pipelines, np.roll(pipelines, -1, axis=1)], axis=2)
        return np.array([max(self._times_s(pairs[:, at], step, plan)) for at in range(plan.pp)])

    def groups(self, plan: ParallelPlan, axis: str) -> IntArray:
        """Return the chips of one group of each geometry, int64 (kinds, members)."""
        key = self._key(plan, axis)
        if key not in self._groups:
            ends = axis == "tie"
            chips = unlike_groups(plan, "pp" if ends else axis, self.cluster)
            self._groups[key] = chips[:, [0, -1]] if ends else chips
        return self._groups[key]

    def _key(self, plan: ParallelPlan, axis: str) -> tuple[Hashable, ...]:
        """Values that the chips of an axis' groups follow from."""
        if axis == "norm" and plan.norm_ranks == plan.ranks:  # all ranks, in their order
            last = np.array([-(-plan.ranks // plan.ranks_per_chip) - 1])
            return axis, plan.ranks, int(usual_chips(plan, self.cluster, last)[0])
        return axis, *_place(plan)

    def _times_s(self, groups: IntArray, step: LayerOp, plan: ParallelPlan) -> list[float]:
        """Time of a step on each of some groups of chips [s]."""
        steps, per_token = [step], self.per_token
        times_ps = (self._costs.times_ps(chips, steps, plan, per_token)[0] for chips in groups)
        return [time_ps / PS_PER_S for time_ps in times_ps]


# Chips of the groups of a plan, one group for each geometry, without placing all its ranks.


class _Lines(NamedTuple):
    """Groups as lines through the numbers of the ranks that some axes of a plan tell apart."""

    axes: tuple[str, ...]  # axes along which the numbers count, the one that changes fastest first
    # degree, step: members of a group, and the distance of their numbers
    degree: int
    step: int


def unlike_groups(plan: ParallelPlan, axis: str, cluster: Cluster) -> IntArray:
    """Return the chips of one group of each geometry, in order of rank, int64 (kinds, degree)."""
    # The groups are those of :meth:`workloads.training.plan.placement.Placement.groups`. Of groups
    # whose first chips are whole periods of the fabric apart only one is looked at.
    lines = _lines(plan, axis)
    firsts = np.arange(_product(plan, lines.axes)).reshape(-1, lines.degree, lines.step)[:, 0]
    begin, apart = firsts.ravel(), np.zeros(1, np.int64)
    for name in plan.order:
        if name not in lines.axes:
            apart = np.add.outer(np.arange(getattr(plan, name)) * _stride(plan, name), apart)
    apart = apart.ravel()
    first_rank = np.add.outer(apart, _ranks(plan, lines.axes, begin)).ravel()
    place = usual_chips(plan, cluster, first_rank // plan.ranks_per_chip) % _span(cluster)
    first_at = np.full(int(place.max()) + 1, -1, np.int64)
    first_at[place[::-1]] = np.arange(len(place))[::-1]
    other, start = np.divmod(np.sort(first_at[first_at >= 0]), len(begin))
    numbers = begin[start][:, None] + lines.step * np.arange(lines.degree)
    ranks = _ranks(plan, lines.axes, numbers) + apart[other][:, None]
    chips = usual_chips(plan, cluster, ranks // plan.ranks_per_chip)
    return chips if len(chips) == 1 else chips[geometries(cluster, chips)[0]]


def _span(cluster: Cluster) -> int:
    """Return the number of chips after which the first chips of groups count as alike."""
    # Switches above domains that have room for all chips below add a microsecond to a hop at most,
    # so only those without are told apart.
    fabric = cluster.scale_out
    narrow = fabric is not None and fabric.oversubscription > 1
    return period(cluster) if narrow else cluster.chips_per_domain


def _lines(plan: ParallelPlan, axis: str) -> _Lines:
    """Return the lines along which the groups of an axis lie."""
    inner = plan.expert_tp * plan.ep
    experts = {
        "etp": (plan.expert_tp, 1),
        "ep": (plan.ep, plan.expert_tp),
        "edp": (plan.expert_replicas, inner),
    }
    if axis in experts:
        return _Lines(tuple(name for name in plan.order if name != "pp"), *experts[axis])
    joined = {"dp": ("dp", "cp"), "norm": plan.norm_axes}.get(axis, (axis,))
    axes = tuple(name for name in plan.order if name in joined)
    return _Lines(axes, _product(plan, axes), 1)


def _ranks(plan: ParallelPlan, axes: Sequence[str], numbers: IntArray) -> IntArray:
    """Return the ranks with these numbers along some axes, and 0 along the others."""
    ranks = np.zeros_like(numbers)
    for name in axes:
        numbers, place = np.divmod(numbers, getattr(plan, name))
        ranks += place * _stride(plan, name)
    return ranks


def _stride(plan: ParallelPlan, axis: str) -> int:
    """Difference of the rank numbers of neighbours along an axis."""
    return _product(plan, plan.order[: plan.order.index(axis)])


def _product(plan: ParallelPlan, axes: Sequence[str]) -> int:
    return math.prod(getattr(plan, name) for name in axes)
