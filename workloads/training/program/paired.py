"""Pairs of passes that run side by side: while one communicates, the other computes.

A forward pass and a backward pass through another chunk are cut where they communicate, and their
pieces take turns on the chip (DualPipe, arXiv 2412.19437, section 3.2.1). Gradients of weights come
after the piece that has done the gradients of inputs of their layer.
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
    """Rows of ops at which the passes of a pair begin, and the row after them.

    ``weights`` equals ``end`` where no gradients of weights belong to the pair.
    """

    forward: int
    backward: int
    weights: int
    end: int


def pairs(order: Passes, begins: IntArray) -> list[Pair]:
    """Pairs among the passes of a stage.

    Parameters
    ----------
    order : Passes
    begins : int array (passes + 1,)
        Row of ops at which each pass begins, and the row after the last.
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
    """Let the pieces of each pair take turns.

    Parameters
    ----------
    ops : Ops
        Ops of a rank, its passes one after the other.
    together : list of Pair
    communicates : bool array (ops,)
        Ops with which a piece ends.
    """
    rows = np.arange(len(ops))
    target = np.where(ops.back > 0, rows - ops.back, NONE)
    source = rows.copy()
    for pair in together:
        inside = slice(pair.forward, pair.end)
        source[inside] = pair.forward + np.argsort(_turns(ops, pair, communicates), kind="stable")
        later = rows[pair.backward : pair.end]
        begun = np.where(later < pair.weights, pair.backward, pair.weights)
        waits = target[later]
        # A pass of the pair waits for its own ops alone; the chip keeps the order of the rest.
        target[later] = np.where((waits >= pair.forward) & (waits < begun), NONE, waits)
    place = np.empty_like(rows)
    place[source] = rows
    waits = target[source]
    back = np.where(waits < 0, 0, rows - place[waits])
    columns = {name: getattr(ops, name)[source] for name in ("step", "layer", "microbatch")}
    return replace(ops, back=back.astype(np.int32), **columns)


def _turns(ops: Ops, pair: Pair, communicates: BoolArray) -> IntArray:
    """Turn of each op of a pair; those of one turn stay in order, forward before backward."""
    ahead = _pieces(communicates[pair.forward : pair.backward])
    behind = _pieces(communicates[pair.backward : pair.weights])
    layers = ops.layer[pair.backward : pair.weights]
    late = ops.layer[pair.weights : pair.end]
    done = dict(zip(layers.tolist(), behind.tolist(), strict=True))
    most = int(behind[-1])
    first, weights = 0, []
    for layer in late.tolist():
        # What belongs to no layer stands before the layers, or ends the pass.
        first = max(first, done[layer] if layer >= 0 else most * (first > 0))
        weights.append(first)
    spread = ahead * max(1, most) // max(1, int(np.max(ahead, initial=0)))
    return np.concatenate([2 * spread, 2 * behind + 1, 2 * np.array(weights, np.int64) + 1])


def _pieces(ends: BoolArray) -> IntArray:
    """Number of the piece of each op; a piece ends with communication."""
    numbers: IntArray = np.cumsum(ends) - ends
    return numbers
