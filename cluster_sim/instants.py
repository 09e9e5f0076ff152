"""Integer picoseconds: the only unit of time inside (rule 6)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule import IntArray

PS_PER_S = 10**12


def transfer_ps(size_bytes: npt.ArrayLike, rate_bytes_per_s: npt.ArrayLike) -> IntArray:
    """Time on the wire [ps], ``max(1, ceil(bytes · 10¹² / rate))`` in exact integers (rule 6).

    Parameters
    ----------
    size_bytes, rate_bytes_per_s : int array
        Of any shapes that broadcast; rates of at least 1 B/s.

    Examples
    --------
    >>> int(transfer_ps(10**9, 128 * 10**9))
    7812500000
    >>> int(transfer_ps(0, 1))
    1
    """
    size, rate = np.broadcast_arrays(
        np.asarray(size_bytes, np.int64), np.asarray(rate_bytes_per_s, np.int64)
    )
    pairs, where = np.unique(np.stack([size.ravel(), rate.ravel()]), axis=1, return_inverse=True)
    exact = [max(1, -(-int(b) * PS_PER_S // int(r))) for b, r in pairs.T]
    return np.array(exact, np.int64)[where].reshape(size.shape)
