"""Time of one microbatch on a stage in each phase, as a linear function of its layers.

The ops of a simulated pass are built for a chunk of one layer and for a chunk of two, and timed by
following their dependencies. Every further layer takes as long as the second one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from workloads.models.model import Layer, Model
from workloads.training.layers.layer import RankShapes
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules import BACKWARD, FORWARD, WEIGHT
from workloads.training.program.ops import Catalog, Ops
from workloads.training.program.stage import Builder

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
    builder = Builder(shapes, at, Catalog(), plan)
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
