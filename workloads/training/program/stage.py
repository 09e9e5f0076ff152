"""Ops of one rank of a pipeline stage in an iteration, in program order."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import BoolArray, IntArray, distinct
from workloads.kernels.chip_share import Timing
from workloads.training.layers.host import host_s, issued_ahead, scheduling_share, start_s
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import (
    CC,
    CC_DP,
    ENGINE,
    HOST,
    SEND,
    STREAM_KINDS,
    LayerOp,
    kernel,
)
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules import BACKWARD, FORWARD, WEIGHT
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.passes import Passes
from workloads.training.plan.schedules.schedule import PipelineSchedule
from workloads.training.program.ops import (
    NONE,
    Catalog,
    Ops,
    edges,
    join,
    past_asynchronous,
    repeat,
    sequence,
)
from workloads.training.program.pass_steps import Gathered, PassSteps, StagePasses

# Layout of a pass as a table of ops, in which the steps of a layer are repeated for all layers.

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
        """Unexplained time of a pass over the layers, as a step of its own."""
        # Published training runs leave it: stalls between engines that no kernel's time has.
        share = scheduling_share(self.passes.shapes, self.passes.job)
        if not share or not len(layers):
            return []
        engine = self.catalog.column("stream") == ENGINE
        kernel_ps = np.where(engine, self.catalog.column("duration_ps"), 0)
        seconds = share * float(kernel_ps[layers.step].sum()) / PS_PER_S
        return [kernel("scheduling", Timing(seconds, "assumed"), "scheduling")]

    def _issued(self, layers: Ops, traced: int, ends: Ops) -> Ops:
        """Add the host to a pass over layers, which cannot end before it is issued."""
        # The host issues the steps of both ``ends`` of the pass as well. While a launch blocks it,
        # the chip waits for it instead, as it does until compiled layers are started.
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


# Pairs of passes that run side by side: while one communicates, the other computes.
# A forward pass and a backward pass through another chunk are cut into pieces that end with a
# communication, and the pieces take turns on the chip (DualPipe, arXiv 2412.19437, section 3.2.1).
# The gradients of a layer's weights follow the piece that computes the gradients of its inputs.


class Pair(NamedTuple):
    """A pair of passes as rows of a rank's table of ops."""

    # forward, backward: first row of the forward and of the backward pass
    forward: int
    backward: int
    weights: int  # first row of the pass over gradients of weights; ``end`` if the pair has none
    end: int  # row after the last one of the pair


def pairs(order: Passes, begins: IntArray) -> list[Pair]:
    """Find the pairs among the passes of a stage."""
    # ``begins`` (passes + 1,): row of ops at which each pass begins, and the row after the last.
    phase, chunk = order.phase, order.chunk
    first = (phase[:-1] == FORWARD) & (phase[1:] == BACKWARD) & (chunk[:-1] != chunk[1:])
    paired = []
    for at in np.flatnonzero(first).tolist():
        after = at + 2
        has_weights = after < len(phase) and phase[after] == WEIGHT
        has_weights = has_weights and order.microbatch[after] == order.microbatch[at + 1]
        has_weights = bool(has_weights and chunk[after] == chunk[at + 1])
        rows = (at, at + 1, after, after + has_weights)
        paired.append(Pair(*(int(begins[row]) for row in rows)))
    return paired


def side_by_side(ops: Ops, together: list[Pair], communicates: BoolArray) -> Ops:
    """Return the ops with the pieces of each pair in the order in which they take turns."""
    # ``ops``: ops of a rank, one pass after the other. ``communicates`` (ops,): ops that end a
    # piece.
    rows = np.arange(len(ops))
    target = np.where(ops.back > 0, rows - ops.back, NONE)
    source = rows.copy()
    for pair in together:
        inside = slice(pair.forward, pair.end)
        source[inside] = pair.forward + np.argsort(_turns(ops, pair, communicates), kind="stable")
        later = rows[pair.backward : pair.end]
        first = np.where(later < pair.weights, pair.backward, pair.weights)
        waits = target[later]
        # A pass of the pair does not wait for the others; the chip keeps their ops in order.
        target[later] = np.where((waits >= pair.forward) & (waits < first), NONE, waits)
    place = np.empty_like(rows)
    place[source] = rows
    waits = target[source]
    back = np.where(waits < 0, 0, rows - place[waits])
    columns = {name: getattr(ops, name)[source] for name in ("step", "layer", "microbatch")}
    return replace(ops, back=back.astype(np.int32), **columns)


def _turns(ops: Ops, pair: Pair, communicates: BoolArray) -> IntArray:
    """Turn of each op of a pair, by which the ops are sorted."""
    # Forward pieces have even turns and backward pieces odd ones, so they alternate. The pieces of
    # the forward pass, of which there may be more or fewer, are spread evenly over the backward
    # ones.
    forward = _pieces(communicates[pair.forward : pair.backward])
    backward = _pieces(communicates[pair.backward : pair.weights])
    layers = ops.layer[pair.backward : pair.weights]
    piece_of_layer = dict(zip(layers.tolist(), backward.tolist(), strict=True))
    last = int(backward[-1])
    piece, weights = 0, []
    for layer in ops.layer[pair.weights : pair.end].tolist():
        # Gradients of no layer come before those of the layers, or end the pass.
        piece = max(piece, piece_of_layer[layer] if layer >= 0 else last * (piece > 0))
        weights.append(piece)
    spread = forward * max(1, last) // max(1, int(np.max(forward, initial=0)))
    return np.concatenate([2 * spread, 2 * backward + 1, 2 * np.array(weights, np.int64) + 1])


def _pieces(ends: BoolArray) -> IntArray:
    """Number of each op's piece, from 0; ``ends`` marks the last op of a piece."""
    numbers: IntArray = np.cumsum(ends) - ends
    return numbers


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


class StageParts(NamedTuple):
    """Parts that the ops of a rank of one stage consist of."""

    passes: Passes
    which: IntArray  # (passes,): place of each pass's kind among ``blocks``
    blocks: tuple[Ops, ...]  # ops of each kind of pass
    # start, finish: ops before the first pass of an iteration and after the last
    start: Ops
    finish: Ops

    @property
    def ops(self) -> int:
        """Number of ops of one iteration."""
        lengths = np.array([len(block) for block in self.blocks], np.int64)
        return len(self.start) + int(lengths[self.which].sum()) + len(self.finish)

    def contents(self) -> tuple[object, ...]:
        """Return the arrays of the ops of all parts, and the numbers of passes of a stage."""
        tables = (self.start, *self.blocks, self.finish)
        return *((ops.step, ops.back, ops.layer) for ops in tables), self.which


def stage_parts(
    shapes: RankShapes, stage: int, catalog: Catalog, built: BuiltPasses | None = None
) -> StageParts:
    """Return the parts of the ops of a rank of a stage."""
    plan = shapes.plan
    builder = Builder(shapes, stage, catalog, built=built)
    order, kinds, which = _order(plan.pipeline, plan.pp, stage, plan.microbatches, plan.vpp)
    start = builder.start()
    blocks = {
        key: builder.pass_ops(key // 2 // plan.vpp, key // 2 % plan.vpp, last=key % 2 == 1)
        for key in kinds
    }
    by_kind = tuple(blocks[key] for key in sorted(kinds))
    return StageParts(order, which, by_kind, start, builder.finish())


@lru_cache(ORDERS_KEPT)
def _order(
    schedule: PipelineSchedule, pp: int, stage: int, microbatches: int, chunks: int
) -> tuple[Passes, list[int], IntArray]:
    """Passes of a stage, their kinds in order of appearance, and each pass's among them sorted."""
    order = passes(schedule, pp, stage, microbatches, chunks)
    kinds, first, which = np.unique(
        kinds_of_passes(order, chunks), return_index=True, return_inverse=True
    )
    return order, kinds[np.argsort(first)].tolist(), which


def stage_ops(
    parts: StageParts, plan: ParallelPlan, stream_of: IntArray, iterations: int = 1
) -> tuple[Ops, IntArray]:
    """Return the ops of a rank in one or several iterations, and the first op of each pass."""
    # ``stream_of`` (steps,): stream of each step.
    start = parts.start
    all_passes = sequence(parts.blocks, parts.which, parts.passes.microbatch)
    earlier = [number * plan.microbatches for number in range(iterations)]
    ops = join([part for more in earlier for part in (start, all_passes.later(more), parts.finish)])
    stream = stream_of[ops.step]
    asynchronous = np.zeros(len(STREAM_KINDS), np.bool_)
    asynchronous[list(beside(plan))] = True
    ops = past_asynchronous(ops, asynchronous[stream])
    lengths = np.array([len(block) for block in parts.blocks], np.int64)[parts.which]
    begins = len(start) + np.concatenate([[0], np.cumsum(lengths)])
    if not plan.pipeline.pairs_passes:
        return ops, begins
    whole = len(ops) // iterations
    together = [
        pair for run in range(iterations) for pair in pairs(parts.passes, begins + run * whole)
    ]
    return side_by_side(ops, together, stream == CC), begins


def beside(plan: ParallelPlan) -> tuple[int, ...]:
    """Return the streams that run beside compute, as later ops do not wait for theirs."""
    streams = {"none": (HOST,), "dp": (HOST, CC_DP), "all": (HOST, CC_DP, SEND)}[plan.overlap]
    return (*streams, SEND) if plan.pipeline.pairs_passes else streams


def kinds_of_passes(order: Passes, chunks: int) -> IntArray:
    """Return a number for each pass that passes with the same ops share, int64 (passes,)."""
    # The ops of a pass depend on its phase, its chunk, and whether it is the last of these.
    kind = 2 * (order.phase * chunks + order.chunk)
    last = np.zeros(len(kind), np.int64)
    _, from_end = np.unique(kind[::-1], return_index=True)
    last[len(kind) - 1 - from_end] = 1
    return np.asarray(kind + last, np.int64)


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
        """Return the ops that gather parameters which the step before updated, in buckets."""
        # There are some under ZeRO-1 and 2 with overlap.
        exchange = self.passes.exchange
        if not exchange.gathers_ahead():
            return self.catalog.ops([])
        edges = self.catalog.ops(exchange.gathered_edges())
        updated = [(layers, exchange.gathered(layers)) for layers in exchange.updated()]
        return join([edges, *gathered_ops(self.catalog, updated)])

    def finish(self) -> Ops:
        """Return the ops after the last pass: reduce gradients, update and gather parameters."""
        return self.catalog.ops(self.passes.exchange.finish())


# Streams: the ops that every rank of a pipeline stage runs, and their dependencies.


@dataclass(frozen=True, eq=False)
class Stream:
    """Ops that every rank of one stage runs."""

    ops: Ops
    # src, dst: (edges,): dependencies: op ``dst`` waits for op ``src``. They are sorted by ``dst``.
    src: IntArray
    dst: IntArray
    contends: BoolArray  # (ops,): ops that may contend for the rank's memory
    # (passes + 1,): first op of each pass of the first iteration, then the op after the last pass
    begins: IntArray
    # Digest of the contents that all but ``contends`` follow from; streams of one origin have the
    # same ops and dependencies
    origin: bytes


class Marks(NamedTuple):
    """Properties of all different steps."""

    stream: IntArray  # (steps,): stream of each step
    updates: BoolArray  # (steps,): steps that update parameters
    gathers: BoolArray  # (steps,): steps that gather parameters


def marks_of(catalog: Catalog) -> Marks:
    """Return the properties of all steps of a catalog."""
    updates = [step.what == "optimizer" for step in catalog.steps]
    gathers = [step.name.startswith("parameters.") for step in catalog.steps]
    return Marks(catalog.column("stream"), np.array(updates, np.bool_), np.array(gathers, np.bool_))


def stream_of(ops: Ops, begins: IntArray, marks: Marks, origin: bytes) -> Stream:
    """Return the ops of a rank with their dependencies; ``origin`` is that of :class:`Stream`."""
    stream = marks.stream[ops.step]
    pairs = edges(ops, stream), _gradients(ops, stream, marks), _parameters(ops, stream, marks)
    src, dst = (np.concatenate(column) for column in zip(*pairs, strict=True))
    # Sort edges by the op that waits, and keep each edge once.
    dst, src = np.divmod(distinct(dst * len(ops) + src), max(1, len(ops)))
    return Stream(ops, src, dst, np.zeros(len(ops), np.bool_), begins, origin)


def _gradients(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Edges from reductions of gradients in the background to the updates that wait for them."""
    # An update waits for the last reduction before it, as their stream runs in order.
    reductions = np.flatnonzero(stream == CC_DP)
    updates = np.flatnonzero(marks.updates[ops.step])
    before = np.searchsorted(reductions, updates)
    waits = before > 0
    return reductions[before[waits] - 1], updates[waits]


def _parameters(ops: Ops, stream: IntArray, marks: Marks) -> tuple[IntArray, IntArray]:
    """Edges from gathers of parameters in the background to the kernels that wait for them."""
    # The next kernel of their layer needs them; parameters outside of layers are needed by the next
    # kernel that belongs to no layer.
    gathered = np.flatnonzero(marks.gathers[ops.step])
    if not len(gathered):
        return gathered, gathered
    kernels = np.flatnonzero(stream == ENGINE)
    # Kernels sorted by layer, then by row, each as one number.
    span = np.int64(len(ops))
    layer = ops.layer.astype(np.int64) + 1
    users = np.sort(layer[kernels] * span + kernels)
    place = np.searchsorted(users, layer[gathered] * span + gathered)
    user = users[np.minimum(place, len(users) - 1)]
    used = (place < len(users)) & (user // span == layer[gathered])
    return gathered[used], user[used] % span
