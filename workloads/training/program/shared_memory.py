"""Memory bandwidth that ops of a rank use, and the ops that may contend for it.

A kernel and a collective that run beside each other are flows on their rank's part of the chip's
memory, each at the mean rate at which it reads and writes when alone, if these together may exceed
what the memory gives: all are then slowed, max-min fair. Every other op keeps its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.jit import compiled
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import BoolArray, IntArray
from workloads.kernels.chip_share import family
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import CC, CC_DP, ENGINE
from workloads.training.plan.plan import ParallelPlan

LEAST_BYTES_PER_S = 10**9
"""Mean rate below which an op is taken to draw nothing [B/s]: a thousandth of any memory's, and
whole bytes a second would round its time by more than a part in 10⁹."""


class Draws(NamedTuple):
    """Rates at which ops use memory, arrays of one shape; 0 for none.

    Attributes
    ----------
    size_bytes : int64 array
        Read and written in all [B].
    rate_bytes_per_s : int64 array
        Mean rate when alone [B/s].
    """

    size_bytes: IntArray
    rate_bytes_per_s: IntArray


def overlaps(plan: ParallelPlan) -> bool:
    """Return whether a plan runs communication beside compute; without, memory is not shared."""
    return plan.overlap != "none" or plan.cp > 1


def memory_bytes_per_s(shapes: RankShapes) -> int:
    """Rate that kernels and collectives can use of one rank's part of a memory [B/s].

    The share of the stated bandwidth that the better of them reaches alone; 0 where nobody knows
    what collectives draw.
    """
    chip, parts = shapes.chip, shapes.catalogue
    if not parts.has(chip, "hbm_in_collectives"):
        return 0
    kernels = parts.value(f"kernels.{family(chip, parts).name}", "elementwise_efficiency")
    share = max(kernels, parts.value(chip, "hbm_in_collectives"))
    return int(share * parts.value(chip, "hbm_bandwidth")) // shapes.plan.ranks_per_chip


def draws(
    size_bytes: IntArray, duration_ps: IntArray, most_bytes_per_s: int
) -> tuple[Draws, IntArray]:
    """Draws of ops of these bytes and times, and their times as whole bytes a second make them.

    Examples
    --------
    >>> drawn, lasts = draws(np.array([10**9, 7]), np.array([3 * 10**9, 10**12]), 2 * 10**12)
    >>> drawn.rate_bytes_per_s.tolist(), lasts.tolist()
    ([333333333334, 0], [3000000000, 1000000000000])
    """
    columns = [
        _draw(int(size), int(lasts), most_bytes_per_s)
        for size, lasts in zip(size_bytes.ravel(), duration_ps.ravel(), strict=True)
    ]
    size, rate, lasts = np.array(columns, np.int64).reshape(-1, 3).T
    shape = duration_ps.shape
    return Draws(size.reshape(shape), rate.reshape(shape)), lasts.reshape(shape)


def _draw(size: int, lasts: int, most: int) -> tuple[int, int, int]:
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
    """Return which ops of a rank may, with those beside them, ask for more than the memory gives.

    A communication may run from the last kernel before it to the first that waits for it; of each
    stream one op at a time. What passes between pipeline stages is left out: it is little.

    Parameters
    ----------
    stream : int array (ops,)
    src, dst : int array (edges,)
        Op ``dst`` waits for op ``src``, in order of ``dst``.
    rate_bytes_per_s : int array (ops,)
        Rate that each draws alone [B/s].
    most_bytes_per_s : int
        Rate that the memory gives [B/s].

    Returns
    -------
    bool array (ops,)
        The others are never slowed, nor do they slow any.
    """
    contends = np.zeros(len(stream), np.bool_)
    talks, low, high = _windows(stream, src, dst)
    kernels = np.where(stream == ENGINE, rate_bytes_per_s, 0)
    covers = {}
    for kind in (CC, CC_DP):
        of = stream[talks] == kind
        covers[kind] = cover(len(stream), low[of], high[of], rate_bytes_per_s[talks[of]])
    demand = kernels + covers[CC] + covers[CC_DP]
    contends |= (kernels > 0) & (demand > kernels) & (demand > most_bytes_per_s)
    for kind, other in ((CC, CC_DP), (CC_DP, CC)):
        of = stream[talks] == kind
        greatest = (most_of(rates, low[of], high[of]) for rates in (kernels, covers[other]))
        contends[talks[of]] = sum(greatest, rate_bytes_per_s[talks[of]]) > most_bytes_per_s
    return contends & (rate_bytes_per_s > 0)


def _windows(stream: IntArray, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Communications with kernels beside them, and the first and last but one op of these."""
    count, kernel = len(stream), stream == ENGINE
    before, after = np.full(count, -1, np.int64), np.full(count, count, np.int64)
    by_src = np.argsort(src, kind="stable")[::-1]
    _nearest(src.astype(np.int64), dst.astype(np.int64), kernel, before, 1)
    _nearest(dst[by_src].astype(np.int64), src[by_src].astype(np.int64), kernel, after, -1)
    talks = np.flatnonzero((stream == CC) | (stream == CC_DP))
    kernels = np.concatenate([[0], np.cumsum(kernel)])
    among = kernels[after[talks]] > kernels[before[talks] + 1]
    return talks[among], before[talks][among] + 1, after[talks][among]


def cover(count: int, low: IntArray, high: IntArray, value: IntArray) -> IntArray:
    """Greatest value of the stretches ``low:high`` that each place lies in, 0 for none.

    Stretches are two powers of two, which are halved until they are single places.
    """
    covered = np.zeros(count, np.int64)
    level = np.frexp(high - low)[1] - 1
    for k in range(int(level.max(initial=0)), -1, -1):
        at = level == k
        np.maximum.at(covered, low[at], value[at])
        np.maximum.at(covered, high[at] - 2**k, value[at])
        half = 2**k // 2
        if half:
            covered[half:] = np.maximum(covered[half:], covered[:-half])
    return covered


def most_of(values: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Greatest of the values in each stretch ``low:high``."""
    most = np.zeros(len(low), np.int64)
    level = np.frexp(high - low)[1] - 1
    table = values.astype(np.int64)
    for k in range(int(level.max(initial=0)) + 1):
        at = level == k
        most[at] = np.maximum(table[low[at]], table[high[at] - 2**k])
        table = np.maximum(table, np.concatenate([table[2**k :], table[-(2**k) :]]))
    return most


@compiled
def _nearest(src: IntArray, dst: IntArray, kernel: BoolArray, nearest: IntArray, sign: int) -> None:
    """Latest kernel that each op comes after; with sign -1 the earliest after it."""
    for k in range(len(src)):
        end = src[k] if kernel[src[k]] else nearest[src[k]]
        if sign * end > sign * nearest[dst[k]]:
            nearest[dst[k]] = end
