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
from cluster_sim.collectives.duration.nccl.constants import (
    SWITCH,
    Machine,
    Nccl,
    constants,
    constants_of,
    machine,
)
from cluster_sim.collectives.duration.nccl.load import Load, Number, load_of, uneven_load
from cluster_sim.collectives.duration.nccl.tuner import PROTOCOLS, pick
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.verify.bounds import AROUND, Bound
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray


def nccl_ps(call: CollectiveCall, *, rings: bool = False) -> int:
    """Time of a call that NCCL's constants cover [ps]; see :func:`load_of` for ``rings``."""
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


FAR_SHARE = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Share of an adapter's bytes that is payload; the protocols LL and LL128 send flags along."""


def ring_s(load: Load, costs: Nccl, protocol: str) -> Number:
    """Time round rings in one protocol [s]; LL copies a rank's shard at the links' rate."""
    chip, fabric = costs.chip, costs.fabric
    if protocol == "ll":
        wire = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
        start = chip["launch"] + load.steps * chip["step"]
    elif protocol == "ll128":
        wire = load.inside / (chip["ll128_efficiency"] * costs.port)
        wire = wire + load.shard / chip["copy_rate"]
        start = chip["launch"] + load.steps * chip["ll128_step"]
    else:
        wire = simple_s(load, costs)
        first = load.steps - load.second_steps
        start = chip["launch"] + first * chip["simple_step"]
        start = start + load.second_steps * chip["simple_second_step"]
    if not fabric:
        return start + wire
    adapter = costs.far_s(load, FAR_SHARE[protocol])
    filling = filling_s(fabric["slice"], adapter) if protocol == "simple" else 0.0
    step = fabric["ll128_step" if protocol == "ll128" else "step"]
    # NVLinks and adapters work at the same time, so that the slower of the two counts.
    return start + load.far_steps * step + filling + np.maximum(wire, adapter)


def simple_s(load: Load, costs: Nccl) -> Number:
    """Time over NVLink in the protocol Simple: long slices, and the copy of a rank's shard [s]."""
    wire = load.inside / (costs.chip["efficiency"] * costs.port)
    return wire + filling_s(costs.chip["slice"], wire) + load.shard / costs.chip["copy_rate"]


def in_switch_s(load: Load, costs: Nccl) -> Number:
    """Time of a reduction in the switch, infinite where the switch cannot reduce [s]."""
    share = costs.chip.get("in_switch_efficiency")
    if not share:
        return math.inf
    wire = load.in_switch / (share * costs.port)
    direct = costs.chip["in_switch_latency"] + wire + filling_s(costs.chip["in_switch_slice"], wire)
    return np.where(np.asarray(load.in_switch) > 0, direct, np.inf)


def filling_s(slice_s: Number, wire_s: Number) -> Number:
    """Return the time that filling a pipeline takes with slices of the best length [s].

    Shorter slices fill it sooner but cost more starts; the least sum is 2 √(slice · wire).
    """
    return 2 * np.sqrt(slice_s * wire_s)


SERVERS_OF_SHORT_CHUNKS = 4
"""Number of servers from which NCCL halves the chunks of a tree that reduces in switches."""


def tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce up and down a tree [s].

    Inside each domain a ring or the switch reduces; between domains a tree carries the sums. NCCL
    cuts the buffer into chunks, which grow with the buffer up to a full length. So filling the
    pipeline takes longer with more bytes until the chunks have their full length, which is from
    16 MiB on with eight chips in each server, and equally long beyond. Where the network plugin
    says so, the tree carries short buffers in protocol LL128.
    """
    long = _long_tree_s(load, costs)
    longest = costs.tuner.longest_tree_bytes(load.domains)
    if longest is None:
        return long
    share = np.minimum(1.0, longest / np.asarray(load.size))
    short = _short_tree_s(load, costs, share)
    # More bytes never take less time, whatever the plugin picks for them.
    return np.where(share < 1, np.maximum(long, short), short)


def _long_tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce inside each server, by switch or ring, and up and down a tree [s]."""
    chip, fabric = costs.chip, costs.fabric
    start = chip["launch"] + load.steps * chip["step"] + load.far_steps * fabric["step"]
    inside = np.minimum(simple_s(load, costs), in_switch_s(load, costs))
    wire = _together_s(inside, costs.far_s(load))
    filled = wire * np.minimum(1.0, _whole_bytes(load, costs) / np.asarray(load.size))
    return start + wire + filling_s(fabric["slice"] * load.far_steps / 2, filled)


def _together_s(inside_s: Number, far_s: Number) -> Number:
    """Time of bytes over NVLinks and over adapters, which the same multiprocessors move [s].

    The result is the fourth root of the sum of the fourth powers: the slower counts most, and the
    other adds the more the nearer it comes. Third to sixth powers fit measured all-reduces of 16
    to 64 H100 equally well.
    """
    joined: Number = np.sqrt(np.sqrt((inside_s * inside_s) ** 2 + (far_s * far_s) ** 2))
    return joined


def _whole_bytes(load: Load, costs: Nccl) -> Number:
    """Size of the buffer from which the chunks of a tree have their full length [B]."""
    few = (np.asarray(load.in_switch) > 0) & (np.asarray(load.domains) < SERVERS_OF_SHORT_CHUNKS)
    tuner = costs.tuner
    whole: Number = np.where(few, tuner.whole_chunks_of_few, tuner.whole_chunks)
    return whole * (np.asarray(load.ranks) / load.domains)


def _short_tree_s(load: Load, costs: Nccl, share: Number) -> Number:
    """Time of a share of the bytes up and down a tree in LL128, or in LL for short buffers [s].

    The first level takes a step of LL128 each way. Every further level, where a server waits for
    two others, takes a longer step. Inside a server a chain carries bytes up and down at once.
    """
    chip, fabric = costs.chip, costs.fabric
    inside = share * load.inside / (fabric["tree_efficiency"] * costs.port)
    far = share * costs.far_s(load, FAR_SHARE["ll128"])
    climb = 2 * fabric["ll128_step"] + (load.far_steps - 2) * fabric["tree_step"]
    short = np.asarray(load.size) <= costs.tuner.short_tree_bytes
    climb = np.where(short, load.far_steps * fabric["step"], climb)
    return chip["launch"] + load.steps * chip["step"] + climb + np.maximum(inside, far)


def steps(call: CollectiveCall) -> int:
    """Count the steps that follow one another, inside domains and between them."""
    load = load_of(call)
    return math.ceil(float(load.steps + load.far_steps))


def bound_with_switch(call: CollectiveCall, bound: Bound) -> Bound:
    """Halve an all-reduce's bound where switches reduce: a rank sends its buffer once."""
    reduces = SWITCH[0] in constants(call.group.cluster).chip and call.kind == "all-reduce"
    if not reduces or bound.what in ("distance", AROUND):
        return bound
    return Bound(f"{bound.what}, reduced in the switch", bound.time_ps // 2)
