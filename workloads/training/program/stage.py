"""Ops of one rank of a pipeline stage in an iteration, in program order."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import (
    CC,
    CC_DP,
    HOST,
    SEND,
    STREAM_KINDS,
    LayerOp,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.passes import Passes
from workloads.training.plan.schedules.schedule import PipelineSchedule
from workloads.training.program.ops import Catalog, Ops, join, past_asynchronous, sequence
from workloads.training.program.paired import pairs, side_by_side
from workloads.training.program.pass_layout import PassLayout, gathered_ops
from workloads.training.program.pass_steps import StagePasses

ORDERS_KEPT = 256  # orders of passes that are cached
LaidOut = tuple[int, Ops, tuple[LayerOp, ...]]
"""First layer that a pass was built for, ops of the pass, and the steps that their numbers mean."""


class BuiltPasses:
    """Passes of one program, built once for all stages with the same chunks."""

    def __init__(self, laid_out: dict[Hashable, LaidOut]):
        self.laid_out = laid_out
        self._numbered: dict[Hashable, tuple[int, Ops]] = {}

    def numbered(self, key: Hashable, catalog: Catalog) -> tuple[int, Ops]:
        """Return the first layer of a pass and its ops, whose steps have the catalog's numbers."""
        if key not in self._numbered:
            first, ops, steps = self.laid_out[key]
            step = catalog.numbers(steps)[ops.step]
            self._numbered[key] = first, Ops(step, ops.back, ops.layer, ops.microbatch)
        return self._numbered[key]


class StageOps(NamedTuple):
    """Ops of a rank of one stage, and the places of its passes among them."""

    ops: Ops
    # (passes + 1,): first op of each pass of the first iteration, then the op after the last pass
    begins: IntArray


class KindsOfPasses(NamedTuple):
    """Passes of a stage in their order, and the kind of each, as :func:`kinds_of_passes` has it."""

    passes: Passes
    kinds: list[int]  # kinds that occur, ascending
    first: IntArray  # (kinds,): place of the first pass of each kind
    which: IntArray  # (passes,): place of each pass's kind among ``kinds``


class StageParts(NamedTuple):
    """Parts that the ops of a rank of one stage consist of."""

    order: KindsOfPasses
    blocks: tuple[Ops, ...]  # ops of each kind of pass
    # start, finish: ops before the first pass of an iteration and after the last
    start: Ops
    finish: Ops

    @property
    def ops(self) -> int:
        """Number of ops of one iteration."""
        lengths = np.array([len(block) for block in self.blocks], np.int64)
        return len(self.start) + int(lengths[self.order.which].sum()) + len(self.finish)

    def contents(self) -> tuple[object, ...]:
        """Return the arrays of the ops of all parts, and the numbers of passes of a stage."""
        tables = (self.start, *self.blocks, self.finish)
        return *((ops.step, ops.back, ops.layer) for ops in tables), self.order.which


def stage_parts(
    shapes: RankShapes, stage: int, catalog: Catalog, built: BuiltPasses | None = None
) -> StageParts:
    """Return the parts of the ops of a rank of a stage."""
    plan = shapes.plan
    builder = Builder(shapes, stage, catalog, built=built)
    order = _order(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)
    start = builder.start()
    blocks = {
        key: builder.pass_ops(key // 2 // plan.vpp, key // 2 % plan.vpp, last=key % 2 == 1)
        for key in np.array(order.kinds)[np.argsort(order.first)].tolist()
    }
    return StageParts(order, tuple(blocks[key] for key in order.kinds), start, builder.finish())


@lru_cache(ORDERS_KEPT)
def _order(
    schedule: PipelineSchedule, pp: int, stage: int, microbatches: int, chunks: int
) -> KindsOfPasses:
    """Passes of a stage and their kinds."""
    order = passes(schedule, pp, stage, microbatches, chunks)
    kind = kinds_of_passes(order, chunks)
    kinds, first, which = np.unique(kind, return_index=True, return_inverse=True)
    return KindsOfPasses(order, kinds.tolist(), first, which)


def stage_ops(
    parts: StageParts, plan: ParallelPlan, stream_of: IntArray, iterations: int = 1
) -> StageOps:
    """Return the ops of a rank of a stage in one or several iterations.

    ``stream_of`` (steps,): stream of each step.
    """
    order, which, start = parts.order.passes, parts.order.which, parts.start
    all_passes = sequence(parts.blocks, which, order.microbatch)
    earlier = [number * plan.microbatches for number in range(iterations)]
    ops = join([part for more in earlier for part in (start, all_passes.later(more), parts.finish)])
    stream = stream_of[ops.step]
    asynchronous = np.zeros(len(STREAM_KINDS), np.bool_)
    asynchronous[list(beside(plan))] = True
    ops = past_asynchronous(ops, asynchronous[stream])
    lengths = np.array([len(block) for block in parts.blocks], np.int64)[which]
    begins = len(start) + np.concatenate([[0], np.cumsum(lengths)])
    if not plan.pipeline.pairs_passes:
        return StageOps(ops, begins)
    whole = len(ops) // iterations
    together = [pair for run in range(iterations) for pair in pairs(order, begins + run * whole)]
    return StageOps(side_by_side(ops, together, stream == CC), begins)


def beside(plan: ParallelPlan) -> tuple[int, ...]:
    """Return the streams that run beside compute, as later ops do not wait for theirs."""
    streams = {"none": (HOST,), "dp": (HOST, CC_DP), "all": (HOST, CC_DP, SEND)}[plan.overlap]
    return (*streams, SEND) if plan.pipeline.pairs_passes else streams


def kinds_of_passes(order: Passes, chunks: int) -> IntArray:
    """Return a number for each pass that passes with the same ops share, int64 (passes,).

    The ops of a pass depend on its phase, its chunk, and whether it is the last of these.
    """
    kind = 2 * (order.phase * chunks + order.chunk)
    return np.asarray(kind + _last_of_each(kind), np.int64)


def _last_of_each(kind: IntArray) -> IntArray:
    """1 for the last pass of each kind, else 0, int64 (passes,)."""
    last = np.zeros(len(kind), np.int64)
    _, from_end = np.unique(kind[::-1], return_index=True)
    last[len(kind) - 1 - from_end] = 1
    return last


class Builder:
    """Builder of the ops of one stage."""

    def __init__(
        self,
        shapes: RankShapes,
        stage: int,
        catalog: Catalog,
        job: ParallelPlan | None = None,
        built: BuiltPasses | None = None,
    ):
        self.catalog = catalog
        self.passes = StagePasses(shapes, stage, job or shapes.plan)
        self.built = BuiltPasses({}) if built is None else built

    def pass_ops(self, phase: int, chunk: int, *, last: bool) -> Ops:
        """Return the ops of a pass; the parameters are those of :meth:`StagePasses.steps`."""
        layers = self.passes.parameters.chunks[chunk]
        begin = int(layers[0]) if len(layers) else 0
        key = self.passes.likeness(phase, chunk, last=last)
        if key not in self.built.laid_out:
            # With numbers of its own, so that programs with other catalogs can use the pass.
            pass_catalog = Catalog()
            layout = PassLayout(self.passes, pass_catalog)
            ops = layout.ops(self.passes.steps(phase, chunk, last=last))
            self.built.laid_out[key] = begin, ops, tuple(pass_catalog.steps)
        first, ops = self.built.numbered(key, self.catalog)
        return ops if first == begin else ops.of_layers(begin - first)

    def start(self) -> Ops:
        """Return the ops that gather parameters which the step before updated, in buckets.

        There are some under ZeRO-1 and 2 with overlap.
        """
        exchange = self.passes.exchange
        if not exchange.gathers_ahead():
            return self.catalog.ops([])
        edges = self.catalog.ops(exchange.gathered_edges())
        updated = [(layers, exchange.gathered(layers)) for layers in exchange.updated()]
        return join([edges, *gathered_ops(self.catalog, updated)])

    def finish(self) -> Ops:
        """Return the ops after the last pass: reduce gradients, update and gather parameters."""
        return self.catalog.ops(self.passes.exchange.finish())
