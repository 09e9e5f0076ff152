"""Layout of a pass as a table of ops, in which the steps of a layer are repeated for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray, distinct
from workloads.kernels.chip_share import Timing
from workloads.training.layers.host import (
    host_s,
    issued_ahead,
    scheduling_share,
    start_s,
)
from workloads.training.layers.steps import CC, ENGINE, HOST, LayerOp, kernel
from workloads.training.program.ops import Catalog, Ops, join, repeat
from workloads.training.program.pass_steps import Gathered, PassSteps, StagePasses

LEAST_HOST_S = 1e-6
"""Time of issuing a pass below which the host is left out, as it never holds the chip up [s]."""


def gathered_ops(catalog: Catalog, stretches: Sequence[Gathered]) -> list[Ops]:
    """Return the ops that gather each stretch's parameters, labelled with its first layer."""
    return [repeat(catalog.ops(steps), layers[:1]) for layers, steps in stretches]


class PassLayout:
    """Builder of the ops of one stage's passes."""

    def __init__(self, passes: StagePasses, catalog: Catalog):
        self.passes = passes
        self.catalog = catalog

    def ops(self, steps: PassSteps) -> Ops:
        """Return the ops of a pass: its beginning, its layers, what they wait for, and its end."""
        layers = self._layers(steps)
        edges = self.catalog.ops(steps.gathered_edges)
        gathered = gathered_ops(self.catalog, steps.gathered)
        if gathered:
            # Each layer's parameters are gathered while the layer before it runs.
            pairs = zip_longest(gathered[1:], layers, fillvalue=self.catalog.ops([]))
            layers = [part for pair in pairs for part in pair]
        begin, end = self.catalog.ops(steps.begin), self.catalog.ops(steps.end)
        body = join(layers)
        scheduling = self.catalog.ops(self._scheduling(body) if steps.traced else [])
        waits = self.catalog.ops(steps.waits)
        if steps.traced:
            body = self._issued(body, steps.traced, join([begin, end]))
        return join([edges, *gathered[:1], begin, body, scheduling, waits, end])

    def _layers(self, steps: PassSteps) -> list[Ops]:
        """Ops of each stretch of layers, followed by the reduction of its gradients."""
        if not steps.stretches:
            return []
        blocks = [[self.catalog.ops(block) for block in kind] for kind in steps.blocks]
        return [
            join([self._repeated(blocks, stretch.layers), self.catalog.ops(stretch.leaving)])
            for stretch in steps.stretches
        ]

    def _repeated(self, blocks: Sequence[Sequence[Ops]], layers: IntArray) -> Ops:
        """Ops of these layers, each with the block of its kind, recomputed or kept."""
        parameters = self.passes.parameters
        kind, kept = parameters.kinds[layers], parameters.kept[layers]
        # Consecutive layers with the same block are repeated at once.
        runs = np.split(np.arange(len(layers)), np.flatnonzero(np.diff(2 * kind + kept)) + 1)
        runs = [run for run in runs if len(run)]
        return join([repeat(blocks[kind[run[0]]][kept[run[0]]], layers[run]) for run in runs])

    def _scheduling(self, layers: Ops) -> list[LayerOp]:
        """Unexplained time of a pass over the layers, as a step of its own.

        Published training runs leave it: stalls between engines that no kernel's time has.
        """
        share = scheduling_share(self.passes.shapes, self.passes.job)
        if not share or not len(layers):
            return []
        engine = self.catalog.column("stream") == ENGINE
        kernel_ps = np.where(engine, self.catalog.column("duration_ps"), 0)
        seconds = share * float(kernel_ps[layers.step].sum()) / PS_PER_S
        return [kernel("scheduling", Timing(seconds, "assumed"), "scheduling")]

    def _issued(self, layers: Ops, traced: int, ends: Ops) -> Ops:
        """Add the host to a pass over the layers, which cannot end before the host has issued it.

        The host issues the steps of both ``ends`` of the pass as well. While a launch blocks it,
        the chip waits for it instead, as it does until compiled layers are started.
        """
        shapes, count = self.passes.shapes, int((distinct(layers.layer) >= 0).sum())
        issued_s = self._host_s(layers, count, traced, ends) if len(layers) else 0.0
        ahead_s = issued_s * issued_ahead(shapes)
        body = self._beside_host(layers, ahead_s) if ahead_s >= LEAST_HOST_S else layers
        waited_s = issued_s - ahead_s + start_s(shapes, count * traced, "pass")
        if waited_s < LEAST_HOST_S:
            return body
        launch = LayerOp("host.launch", "host", ENGINE, waited_s)
        return join([body, self.catalog.ops([launch])])

    def _beside_host(self, layers: Ops, ahead_s: float) -> Ops:
        """Add the host that runs ahead of the chip, and starts when the pass has begun."""
        issue = self.catalog.ops([LayerOp("host.issue", "host", HOST, ahead_s)])
        wait = self.catalog.ops([kernel("host.wait", Timing(0.0, "measured"))])
        layers_back = layers.back.copy()
        # The first kernel waits for the beginning of the pass, not for the host's op between them.
        layers_back[:1] += layers_back[:1] == 1
        wait_back = np.array([len(layers) + 1], np.int32)
        return join([issue, replace(layers, back=layers_back), replace(wait, back=wait_back)])

    def _host_s(self, layers: Ops, count: int, traced: int, ends: Ops) -> float:
        """Time in which the host issues a pass over layers that it traces ``traced`` times [s]."""
        stream = self.catalog.column("stream")
        issued = np.array([step.issued for step in self.catalog.steps])
        counted = np.where((stream == ENGINE) | (stream == CC), issued, 0.0)
        kernels = float(counted[layers.step].sum() + counted[ends.step].sum())
        return host_s(self.passes.shapes, self.passes.job, kernels, count, traced)
