"""Rates that can leave sets of chips in fabrics whose switches lead to other switches."""

from __future__ import annotations

import math

import numpy as np

from topologies.arrays import BoolArray
from topologies.shapes.links import Links

LARGEST_CAPACITY = 2**31 - 1
"""Largest capacity in the flow problem, which takes integers of 32 bits."""


def switches_are_stacked(links: Links, chips: int) -> bool:
    """Return whether some link joins two switches, as the leaves and spines of a Clos."""
    return bool(((links.src >= chips) & (links.dst >= chips)).any())


def stacked_outward(links: Links, part: BoolArray) -> int:
    """Return the highest rate that can leave a set of chips [B/s]: the maximum flow to all others.

    It equals the smallest cut, which puts each switch on one side or the other, however the
    switches are joined (Ford and Fulkerson, 1956). Rates that do not fit in 32 bits are rounded up.

    ``links``: links of one domain. ``part`` (chips,).
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    rate = links.bandwidth_bytes_per_s
    unit = max(math.gcd(*rate.tolist()), -(-int(rate.sum()) // LARGEST_CAPACITY))
    source, target = links.nodes, links.nodes + 1
    inside = np.flatnonzero(part)
    outside = np.flatnonzero(~part)
    src = np.concatenate([links.src, np.full(len(inside), source), outside])
    dst = np.concatenate([links.dst, inside, np.full(len(outside), target)])
    capacity = np.append(-(-rate // unit), np.full(len(part), LARGEST_CAPACITY))
    graph = csr_array((capacity.astype(np.int32), (src, dst)), shape=(target + 1, target + 1))
    return int(maximum_flow(graph, source, target).flow_value) * unit
