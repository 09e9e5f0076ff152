"""Times of collectives of GPUs on switched or fully meshed domains: a closed form.

NVIDIA's machines run NCCL, and AMD's run RCCL, which was made from it. It moves data round rings in
one of three protocols, reduces in the switch, goes up and down a tree over servers, or exchanges
messages between all pairs at once. The time follows from the bytes that the busiest port carries,
the number of steps, and the time that a pipeline of slices takes to fill. The constants are
catalogue rows ``nccl.<chip>`` and ``nccl.<fabric>``, fitted by ``python -m tools.fit_collectives``.

    time = launch + steps + slowest port + filling + copy of a rank's own shard

Filling is 2 √(hops · slice · wire time), for slices of the best length. Ports work at the same
time, so that the slowest counts; but bytes run through the NVLinks before they fill the adapters,
so that filling adds to either. Trees over servers have a longest slice, see :func:`tree_s`.
The formulas use only sums, products, quotients and square roots of doubles, which are the same on
any machine.

NCCL picks the protocol that is the fastest by its own cost model. LL sends a flag with every four
bytes, so that it never waits but wastes half of the wire; LL128 sends a flag with every 120 bytes;
Simple sends long slices behind a fence, which are slow to start and fast to run. Where switches can
reduce, NVLS is a fourth choice. NCCL has a table of the start, step and rate of each, and takes the
least sum. Machines do not follow that table: where NCCL changes to another protocol, measured times
jump, by a factor of two on some machines. So the costs that NCCL believes, catalogue part
``nccl-tuner``, are apart from the true ones.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.verify.bounds import AROUND, Bound, bounds
from cluster_sim.schedule.table import PS_PER_S
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import FullMesh, Switch
from topologies.shapes.scale_out import ScaleOut
from topologies.support.arrays import IntArray

NAME = "nccl"  # name that auto resolves to on machines whose collectives take NCCL's measured times


def reduces_in_switch(cluster: Cluster) -> bool:
    """Return whether switches can sum, so that an all-reduce may be faster than its two halves."""
    has_switch = covers(cluster) and isinstance(cluster.shape, Switch)
    return has_switch and SWITCH[0] in constants(cluster).chip


Number = float | npt.NDArray[np.float64]
OPTIONAL = ("shard", "in_switch", "steps", "second_steps", "far_steps", "messages", "beside")
"""Fields of a load that are zero for some of the ways in which NCCL moves data."""
SERVER = 8  # most chips that share the adapters of one server; a domain may have many servers
TREES = ("nccl-tuner", "trees")
"""Part and quantity of the catalogue: whether an all-reduce may go by trees and switches."""
Way = Literal["ring", "tree", "exchange"]
"""Ways in which data goes: round rings, by a protocol that the tuner picks; up and down a tree over
servers; or directly between all pairs at once."""


@dataclass(frozen=True)
class Load:
    """Load of one collective, or arrays of the loads of many that go the same way [B]."""

    way: Way
    size: Number  # of the buffer as nccl-tests counts it
    ranks: Number
    domains: Number  # scale-up domains over which the ranks are spread
    inside: Number  # bytes that one rank sends over NVLink …
    outside: Number  # … and over its network adapter
    shard: Number  # bytes of a rank's own shard, which it copies in place
    in_switch: Number  # bytes that the switch reduces, 0 where it cannot
    steps: Number  # over NVLink that follow one another …
    second_steps: Number  # … those in the second half of a ring's all-reduce, which only gathers …
    far_steps: Number  # … and steps between domains
    messages: Number  # that one rank sends to other domains
    # 1 where the group has less than half of its servers' chips, else 0: the server's other groups
    # are then taken to communicate in the same way at the same time.
    beside: Number


def load_of(call: CollectiveCall, *, rings: bool = False) -> Load:
    """Load of a call on its ranks' ports; with ``rings`` an all-reduce takes no tree."""
    kind, group, size_bytes, ranks = call.kind, call.group, call.size_bytes, call.ranks
    catalogue = group.cluster.catalogue
    rings = rings or (catalogue is not None and not catalogue.integer(*TREES))
    domain = group.domain
    chips = np.bincount(domain - domain.min())
    # near: ranks of the fullest domain; far: domains of the group.
    near, far = int(chips.max()) * group.ranks_per_chip, int(np.count_nonzero(chips))
    ring, shard = size_bytes * (ranks - 1) / ranks, size_bytes / ranks

    def load(way: Way, inside: float, outside: float, **other: float) -> Load:
        """Load of one way of this call, with the extra traffic that it has."""
        optional: dict[str, float] = dict.fromkeys(OPTIONAL, 0.0)
        few = 2 * int(chips.max()) < min(group.cluster.chips_per_domain, SERVER)
        optional["beside"] = float(far > 1 and few)
        inside *= _detour(group, 1 if kind == "permute" else int(chips.max()) - 1)
        return Load(way, size_bytes, ranks, far, inside, outside, **{**optional, **other})

    # Steps of a ring that cross between domains; with one rank a domain, every step does.
    crossings = 0 if far == 1 else far if near > 1 else far - 1
    mesh = isinstance(group.cluster.shape, FullMesh)
    switch = 0.0 if rings or near < 3 or mesh else size_bytes
    if kind == "all-reduce" and (rings or far == 1):
        fields = {"shard": shard, "in_switch": switch, "far_steps": 2 * crossings}
        half = ranks - 1 - crossings
        outside = 2 * ring / near if far > 1 else 0
        return load("ring", 2 * ring, outside, steps=2 * half, second_steps=half, **fields)
    if kind == "all-reduce":
        # A tree of two servers has a single edge, over which each sends its buffer once.
        outside = (size_bytes if far == 2 else 2 * ring) / near
        # The switch of a domain of many servers reduces in as few steps as that of one.
        inner = 2 * (min(near, SERVER) - 1)
        fields = {"steps": inner, "far_steps": 2 * math.ceil(math.log2(far))}
        return load("tree", 2 * ring, outside, shard=shard, in_switch=switch, **fields)
    if kind in ("all-gather", "reduce-scatter"):
        fields = {"shard": shard, "steps": ranks - 1 - crossings, "far_steps": crossings}
        return load("ring", ring, ring / near if far > 1 else 0, **fields)
    if kind == "broadcast":
        outside = size_bytes / near if far > 1 else 0
        return load("ring", size_bytes, outside, steps=ranks - far, far_steps=far - 1)
    if kind == "permute":
        crosses = int(far > 1)
        return load("exchange", size_bytes, size_bytes * crosses, steps=1, far_steps=crosses)
    outside = size_bytes * (ranks - near) / ranks
    fields = {"steps": 1 + math.log2(near), "far_steps": int(far > 1), "messages": ranks - near}
    # A switch carries what goes to other domains as well, the links of a mesh do not.
    inside = ring - outside if mesh else ring
    return load("exchange", inside, outside, shard=shard, **fields)


def _detour(group: Group, peers: int) -> float:
    """Return how many times as long bytes take over the links to some peers as over all links."""
    # Of a full mesh a chip uses only its links to the other chips of the group.
    shape = group.cluster.shape
    return (shape.size - 1) / peers if isinstance(shape, FullMesh) and peers else 1.0


def uneven_load(group: Group, sent_bytes: IntArray) -> Load:
    """Load of an all-to-all by bytes (ranks, ranks): what its busiest port sends or receives."""
    even = load_of(CollectiveCall("all-to-all", group, int(sent_bytes.sum()) // group.ranks))
    domain = group.domain.repeat(group.ranks_per_chip)
    kept, far = np.diag(sent_bytes), np.where(domain[:, None] == domain, 0, sent_bytes)
    sent, received = sent_bytes.sum(axis=1), sent_bytes.sum(axis=0)
    inside = float(max((sent - kept).max(), (received - kept).max()))
    if isinstance(group.cluster.shape, FullMesh):  # the busiest link sets the pace
        inside = float((sent_bytes - far - np.diag(kept)).max()) * _detour(group, 1)
    return replace(
        even,
        size=float(max(sent.max(), received.max())),
        inside=inside,
        outside=float(max(far.sum(axis=1).max(), far.sum(axis=0).max())),
        shard=float(kept.max()),
    )


PROTOCOLS = ("ll", "ll128", "simple")
PART = "nccl-tuner"


@dataclass(frozen=True)
class Believed:
    """Cost of one protocol on a machine, as NCCL's tuner believes it."""

    start_s: float  # before the first byte
    step_s: float  # over NVLink
    far_step_s: float  # between servers
    rate: float  # bus bandwidth inside a domain [B/s], 0 where the tuner does not use the protocol
    far_rate: float  # of one rank's adapter [B/s]


@dataclass(frozen=True)
class Tuner:
    """Costs and limits of a machine, as NCCL's tuner believes them."""

    protocols: tuple[Believed, ...]  # in the order of PROTOCOLS
    in_switch_s: float  # start of a reduction in the switch …
    in_switch_rate: float  # … and its bus bandwidth [B/s]; 0 where it cannot reduce
    message_bytes: float  # longest message that an exchange sends in protocol LL
    short_tree_bytes: float = 0.0  # longest buffer that a tree in LL128 carries in LL
    # Size of the buffer, divided by the chips of a server, from which a tree's chunks have their
    # full length; the second where few servers reduce in their switches [B].
    whole_chunks: float = np.inf
    whole_chunks_of_few: float = np.inf
    channels: float = 1.0  # that reduce in the switch, over those of the H100
    # Longest buffer that a tree in LL128 carries over 2, 4, 8, … domains [B]; empty where the
    # network plugin states none.
    tree_bytes: tuple[float, ...] = ()

    def longest_tree_bytes(self, domains: Number) -> Number | None:
        """Longest buffer that a tree in LL128 carries [B]; None where no plugin picks one."""
        if not self.tree_bytes:
            return None
        doublings = np.arange(1, len(self.tree_bytes) + 1)
        return np.asarray(np.interp(np.log2(domains), doublings, self.tree_bytes))


def tuner(catalogue: Catalogue, chip: str, fabric: str, adapter_rate: float) -> Tuner:
    """Look up what the tuner believes of a chip and a fabric ("" for none)."""
    of_chip, share = f"{PART}.{chip}", catalogue.value(PART, "ll128_share")
    links = catalogue.value(of_chip, "link_rate")
    has_channel = catalogue.has(of_chip, "ll128_channel_rate")
    channel = catalogue.value(of_chip, "ll128_channel_rate", 0.0)
    most = catalogue.value(PART, "in_switch_channels")
    channels = catalogue.value(of_chip, "in_switch_channels", most) / most
    far = f"{PART}.{fabric}"
    flight = catalogue.value(far, "latency") if fabric else 0.0
    names = (f"tree_up_to_{2**level}" for level in range(1, 16))
    stated = itertools.takewhile(lambda name: catalogue.has(far, name), names)
    rates = {
        "ll": (
            catalogue.value(of_chip, "ll_rate"),
            adapter_rate * catalogue.value(PART, "ll_share"),
        ),
        "ll128": (links * share * has_channel, min(adapter_rate * share, channel)),
        "simple": (links, adapter_rate),
    }
    believed = [
        Believed(
            catalogue.value(PART, f"{name}_start"),
            catalogue.value(PART, f"{name}_step"),
            catalogue.value(PART, f"{name}_far_step") + flight * (2 if name == "simple" else 1),
            *rates[name],
        )
        for name in PROTOCOLS
    ]
    return Tuner(
        tuple(believed),
        catalogue.value(PART, "in_switch_start"),
        links * catalogue.value(of_chip, "in_switch_share", 0.0),
        catalogue.value(PART, "message"),
        catalogue.value(PART, "short_tree"),
        catalogue.value(of_chip, "whole_chunks", catalogue.value(PART, "whole_chunks")),
        catalogue.value(PART, "whole_chunks_of_few"),
        channels,
        tuple(catalogue.value(far, name) for name in stated),
    )


def pick(load: Load, tuner: Tuner, true_s: Sequence[Number]) -> Number:
    """Time of the protocol that the tuner picks [s], from the true times of all."""
    believed = [_believed(load, protocol) for protocol in tuner.protocols]
    believed.append(_in_switch(load, tuner))
    start, slope = (
        np.stack(np.broadcast_arrays(*column)) for column in zip(*believed, strict=True)
    )
    cost = start + slope * load.size
    chosen = np.take_along_axis(slope, np.argmin(cost, axis=0, keepdims=True), axis=0)
    # Where one that the tuner believes to have a higher rate truly takes less time, that time is
    # taken instead, so that more bytes never take less time.
    allowed = np.where(slope <= chosen, np.stack(np.broadcast_arrays(*true_s)), np.inf)
    shortest: Number = allowed.min(axis=0)
    return shortest


def _believed(load: Load, protocol: Believed) -> tuple[Number, Number]:
    """Believed start [s] and time for each byte [s/B] of a protocol round the ring."""
    if not protocol.rate:
        return np.inf, np.inf
    far_steps = load.domains - 1
    steps = load.steps + load.far_steps - far_steps
    start = protocol.start_s + steps * protocol.step_s + far_steps * protocol.far_step_s
    far = load.outside / protocol.far_rate if protocol.far_rate else 0.0
    return start, np.maximum(load.inside / protocol.rate, far) / load.size


def _in_switch(load: Load, tuner: Tuner) -> tuple[Number, Number]:
    if not tuner.in_switch_rate:
        return np.inf, np.inf
    reduces = np.asarray(load.in_switch) > 0
    rate = tuner.in_switch_rate * (1 - 1 / np.asarray(load.ranks, float))
    return np.where(reduces, tuner.in_switch_s, np.inf), np.where(reduces, 1 / rate, np.inf)


CHIP = (
    "launch",
    "step",
    "ll_efficiency",
    "ll128_step",
    "ll128_efficiency",
    "simple_step",
    "simple_second_step",
    "efficiency",
    "slice",
    "copy_rate",
    "exchange",
    "exchange_efficiency",
    "exchange_copy_rate",
)
"""Constants of every chip; durations [s], shares of the port's rate, and a rate [B/s]."""
SWITCH = ("in_switch_efficiency", "in_switch_latency", "in_switch_slice")
"""Constants of a chip whose NVLink switches can reduce (NVLS)."""
FABRIC = ("efficiency", "step", "ll128_step", "slice", "message")
"""Constants of every fabric between domains."""
STEPS = ("step", "ll128_step", "simple_step", "simple_second_step", "in_switch_latency")
"""Constants of a chip that hold the latency of its links."""
FAR_STEPS = ("step", "ll128_step", "tree_step")  # constants of a fabric that hold its latency
BESIDE = ("nccl-beside", "efficiency")
"""Catalogue part and quantity of the share of its adapter's rate that a rank of a small group keeps
while other groups of its server use theirs."""
LEVEL_RATE = ("nccl-racks", "level_rate")
"""Part and quantity of the bytes a second that one level of a tree over racks carries."""
TREE = ("tree_step", "tree_efficiency")
"""Constants of a fabric whose network plugin picks trees in protocol LL128."""


@dataclass(frozen=True, eq=False)  # so that times are remembered by it, and hold no cluster
class Nccl:
    """Constants of one chip on one machine, by the names of ``CHIP``, ``SWITCH``, ``FABRIC``, …"""

    port: float  # rate of a chip's NVLinks, one direction [B/s]
    adapter: float  # rate of its network adapter, one direction [B/s]
    chip: Mapping[str, float]
    fabric: Mapping[str, float]  # empty where there is none
    tuner: Tuner  # NCCL's own estimates for the machine
    # Share of an adapter's rate that a rank of a small group keeps while other groups use theirs.
    beside: float = 1.0
    level_rate: float = math.inf  # at which a tree over racks climbs one level [B/s]

    def far_s(self, load: Load, payload: float = 1.0) -> Number:
        """Time of a rank's bytes over its adapter, of which ``payload`` is data, not flags [s]."""
        share = np.where(np.asarray(load.beside) > 0, self.beside, 1.0)
        rate = self.fabric["efficiency"] * payload * self.adapter * share
        adapter_s: Number = load.outside / rate
        return adapter_s


def covers(cluster: Cluster) -> bool:
    """Return whether the collectives of a cluster take NCCL's measured times."""
    fabric = _fabric(cluster)
    return knows(cluster) and (fabric is None or fabric.oversubscription == 1)


def knows(cluster: Cluster) -> bool:
    """Return whether NCCL was measured on such chips and such a fabric, were it not to block."""
    # Its constants were measured on chips around one switch, or joined to one another, and on
    # fabrics that do not block.
    catalogue, fabric = cluster.catalogue, _fabric(cluster)
    if cluster.plain or catalogue is None or not isinstance(cluster.shape, Switch | FullMesh):
        return False  # plain shapes have no chip
    parts = catalogue.parts()
    names = (cluster.chip, *(() if fabric is None else (fabric.name,)))
    return all(f"{kind}.{part}" in parts for kind in ("nccl", PART) for part in names)


@functools.lru_cache(maxsize=256)
def constants(cluster: Cluster) -> Nccl:
    """Look up the constants of a covered cluster."""
    catalogue, chip, shape = cluster.catalogue, cluster.chip, cluster.shape
    fabric = _fabric(cluster)
    if catalogue is None or not isinstance(shape, Switch | FullMesh):
        raise LookupError(f"{cluster.name} has no constants of NCCL")
    rate = catalogue.integer(chip, "links") * catalogue.integer(chip, "link_bandwidth")
    port = shape.bandwidth_bytes_per_s * (shape.size - 1 if isinstance(shape, FullMesh) else 1)
    # Latencies may exceed those of the catalogue, with which the constants were measured. Two links
    # of a switch lie between two chips, and one of a mesh.
    hops = 1 if isinstance(shape, FullMesh) else 2
    later_ps = hops * (shape.latency_ps - catalogue.ps(chip, "link_latency"))
    part = f"nccl.{chip}"
    of_chip = (*CHIP, *SWITCH) if catalogue.has(part, SWITCH[0]) else CHIP
    adapter, of_fabric, name = 0, dict[str, float](), ""
    if fabric is not None:
        adapter, name = fabric.bandwidth_bytes_per_s, fabric.name
        names = (*FABRIC, *TREE) if catalogue.has(f"nccl.{name}", TREE[0]) else FABRIC
        far_later_ps = fabric.latency_ps - catalogue.ps(name, "step_latency")
        of_fabric = _later(catalogue, f"nccl.{name}", names, FAR_STEPS, far_later_ps)
    return Nccl(
        port=catalogue.value(chip, "scale_up_bandwidth") if port in (0, rate) else float(port),
        adapter=float(adapter),
        chip=_later(catalogue, part, of_chip, STEPS, later_ps),
        fabric=of_fabric,
        tuner=tuner(catalogue, chip, name, adapter),
        beside=catalogue.value(*BESIDE),
        level_rate=catalogue.value(*LEVEL_RATE),
    )


def _fabric(cluster: Cluster) -> ScaleOut | None:
    """Return the fabric between the domains of a cluster; None where there is only one domain."""
    return cluster.scale_out if cluster.domains > 1 else None


def _later(
    catalogue: Catalogue, part: str, names: Sequence[str], steps: Sequence[str], later_ps: int
) -> dict[str, float]:
    """Look up constants of a part, of which some take so much longer, but no less than nothing."""
    values = {name: catalogue.value(part, name) for name in names}
    if later_ps:
        late = {
            name: max(0.0, values[name] + later_ps / PS_PER_S) for name in steps if name in values
        }
        values |= late
    return values


def nccl_ps(call: CollectiveCall, *, rings: bool = False) -> int:
    """Time of a call that NCCL's constants cover [ps]; see :func:`load_of` for ``rings``."""
    if call.ranks == 1 or call.size_bytes == 0:
        return 0
    return _time_ps(load_of(call, rings=rings), constants(call.group.cluster))


def uneven_ps(group: Group, sent_bytes: IntArray) -> int:
    """Time of an all-to-all-v by a matrix of bytes (ranks, ranks) on such a cluster [ps]."""
    if group.ranks == 1 or not sent_bytes.any():
        return 0
    return _time_ps(uneven_load(group, sent_bytes), constants(group.cluster))


@functools.lru_cache(maxsize=1 << 16)
def _time_ps(load: Load, costs: Nccl) -> int:
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
    # A loop moves a chunk for each head and channel, so that its slices grow with both.
    slice_s = costs.chip["in_switch_slice"] * costs.tuner.channels * _heads(load) / SERVER
    direct = costs.chip["in_switch_latency"] + wire + filling_s(slice_s, wire)
    return np.where(np.asarray(load.in_switch) > 0, direct, np.inf)


HEADS = 32
"""Most chips of a domain between which NCCL divides a reduction in the switch
(``NCCL_MAX_NVLS_ARITY``); its tuner takes the rate to be the same for any number of them."""


def _heads(load: Load) -> Number:
    """Count the chips of a domain that each reduce a part of the buffer in the switch."""
    heads: Number = np.minimum(np.asarray(load.ranks) / load.domains, HEADS)
    return heads


def filling_s(slice_s: Number, wire_s: Number) -> Number:
    """Return the time that filling a pipeline takes with slices of the best length [s]."""
    # Shorter slices fill it sooner but cost more starts; the least sum is 2 √(slice · wire).
    return 2 * np.sqrt(slice_s * wire_s)


SERVERS_OF_SHORT_CHUNKS = 4
"""Number of servers from which NCCL halves the chunks of a tree that reduces in switches."""


def tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce up and down a tree between domains [s]."""
    # NCCL's chunks grow with the buffer to their full length, 16 MiB with eight chips a server, and
    # with them the filling. Where the network plugin says so, short buffers go in protocol LL128.
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
    far, racks, levels = costs.far_s(load), _heads(load) > SERVER, np.log2(load.domains)
    far = np.where(racks, np.maximum(far, levels * load.size / costs.level_rate), far)
    wire = _together_s(inside, far)
    filled = wire * np.minimum(1.0, _whole_bytes(load, costs) / np.asarray(load.size))
    # Among racks a loop of all heads climbs level by level, and down again.
    filling = filling_s(fabric["slice"] * load.far_steps / 2, filled)
    return start + wire + np.where(racks, 2 * levels * filled, filling)


def _together_s(inside_s: Number, far_s: Number) -> Number:
    """Time of bytes over NVLinks and over adapters, which the same multiprocessors move [s]."""
    # The slower counts most, the other the more the nearer it comes. Third to sixth powers fit
    # measured all-reduces of 16 to 64 H100 equally well.
    joined: Number = np.sqrt(np.sqrt((inside_s * inside_s) ** 2 + (far_s * far_s) ** 2))
    return joined


def _whole_bytes(load: Load, costs: Nccl) -> Number:
    """Size of the buffer from which the chunks of a tree have their full length [B]."""
    few = np.isfinite(in_switch_s(load, costs)) & np.asarray(load.domains < SERVERS_OF_SHORT_CHUNKS)
    heads, tuner = _heads(load), costs.tuner
    few &= np.asarray(heads <= SERVER)
    whole: Number = np.where(few, tuner.whole_chunks_of_few, tuner.whole_chunks)
    return whole * heads


def _short_tree_s(load: Load, costs: Nccl, share: Number) -> Number:
    """Time of a share of the bytes up and down a tree in LL128, or in LL for short buffers [s]."""
    chip, fabric = costs.chip, costs.fabric
    inside = share * load.inside / (fabric["tree_efficiency"] * costs.port)
    far = share * costs.far_s(load, FAR_SHARE["ll128"])
    # The first level takes a step of LL128 each way; each further one, where a server waits for two
    # others, a longer step. Inside a server a chain carries bytes up and down at once.
    climb = 2 * fabric["ll128_step"] + (load.far_steps - 2) * fabric["tree_step"]
    short = np.asarray(load.size) <= costs.tuner.short_tree_bytes
    climb = np.where(short, load.far_steps * fabric["step"], climb)
    return chip["launch"] + load.steps * chip["step"] + climb + np.maximum(inside, far)


def steps(call: CollectiveCall) -> int:
    """Count the steps that follow one another, inside domains and between them."""
    load = load_of(call)
    return math.ceil(float(load.steps + load.far_steps))


def bound_with_switch(call: CollectiveCall) -> Bound:
    """Return the tightest bound of a call where the switches of a chip's domain reduce."""
    # A rank then sends its buffer once in an all-reduce, half of what rings send; a domain still
    # sends and receives a whole buffer through its adapters.
    reduces = reduces_in_switch(call.group.cluster) and call.kind == "all-reduce"
    halved = [
        Bound(f"{bound.what}, reduced in the switch", bound.time_ps // 2)
        if reduces and bound.what not in ("distance", AROUND)
        else bound
        for bound in bounds(call)
    ]
    return max(halved, key=lambda bound: bound.time_ps)
