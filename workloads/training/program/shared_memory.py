"""Memory bandwidth that ops of a rank use, and the ops that may contend for it.

Each op reads and writes memory at a mean rate when it is alone. Where the rates of a kernel and of
the collectives beside it may together exceed the rate of their rank's share of the memory, these
ops are simulated as flows on that memory, which slow each other max-min fairly. Every other op
keeps its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import BoolArray, IntArray
from workloads.kernels.chip_share import family
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import CC, CC_DP, ENGINE
from workloads.training.plan.plan import ParallelPlan

LEAST_BYTES_PER_S = 10**9
"""Mean rate below which an op's memory traffic is ignored [B/s]. It is a thousandth of any memory's
rate, and at lower rates the rounding to whole bytes a second would change an op's time by more than
one part in 10⁹."""


class Draws(NamedTuple):
    """Memory traffic of ops, as arrays of one shape; 0 for an op whose traffic is ignored."""

    size_bytes: IntArray  # bytes that an op reads and writes in all [B]
    rate_bytes_per_s: IntArray  # mean rate of the op when it is alone [B/s]


def overlaps(plan: ParallelPlan) -> bool:
    """Return whether a plan runs communication beside compute, so that they share memory."""
    return plan.overlap != "none" or plan.cp > 1


def memory_bytes_per_s(shapes: RankShapes) -> int:
    """Rate that a rank's share of a chip's memory gives kernels and collectives [B/s]."""
    # It is the share of the stated bandwidth that kernels or collectives reach alone, whichever is
    # more. It is 0 for a chip whose catalogue does not say what collectives reach.
    chip, parts = shapes.chip, shapes.catalogue
    if not parts.has(chip, "hbm_in_collectives"):
        return 0
    kernels = parts.value(f"kernels.{family(chip, parts).name}", "elementwise_efficiency")
    share = max(kernels, parts.value(chip, "hbm_in_collectives"))
    return int(share * parts.value(chip, "hbm_bandwidth")) // shapes.plan.ranks_per_chip


def draws(
    size_bytes: IntArray, duration_ps: IntArray, most_bytes_per_s: int | IntArray
) -> tuple[Draws, IntArray]:
    """Return the memory traffic of ops, and their times with rates in whole bytes a second."""
    # ``size_bytes``: bytes that each op reads and writes [B]. ``duration_ps``: time of each op
    # alone [ps]. ``most_bytes_per_s``: rate of the memory, which no op exceeds [B/s].
    most = np.broadcast_to(most_bytes_per_s, duration_ps.shape)
    columns = [
        _draw(int(size), int(lasts), int(rate))
        for size, lasts, rate in zip(size_bytes.flat, duration_ps.flat, most.flat, strict=True)
    ]
    size, rate, lasts = np.array(columns, np.int64).reshape(-1, 3).T
    shape = duration_ps.shape
    return Draws(size.reshape(shape), rate.reshape(shape)), lasts.reshape(shape)


def _draw(size: int, lasts: int, most: int) -> tuple[int, int, int]:
    """Size [B], rate [B/s] and time [ps] of an op that lasts so long, at most at rate ``most``."""
    size = min(size, lasts * most // PS_PER_S)
    rate = -(-size * PS_PER_S // lasts)
    if rate < LEAST_BYTES_PER_S:
        return 0, 0, lasts
    return size, rate, max(1, -(-size * PS_PER_S // rate))


def contending(
    stream: IntArray,
    src: IntArray,
    dst: IntArray,
    rate_bytes_per_s: IntArray,
    most_bytes_per_s: int,
) -> BoolArray:
    """Return which ops of a rank may exceed the memory's rate together with ops beside them."""
    # A communication may run at any time after the last kernel before it and before the first
    # kernel that waits for it. A stream runs one op at a time. Transfers between pipeline stages
    # are left out, as they are small.
    # ``stream`` (ops,). ``src, dst`` (edges,): op ``dst`` waits for op ``src``, in order of
    # ``dst``. ``rate_bytes_per_s`` (ops,): rate of each op alone [B/s]. ``most_bytes_per_s``: rate
    # that the memory gives [B/s].
    # Returns False for ops that are never slowed and never slow another; (ops,).
    contends = np.zeros(len(stream), np.bool_)
    communications, low, high = _windows(stream, src, dst)
    kernels = np.where(stream == ENGINE, rate_bytes_per_s, 0)
    # For every op, the highest rate of a collective of each stream that may run beside it.
    covers = {}
    for kind in (CC, CC_DP):
        on_stream = stream[communications] == kind
        rates = rate_bytes_per_s[communications[on_stream]]
        covers[kind] = cover(len(stream), low[on_stream], high[on_stream], rates)
    demand = kernels + covers[CC] + covers[CC_DP]
    contends |= (kernels > 0) & (demand > kernels) & (demand > most_bytes_per_s)
    # A collective contends if the highest rates of a kernel and of the other stream's collectives
    # in its window, which need not coincide, exceed the memory's rate together with its own.
    for kind, other in ((CC, CC_DP), (CC_DP, CC)):
        on_stream = stream[communications] == kind
        ops, first, end = communications[on_stream], low[on_stream], high[on_stream]
        greatest = (most_of(rates, first, end) for rates in (kernels, covers[other]))
        contends[ops] = sum(greatest, rate_bytes_per_s[ops]) > most_bytes_per_s
    return contends & (rate_bytes_per_s > 0)


def _windows(stream: IntArray, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Communications with kernels in their window, and the window's ends."""
    # The window has the ops that may run beside the communication. A stream runs in order, so both
    # ends of its communications' windows ascend.
    count, kernel = len(stream), stream == ENGINE
    before, after = np.full(count, -1, np.int64), np.full(count, count, np.int64)
    _nearest(src.astype(np.int64), dst.astype(np.int64), kernel, before, 1)
    # Backwards, all edges that leave an op come before those that lead to it.
    _nearest(dst[::-1].astype(np.int64), src[::-1].astype(np.int64), kernel, after, -1)
    communications = np.flatnonzero((stream == CC) | (stream == CC_DP))
    first, end = before[communications] + 1, after[communications]
    counted = np.concatenate([[0], np.cumsum(kernel)])
    has_kernels = counted[end] > counted[first]
    return communications[has_kernels], first[has_kernels], end[has_kernels]


@compiled
def _nearest(src: IntArray, dst: IntArray, kernel: BoolArray, nearest: IntArray, sign: int) -> None:
    """Find the latest kernel that each op waits for, directly or not, in ``nearest``."""
    # With sign -1, and edges reversed, find the earliest kernel that waits for each op.
    for k in range(len(src)):
        end = src[k] if kernel[src[k]] else nearest[src[k]]
        if sign * end > sign * nearest[dst[k]]:
            nearest[dst[k]] = end


# Greatest values within stretches of an array, and among the stretches over each place.
# Stretches are half-open, ``low:high``. Both ends ascend from one stretch to the next, so one pass
# that keeps the values which may still be the greatest finds all answers.


def most_of(values: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Return the greatest of the values in each stretch, 0 for an empty one, int64 (stretches,)."""
    # ``values`` (places,): values from 0. ``low, high`` (stretches,): ends of the stretches, both
    # ascending.
    if (np.diff(low) < 0).any() or (np.diff(high) < 0).any():
        raise ValueError("the ends of stretches must ascend")
    most = np.zeros(len(low), np.int64)
    _slide(
        np.ascontiguousarray(values, np.int64),
        np.ascontiguousarray(low, np.int64),
        np.ascontiguousarray(high, np.int64),
        np.empty(len(values), np.int64),
        most,
    )
    return most


def cover(count: int, low: IntArray, high: IntArray, value: IntArray) -> IntArray:
    """Return the greatest value among the stretches that each place lies in, or 0."""
    # As their ends ascend, the stretches over a place follow one another: they are those from the
    # first that ends behind it to the last that begins at it or before.
    # ``count``: number of places. ``low, high`` (stretches,): ends of the stretches, both
    # ascending. ``value`` (stretches,): values from 0.
    ended, begun = (np.cumsum(np.bincount(end, minlength=count))[:count] for end in (high, low))
    return most_of(value, ended, begun)


@compiled
def _slide(
    values: IntArray, low: IntArray, high: IntArray, waiting: IntArray, most: IntArray
) -> None:
    """Write the greatest value of each stretch."""
    # ``waiting`` has the places whose values no later one reaches, so these values descend.
    first, last, place = 0, 0, 0
    for k in range(len(low)):
        while place < high[k]:
            while last > first and values[waiting[last - 1]] <= values[place]:
                last -= 1
            waiting[last] = place
            last += 1
            place += 1
        while first < last and waiting[first] < low[k]:
            first += 1
        if first < last and low[k] < high[k]:
            most[k] = values[waiting[first]]
