"""Estimated iteration times of thousands of plans.

Passes, replicas and communication are timed once for all plans that share them; a plan is then one
walk through its pipeline. The slowest group of an axis stands for all, as the others wait for it.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from cluster_sim.collectives.duration.duration import geometries
from cluster_sim.progress import Watch, unwatched
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.routing import period
from topologies.support.arrays import FloatArray, IntArray, first_places, present
from topologies.support.units import PS_PER_S
from workloads.models.model import Layer, Model
from workloads.search.pipeline_model import EACH, NOT, ONCE, Line, Replicas, least_s, orders, walk_s
from workloads.training.frameworks.framework import framework_of, framework_text
from workloads.training.layers.replicas import (
    ReplicaExchange,
    bucket_parameters,
    buckets,
    edges_of,
    gather_parameters,
    occupied_share,
    reduce_gradients,
)
from workloads.training.layers.steps import CC, ENGINE, HOST, TWO, LayerOp, RankShapes, collective
from workloads.training.plan.placement import server_share, usual_chips
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules.schedule import BACKWARD, FORWARD, WEIGHT
from workloads.training.plan.stages import (
    Share,
    chunk_numbers,
    end_stages,
    first_layers,
    kind_shares,
    layer_kinds,
    stage_kinds,
    total,
)
from workloads.training.program.groups import GroupCosts
from workloads.training.program.ops import INSIDE, Catalog, Ops, Pair, join, side_by_side, span
from workloads.training.program.stage import StagePasses, StepTime, as_tried

Found = TypeVar("Found")
DENSE = ("tp", "cp")  # axes of communication in a layer without experts


def estimate(model: Model, cluster: Cluster, plans: Sequence[ParallelPlan]) -> FloatArray:
    """Estimate the time of one optimizer step of every plan [s], float64 (plans,)."""
    seconds, rows_of = np.zeros(len(plans)), dict[str, list[int]]()
    for row, plan in enumerate(plans):
        text = framework_text(plan.framework, cluster, vars(plan))
        rows_of.setdefault(text, []).append(row)
    for rows in rows_of.values():
        alike = [plans[row] for row in rows]
        seconds[rows] = _all_s(_Shared(model, framed(model, cluster, alike)), alike)
    return seconds


def framed(model: Model, cluster: Cluster, plans: Sequence[ParallelPlan]) -> Cluster:
    """Return the cluster with the numbers of the framework that all plans have in common."""
    return framework_of(plans[0], cluster).on(cluster, model) if plans else cluster


def best_estimates(
    model: Model,
    cluster: Cluster,
    plans: Sequence[ParallelPlan],
    count: int,
    watch: Watch = unwatched,
) -> FloatArray:
    """Estimate only plans that may be among the ``count`` best [s], float64 (plans,)."""
    # The time of a plan is infinite if a lower bound of its estimate exceeds the estimates of
    # ``count`` other plans. Every other time is that of :func:`estimate`, ties included.
    shared = _Shared(model, framed(model, cluster, plans))
    if count >= len(plans):
        return _all_s(shared, plans, watch)
    bound_s = np.array([shared.least_s(plan) for plan in watch(plans, "estimated")])
    seconds, best = np.full(len(plans), np.inf), list[float]()
    for row in np.argsort(bound_s, kind="stable").tolist():
        if len(best) >= count and bound_s[row] > best[count - 1]:
            break
        seconds[row] = walk_s(shared.line(plans[row]))
        insort(best, seconds[row])
    return seconds


def _all_s(shared: _Shared, plans: Sequence[ParallelPlan], watch: Watch = unwatched) -> FloatArray:
    seconds = np.zeros(len(plans))
    # Plans with the same passes follow one another, so that few orders of passes are kept.
    rows = sorted(range(len(plans)), key=lambda row: _fields(plans[row], ORDER_FIELDS))
    for row in watch(rows, "estimated"):
        seconds[row] = walk_s(shared.line(plans[row]))
    return seconds


class _Shared:
    """Cache of times that several plans share."""

    def __init__(self, model: Model, cluster: Cluster):
        self.model, self.cluster = model, cluster
        self.catalogue, self.chip = cluster.numbers, cluster.chip
        self.kind = np.array([kind.experts for kind in model.each_layer], np.int64)
        per_token = model.experts.per_token if model.experts else 1
        self.communication = Communication(cluster, per_token)
        self._known: dict[Hashable, object] = {}

    def _once(self, make: Callable[[], Found], *key: Hashable) -> Found:
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]  # type: ignore[return-value]

    def line(self, plan: ParallelPlan) -> Line:
        """Return the pipeline of a plan, ready for the walk through it."""
        layers, ends = self.passes(plan)
        first, sparse = self._chunks(plan)
        beside, pipeline = plan.overlap != "none", plan.pipeline
        number, stage = chunk_numbers(plan.pipeline.name, plan.pp, plan.vpp)
        return Line(
            passes=orders(pipeline.name, plan.pp, plan.microbatches, plan.vpp),
            number=number,
            stage=stage,
            first=first,
            kind=self.kind,
            sparse=sparse,
            layer_s=layers,
            ends_s=ends,
            hop_s=self._once(lambda: self.hops(plan), "hops", *_fields(plan, HOP_FIELDS)),
            replicas=self.replicas(plan),
            gathers=EACH if plan.sharding == 3 else ONCE if beside and plan.sharding else NOT,
            reduces=EACH if plan.sharding >= 2 else ONCE if beside else NOT,
            reduced_in=WEIGHT if pipeline.splits_weights else BACKWARD,
            sends_beside=plan.overlap == "all" or pipeline.pairs_passes,
            dp_beside=beside,
        )

    def least_s(self, plan: ParallelPlan) -> float:
        """Return a lower bound of a plan's estimate [s]."""
        (layers, ends), (first, sparse) = self.passes(plan), self._chunks(plan)
        number = chunk_numbers(plan.pipeline.name, plan.pp, plan.vpp)[0]
        return least_s(number, np.diff(first), sparse, layers, ends, plan.microbatches)

    def _chunks(self, plan: ParallelPlan) -> tuple[IntArray, IntArray]:
        """First layer of each chunk and the number of layers; layers with experts of each."""

        def make() -> tuple[IntArray, IntArray]:
            first = np.array(first_layers(self.model, plan), np.int64)
            return first, np.diff(np.concatenate([[0], np.cumsum(self.kind)])[first])

        return self._once(make, "chunks", plan.pp * plan.vpp, plan.stage_layers)

    def passes(self, plan: ParallelPlan) -> tuple[FloatArray, FloatArray]:
        """Return times of layers and of both ends of the model, as a :class:`Line` has them [s]."""
        # Plans share these times if they agree in the fields that passes depend on, and in the
        # chips of a stage's ranks. Layers without experts do not depend on how experts are divided.
        stage = Stage(self.model, plan, self.chip, self.catalogue, self.communication.times(plan))
        # Under ZeRO-3 kernels wait for the shards of the other replicas.
        shards = plan.replicas if plan.sharding == 3 else 0
        unexplained = (shards, plan.ranks <= plan.ranks_per_chip, plan.microbatches > 1)
        pipeline = plan.pipeline
        schedule = (pipeline.splits_weights, _pairs(plan), pipeline.pairs_passes and plan.ep > 1)
        key = (*_fields(plan, PASS_FIELDS), *schedule, self._where(plan, DENSE), *unexplained)
        dense = self._once(lambda: layer_s(stage, moe=False), "dense", *key)
        ends = self._once(lambda: ends_s(stage), "ends", *key)
        if self.model.experts is None:
            return np.stack([dense, dense], axis=-1), ends
        shards = plan.expert_replicas if plan.sharding == 3 else 0
        expert_key = (*_fields(plan, EXPERT_FIELDS), self._where(plan, INSIDE), shards)
        sparse = self._once(lambda: layer_s(stage, moe=True), "sparse", *key, *expert_key)
        return np.stack([dense, sparse], axis=-1), ends

    def replicas(self, plan: ParallelPlan) -> Replicas:
        """Return times of exchanges of replicas and of updates."""
        return self._once(
            lambda: replicas(self.model, plan, self.chip, self.catalogue, self.communication),
            *_fields(plan, REPLICA_FIELDS),
            plan.pipeline.turns,
        )

    def _where(self, plan: ParallelPlan, axes: tuple[str, ...]) -> tuple[bytes, ...]:
        """Chips of the groups of some axes, as a key."""
        return self._once(
            lambda: tuple(self.communication.groups(plan, axis).tobytes() for axis in axes),
            "where",
            axes,
            *_fields(plan, PLACE_FIELDS),
        )

    def hops(self, plan: ParallelPlan) -> FloatArray:
        """Return the transfer time from each stage to the next, last to first, (stages,) [s]."""
        wide = TWO * plan.microbatch * plan.local_seq * self.model.hidden // plan.tp
        return self.communication.hops_s(plan, wide) if plan.pp > 1 else np.zeros(1)


def _fields(plan: ParallelPlan, names: Sequence[str]) -> tuple[Hashable, ...]:
    return tuple(getattr(plan, name) for name in names)


ORDER_FIELDS = ("schedule", "pp", "microbatches", "vpp")
"""Fields of a plan that the order of its stages' passes depends on."""
PLACE_FIELDS = ("order", "tp", "cp", "dp", "pp", "ep", "expert_tp", "ranks_per_chip")
"""Fields that the chips of a group's ranks depend on."""
HOP_FIELDS = (*PLACE_FIELDS, "microbatch", "local_seq")
"""Fields that transfers between stages depend on."""
EXPERT_FIELDS = (
    "ep", "etp", "routing_skew", "capacity_factor", "routed_nodes", "fp8_exchange",
)  # fmt: skip
"""Fields that only layers with experts depend on."""
NO_PASS_FIELDS = (
    "pp", "dp", "vpp", "global_batch", "zero", "reshard", "schedule", "order", "stage_layers",
    "bucket_bytes", *EXPERT_FIELDS,
)  # fmt: skip
"""Fields of a plan that passes do not depend on, or only in the ways that their key names besides.
A field that is added to plans is part of the key."""
PASS_FIELDS = tuple(name for name in PLAN_FIELDS if name not in NO_PASS_FIELDS)
"""Fields of a plan that passes depend on."""
NO_REPLICA_FIELDS = (
    "microbatch", "global_batch", "schedule", "recompute", "recompute_every", "attention",
    "cp_exchange", "routing_skew", "capacity_factor", "routed_nodes", "fp8_exchange",
    "sequence_parallel", "runtime",
)  # fmt: skip
"""Fields that the exchanges of replicas do not depend on, but for the turn of a schedule."""
REPLICA_FIELDS = tuple(name for name in PLAN_FIELDS if name not in NO_REPLICA_FIELDS)
"""Fields that the exchanges of replicas depend on."""


def replicas(
    model: Model, plan: ParallelPlan, chip: str, catalogue: Catalogue, communication: Communication
) -> Replicas:
    """Estimate the times of a plan's exchanges between replicas."""
    shapes, time_s = RankShapes(model, plan, chip, catalogue), communication.times(plan)
    occupied_s = communication.occupied(plan)
    occupied = occupied_share(shapes) if plan.overlap != "none" else 0.0
    finished = _finished(shapes, time_s)

    @cache
    def exchanged_s(how: Callable[..., list[LayerOp]], share: Share) -> tuple[float, float]:
        steps = how(shapes, "bucket", share)
        return _sum(steps, time_s), occupied * _sum(steps, occupied_s)

    edges = {stage: edges_of(shapes, stage) for stage in end_stages(plan)}
    gather_rest_s = np.zeros(plan.pp)
    for stage, held in edges.items():
        gather_rest_s[stage] = exchanged_s(gather_parameters, held)[0]
    exchange = Replicas(
        gather_s=np.zeros((model.layers, 2)),
        reduce_s=np.zeros((model.layers, 2)),
        gather_rest_s=gather_rest_s,
        reduce_rest_s=np.zeros(plan.pp * plan.vpp),
        after_s=finished[:, 0],
        tie_s=float(finished[:, 1].max()),
    )
    # Chunks whose layers are of the same kinds, in the same order, have the same buckets.
    kinds = layer_kinds(model, np.arange(model.layers))
    alike: dict[bytes, list[int]] = {}
    first = first_layers(model, plan)
    for number, (begin, end) in enumerate(pairwise(first)):
        alike.setdefault(kinds[begin:end].tobytes(), []).append(number)
    at_end = {0: edges[end_stages(plan)[0]], plan.pp * plan.vpp - 1: edges[end_stages(plan)[1]]}
    for numbers in alike.values():
        of_chunk = kinds[first[numbers[0]] : first[numbers[0] + 1]]
        gathers, reduces, left = _buckets(shapes, of_chunk)
        layers = np.array(first)[numbers][:, None] + np.arange(len(of_chunk))
        for place, share in gathers.items():
            exchange.gather_s[layers[:, place]] = exchanged_s(gather_parameters, share)
        for place, share in reduces.items():
            exchange.reduce_s[layers[:, place]] = exchanged_s(reduce_gradients, share)
        for number in numbers:
            rest = total([left, at_end.get(number, Share(0, 0))])
            exchange.reduce_rest_s[number] = exchanged_s(reduce_gradients, rest)[0]
    return exchange


def _buckets(
    shapes: RankShapes, kinds: IntArray
) -> tuple[dict[int, Share], dict[int, Share], Share]:
    """Buckets of a chunk by the layer where they are exchanged, and what fills no bucket."""
    # Gathered buckets stand at their first layer, reduced ones at the layer that completes them.
    plan, of_kinds = shapes.plan, kind_shares(shapes.model, shapes.plan)
    shares = [of_kinds[kind] for kind in kinds.tolist()]
    least = 1 if plan.sharding >= 2 else bucket_parameters(shapes)
    runs = buckets([weights.total for weights in shares], least)
    gathers = {run.start: total(shares[run.start : run.stop]) for run in runs}
    left, back, reduces = Share(0, 0), shares[::-1], dict[int, Share]()
    for run in buckets([weights.total for weights in back], least):
        bucket = total(back[run.start : run.stop])
        if bucket.total < least:
            left = bucket
        else:
            reduces[len(shares) - run.stop] = bucket
    return gathers, reduces, left


def _finished(shapes: RankShapes, time_s: StepTime) -> FloatArray:
    """Times of each stage after its last pass, and of tied embeddings, float64 (stages, 2) [s]."""
    # Stages with equally many layers of each kind, and the same ends of the model, share them.
    plan, by_kind = shapes.plan, dict[object, tuple[float, float]]()
    times, ends = [], end_stages(plan)
    for stage in range(plan.pp):
        held = stage_kinds(shapes.model, plan, stage)
        key = (stage == ends[0], stage == ends[1], held)
        if key not in by_kind:
            steps = ReplicaExchange(shapes, stage, plan).finish()
            tied_s = _sum([step for step in steps if step.axis == "tie"], time_s)
            kernels_s = sum(step.seconds for step in steps if not step.axis)
            after = [step for step in steps if step.axis not in ("", "tie")]
            by_kind[key] = kernels_s + _sum(after, time_s), tied_s
        times.append(by_kind[key])
    return np.array(times)


def _sum(steps: list[LayerOp], time_s: StepTime) -> float:
    return float(sum(time_s(step) for step in steps))


# Time of one microbatch on a stage in each phase, as a linear function of its layers.
# The ops of a simulated pass are built for a chunk of one layer and for a chunk of two, and timed
# by following their dependencies. Every further layer takes as long as the second one.

FIRST, MIDDLE, DOUBLE, LAST = 0, 1, 2, -1
"""Chunks that are timed: with one layer at the ends of a model and in between, and with two."""
STAGES = 4  # stages of the model that is timed


@dataclass(frozen=True)
class Stage:
    """Plan whose passes are timed; its numbers of stages and replicas do not matter."""

    model: Model
    plan: ParallelPlan
    chip: str  # catalogue part of the chip
    catalogue: Catalogue
    # Time of a step's communication [s]; it is called only for axes of ``INSIDE``
    time_s: StepTime

    @cached_property
    def through(self) -> Callable[[int, Layer], FloatArray]:
        """Function that returns the times of a chunk of layers of a kind [s], cached."""
        return cache(lambda number, kind: _timed(self, number, kind))

    @cached_property
    def shapes(self) -> Callable[[Layer], RankShapes]:
        """Function that returns the shapes of the model that is timed, cached."""
        return cache(lambda kind: _shapes(self, kind))


def layer_s(stage: Stage, *, moe: bool) -> FloatArray:
    """Return the time of a layer, dense or with experts, by side and phase, float64 (2, 3) [s]."""
    # Of layers that differ otherwise, such as by their windows, it is the mean.
    kinds = [kind for kind in stage.model.kinds if kind.experts == moe]
    if not kinds:
        return np.zeros((2, 3))
    times = [stage.through(DOUBLE, kind) - stage.through(MIDDLE, kind) for kind in kinds]
    counts = [stage.model.each_layer.count(kind) for kind in kinds]
    return np.asarray(np.average(times, axis=0, weights=counts))


def ends_s(stage: Stage) -> FloatArray:
    """Return the times of chunks besides layers, as :class:`Line` has them, (3, 2, 3) [s]."""
    kind = replace(stage.model.kinds[0], experts=False)  # its time cancels out
    middle = stage.through(MIDDLE, kind)
    ends = [stage.through(end, kind) - middle for end in (FIRST, LAST)]
    # Where ranks receive parts of what all of them need, every chunk begins with gathering it.
    return np.stack([*ends, 2 * middle - stage.through(DOUBLE, kind)])


def _shapes(stage: Stage, kind: Layer) -> RankShapes:
    """Shapes of a small model of layers of one kind, in chunks of one layer and one of two."""
    plan = stage.plan
    vpp = plan.pipeline.chunks_allowed[0]
    counts = tuple(2 if chunk == DOUBLE else 1 for chunk in range(STAGES * vpp))
    alone = replace(
        plan,
        pp=STAGES,
        vpp=vpp,
        schedule=plan.pipeline.name,  # of one stage the usual
        # Copies of sharded parameters and sums of gradients are kernels of a pass as well.
        zero=3 if plan.sharding == 3 else 0,
        global_batch=plan.dp * plan.microbatch * min(2, plan.microbatches),
        stage_layers=counts,
    )
    few = replace(stage.model.of_kind(kind), layers=sum(counts))
    return as_tried(RankShapes(few, alone, stage.chip, stage.catalogue), stage.time_s)


def _pairs(plan: ParallelPlan) -> bool:
    """Return whether passes run side by side in a steady state."""
    return plan.pipeline.pairs_passes and plan.microbatches >= 2 * plan.pp


def _timed(stage: Stage, number: int, kind: Layer) -> FloatArray:
    """Times of a chunk of the small model, chip and host by phase, float64 (2, 3) [s]."""
    plan, splits, shapes = stage.plan, stage.plan.pipeline.splits_weights, stage.shapes(kind)
    number %= len(shapes.plan.stage_layers)
    at, chunk = plan.pipeline.stage(STAGES, number), number // STAGES
    builder = StagePasses(shapes, at, Catalog(), plan)
    phases = (FORWARD, BACKWARD, WEIGHT)[: 3 if splits else 2]
    parts = [builder.pass_ops(phase, chunk, last=False) for phase in phases]
    steps = builder.catalog.steps
    times = np.zeros((2, 3))
    for phase, ops in enumerate(parts):
        times[:, phase] = _sides_s(ops, steps, stage.time_s)
    if _pairs(plan):
        # In the steady state a forward pass runs beside a backward pass through as many layers.
        ops, rows = join(parts), np.cumsum([0, *map(len, parts), *[0] * (not splits)]).tolist()
        communicates = builder.catalog.column("stream")[ops.step] == CC
        paired = side_by_side(ops, [Pair(*rows)], communicates)
        together = times.max(axis=0)
        times = np.stack([together * span(paired, steps, stage.time_s) / together.sum()] * 2)
    return times


def _sides_s(ops: Ops, steps: list[LayerOp], time_s: StepTime) -> tuple[float, float]:
    """Times of a pass that no host delays, and of one whose layers take no time on the chip [s]."""
    # Each is linear in the layers; a pass takes the longer of both, which is not.
    alone = [step._replace(seconds=0.0) if step.stream == HOST else step for step in steps]
    bare = replace(ops, step=np.where(ops.layer < 0, ops.step, len(steps)))
    return span(ops, alone, time_s), span(bare, [*steps, LayerOp("", "", ENGINE)], time_s)


class Communication:
    """Cache of the times of communication of plans on one cluster."""

    def __init__(self, cluster: Cluster, per_token: int):
        self.cluster, self.per_token = cluster, per_token
        self._costs = GroupCosts(cluster)
        self._groups: dict[tuple[Hashable, ...], IntArray] = {}

    def times(self, plan: ParallelPlan) -> StepTime:
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

    def occupied(self, plan: ParallelPlan) -> StepTime:
        """Return a function that times exchanges by the processors that they occupy."""
        time_s = self.times(plan)
        return lambda step: time_s(step) * server_share(self.groups(plan, step.axis), self.cluster)

    def hops_s(self, plan: ParallelPlan, size_bytes: int) -> FloatArray:
        """Return the time of a send from each stage to the next, last to first, (stages,) [s]."""
        pipelines = self.groups(plan, "pp")
        step = collective("hop", "pp", "send", size_bytes)
        pairs = np.stack([pipelines, np.roll(pipelines, -1, axis=1)], axis=2)
        return np.array([max(self._times_s(pairs[:, at], step, plan)) for at in range(plan.pp)])

    def groups(self, plan: ParallelPlan, axis: str) -> IntArray:
        """Return the chips of one group of each geometry, int64 (kinds, members)."""
        key: tuple[Hashable, ...] = axis, plan.norm_axes, *_fields(plan, PLACE_FIELDS)
        if axis == "norm" and plan.norm_ranks == plan.ranks:  # all ranks, in their order
            last = np.array([-(-plan.ranks // plan.ranks_per_chip) - 1])
            key = axis, plan.ranks, int(usual_chips(plan, self.cluster, last)[0])
        if key not in self._groups:
            ends = axis == "tie"
            chips = unlike_groups(plan, "pp" if ends else axis, self.cluster)
            self._groups[key] = chips[:, [0, -1]] if ends else chips
        return self._groups[key]

    def _times_s(self, groups: IntArray, step: LayerOp, plan: ParallelPlan) -> list[float]:
        """Time of a step on each of some groups of chips [s]."""
        steps, per_token = [step], self.per_token
        times_ps = (self._costs.times_ps(chips, steps, plan, per_token)[0] for chips in groups)
        return [time_ps / PS_PER_S for time_ps in times_ps]


# Chips of the groups of a plan, one group for each geometry, without placing all its ranks.


def unlike_groups(plan: ParallelPlan, axis: str, cluster: Cluster) -> IntArray:
    """Return the chips of one group of each geometry, in order of rank, int64 (kinds, degree)."""
    # The groups are those of :meth:`workloads.training.plan.placement.Placement.groups`. Of groups
    # whose first chips are whole periods of the fabric apart only one is looked at.
    # A group is a line of ``degree`` numbers, each ``step`` after the one before, among those of
    # the ranks that some axes tell apart, of which the fastest-changing one comes first.
    axes, degree, step = _lines(plan, axis)
    firsts = np.arange(_product(plan, axes)).reshape(-1, degree, step)[:, 0]
    begin, apart = firsts.ravel(), np.zeros(1, np.int64)
    for name in plan.order:
        if name not in axes:
            apart = np.add.outer(np.arange(getattr(plan, name)) * _stride(plan, name), apart)
    apart = apart.ravel()
    first_rank = np.add.outer(apart, _ranks(plan, axes, begin)).ravel()
    # Switches above domains that have room for all chips below add a microsecond to a hop at most,
    # so only those without are told apart.
    narrow = cluster.scale_out is not None and cluster.scale_out.narrowest > 1
    span = period(cluster) if narrow else cluster.chips_per_domain
    place = usual_chips(plan, cluster, first_rank // plan.ranks_per_chip) % span
    other, start = np.divmod(np.sort(first_places(present(place)[1])), len(begin))
    numbers = begin[start][:, None] + step * np.arange(degree)
    ranks = _ranks(plan, axes, numbers) + apart[other][:, None]
    chips = usual_chips(plan, cluster, ranks // plan.ranks_per_chip)
    return chips if len(chips) == 1 else chips[geometries(cluster, chips)[0]]


def _lines(plan: ParallelPlan, axis: str) -> tuple[tuple[str, ...], int, int]:
    """Return the axes, the members and the step of the lines along which groups of an axis lie."""
    inner = plan.expert_tp * plan.ep
    experts = {
        "etp": (plan.expert_tp, 1),
        "ep": (plan.ep, plan.expert_tp),
        "edp": (plan.expert_replicas, inner),
    }
    if axis in experts:
        return tuple(name for name in plan.order if name != "pp"), *experts[axis]
    joined = {"dp": ("dp", "cp"), "norm": plan.norm_axes}.get(axis, (axis,))
    axes = tuple(name for name in plan.order if name in joined)
    return axes, _product(plan, axes), 1


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
