"""Times of NVIDIA's collectives on switched NVLink domains: a closed form with few constants.

The comparison machines run NCCL, which goes round rings in one of three protocols, reduces in the
switch, climbs a tree over servers, or exchanges all at once. What it reaches follows from the bytes
that the busiest port carries, the steps, and how a pipeline of slices fills; the constants are
catalogue rows ``nccl.<chip>`` and ``nccl.<fabric>``, fitted by
``python -m experiments.calibration.collectives``.

    time = launch + steps + slowest port + filling + copy of a rank's own shard

Filling is 2 √(hops · slice · wire time): with slices of the best length, hops behind one another
cost the square root of what the wire itself takes. Ports work side by side, so the slowest counts;
but what fills the adapters runs through the NVLinks first, so that filling adds to either. Of trees
over servers, which have a longest slice, :mod:`~.trees` says more.
All is sums, products, quotients and square roots of doubles, which are the same on any machine.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl.constants import Nccl, constants_of, machine
from cluster_sim.collectives.duration.nccl.load import Load, Number, load_of
from cluster_sim.collectives.duration.nccl.rings import filling_s, in_switch_s, ring_s
from cluster_sim.collectives.duration.nccl.trees import tree_s
from cluster_sim.collectives.duration.nccl.tuner import PROTOCOLS, pick
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.catalogue.catalogue import Catalogue


def nccl_ps(call: CollectiveCall, *, rings: bool = False) -> int:
    """Time of a call [ps]; its cluster must be covered.

    Parameters
    ----------
    call : CollectiveCall
    rings : bool
        An all-reduce goes round rings, without switches that reduce and without trees.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> call = CollectiveCall("all-reduce", whole(cluster("dgx-h100")), 2**29)
    >>> 0.002 < nccl_ps(call) / 1e12 < 0.0022
    True
    """
    if call.ranks == 1 or call.size_bytes == 0:
        return 0
    return _time_ps(load_of(call, rings=rings), *machine(call.group.cluster))


@functools.lru_cache(maxsize=1 << 16)
def _time_ps(
    load: Load, catalogue: Catalogue, chip: str, fabric: str, adapter_bytes_per_s: int
) -> int:
    costs = constants_of(catalogue, chip, fabric, adapter_bytes_per_s)
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
    """Time of messages between pairs, all at once: by LL if they are short, else by Simple [s]."""
    chip, fabric = costs.chip, costs.fabric
    start = chip["launch"] + load.steps * chip["step"]
    short = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
    wire = load.inside / (chip["exchange_efficiency"] * costs.port)
    copied = load.shard / chip["exchange_copy_rate"]
    long = chip["exchange"] + wire + filling_s(chip["slice"], wire) + copied
    peers = np.where(np.asarray(load.shard) > 0, load.ranks, 1.0)
    inside = np.where(load.size <= costs.tuner.message_bytes * peers, np.minimum(short, long), long)
    if not fabric:
        return start + inside
    far = costs.far_s(load)
    start = start + load.far_steps * fabric["step"] + load.messages * fabric["message"]
    return start + filling_s(fabric["slice"], far) + np.maximum(inside, far)
