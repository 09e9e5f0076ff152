"""Estimated time of a pipeline, by one walk through the passes of all stages."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled, internal
from topologies.support.arrays import FloatArray, IntArray
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.registry import pipeline_schedule
from workloads.training.plan.schedules.schedule import BACKWARD, FORWARD, WEIGHT

NOT, ONCE, EACH = range(3)
"""Passes beside which replicas exchange parameters or gradients: none, one an iteration, each."""
ENGINE, SENDS, TAKES, TAKES_BACK, DP, RETURNS, RETURNS_BACK = range(7)
"""Streams of a stage: compute, sends, receives forward and backward, exchanges of replicas, and
receives forward and backward of chunks on the way back. They are rows of the clocks."""
CHIP, HOST = range(2)  # sides of a pass, which takes the longer of both
NEVER = -1.0  # arrival of an input that is not sent yet
ORDERS_KEPT = 64  # orders of passes that are cached


class Replicas(NamedTuple):
    """Times of exchanges between replicas, and after the last pass [s]."""

    # (layers, 2): time of gathering the bucket of parameters that begins with a layer, and what
    # kernels beside it lose by the processors that it occupies; 0 if none does
    gather_s: FloatArray
    # (layers, 2): the same of reducing the bucket of gradients that a layer's backward pass
    # completes; 0 if it completes none
    reduce_s: FloatArray
    # (stages,): time of gathering the parameters of a stage that belong to no layer
    gather_rest_s: FloatArray
    # (chunks,): time of reducing the gradients that are left after the last layer of a chunk
    reduce_rest_s: FloatArray
    after_s: FloatArray  # (stages,): time of communication after the last pass and of the update
    tie_s: float  # time of summing the gradients of an embedding that both end stages hold


class Line(NamedTuple):
    """Pipeline of one plan, as arrays for compiled code."""

    # (3, stages, passes): phase, microbatch and chunk of each pass of each stage, see
    # :func:`orders`
    passes: IntArray
    number: IntArray  # (stages, chunks of a stage): number of each stage's chunks in the model
    stage: IntArray  # (chunks,): stage that holds each chunk of the model
    # (chunks + 1,): first layer of each chunk of the model, and the number of layers
    first: IntArray
    kind: IntArray  # (layers,): 0 for a dense layer, 1 for one with experts
    sparse: IntArray  # (chunks,): layers with experts of each chunk
    # (2, 3, 2): time of one layer on the chip and on the host, by phase and kind [s]
    layer_s: FloatArray
    # (3, 2, 3): further time of the first chunk, the last and every one, on both, by phase [s]
    ends_s: FloatArray
    # (stages,): time of a transfer from a stage to the next, and from the last to the first [s]
    hop_s: FloatArray
    replicas: Replicas  # times of exchanges between replicas
    # gathers, reduces: passes beside which parameters are gathered and gradients reduced: ``NOT``,
    # ``ONCE`` or ``EACH``
    gathers: int
    reduces: int
    reduced_in: int  # phase that completes gradients
    # sends_beside, dp_beside: whether a stage computes while it sends, and while replicas exchange
    sends_beside: bool
    dp_beside: bool


@lru_cache(maxsize=ORDERS_KEPT)
def orders(schedule: str, pp: int, microbatches: int, vpp: int) -> IntArray:
    """Return the phase, microbatch and chunk of all stages' passes, int64 (3, stages, passes)."""
    pipeline = pipeline_schedule(schedule)
    of_stages = [passes(pipeline, pp, stage, microbatches, vpp) for stage in range(pp)]
    return np.ascontiguousarray(
        np.stack([np.stack(parts) for parts in of_stages], axis=1), np.int64
    )


def walk_s(line: Line) -> float:
    """Return the time from the start of an iteration to the end of its last update [s]."""
    stages = line.passes.shape[1]
    arrived = np.full((2, len(line.first) - 1, int(line.passes[1].max()) + 1), NEVER)
    gathered, clocks = np.zeros(len(line.kind)), np.zeros((7, stages))
    place = np.zeros(stages, np.int64)
    # Arrays in the only memory layout that the walk is compiled for; numbers unchanged.
    replicas = Replicas(*map(_contiguous, line.replicas))
    line = Line(*map(_contiguous, line._replace(replicas=replicas)))
    if not _walk(line, arrived, gathered, clocks, place):
        raise ValueError("the stages of a pipeline wait for one another")
    free = clocks[[ENGINE, SENDS, DP]].max(axis=0)
    if line.replicas.tie_s:
        free[[0, -1]] = free[[0, -1]].max() + line.replicas.tie_s
    return float((free + line.replicas.after_s).max())


def _contiguous(part: Any) -> Any:
    return np.ascontiguousarray(part) if isinstance(part, np.ndarray) else part


@compiled
def _walk(
    line: Line, arrived: FloatArray, gathered: FloatArray, clocks: FloatArray, place: IntArray
) -> bool:
    """Let each stage in turn run until it waits for another; return whether all reach the end."""
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
    """Gather the parameters that the previous step updated, one chunk after the other."""
    if line.gathers != ONCE:
        return
    stages = clocks.shape[1]
    for s in range(stages):
        clocks[DP, s] = line.replicas.gather_rest_s[s]
    clocks[ENGINE, 0] = clocks[DP, 0]  # the embedding is the first that is needed
    for chunk in range(len(line.first) - 1):
        for layer in range(line.first[chunk], line.first[chunk + 1]):
            clocks[DP, line.stage[chunk]] += line.replicas.gather_s[layer, 0]
            gathered[layer] = clocks[DP, line.stage[chunk]]


@internal
def _go_on(
    line: Line, s: int, at: int, arrived: FloatArray, gathered: FloatArray, clocks: FloatArray
) -> bool:
    """Run the next pass of a stage and send its result; return whether its input had arrived."""
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
    """Run a pass that begins at a time, and return its end [s]."""
    low, high = line.first[chunk], line.first[chunk + 1]
    gathers = line.gathers == EACH and phase != WEIGHT
    ahead = line.gathers == ONCE and phase == FORWARD and high > low
    late = ahead and gathered[high - 1] > begin
    whole = line.reduces == EACH or (line.reduces == ONCE and last)
    if gathers or late or (whole and phase == line.reduced_in):
        return _layers(line, phase, chunk, begin, gathered, clocks)
    # The host issues a pass beside the chip, and the pass takes the longer of both.
    return begin + max(_side_s(line, CHIP, phase, chunk), _side_s(line, HOST, phase, chunk))


@internal
def _side_s(line: Line, side: int, phase: int, chunk: int) -> float:
    """Time of a pass on one side [s]."""
    sparse, ends_s = line.sparse[chunk], line.ends_s
    dense = line.first[chunk + 1] - line.first[chunk] - sparse
    time_s: float = dense * line.layer_s[side, phase, 0] + sparse * line.layer_s[side, phase, 1]
    time_s += ends_s[2, side, phase]
    if chunk == 0:
        time_s += ends_s[0, side, phase]
    if chunk == len(line.first) - 2:
        time_s += ends_s[1, side, phase]
    return time_s


@internal
def _layers(
    line: Line, phase: int, chunk: int, begin: float, gathered: FloatArray, clocks: FloatArray
) -> float:
    """Run a pass layer by layer, with exchanges of replicas beside it, and return its end [s]."""
    low, high, s = line.first[chunk], line.first[chunk + 1], line.stage[chunk]
    gathers = line.gathers == EACH and phase != WEIGHT
    reduces = line.reduces != NOT and phase == line.reduced_in
    step = 1 if phase == FORWARD else -1
    layer = low if phase == FORWARD else high - 1
    issued = begin + _side_s(line, HOST, phase, chunk)
    head = line.ends_s[0, CHIP, phase] if chunk == 0 else 0.0
    tail = line.ends_s[1, CHIP, phase] if chunk == len(line.first) - 2 else 0.0
    if phase != FORWARD:
        head, tail = tail, head
    if gathers:
        # Gathering may begin when the previous pass ends, before the input of this pass arrives.
        ahead = clocks[ENGINE, s] if line.sends_beside else max(clocks[ENGINE, s], clocks[SENDS, s])
        if phase == FORWARD and (chunk == 0 or chunk == len(line.first) - 2):
            ahead = _exchange(line, s, ahead, line.replicas.gather_rest_s[s], clocks)
        if high > low:  # a chunk at an end of the model may have no layer
            ahead = _exchange(line, s, ahead, line.replicas.gather_s[layer, 0], clocks)
            gathered[layer] = clocks[DP, s]
        begin = begin if line.dp_beside else max(begin, ahead)
    end: float = begin + line.ends_s[2, CHIP, phase] + head
    longer = _longer(line, phase, chunk, gathers, reduces)
    for k in range(high - low):
        if gathers and k + 1 < high - low:
            end = _exchange(line, s, end, line.replicas.gather_s[layer + step, 0], clocks)
            gathered[layer + step] = clocks[DP, s]
        end = max(end, gathered[layer]) + longer * line.layer_s[CHIP, phase, line.kind[layer]]
        if reduces:
            end = _exchange(line, s, end, line.replicas.reduce_s[layer, 0], clocks)
        layer += step
    end = max(end + tail, issued)
    if reduces:
        end = _exchange(line, s, end, line.replicas.reduce_rest_s[chunk], clocks)
    return end


@internal
def _longer(line: Line, phase: int, chunk: int, gathers: bool, reduces: bool) -> float:
    """Times as long that layers of a pass take beside its exchanges, but the first and the last."""
    low, high = line.first[chunk], line.first[chunk + 1]
    first, last = (low, high - 1) if phase == FORWARD else (high - 1, low)
    layers_s, talk_s, lost_s = 0.0, 0.0, 0.0
    for layer in range(low, high):
        layers_s += line.layer_s[CHIP, phase, line.kind[layer]]
        if gathers and layer != first:
            talk_s += line.replicas.gather_s[layer, 0]
            lost_s += line.replicas.gather_s[layer, 1]
        if reduces and layer != last:
            talk_s += line.replicas.reduce_s[layer, 0]
            lost_s += line.replicas.reduce_s[layer, 1]
    return 1.0 + (min(lost_s / layers_s, lost_s / (talk_s - lost_s)) if lost_s > 0.0 else 0.0)


@internal
def _exchange(line: Line, s: int, begin: float, length_s: float, clocks: FloatArray) -> float:
    """Let replicas exchange from ``begin`` on, and return when the stage may continue [s]."""
    if length_s == 0.0:
        return begin
    clocks[DP, s] = max(clocks[DP, s], begin) + length_s
    ends: float = clocks[DP, s]
    return begin if line.dp_beside else ends


# A lower bound of the estimated time of a pipeline, without a walk through its passes.
# The engine of a stage runs the stage's passes one after the other. It cannot begin before the
# first microbatch has come forward through the chunks before the stage's, and after its last
# backward pass that microbatch must go back through these chunks. Transfers, exchanges of replicas
# and updates only add to this time.

ROUNDING = 1e-9
"""Largest relative difference by which bound and walk may err as they add times in another order.
Each adds some thousands of times, every one with an error of at most 2⁻⁵³."""


def least_s(
    number: IntArray, layers: IntArray, sparse: IntArray, layer_s: FloatArray, ends_s: FloatArray,
    microbatches: int,
) -> float:  # fmt: skip
    """Return a lower bound of the time that a walk through the pipeline takes [s]."""
    # ``number``, ``sparse``, ``layer_s`` and ``ends_s`` are those of a :class:`Line`; times of
    # phases that the schedule does not have are 0. ``layers`` (chunks,): layers of each chunk.
    # Backward passes of a microbatch follow its forward passes, so all forward passes of a stage
    # are over at its last backward pass. Gradients of weights may run while that microbatch goes
    # back.
    sides_s = (layers - sparse) * layer_s[..., :1] + sparse * layer_s[..., 1:]
    sides_s[..., 0] += ends_s[0]
    sides_s[..., -1] += ends_s[1]
    pass_s = (sides_s + ends_s[2, ..., None]).max(axis=0)
    before_s = np.cumsum(pass_s, axis=1) - pass_s
    ahead_s = before_s[FORWARD][number].min(axis=1)
    behind_s = before_s[BACKWARD][number].min(axis=1)
    passes_s = pass_s[:, number].sum(axis=2) * microbatches
    busy_s = passes_s[FORWARD] + passes_s[BACKWARD]
    ends_s = ahead_s + busy_s + np.maximum(passes_s[WEIGHT], behind_s)
    return float(ends_s.max()) * (1 - ROUNDING)
