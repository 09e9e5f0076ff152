"""Estimated iteration times of thousands of plans.

Times of passes, of replicas and of communication (:mod:`~workloads.search.communication`) are
computed once for all plans that share them. For each plan there remains one walk through its
pipeline (:mod:`~workloads.search.pipeline_model`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from cluster_sim.progress import Watch, unwatched
from topologies.arrays import FloatArray, IntArray
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.search.communication import (
    INSIDE,
    PLACE_FIELDS,
    Communication,
    CommunicationTime,
    Stage,
    ends_s,
    layer_s,
)
from workloads.search.pipeline_model import EACH, NOT, ONCE, Line, Replicas, least_s, orders, walk_s
from workloads.training.frameworks.framework import framework_of, framework_text
from workloads.training.layers.replicas import (
    ReplicaExchange,
    bucket_parameters,
    buckets,
    edges_of,
    gather_parameters,
    reduce_gradients,
)
from workloads.training.layers.shapes import TWO, RankShapes
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.plan.schedules.schedule import BACKWARD, WEIGHT
from workloads.training.plan.stages import (
    Share,
    chunk_numbers,
    end_stages,
    first_layers,
    is_moe,
    kind_shares,
    layer_kinds,
    stage_kinds,
    total,
)

Found = TypeVar("Found")
DENSE = ("tp", "cp")  # axes of communication in a layer without experts


def estimate(
    model: Model, cluster: Cluster, plans: Sequence[ParallelPlan], watch: Watch = unwatched
) -> FloatArray:
    """Estimate the time of one optimizer step of every plan [s], float64 (plans,)."""
    seconds, rows_of = np.zeros(len(plans)), dict[str, list[int]]()
    for row, plan in enumerate(plans):
        text = framework_text(plan.framework, cluster, vars(plan))
        rows_of.setdefault(text, []).append(row)
    for rows in rows_of.values():
        alike = [plans[row] for row in rows]
        seconds[rows] = _all_s(_Shared(model, framed(model, cluster, alike)), alike, watch)
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


def _all_s(shared: _Shared, plans: Sequence[ParallelPlan], watch: Watch) -> FloatArray:
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
        self.catalogue, self.chip = cluster.catalogue or shipped_catalogue(), cluster.chip
        self.kind = is_moe(model, np.arange(model.layers))
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
        number, stage = chunk_numbers(plan.schedule, plan.pp, plan.vpp)
        return Line(
            passes=orders(plan.schedule, plan.pp, plan.microbatches, plan.vpp),
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
        number = chunk_numbers(plan.schedule, plan.pp, plan.vpp)[0]
        return least_s(number, np.diff(first), sparse, layers, ends, plan.microbatches)

    def _chunks(self, plan: ParallelPlan) -> tuple[IntArray, IntArray]:
        """First layer of each chunk and the number of layers; layers with experts of each."""

        def make() -> tuple[IntArray, IntArray]:
            first = np.array(first_layers(self.model, plan), np.int64)
            return first, np.diff(np.concatenate([[0], np.cumsum(self.kind)])[first])

        return self._once(make, "chunks", plan.pp * plan.vpp, plan.stage_layers)

    def passes(self, plan: ParallelPlan) -> tuple[FloatArray, FloatArray]:
        """Return times of layers by phase and kind, and of both ends of the model by phase [s].

        Plans share these times if they agree in the fields that passes depend on, and in the chips
        of a stage's ranks. Layers without experts do not depend on how experts are divided.
        """
        stage = Stage(self.model, plan, self.chip, self.catalogue, self.communication.times(plan))
        # Under ZeRO-3 kernels wait for the shards of the other replicas.
        shards = plan.replicas if plan.sharding == 3 else 0
        unexplained = (shards, plan.ranks <= plan.ranks_per_chip, plan.microbatches > 1)
        pipeline = plan.pipeline
        schedule = (pipeline.splits_weights, pipeline.pairs_passes and plan.ep > 1)
        key = (*_fields(plan, PASS_FIELDS), *schedule, self._where(plan, DENSE), *unexplained)
        dense = self._once(lambda: layer_s(stage, moe=False), "dense", *key)
        ends = self._once(lambda: ends_s(stage), "ends", *key)
        if self.model.experts is None:
            return np.stack([dense, dense], axis=1), ends
        shards = plan.expert_replicas if plan.sharding == 3 else 0
        expert_key = (*_fields(plan, EXPERT_FIELDS), self._where(plan, INSIDE), shards)
        sparse = self._once(lambda: layer_s(stage, moe=True), "sparse", *key, *expert_key)
        return np.stack([dense, sparse], axis=1), ends

    def replicas(self, plan: ParallelPlan) -> Replicas:
        """Return times of exchanges of replicas and of updates."""
        return self._once(
            lambda: replicas(
                self.model, plan, self.chip, self.catalogue, self.communication.times(plan)
            ),
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
    model: Model, plan: ParallelPlan, chip: str, catalogue: Catalogue, time_s: CommunicationTime
) -> Replicas:
    """Estimate the times of a plan's exchanges between replicas."""
    # ``time_s``: time of a step's communication [s].
    shapes = RankShapes(model, plan, chip, catalogue)
    finished = _finished(shapes, time_s)
    times = _Times(
        gather_s=cache(lambda share: _sum(gather_parameters(shapes, "bucket", share), time_s)),
        reduce_s=cache(lambda share: _sum(reduce_gradients(shapes, "bucket", share), time_s)),
    )
    edges = {stage: edges_of(shapes, stage) for stage in end_stages(plan)}
    gather_rest_s = np.zeros(plan.pp)
    for stage, held in edges.items():
        gather_rest_s[stage] = times.gather_s(held)
    exchange = Replicas(
        gather_s=np.zeros(model.layers),
        reduce_s=np.zeros(model.layers),
        gather_rest_s=gather_rest_s,
        reduce_rest_s=np.zeros(plan.pp * plan.vpp),
        after_s=finished[:, 0],
        tie_s=float(finished[:, 1].max()),
    )
    if plan.replicas > 1 or plan.expert_replicas > 1:
        _fill(exchange, shapes, edges, times)
    return exchange


class _Times(NamedTuple):
    """Functions that return the time of gathering and of reducing a bucket of parameters [s]."""

    gather_s: Callable[[Share], float]
    reduce_s: Callable[[Share], float]


def _fill(
    exchange: Replicas, shapes: RankShapes, edges: Mapping[int, Share], times: _Times
) -> None:
    """Fill in the times of all chunks' buckets."""
    # Chunks whose layers are of the same kinds, in the same order, have the same buckets.
    model, plan = shapes.model, shapes.plan
    kinds = layer_kinds(model, np.arange(model.layers))
    alike: dict[bytes, list[int]] = {}
    first = first_layers(model, plan)
    for number, (begin, end) in enumerate(pairwise(first)):
        alike.setdefault(kinds[begin:end].tobytes(), []).append(number)
    at_end = {0: edges[end_stages(plan)[0]], plan.pp * plan.vpp - 1: edges[end_stages(plan)[1]]}
    for numbers in alike.values():
        of_chunk = kinds[first[numbers[0]] : first[numbers[0] + 1]]
        gather_s, reduce_s, left = _buckets(shapes, of_chunk, times)
        layers = np.array(first)[numbers][:, None] + np.arange(len(of_chunk))
        exchange.gather_s[layers], exchange.reduce_s[layers] = gather_s, reduce_s
        for number in numbers:
            rest = total([left, at_end.get(number, Share(0, 0))])
            exchange.reduce_rest_s[number] = times.reduce_s(rest)


def _buckets(
    shapes: RankShapes, kinds: IntArray, times: _Times
) -> tuple[FloatArray, FloatArray, Share]:
    """Times of a chunk's buckets at its layers [s], and the gradients that fill no bucket."""
    plan, of_kinds = shapes.plan, kind_shares(shapes.model, shapes.plan)
    shares = [of_kinds[kind] for kind in kinds.tolist()]
    least = 1 if plan.sharding >= 2 else bucket_parameters(shapes)
    gather_s, reduce_s = np.zeros(len(shares)), np.zeros(len(shares))
    for run in buckets([weights.total for weights in shares], least):
        gather_s[run.start] = times.gather_s(total(shares[run.start : run.stop]))
    left, back = Share(0, 0), shares[::-1]
    for run in buckets([weights.total for weights in back], least):
        bucket = total(back[run.start : run.stop])
        if bucket.total < least:
            left = bucket
        else:
            reduce_s[-run.stop] = times.reduce_s(bucket)
    return gather_s, reduce_s, left


def _finished(shapes: RankShapes, time_s: CommunicationTime) -> FloatArray:
    """Times of each stage after its last pass, and of tied embeddings, float64 (stages, 2) [s]."""
    # Stages with equally many layers of each kind, and the same ends of the model, share them.
    plan, by_kind = shapes.plan, dict[object, tuple[float, float]]()
    times, ends = [], end_stages(plan)
    for stage in range(plan.pp):
        held = stage_kinds(shapes.model, plan, stage)
        key = (stage == ends[0], stage == ends[1], held)
        if key not in by_kind:
            by_kind[key] = _finish(shapes, stage, time_s)
        times.append(by_kind[key])
    return np.array(times)


def _finish(shapes: RankShapes, stage: int, time_s: CommunicationTime) -> tuple[float, float]:
    """Time of a stage after its last pass without tied embeddings, and of these alone [s]."""
    steps = ReplicaExchange(shapes, stage, shapes.plan).finish()
    tied = [step for step in steps if step.axis == "tie"]
    after = [step for step in steps if step.axis != "tie"]
    kernels_s = sum(step.seconds for step in after if not step.axis)
    return kernels_s + _sum([step for step in after if step.axis], time_s), _sum(tied, time_s)


def _sum(steps: list[LayerOp], time_s: CommunicationTime) -> float:
    return float(sum(time_s(step) for step in steps))
