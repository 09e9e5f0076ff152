"""A pipeline walked through once: the passes of all stages in order, with exchanges beside them.

A step is one microbatch through one chunk of the model. Its layers are followed one by one only
where parameters are gathered for them or their gradients reduced meanwhile.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.jit import compiled, internal
from topologies.arrays import FloatArray, IntArray
from workloads.training.plan.schedules import BACKWARD, FORWARD, WEIGHT, pipeline_schedule
from workloads.training.plan.schedules.held import passes

NOT, ONCE, EACH = range(3)
"""When replicas exchange beside passes: never, once an iteration, with each pass."""
ENGINE, SENDS, TAKES, TAKES_BACK, DP, RETURNS, RETURNS_BACK = range(7)
"""Streams of a stage, by the row of when they are free."""
NEVER = -1.0
ORDERS_KEPT = 64


class Line(NamedTuple):
    """A pipeline of one plan.

    Attributes
    ----------
    passes : int64 array (3, stages, passes)
        Phase, microbatch and chunk of each pass of each stage, see :func:`orders`.
    number : int64 array (stages, chunks of a stage)
        Number of each stage's chunks in the model.
    stage : int64 array (chunks,)
        Stage that holds each chunk of the model.
    first : int64 array (chunks + 1,)
        First layer of each chunk of the model, and the number of layers.
    kind : int64 array (layers,)
        0 for a dense layer, 1 for one with experts.
    sparse : int64 array (chunks,)
        Layers with experts of each chunk.
    layer_s : float64 array (3, 2)
        One layer by phase and kind [s].
    ends_s : float64 array (2, 3)
        Further time of the first and the last chunk, by phase [s].
    hop_s : float64 array (stages,)
        Transfer between a stage and the next, the last being followed by the first [s].
    gather_s, reduce_s : float64 array (layers,)
        Time of the parameters that are gathered for a layer and those after it, and of the
        gradients that are reduced after its backward pass [s].
    gather_rest_s : float64 array (stages,)
        Time of the parameters that a stage holds besides layers [s].
    reduce_rest_s : float64 array (chunks,)
        Time of the gradients that are left after the last layer of a chunk [s].
    after_s : float64 array (stages,)
        Time after the last pass that hides behind nothing [s].
    tie_s : float
        Exchange of the first and the last stage before that [s].
    gathers, reduces : int
        ``NOT``, ``ONCE`` or ``EACH``.
    reduced_in : int
        Phase that makes gradients whole.
    sends_beside, dp_beside : bool
        Whether a stage works on while it sends, and while replicas exchange.
    """

    passes: IntArray
    number: IntArray
    stage: IntArray
    first: IntArray
    kind: IntArray
    sparse: IntArray
    layer_s: FloatArray
    ends_s: FloatArray
    hop_s: FloatArray
    gather_s: FloatArray
    reduce_s: FloatArray
    gather_rest_s: FloatArray
    reduce_rest_s: FloatArray
    after_s: FloatArray
    tie_s: float
    gathers: int
    reduces: int
    reduced_in: int
    sends_beside: bool
    dp_beside: bool


@lru_cache(maxsize=ORDERS_KEPT)
def orders(schedule: str, pp: int, microbatches: int, vpp: int) -> IntArray:
    """Passes of all stages: phase, microbatch and chunk, int64 (3, stages, passes)."""
    how = pipeline_schedule(schedule)
    of_stages = [passes(how, pp, stage, microbatches, vpp) for stage in range(pp)]
    return np.ascontiguousarray(
        np.stack([np.stack(parts) for parts in of_stages], axis=1), np.int64
    )


def walk_s(line: Line) -> float:
    """Time from the start of an iteration to the end of its last update [s].

    Raises
    ------
    ValueError
        When stages wait for one another.
    """
    stages = line.passes.shape[1]
    arrived = np.full((2, len(line.first) - 1, int(line.passes[1].max()) + 1), NEVER)
    gathered, clocks = np.zeros(len(line.kind)), np.zeros((7, stages))
    place = np.zeros(stages, np.int64)
    line = Line(*(_in_order(column) for column in line))
    if not _walk(line, arrived, gathered, clocks, place):
        raise ValueError("the stages of a pipeline wait for one another")
    free = clocks[[ENGINE, SENDS, DP]].max(axis=0)
    if line.tie_s:
        free[[0, -1]] = free[[0, -1]].max() + line.tie_s
    return float((free + line.after_s).max())


def _in_order(column: Any) -> Any:
    """An array in the one layout that the walk is compiled for; a number unchanged."""
    return np.ascontiguousarray(column) if isinstance(column, np.ndarray) else column


@compiled
def _walk(
    line: Line,
    arrived: FloatArray,
    gathered: FloatArray,
    clocks: FloatArray,
    place: IntArray,
) -> bool:
    """Let each stage in turn go on until it waits for another; returns if all reach the end."""
    stages, count = line.passes.shape[1], line.passes.shape[2]
    _gather_ahead(line, gathered, clocks)
    left, moved = stages * count, True
    while left > 0 and moved:
        moved = False
        for s in range(stages):
            while place[s] < count and _go_on(line, s, place[s], arrived, gathered, clocks):
                place[s] += 1
                left -= 1
                moved = True
    done: bool = left == 0
    return done


@internal
def _gather_ahead(line: Line, gathered: FloatArray, clocks: FloatArray) -> None:
    """Gather the parameters updated by the step before, chunk after chunk of every stage."""
    if line.gathers != ONCE:
        return
    stages = clocks.shape[1]
    for s in range(stages):
        clocks[DP, s] = line.gather_rest_s[s]
    clocks[ENGINE, 0] = clocks[DP, 0]  # the embedding is the first that is needed
    for chunk in range(len(line.first) - 1):
        for layer in range(line.first[chunk], line.first[chunk + 1]):
            clocks[DP, line.stage[chunk]] += line.gather_s[layer]
            gathered[layer] = clocks[DP, line.stage[chunk]]


@internal
def _go_on(
    line: Line, s: int, at: int, arrived: FloatArray, gathered: FloatArray, clocks: FloatArray
) -> bool:
    """Compute the next pass of a stage and send its result; returns if its input was there."""
    stages, chunks = line.passes.shape[1], len(line.first) - 1
    phase, m = line.passes[0, s, at], line.passes[1, s, at]
    chunk = line.number[s, line.passes[2, s, at]]
    begin = clocks[ENGINE, s]
    if (phase == FORWARD and chunk > 0) or (phase == BACKWARD and chunk < chunks - 1):
        if arrived[phase, chunk, m] < 0.0:
            return False
        begin = max(begin, arrived[phase, chunk, m])
    elif not line.sends_beside:
        begin = max(begin, clocks[SENDS, s])
    last = m == arrived.shape[2] - 1
    end = _pass(line, phase, chunk, last, begin, gathered, clocks)
    clocks[ENGINE, s] = end
    to = chunk + 1 if phase == FORWARD else chunk - 1
    if phase < WEIGHT and 0 <= to < chunks:
        there = line.stage[to]
        if there == s:  # where the model turns
            arrived[phase, to, m] = end
            return True
        before, after = (s, there) if phase == FORWARD else (there, s)
        onward = after == (before + 1) % stages
        way = (TAKES if onward else RETURNS) + phase
        hop_s = line.hop_s[before if onward else after]
        sent = max(end, clocks[SENDS, s], clocks[way, there]) + hop_s
        arrived[phase, to, m] = sent
        clocks[SENDS, s] = sent
        clocks[way, there] = sent
    return True


@internal
def _pass(
    line: Line,
    phase: int,
    chunk: int,
    last: bool,
    begin: float,
    gathered: FloatArray,
    clocks: FloatArray,
) -> float:
    """Compute one microbatch through one chunk; returns when the stage has done it [s]."""
    low, high = line.first[chunk], line.first[chunk + 1]
    final = chunk == len(line.first) - 2
    head = line.ends_s[0, phase] if chunk == 0 else 0.0
    tail = line.ends_s[1, phase] if final else 0.0
    if phase != FORWARD:
        head, tail = tail, head
    gathers = line.gathers == EACH and phase != WEIGHT
    late = line.gathers == ONCE and phase == FORWARD and gathered[high - 1] > begin
    whole = line.reduces == EACH or (line.reduces == ONCE and last)
    if gathers or late or (whole and phase == line.reduced_in):
        return _layers(line, phase, chunk, begin, head, tail, gathered, clocks)
    sparse = line.sparse[chunk]
    layers_s = (high - low - sparse) * line.layer_s[phase, 0] + sparse * line.layer_s[phase, 1]
    end: float = begin + head + layers_s + tail
    return end


@internal
def _layers(
    line: Line,
    phase: int,
    chunk: int,
    begin: float,
    head: float,
    tail: float,
    gathered: FloatArray,
    clocks: FloatArray,
) -> float:
    """Compute the same layer by layer while replicas exchange; returns when it is done [s]."""
    low, high, s = line.first[chunk], line.first[chunk + 1], line.stage[chunk]
    gathers = line.gathers == EACH and phase != WEIGHT
    reduces = line.reduces != NOT and phase == line.reduced_in
    step = 1 if phase == FORWARD else -1
    layer = low if phase == FORWARD else high - 1
    if gathers:
        # Needs nothing of the pass before but its end, so not what the pass itself waits for.
        ahead = clocks[ENGINE, s] if line.sends_beside else max(clocks[ENGINE, s], clocks[SENDS, s])
        if phase == FORWARD and (chunk == 0 or chunk == len(line.first) - 2):
            ahead = _exchange(line, s, ahead, line.gather_rest_s[s], clocks)
        ahead = _exchange(line, s, ahead, line.gather_s[layer], clocks)
        gathered[layer] = clocks[DP, s]
        begin = begin if line.dp_beside else max(begin, ahead)
    end = begin + head
    for k in range(high - low):
        if gathers and k + 1 < high - low:
            end = _exchange(line, s, end, line.gather_s[layer + step], clocks)
            gathered[layer + step] = clocks[DP, s]
        end = max(end, gathered[layer]) + line.layer_s[phase, line.kind[layer]]
        if reduces:
            end = _exchange(line, s, end, line.reduce_s[layer], clocks)
        layer += step
    if reduces:
        end = _exchange(line, s, end + tail, line.reduce_rest_s[chunk], clocks) - tail
    return end + tail


@internal
def _exchange(line: Line, s: int, begin: float, length_s: float, clocks: FloatArray) -> float:
    """Let replicas exchange; returns when the stage continues [s]."""
    if length_s == 0.0:
        return begin
    clocks[DP, s] = max(clocks[DP, s], begin) + length_s
    ends: float = clocks[DP, s]
    return begin if line.dp_beside else ends
