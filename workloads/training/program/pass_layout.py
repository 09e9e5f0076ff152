"""Layout of a pass: its steps as a table of ops, those of a layer repeated for all its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray, distinct
from workloads.kernels.chip_share import Timing
from workloads.training.layers.host import host_s, scheduling_share
from workloads.training.layers.steps import CC, ENGINE, HOST, LayerOp, kernel
from workloads.training.program.ops import Catalog, Ops, join, repeat
from workloads.training.program.pass_steps import Gathered, PassSteps, StagePasses

LEAST_HOST_S = 1e-6
"""Time to issue a step below which a host never holds a chip up [s]."""


def gathered_ops(catalog: Catalog, stretches: Sequence[Gathered]) -> list[Ops]:
    """Lay out the gathering of each stretch, as ops of its first layer."""
    return [repeat(catalog.ops(steps), layers[:1]) for layers, steps in stretches]


class PassLayout:
    """Lays out passes of one stage as tables of ops.

    Attributes
    ----------
    passes : StagePasses
        Describes the steps of each pass.
    catalog : Catalog
        Numbers the steps.
    """

    def __init__(self, passes: StagePasses, catalog: Catalog):
        self.passes = passes
        self.catalog = catalog

    def ops(self, steps: PassSteps) -> Ops:
        """Lay out a pass: its begin, its layers, what they wait for, and its end."""
        layers = self._layers(steps)
        edges, gathered = (
            self.catalog.ops(steps.gathered_edges),
            gathered_ops(self.catalog, steps.gathered),
        )
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

    def _scheduling(self, layers: Ops) -> list[LayerOp]:
        """Build the unexplained time of a pass over the layers as a step of its own.

        Stalls between engines, as published trainings leave them.
        """
        share = scheduling_share(self.passes.shapes, self.passes.job)
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
        return host_s(
            self.passes.shapes, self.passes.job, kernels, int((numbers >= 0).sum()), traced
        )
