"""Time of one microbatch on a stage in each phase, as a straight line in its layers.

The blocks of the simulated iteration are laid out for a stage of one layer and of two, and timed
by following what waits for what; all further layers are as the second one.
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

Talk = Callable[[LayerOp], float]
"""Time of a communication [s]."""
FIRST, MIDDLE, DOUBLE, LAST = 0, 1, 2, -1
"""Chunks of a model that are timed: of one layer at its ends and in between, and of two layers."""
STAGES = 4
"""Stages of that model."""
INSIDE = ("tp", "cp", "ep", "etp")
"""Axes that communicate within a pass; what goes between stages is counted with the pipeline, and
what goes between replicas beside it."""


@dataclass(frozen=True)
class Stage:
    """Plan that passes are timed for; its numbers of stages and replicas do not matter.

    Attributes
    ----------
    model : Model
    plan : ParallelPlan
    chip : str
        Catalogue part.
    catalogue : Catalogue
    talk : function of a step
        Time of its communication [s]; it is called for steps of ``INSIDE`` only.
    """

    model: Model
    plan: ParallelPlan
    chip: str
    catalogue: Catalogue
    talk: Talk

    @cached_property
    def times_of_chunks(self) -> dict[tuple[Layer, int], FloatArray]:
        """Times of chunks that were asked for, by the kind of their layers."""
        return {}

    @cached_property
    def shapes_of_kinds(self) -> dict[Layer, RankShapes]:
        """Shapes of the model that is timed, for each kind of layers that was asked for."""
        return {}


def layer_s(stage: Stage, *, moe: bool) -> FloatArray:
    """Time of one layer, dense or with experts, by phase, float64 (3,) [s].

    Layers that differ otherwise, such as by their windows, are taken at their mean.
    """
    kinds = [kind for kind in stage.model.kinds if kind.experts == moe]
    counts = np.array([stage.model.each_layer.count(kind) for kind in kinds], np.float64)
    if not kinds:
        return np.zeros(3)
    each = [_through(stage, DOUBLE, kind) - _through(stage, MIDDLE, kind) for kind in kinds]
    return np.asarray(counts @ np.array(each) / counts.sum())


def ends_s(stage: Stage) -> FloatArray:
    """Work of the first and the last chunk besides layers, by phase, float64 (2, 3) [s]."""
    kind = replace(stage.model.kinds[0], experts=False)  # its time cancels out
    middle = _through(stage, MIDDLE, kind)
    return np.stack([_through(stage, end, kind) - middle for end in (FIRST, LAST)])


def _through(stage: Stage, number: int, kind: Layer) -> FloatArray:
    """Time of a chunk by phase: forward, backward, and weights if split [s]."""
    if (kind, number) not in stage.times_of_chunks:
        stage.times_of_chunks[kind, number] = _timed(stage, number, kind)
    return stage.times_of_chunks[kind, number]


def _shapes(stage: Stage, kind: Layer) -> RankShapes:
    """Shapes of a model of a few layers of one kind, in stages of one layer and one of two."""
    plan = stage.plan
    vpp = plan.pipeline.chunks_allowed[0]
    counts = tuple(2 if chunk == DOUBLE else 1 for chunk in range(STAGES * vpp))
    alone = replace(
        plan,
        pp=STAGES,
        vpp=vpp,
        zero=0,
        global_batch=plan.dp * plan.microbatch,
        stage_layers=counts,
    )
    few = replace(stage.model.of_kind(kind), layers=sum(counts))
    return RankShapes(few, alone, stage.chip, stage.catalogue)


def _timed(stage: Stage, number: int, kind: Layer) -> FloatArray:
    plan, splits = stage.plan, stage.plan.pipeline.splits_weights
    if kind not in stage.shapes_of_kinds:
        stage.shapes_of_kinds[kind] = _shapes(stage, kind)
    shapes = stage.shapes_of_kinds[kind]
    number %= len(shapes.plan.stage_layers)
    at, chunk = plan.pipeline.stage(STAGES, number), number // STAGES
    make = Builder(shapes, at, Catalog(), plan)
    times = np.zeros(3)
    for phase in (FORWARD, BACKWARD, WEIGHT)[: 3 if splits else 2]:
        times[phase] = span(make.pass_ops(phase, chunk, last=False), make.catalog.steps, stage.talk)
    return times


def span(ops: Ops, steps: list[LayerOp], talk: Talk) -> float:
    """Follow a block: an op starts when its stream is free and what it waits for has ended [s]."""
    free: dict[int, float] = {}
    ends: list[float] = []
    numbers = ops.step.tolist()
    lengths = {number: _length_s(steps[number], talk) for number in dict.fromkeys(numbers)}
    for number, back in zip(numbers, ops.back.tolist(), strict=True):
        stream = steps[number].stream
        ready = ends[-back] if 0 < back <= len(ends) else 0.0
        end = max(ready, free.get(stream, 0.0)) + lengths[number]
        free[stream] = end
        ends.append(end)
    return float(np.max(ends, initial=0.0))


def _length_s(step: LayerOp, talk: Talk) -> float:
    """Time of a kernel, or of a communication within a pass [s]."""
    if not step.axis:
        return step.seconds
    return talk(step) if step.axis in INSIDE else 0.0
