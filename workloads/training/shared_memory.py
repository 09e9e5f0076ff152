"""What ops of a rank draw from its memory where they run beside each other.

A kernel or a collective that runs beside others is a flow on its rank's part of the chip's memory,
at the mean rate at which it reads and writes there when alone; when these exceed what the memory
gives, all that draw on it are slowed, max-min fair. What runs alone keeps its time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cluster_sim.engine.jit import compiled
from cluster_sim.instants import PS_PER_S
from cluster_sim.schedule import BoolArray, IntArray
from workloads.kernel_rank import family
from workloads.training.ops import Ops
from workloads.training.plan import ParallelPlan
from workloads.training.shapes import Shapes
from workloads.training.steps import CC, CC_DP, ENGINE

LEAST_BYTES_PER_S = 10**9
"""Mean rate below which an op is taken to draw nothing [B/s]: a thousandth of any memory's, and
whole bytes a second would round its time by more than a part in 10⁹."""


class Draws(NamedTuple):
    """What ops draw from memory, arrays of one shape; 0 where nothing.

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
    """Whether a plan has communication run beside compute; without, memory is left out."""
    return plan.overlap != "none" or plan.cp > 1


def memory_bytes_per_s(shapes: Shapes) -> int:
    """What kernels and collectives together can draw from one rank's part of a memory [B/s].

    The share of the stated bandwidth that the better of them reaches alone; 0 where nobody knows
    what collectives draw.
    """
    chip, parts = shapes.chip, shapes.parts
    if not parts.has(chip, "hbm_in_collectives"):
        return 0
    kernels = parts.value(f"kernels.{family(chip).name}", "elementwise_efficiency")
    share = max(kernels, parts.value(chip, "hbm_in_collectives"))
    return int(share * parts.value(chip, "hbm_bandwidth")) // shapes.plan.ranks_per_chip


def draws(
    size_bytes: IntArray, duration_ps: IntArray, most_bytes_per_s: int
) -> tuple[Draws, IntArray]:
    """Draws of ops of these bytes and times, and their times as whole bytes a second make them.

    Examples
    --------
    >>> found, lasts = draws(np.array([10**9, 7]), np.array([3 * 10**9, 10**12]), 2 * 10**12)
    >>> found.rate_bytes_per_s.tolist(), lasts.tolist()
    ([333333333334, 0], [3000000000, 1000000000000])
    """
    made = [
        _draw(int(size), int(lasts), most_bytes_per_s)
        for size, lasts in zip(size_bytes.ravel(), duration_ps.ravel(), strict=True)
    ]
    size, rate, lasts = np.array(made, np.int64).reshape(-1, 3).T
    shape = duration_ps.shape
    return Draws(size.reshape(shape), rate.reshape(shape)), lasts.reshape(shape)


def _draw(size: int, lasts: int, most: int) -> tuple[int, int, int]:
    size = min(size, lasts * most // PS_PER_S)
    rate = -(-size * PS_PER_S // lasts)
    if rate < LEAST_BYTES_PER_S:
        return 0, 0, lasts
    return size, rate, max(1, -(-size * PS_PER_S // rate))


def beside(ops: Ops, stream: IntArray, src: IntArray, dst: IntArray) -> BoolArray:
    """Which ops of a rank may run while another one draws on its memory, bool (ops,).

    Those between the last kernel before a communication and the first that waits for it, and it,
    where there are kernels in between. What passes between pipeline stages is left out: it is
    little.

    Parameters
    ----------
    ops : Ops
    stream : int array (ops,)
    src, dst : int array (edges,)
        Op ``dst`` waits for op ``src``, in order of ``dst``.
    """
    count = len(ops)
    kernel = stream == ENGINE
    before, after = np.full(count, -1, np.int64), np.full(count, count, np.int64)
    by_src = np.argsort(src, kind="stable")[::-1]
    _nearest(src.astype(np.int64), dst.astype(np.int64), kernel, before, 1)
    _nearest(dst[by_src].astype(np.int64), src[by_src].astype(np.int64), kernel, after, -1)
    talks = np.flatnonzero((stream == CC) | (stream == CC_DP))
    kernels = np.concatenate([[0], np.cumsum(kernel)])
    low, high = before[talks] + 1, after[talks]
    among = kernels[high] > kernels[low]
    change = np.zeros(count + 1, np.int64)
    np.add.at(change, low[among], 1)
    np.add.at(change, high[among], -1)
    near: BoolArray = np.cumsum(change[:-1]) > 0
    found: BoolArray = near & (kernel | (stream == CC) | (stream == CC_DP))
    return found


@compiled
def _nearest(src: IntArray, dst: IntArray, kernel: BoolArray, nearest: IntArray, sign: int) -> None:
    """Of each op the latest kernel that it comes after; with sign -1 the earliest after it."""
    for k in range(len(src)):
        found = src[k] if kernel[src[k]] else nearest[src[k]]
        if sign * found > sign * nearest[dst[k]]:
            nearest[dst[k]] = found
