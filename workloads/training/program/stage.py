"""Everything that one rank of a pipeline stage does in an iteration, in program order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray, distinct
from workloads.kernels.chip_share import Timing
from workloads.training.layers.host import host_s, scheduling_share
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import (
    CC,
    CC_DP,
    ENGINE,
    HOST,
    SEND,
    LayerOp,
    kernel,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import passes
from workloads.training.program.ops import Catalog, Ops, join, past_asynchronous, repeat, sequence
from workloads.training.program.paired import pairs, side_by_side
from workloads.training.program.pass_steps import Gathered, PassSteps, StagePasses

BuiltPasses = dict[Hashable, tuple[int, Ops]]
"""Ops of passes by what the passes consist of, each with the first layer that it was built for."""
LEAST_HOST_S = 1e-6
"""Time to issue a step below which a host never holds a chip up [s]."""


def stage_ops(
    shapes: RankShapes,
    stage: int,
    catalog: Catalog,
    iterations: int = 1,
    built: BuiltPasses | None = None,
) -> Ops:
    """Return the ops of a rank of a stage, gradients and optimizer included.

    Microbatches number on from one iteration to the next. ``built`` keeps passes for stages that
    have the same chunks.
    """
    plan = shapes.plan
    builder = Builder(shapes, stage, catalog, built=built)
    order = passes(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)
    kind = 2 * (order.phase * plan.vpp + order.chunk)
    kind += _last_of_each(kind)
    kinds, first, which = np.unique(kind, return_index=True, return_inverse=True)
    start = builder.start()
    blocks = {
        key: builder.pass_ops(key // 2 // plan.vpp, key // 2 % plan.vpp, last=key % 2 == 1)
        for key in kinds[np.argsort(first)].tolist()
    }
    worked = sequence([blocks[key] for key in kinds.tolist()], which, order.microbatch)
    finish = builder.finish()
    later = [number * plan.microbatches for number in range(iterations)]
    ops = join([part for more in later for part in (start, worked.later(more), finish)])
    stream = catalog.column("stream")[ops.step]
    ops = past_asynchronous(ops, np.isin(stream, _beside(plan)))
    if not plan.pipeline.pairs_passes:
        return ops
    lengths = np.array([len(blocks[key]) for key in kinds.tolist()], np.int64)[which]
    begins = len(start) + np.concatenate([[0], np.cumsum(lengths)])
    whole = len(ops) // iterations
    together = [pair for run in range(iterations) for pair in pairs(order, begins + run * whole)]
    return side_by_side(ops, together, stream == CC)


def _beside(plan: ParallelPlan) -> tuple[int, ...]:
    """Streams that later ops do not wait for."""
    beside = {"none": (HOST,), "dp": (HOST, CC_DP), "all": (HOST, CC_DP, SEND)}[plan.overlap]
    return (*beside, SEND) if plan.pipeline.pairs_passes else beside


def _last_of_each(kind: IntArray) -> IntArray:
    """1 for each pass that no later one of its kind follows, else 0."""
    last = np.zeros(len(kind), np.int64)
    _, from_end = np.unique(kind[::-1], return_index=True)
    last[len(kind) - 1 - from_end] = 1
    return last


class Builder:
    """Lays out the passes of one stage as tables of ops.

    Attributes
    ----------
    passes : StagePasses
        Describes the steps of each pass.
    catalog : Catalog
        Numbers the steps.
    job : ParallelPlan
        Plan of the whole job, of which the shapes may show a part.
    built : dict
        Ops of passes that stages with the same chunks share.
    """

    def __init__(
        self,
        shapes: RankShapes,
        stage: int,
        catalog: Catalog,
        job: ParallelPlan | None = None,
        built: BuiltPasses | None = None,
    ):
        self.shapes = shapes
        self.catalog = catalog
        self.job = job or shapes.plan
        self.passes = StagePasses(shapes, stage, self.job)
        self.built: BuiltPasses = {} if built is None else built

    def pass_ops(self, phase: int, chunk: int, *, last: bool) -> Ops:
        """Build one microbatch through a chunk in a phase; ``last`` is the last microbatch."""
        layers = self.passes.parameters.chunks[chunk]
        begin = int(layers[0]) if len(layers) else 0
        key = self.passes.likeness(phase, chunk, last=last)
        if key not in self.built:
            self.built[key] = begin, self._laid_out(self.passes.steps(phase, chunk, last=last))
        first, ops = self.built[key]
        return ops if first == begin else ops.of_layers(begin - first)

    def start(self) -> Ops:
        """Gather, by buckets, what the step before updated (overlap with ZeRO-1 or 2)."""
        exchange = self.passes.exchange
        if not exchange.gathers_ahead():
            return self.catalog.ops([])
        edges = self.catalog.ops(exchange.gathered_edges())
        updated = [(layers, exchange.gathered(layers)) for layers in exchange.updated()]
        return join([edges, *self._gathered(updated)])

    def finish(self) -> Ops:
        """Reduce gradients, update parameters, and gather these where the update was sharded."""
        return self.catalog.ops(self.passes.exchange.finish())

    def _laid_out(self, steps: PassSteps) -> Ops:
        """Lay out a pass: its begin, its layers, what they wait for, and its end."""
        layers = self._layers(steps)
        edges, gathered = self.catalog.ops(steps.gathered_edges), self._gathered(steps.gathered)
        if gathered:
            pairs_of = zip_longest(gathered[1:], layers, fillvalue=self.catalog.ops([]))
            layers = [part for pair in pairs_of for part in pair]
        begin, end = self.catalog.ops(steps.begin), self.catalog.ops(steps.end)
        worked = join(layers)
        scheduling = self.catalog.ops(self._scheduling(worked) if steps.traced else [])
        waits = self.catalog.ops(steps.waits)
        issued = self._issued(worked, steps.traced, join([begin, end])) if steps.traced else worked
        return join([edges, *gathered[:1], begin, issued, scheduling, waits, end])

    def _layers(self, steps: PassSteps) -> list[Ops]:
        """Lay out each stretch of layers, with what leaves after it."""
        if not steps.stretches:
            return []
        blocks = [[self.catalog.ops(block) for block in kind] for kind in steps.blocks]
        return [
            join([self._repeated(blocks, stretch.layers), self.catalog.ops(stretch.leaving)])
            for stretch in steps.stretches
        ]

    def _repeated(self, blocks: Sequence[Sequence[Ops]], layers: IntArray) -> Ops:
        """The block of each layer, by its kind and whether it is kept."""
        parameters = self.passes.parameters
        kind, kept = parameters.kinds[layers], parameters.kept[layers]
        runs = np.split(np.arange(len(layers)), np.flatnonzero(np.diff(2 * kind + kept)) + 1)
        worked = [run for run in runs if len(run)]
        return join([repeat(blocks[kind[run[0]]][kept[run[0]]], layers[run]) for run in worked])

    def _gathered(self, stretches: Sequence[Gathered]) -> list[Ops]:
        """Lay out the gathering of each stretch, as ops of its first layer."""
        return [repeat(self.catalog.ops(steps), layers[:1]) for layers, steps in stretches]

    def _scheduling(self, layers: Ops) -> list[LayerOp]:
        """Build the unexplained time of a pass over the layers as a step of its own.

        Stalls between engines, as published trainings leave them.
        """
        share = scheduling_share(self.shapes, self.job)
        if not share or not len(layers):
            return []
        engine = self.catalog.column("stream") == ENGINE
        kernel_ps = np.where(engine, self.catalog.column("duration_ps"), 0)
        seconds = share * float(kernel_ps[layers.step].sum()) / PS_PER_S
        return [kernel("scheduling", Timing(seconds, "assumed"), "scheduling")]

    def _issued(self, layers: Ops, traced: int, ends: Ops) -> Ops:
        """Let a pass over the layers end no sooner than the host has issued it, its ends included.

        The host runs ahead of the chip within a pass and waits for what the pass begins with.
        """
        issued_s = self._host_s(layers, traced, ends) if len(layers) else 0.0
        if issued_s < LEAST_HOST_S:
            return layers
        issue = self.catalog.ops([LayerOp("host.issue", "host", HOST, issued_s)])
        taken_up = self.catalog.ops([kernel("host.wait", Timing(0.0, "measured"))])
        beside = layers.back.copy()
        beside[:1] += beside[:1] == 1  # the first kernel waits for what the pass begins with
        back = np.array([len(layers) + 1], np.int32)
        return join([issue, replace(layers, back=beside), replace(taken_up, back=back)])

    def _host_s(self, layers: Ops, traced: int, ends: Ops) -> float:
        """Time in which the host issues a pass over the layers, each traced so often [s]."""
        stream = self.catalog.column("stream")
        steps = np.array([step.issued for step in self.catalog.steps])
        counted = np.where((stream == ENGINE) | (stream == CC), steps, 0.0)
        kernels = float(counted[layers.step].sum() + counted[ends.step].sum())
        numbers = distinct(layers.layer)
        return host_s(self.shapes, self.job, kernels, int((numbers >= 0).sum()), traced)
