"""Estimated times of replicas: exchanges of gradients and parameters, and the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topologies.arrays import FloatArray, IntArray
from topologies.catalogue.catalogue import Catalogue
from workloads.models.model import Model
from workloads.search.stage_times import CommunicationTime
from workloads.training.layers.data_parallel import (
    bucket_parameters,
    buckets,
    edges_of,
    gather_parameters,
    reduce_gradients,
)
from workloads.training.layers.layer import RankShapes
from workloads.training.layers.replica_exchange import ReplicaExchange
from workloads.training.layers.stage_parameters import StageParameters
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.parameters import Share, kind_shares, total
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stage_layers import end_stages, first_layers, layer_kinds, stage_kinds


@dataclass(frozen=True, eq=False)
class Replicas:
    """Times of exchanges between replicas, and after the last pass [s]."""

    # (layers,): time of gathering the bucket of parameters that begins with a layer; 0 if none does
    gather_s: FloatArray
    # (layers,): time of reducing the bucket of gradients that a layer's backward pass completes; 0
    # if it completes none
    reduce_s: FloatArray
    # (stages,): time of gathering the parameters of a stage that belong to no layer
    gather_rest_s: FloatArray
    # (chunks,): time of reducing the gradients that are left after the last layer of a chunk
    reduce_rest_s: FloatArray
    after_s: FloatArray  # (stages,): time of communication after the last pass and of the update
    tie_s: float  # time of summing the gradients of an embedding that both end stages hold


def replicas(
    model: Model,
    plan: ParallelPlan,
    chip: str,
    catalogue: Catalogue,
    time_s: CommunicationTime,
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
    steps = ReplicaExchange(StageParameters(shapes, stage), shapes.plan).finish()
    tied = [step for step in steps if step.axis == "tie"]
    after = [step for step in steps if step.axis != "tie"]
    kernels_s = sum(step.seconds for step in after if not step.axis)
    return kernels_s + _sum([step for step in after if step.axis], time_s), _sum(tied, time_s)


def _sum(steps: list[LayerOp], time_s: CommunicationTime) -> float:
    """Sum of the times of communications [s]."""
    return float(sum(time_s(step) for step in steps))
