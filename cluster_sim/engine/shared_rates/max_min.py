"""Max-min fair rates of flows that all run at once, without a schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.engine.compiler.jit import lean
from cluster_sim.engine.shared_rates.filling import (
    UNLIMITED,
    Filling,
    Paths,
    Seats,
    fill_all,
    working_space,
)
from cluster_sim.schedule.table import LARGEST_CAPACITY, IntArray

MOST_UNITS = 2**62
"""Largest sum of weights, which must fit in 64 bits."""


def max_min_rates(
    capacity_bytes_per_s: npt.ArrayLike,
    ptr: npt.ArrayLike,
    resource: npt.ArrayLike,
    *,
    weight: npt.ArrayLike = 1,
    cap_bytes_per_s: npt.ArrayLike = UNLIMITED,
    count: npt.ArrayLike = 1,
) -> IntArray:
    """Return the max-min fair rates of flows that run at once, as the engines compute them.

    Parameters
    ----------
    capacity_bytes_per_s : int array (resources,)
        Rate that each resource divides among its flows [B/s].
    ptr : int array (flows + 1,)
        Flow f crosses ``resource[ptr[f]:ptr[f + 1]]``, each once.
    resource : int array (shares,)
    weight : int array (shares,), default 1
        Rate of the resource that 1 B/s of the flow takes [B/s].
    cap_bytes_per_s : int array (flows,), default none
        Highest rate of each flow, whatever the resources have to give [B/s].
    count : int array (flows,), default 1
        Number of equal flows that a row stands for.

    Returns
    -------
    int64 array (flows,)
        Rate of each flow, or of each of the equal flows of a row [B/s]. Rounded down, so up to
        (weight on the resource - 1) B/s of a full resource stay unused.

    Raises
    ------
    ValueError
        When the columns do not fit together, or a value is out of range.

    Examples
    --------
    A parking lot: one flow over both links, one on each.

    >>> max_min_rates([100, 60], [0, 2, 3, 4], [0, 1, 0, 1]).tolist()
    [30, 70, 30]
    """
    flows, shares = len(np.atleast_1d(ptr)) - 1, len(np.atleast_1d(resource))
    resources = len(np.atleast_1d(capacity_bytes_per_s))
    paths = Paths(
        ptr=_column(ptr, np.int64, flows + 1),
        resource=_column(resource, np.int32, shares),
        weight=_column(weight, np.int32, shares),
        owner=np.repeat(np.arange(flows, dtype=np.int32), np.maximum(0, np.diff(ptr))),
        cap=_column(cap_bytes_per_s, np.int64, flows),
        capacity=_column(capacity_bytes_per_s, np.int64, resources),
        members=_column(count, np.int64, flows),
        rate=np.full(flows, -1, np.int64),
    )
    _check(paths)
    fill_all(paths, _all_seated(paths.resource, resources), _all_rising(flows, resources))
    return paths.rate


def _column(values: npt.ArrayLike, dtype: npt.DTypeLike, length: int) -> Any:
    """Return a column, from values or one value for all, in the layout that the solver takes."""
    return np.require(np.broadcast_to(np.asarray(values, dtype), length), dtype, ["C", "A", "W"])


def _check(paths: Paths) -> None:
    """Refuse columns that the compiled solver, which checks nothing, cannot take."""
    flows, shares = len(paths.cap), len(paths.resource)
    if paths.ptr[0] != 0 or paths.ptr[-1] != shares or (np.diff(paths.ptr) < 0).any():
        raise ValueError(f"ptr does not cut {shares} shares into {flows} flows")
    most = MOST_UNITS // max(1, shares * int(paths.weight.max(initial=1)))
    _check_range("resource", paths.resource, 0, len(paths.capacity) - 1)
    _check_range("weight", paths.weight, 1, np.iinfo(np.int32).max)
    _check_range("cap_bytes_per_s", paths.cap, 0, UNLIMITED)
    _check_range("capacity_bytes_per_s", paths.capacity, 0, LARGEST_CAPACITY)
    _check_range("count", paths.members, 1, most)


def _check_range(name: str, column: IntArray, least: int, most: int) -> None:
    if len(column) and not least <= column.min() <= column.max() <= most:
        raise ValueError(
            f"{name} reaches from {column.min()} to {column.max()}, outside {least} … {most}"
        )


def _all_rising(flows: int, resources: int) -> Filling:
    """Return working space that lists all resources and flows, none of which has a rate yet."""
    filling = working_space(flows, resources)
    filling.resources[:] = np.arange(resources)
    filling.classes[:] = np.arange(flows)
    filling.rising[:] = 1
    filling.sizes[:2] = resources, flows
    return filling


def _all_seated(resource: IntArray, resources: int) -> Seats:
    """Return seats in which every share is in use."""
    taken = np.bincount(resource, minlength=resources)
    ptr = np.concatenate([[0], np.cumsum(taken)]).astype(np.int64)
    by_resource = np.empty(len(resource), np.int32)
    _sort_by_resource(resource, ptr[:-1].copy(), by_resource)
    return Seats(ptr, by_resource, taken.astype(np.int32), np.empty(0, np.int32))


@lean
def _sort_by_resource(resource: IntArray, place: IntArray, shares: IntArray) -> None:
    """Put each share in the next place of its resource."""
    for share in range(len(resource)):
        shares[place[resource[share]]] = share
        place[resource[share]] += 1
