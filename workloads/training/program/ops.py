"""Ops of a rank as a table of columns, which is repeated and concatenated by array arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import HORIZON_PS, PS_PER_S
from topologies.support.arrays import BoolArray, IntArray
from topologies.support.errors import InputError
from workloads.training.layers.steps import LayerOp, back
from workloads.training.plan.schedules.schedule import BACKWARD, FORWARD, WEIGHT, Passes

NONE = -1  # layer or microbatch of an op that belongs to none


@dataclass(frozen=True, eq=False)
class Ops:
    """Ops of one rank in program order, each of which runs one step."""

    step: IntArray  # (ops,): number of the op's step among all different ones (``Catalog.steps``)
    back: IntArray  # (ops,): distance to the earlier op that the op waits for, in ops; 0 for none
    # layer, microbatch: (ops,): layer and microbatch that the op belongs to; -1 for none
    layer: IntArray
    microbatch: IntArray

    def __len__(self) -> int:
        return len(self.step)

    def of_layers(self, further: int) -> Ops:
        """Return the same ops for other layers, whose numbers are higher by ``further``."""
        layer = np.where(self.layer < 0, NONE, self.layer + np.int32(further))
        return Ops(self.step, self.back, layer, self.microbatch)

    def later(self, microbatches: int) -> Ops:
        """Return the same ops for other microbatches, whose numbers are higher."""
        return Ops(self.step, self.back, self.layer, self.microbatch + np.int32(microbatches))


EMPTY = Ops(*(np.zeros(0, np.int32) for _ in range(4)))  # a table without ops
LaidOut = tuple[int, Ops]  # first layer that a pass was built for, and its ops


class Catalog:
    """The different steps of all stages, numbered in order of their first use."""

    def __init__(self) -> None:
        self.steps: list[LayerOp] = []
        self._number: dict[LayerOp, int] = {}

    def ops(self, steps: Sequence[LayerOp]) -> Ops:
        """Return a block of steps as ops, with the waits that the steps' ``after`` names."""
        if not steps:
            return EMPTY
        for step in steps:
            if step not in self._number:
                self._number[step] = len(self.steps)
                self.steps.append(step)
        numbers = np.array([self._number[step] for step in steps], np.int32)
        empty = np.full(len(steps), NONE, np.int32)
        return Ops(numbers, np.array(back(steps), np.int32), empty, empty)

    def column(self, name: str) -> IntArray:
        """Return one attribute of all steps, int64 (steps,); ``duration_ps`` is the time [ps]."""
        for step in self.steps:
            if step.seconds * PS_PER_S > HORIZON_PS or step.size_bytes > HORIZON_PS:
                raise InputError(
                    f"{step.name} takes {step.seconds:.1e} s and {step.size_bytes:.1e} bytes; a "
                    f"run ends at {HORIZON_PS / PS_PER_S:.1e} s. Use a shorter --seq, a smaller "
                    "--microbatch, or more --tp or --cp."
                )

        if name == "duration_ps":
            values = [max(1, round(step.seconds * PS_PER_S)) for step in self.steps]
        else:
            values = [getattr(step, name) for step in self.steps]
        return np.array(values, np.int64)


def join(parts: Sequence[Ops]) -> Ops:
    """Concatenate tables of ops; the result for no table is empty."""
    kept = [part for part in parts if len(part.step)]
    if len(kept) < 2:
        return kept[0] if kept else EMPTY
    columns = ("step", "back", "layer", "microbatch")
    return Ops(*(np.concatenate([getattr(part, name) for part in kept]) for name in columns))


def sequence(blocks: Sequence[Ops], which: IntArray, microbatch: IntArray) -> Ops:
    """Concatenate blocks, each for a microbatch."""
    # ``which`` (places,): number of the block at each place. ``microbatch`` (places,): microbatch
    # of all ops of the block at each place.
    lengths = np.array([len(block) for block in blocks], np.int64)
    joined, length = join(blocks), lengths[which]
    # Row of ``joined`` for every row of the result: the block's first row, plus the row within it.
    first = (np.cumsum(lengths) - lengths)[which] - (np.cumsum(length) - length)
    row = np.repeat(first, length) + np.arange(int(length.sum()))
    number = np.repeat(microbatch.astype(np.int32), length)
    return Ops(joined.step[row], joined.back[row], joined.layer[row], number)


def repeat(block: Ops, layers: Sequence[int] | IntArray) -> Ops:
    """Repeat a block for each of these layers, in their order."""
    count = len(layers)
    return Ops(
        step=np.tile(block.step, count),
        back=np.tile(block.back, count),
        layer=np.repeat(np.asarray(layers, np.int32), len(block)),
        microbatch=np.tile(block.microbatch, count),
    )


def past_asynchronous(ops: Ops, asynchronous: BoolArray) -> Ops:
    """Let ops wait for the op before an asynchronous one, rather than for that one itself."""
    # ``asynchronous`` (ops,): ops that the ops after them do not wait for.
    row = np.arange(len(ops))
    latest = np.maximum.accumulate(np.where(asynchronous, NONE, row))
    before = np.concatenate([[NONE], latest[:-1]])
    distance = np.where(before < 0, 0, row - before)
    waits = np.where(ops.back == 1, distance, ops.back).astype(np.int32)
    return Ops(ops.step, waits, ops.layer, ops.microbatch)


def edges(ops: Ops, stream: IntArray) -> tuple[IntArray, IntArray]:
    """Return the dependencies within a rank: waits for data, and the order of every stream."""
    # ``stream`` (ops,): stream of each op.
    # Returns ``src, dst`` (edges,): op ``dst`` waits for op ``src``. An edge of a stream's order is
    # left out where a chain of waits implies it.
    row = np.arange(len(ops))
    waits = ops.back > 0
    # Ops with the same number are a chain, each of which waits for the one before it.
    chain = np.cumsum(ops.back != 1)
    order = np.argsort(stream.astype(np.int8), kind="stable")
    same = stream[order[1:]] == stream[order[:-1]]
    before, after = order[:-1][same], order[1:][same]
    needed = (chain[before] != chain[after]) & (after - ops.back[after] != before)
    src = np.concatenate([row[waits] - ops.back[waits], before[needed]])
    return src, np.concatenate([row[waits], after[needed]])


INSIDE = ("tp", "cp", "ep", "etp")
"""Axes of communication within a pass; transfers between stages and exchanges of replicas are timed
apart."""


def span(ops: Ops, steps: list[LayerOp], time_s: Callable[[LayerOp], float]) -> float:
    """Return the time from the start of the first op to the end of the last [s]."""
    # An op starts when its stream is free and the op that it waits for has ended.
    free: dict[int, float] = {}
    ends: list[float] = []
    numbers = ops.step.tolist()
    lengths = {}
    for number in dict.fromkeys(numbers):
        step = steps[number]
        inside_s = time_s(step) if step.axis in INSIDE else 0.0
        lengths[number] = inside_s if step.axis else step.seconds
    for number, distance in zip(numbers, ops.back.tolist(), strict=True):
        stream = steps[number].stream
        ready = ends[-distance] if 0 < distance <= len(ends) else 0.0
        end = max(ready, free.get(stream, 0.0)) + lengths[number]
        free[stream] = end
        ends.append(end)
    return float(np.max(ends, initial=0.0))


def block_s(steps: Sequence[LayerOp], time_s: Callable[[LayerOp], float]) -> float:
    """Return the time from the start of the first of some steps to the end of the last [s]."""
    catalog = Catalog()
    ops = catalog.ops(steps)
    return span(ops, catalog.steps, time_s)


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
    # With gradients of weights apart, only passes through two chunks are paired (DualPipe).
    other = chunk[:-1] != chunk[1:]
    if not np.any(phase == WEIGHT):
        other |= order.microbatch[:-1] != order.microbatch[1:]
    first = (phase[:-1] == FORWARD) & (phase[1:] == BACKWARD) & other
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
