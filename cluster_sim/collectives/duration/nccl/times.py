"""Times of NVIDIA's collectives on switched NVLink domains: a closed form with few constants.

NVIDIA's machines run NCCL, which moves data round rings in one of three protocols, reduces in the
switch, goes up and down a tree over servers, or exchanges messages between all pairs at once. The
time follows from the bytes that the busiest port carries, the number of steps, and the time that a
pipeline of slices takes to fill. The constants are catalogue rows ``nccl.<chip>`` and
``nccl.<fabric>``, fitted by ``python -m tools.fit_collectives``.

    time = launch + steps + slowest port + filling + copy of a rank's own shard

Filling is 2 √(hops · slice · wire time), for slices of the best length. Ports work at the same
time, so that the slowest counts; but bytes run through the NVLinks before they fill the adapters,
so that filling adds to either. Trees over servers have a longest slice, see :mod:`~.trees`.
The formulas use only sums, products, quotients and square roots of doubles, which are the same on
any machine.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl.constants import Machine, Nccl, constants_of, machine
from cluster_sim.collectives.duration.nccl.load import Load, Number, load_of, uneven_load
from cluster_sim.collectives.duration.nccl.rings import filling_s, in_switch_s, ring_s
from cluster_sim.collectives.duration.nccl.trees import tree_s
from cluster_sim.collectives.duration.nccl.tuner import PROTOCOLS, pick
from cluster_sim.collectives.group import Group
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray


def nccl_ps(call: CollectiveCall, *, rings: bool = False) -> int:
    """Time of a call on a cluster that NCCL's constants cover [ps].

    ``call``: call whose cluster :func:`~cluster_sim.collectives.duration.nccl.covers`. ``rings``:
    whether an all-reduce must go round rings, without trees and reduction in the switch.

    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> call = CollectiveCall("all-reduce", whole(cluster("dgx-h100")), 2**29)
    >>> 0.002 < nccl_ps(call) / 1e12 < 0.0022
    True
    """
    if call.ranks == 1 or call.size_bytes == 0:
        return 0
    return _time_ps(load_of(call, rings=rings), machine(call.group.cluster))


def uneven_ps(group: Group, sent_bytes: IntArray) -> int:
    """Time of an all-to-all-v by a matrix of bytes (ranks, ranks) on such a cluster [ps]."""
    if group.ranks == 1 or not sent_bytes.any():
        return 0
    return _time_ps(uneven_load(group, sent_bytes), machine(group.cluster))


@functools.lru_cache(maxsize=1 << 16)
def _time_ps(load: Load, facts: Machine) -> int:
    costs = constants_of(facts)
    return math.ceil(float(seconds(load, costs)) * PS_PER_S)


def seconds(load: Load, costs: Nccl) -> Number:
    """Time of a collective, or of an array of them [s]."""
    if load.way == "ring":
        rings = [ring_s(load, costs, name) for name in PROTOCOLS]
        in_switch = costs.chip["launch"] + in_switch_s(load, costs)
        return pick(load, costs.tuner, [*rings, in_switch])
    if load.way == "tree":
        return tree_s(load, costs)
    return _exchange_s(load, costs)


def _exchange_s(load: Load, costs: Nccl) -> Number:
    """Time of messages between all pairs at once, in protocol LL if short, else in Simple [s]."""
    chip, fabric = costs.chip, costs.fabric
    start = chip["launch"] + load.steps * chip["step"]
    short = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
    wire = load.inside / (chip["exchange_efficiency"] * costs.port)
    copied = load.shard / chip["exchange_copy_rate"]
    long = chip["exchange"] + wire + filling_s(chip["slice"], wire) + copied
    # A permute has no shard of its own and a single message; an all-to-all has one for each rank.
    peers = np.where(np.asarray(load.shard) > 0, load.ranks, 1.0)
    inside = np.where(load.size <= costs.tuner.message_bytes * peers, np.minimum(short, long), long)
    if not fabric:
        return start + inside
    adapter = costs.far_s(load)
    start = start + load.far_steps * fabric["step"] + load.messages * fabric["message"]
    return start + filling_s(fabric["slice"], adapter) + np.maximum(inside, adapter)
