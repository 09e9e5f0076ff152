"""Greatest values within stretches of an array, and among the stretches over each place.

Stretches are half-open, ``low:high``. Both ends ascend from one stretch to the next, so one pass
that keeps the values which may still be the greatest finds all answers.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from topologies.arrays import IntArray


def most_of(values: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Return the greatest of the values in each stretch, 0 for an empty one, int64 (stretches,).

    ``values`` (places,): values from 0. ``low, high`` (stretches,): ends of the stretches, both
    ascending.
    """
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
    """Return the greatest value among the stretches that each place lies in, or 0.

    As their ends ascend, the stretches over a place follow one another: they are those from the
    first that ends behind it to the last that begins at it or before.

    ``count``: number of places. ``low, high`` (stretches,): ends of the stretches, both ascending.
    ``value`` (stretches,): values from 0.
    """
    ended, begun = (np.cumsum(np.bincount(end, minlength=count))[:count] for end in (high, low))
    return most_of(value, ended, begun)


@compiled
def _slide(
    values: IntArray, low: IntArray, high: IntArray, waiting: IntArray, most: IntArray
) -> None:
    """Write the greatest value of each stretch.

    ``waiting`` has the places whose values no later one reaches, so these values descend.
    """
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
