"""Integer picoseconds: the only unit of time inside (rule 6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import HORIZON_PS, ScheduleError
from topologies.arrays import IntArray
from topologies.units import PS_PER_S as PS_PER_S

_MILLION = 10**6
_WIDEST_RATE = 2**63 // _MILLION
"""Rate from which a remainder times a million may not fit in 64 bits [B/s]."""
_LONGEST_S = HORIZON_PS // PS_PER_S - 1
"""Longest transfer whose picoseconds stay within the horizon [s]."""


def transfer_ps(size_bytes: npt.ArrayLike, rate_bytes_per_s: npt.ArrayLike) -> IntArray:
    """Time on the wire [ps], ``max(1, ceil(bytes · 10¹² / rate))`` in exact integers (rule 6).

    ``size_bytes, rate_bytes_per_s``: arrays of any shapes that broadcast; rates of at least 1 B/s.
    """
    size, rate = np.asarray(size_bytes, np.int64), np.asarray(rate_bytes_per_s, np.int64)
    if rate.max(initial=1) >= _WIDEST_RATE:
        return _transfer_ps_wide(size, rate)
    seconds, rest = np.divmod(size, rate)
    # bytes · 10¹² does not fit in 64 bits, so a second is divided twice, by 10⁶ each time.
    micros, rest = np.divmod(rest * _MILLION, rate)
    picos = -(-rest * _MILLION // rate)
    if seconds.max(initial=0) > _LONGEST_S:
        raise ScheduleError(f"a transfer of {size.max()} B takes {seconds.max()} s, beyond 2⁶² ps")
    return np.asarray(np.maximum(1, seconds * PS_PER_S + micros * _MILLION + picos))


def _transfer_ps_wide(size: IntArray, rate: IntArray) -> IntArray:
    """Transfer time [ps] for rates whose millionfold passes 64 bits, in Python's own integers."""
    sizes, rates = np.broadcast_arrays(size, rate)
    pairs = zip(sizes.ravel().tolist(), rates.ravel().tolist(), strict=True)
    exact = [max(1, -(-amount * PS_PER_S // per_s)) for amount, per_s in pairs]
    return np.array(exact, np.int64).reshape(sizes.shape)
