"""Pairs of passes that run side by side: while one communicates, the other computes.

A forward pass and a backward pass through another chunk are cut into pieces that end with a
communication, and the pieces take turns on the chip (DualPipe, arXiv 2412.19437, section 3.2.1).
The gradients of a layer's weights follow the piece that computes the gradients of its inputs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, IntArray
from workloads.training.plan.schedules import BACKWARD, FORWARD, WEIGHT
from workloads.training.plan.schedules.passes import Passes
from workloads.training.program.ops import NONE, Ops


class Pair(NamedTuple):
    """A pair of passes as rows of a rank's table of ops."""

    # forward, backward: first row of the forward and of the backward pass
    forward: int
    backward: int
    weights: int  # first row of the pass over gradients of weights; ``end`` if the pair has none
    end: int  # row after the last one of the pair


def pairs(order: Passes, begins: IntArray) -> list[Pair]:
    """Find the pairs among the passes of a stage.

    ``begins`` (passes + 1,): row of ops at which each pass begins, and the row after the last.
    """
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
    """Return the ops with the pieces of each pair in the order in which they take turns.

    ``ops``: ops of a rank, one pass after the other. ``communicates`` (ops,): ops that end a piece.
    """
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
    """Turn of each op of a pair, by which the ops are sorted.

    Forward pieces have even turns and backward pieces odd ones, so they alternate. The pieces of
    the forward pass, of which there may be more or fewer, are spread evenly over the backward ones.
    """
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
