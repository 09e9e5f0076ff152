"""The type of an algorithm, what several of them share, and what the Neuron runtime would choose.

Thresholds of the Neuron runtime are documented for the 64 ranks of a Trn2 server; larger groups are
assumed to use the same, and for smaller ones the limit of halving and doubling is in proportion.
Inside a server of Trn1 a mesh was measured up to 1, 2 and 4 MiB of 8, 16 and 32 ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cluster_sim.collectives.call import KINDS, RING_KINDS, CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import (
    PACKET_BYTES,
    RUNTIME,
    CommunicationCosts,
    communication_costs,
)
from cluster_sim.schedule.table import PS_PER_S
from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.routing import routes
from topologies.shapes.basic import Shape, Torus
from topologies.shapes.links import coordinates, domain_links
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from topologies.support.memory_limit import machine_bytes
from topologies.support.units import format_bytes

MESH_LIMIT = "mesh_up_to_a_rank"
"""Quantity of a chip whose meshes were measured up to a length in proportion to the ranks."""


def halves_and_doubles(group: Group, size_bytes: int) -> bool:
    """Return whether a buffer is short enough that the runtime would halve and double it."""
    catalogue = group.cluster.catalogue
    if catalogue is None or not is_trainium(group.cluster):
        return False
    most = group.ranks * catalogue.integer(RUNTIME, "rdh_below_a_rank")
    return size_bytes < min(most, catalogue.integer(RUNTIME, "rdh_below"))


def drives_pairs(group: Group) -> bool:
    """Return whether the runtime runs large buffers by KangaRing."""
    # Documented for the four ranks of a Trn2 chip, all of which take part; the two of Trn1 run
    # rings.
    return (
        isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == _logical_cores(group) > 2
    )


def is_trainium(cluster: Cluster) -> bool:
    """Return whether the Neuron runtime runs the collectives of a cluster."""
    if cluster.catalogue is None or not cluster.chip:
        return False
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


def is_short(group: Group, size_bytes: int) -> bool:
    """Return whether a buffer is so short that a Trainium chip uses a mesh, which has few steps."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    if catalogue is None:
        return False
    most = catalogue.integer(RUNTIME, "mesh_up_to")
    if goes_from_mesh_to_rings(group):
        most = max(most, group.ranks * catalogue.integer(chip, MESH_LIMIT))
    return size_bytes <= most


def goes_from_mesh_to_rings(group: Group) -> bool:
    """Return whether rings follow a mesh at once, as was measured inside servers of Trn1."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    measured = catalogue is not None and bool(chip) and catalogue.has(chip, MESH_LIMIT)
    return measured and len(group.domains) == 1 and group.ranks_per_chip == _logical_cores(group)


def waits_for_receivers(group: Group, size_bytes: int) -> bool:
    """Return whether messages of rings and of halving and doubling wait for their receivers."""
    # Rings and halving and doubling use buffers again: each sender waits for room at its receiver.
    # Measured inside servers of Trn1 and Trn2 at lengths without meshes, assumed of an
    # UltraServer's.
    inside = len(group.domains) == 1
    return inside and is_trainium(group.cluster) and not is_short(group, size_bytes)


def one_step_wins(group: Group, size_bytes: int) -> bool:
    """Return whether whole buffers to all, through one chip's links, cost less than a step."""
    catalogue, domains = group.cluster.catalogue, len(group.domains)
    if catalogue is None:
        return False
    step_ps, out = catalogue.ps(group.cluster.chip, "collective_step"), int(_rates_out(group).sum())
    if domains > 1:  # through its adapter: a tree has a step a level and more hops, less to issue
        costs = communication_costs(group.cluster)
        step_ps = levels(group.ranks) * step_ps + (domains.bit_length() - 2) * _hop_ps(group)
        step_ps -= group.ranks * costs.issue_ps // costs.cc_slots
        out = costs.scale_out_bytes_per_s
    return (group.ranks - 2) * size_bytes * PS_PER_S < step_ps * max(1, out)


def tree_wins(group: Group, size_bytes: int) -> bool:
    """Return whether whole buffers, once a level, cost less than the steps of a ring of slices."""
    if group.cluster.catalogue is None:
        return False
    if len(group.domains) > 1:
        tree_ps, ring_ps = _tree_and_ring_ps(group, size_bytes)
        return tree_ps < ring_ps
    link = _mean_rate(group)
    return levels(group.ranks) * size_bytes * PS_PER_S < _steps_ps(group, size_bytes) * link


def sum_wins(group: Group, size_bytes: int, rounds: int) -> bool:
    """Return whether a broadcast over domains costs less as a sum of zeros and one buffer.

    ``rounds``: steps of the sum, one after another.
    """
    if group.cluster.catalogue is None or len(group.domains) == 1:
        return False
    # It sends a share over each adapter of a domain, and over all links of each chip.
    costs, domains = communication_costs(group.cluster), len(group.domains)
    chips, out = -(-len(group.chips) // domains), int(_rates_out(group).sum())
    far_s = 2 * (1 - 1 / domains) / (chips * costs.scale_out_bytes_per_s)
    near_s = 2 * (1 - 1 / chips) / max(1, out)
    steps_ps = 2 * levels(domains) * _hop_ps(group) + rounds * costs.step_ps
    sum_ps = steps_ps + size_bytes * (far_s + near_s) * PS_PER_S
    return sum_ps < min(_tree_and_ring_ps(group, size_bytes))


def _tree_and_ring_ps(group: Group, size_bytes: int) -> tuple[float, float]:
    """Estimate the times of a broadcast over several domains by tree and by ring [ps]."""
    costs, domains = communication_costs(group.cluster), len(group.domains)
    far, near = levels(domains), levels(-(-group.ranks // domains))
    hop_ps, adapter = _hop_ps(group), costs.scale_out_bytes_per_s
    # A tree sends the whole buffer at each level; a ring, in slices, round by round, over two
    # adapters or more of a domain, and one way round back to the first domain, for its other ranks.
    tree_s = near / _mean_rate(group) + far / adapter
    steps_ps = _steps_ps(group, size_bytes) + group.ranks * costs.issue_ps
    return (
        far * hop_ps + size_bytes * tree_s * PS_PER_S,
        (domains - (near == 0)) * hop_ps + steps_ps + size_bytes * PS_PER_S / (2 * adapter),
    )


def _mean_rate(group: Group) -> int:
    """Return the rate of links between chips of a group, where each axis is crossed as often."""
    rates = _rates_out(group)  # so that slow ones count as often
    return int(1 / np.mean(1 / rates)) if len(rates) else 1


def _steps_ps(group: Group, size_bytes: int) -> int:
    """Return the time that slices take round a ring of all ranks [ps]."""
    # A slice takes a step and its own time on each link; a short buffer is a slice for each chain.
    slice_ps = min(size_bytes // 2, PACKET_BYTES) * PS_PER_S // _mean_rate(group)
    step_ps = communication_costs(group.cluster).step_ps
    return (group.ranks - 1) * (step_ps + slice_ps)


def levels(number: int) -> int:
    """Return the dimensions of the smallest hypercube with so many corners."""
    return (number - 1).bit_length()


def _hop_ps(group: Group) -> int:
    """Return the latency between two domains [ps]."""
    return group.cluster.scale_out.latency_ps if group.cluster.scale_out else 0


def _rates_out(group: Group) -> IntArray:
    """Rates of the links from the first chip towards the others of its group, (links,) [B/s]."""
    links = domain_links(group.cluster.shape)
    local = group.chips % group.cluster.chips_per_domain
    out = links.src == local[0]
    within = out & (np.isin(links.dst, local) | (links.dst >= group.cluster.chips_per_domain))
    # Chips that are not neighbours reach one another through those between.
    used = out if len(local) > 1 and not within.any() else within
    return np.asarray(
        communication_costs(group.cluster).scale_up(links.bandwidth_bytes_per_s[used])
    )


def _logical_cores(group: Group) -> int:
    """Return the ranks of a chip with all its logical cores; 0 if the catalogue states none."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    has_cores = catalogue is not None and chip and catalogue.has(chip, "ranks_per_chip")
    return catalogue.integer(chip, "ranks_per_chip") if has_cores and catalogue is not None else 0


def has_pairs(group: Group) -> bool:
    """Return whether each chip takes part with an even number of ranks."""
    return group.ranks_per_chip % 2 == 0


def each_byte_arrives_once(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses if every rank receives each byte that it lacks once, and nothing else."""
    # The vendor states the accesses for a chunk between two ranks (communication_costs).
    ranks = call.ranks
    if ranks == 1:
        return Fraction(0)
    if call.kind == "permute":
        return Fraction(ranks * costs.copy_accesses)
    gather, scatter = (ranks - 1) * costs.copy_accesses, (ranks - 1) * costs.reduce_accesses
    if call.kind == "all-reduce":
        return Fraction(gather + scatter)
    return Fraction(scatter if call.kind == "reduce-scatter" else gather)


@dataclass(frozen=True)
class Algorithm:
    """One way to run some collective operations.

    Every question that the rest of the program has about an algorithm is a field here, so that a
    new one is a file with an instance and a line in :mod:`~.registry`. A test compares every field
    with the schedule that is built.

    Attributes
    ----------
    name : str
        Name that ``--algorithm`` takes.
    summary : str
        One line on what the algorithm does.
    kinds : tuple of str
        Operations that it can run.
    messages : function of a call and costs
        Messages between ranks, without regard to links.
    message_count : function of a call and costs
        Number of rows of ``messages``, joins included, without building them.
    rounds : function of a call and costs
        Number of rounds that follow one another.
    suits : function of a call
        Whether the algorithm makes sense for the group of a call of one of these kinds; by default
        for any.
    memory_accesses : function of a call and costs
        Reads and writes in all memories for each byte of the buffer; by default those of bytes that
        arrive once.
    stands_for : function of a call and costs
        Time of the call without a simulation of all its messages, such as from a few ranks that
        stand for all [ps]; None where all messages have to be simulated.
    crosses_links : bool
        Whether a message may cross several links, rather than go to a neighbour.
    streamed_ops : function of a call and costs
        Number of ops that ``stands_for`` runs part by part, which takes the memory of one part and
        gives the time of all; 0 where it leaves any out.
    streams_watched : bool
        Whether a large call is run so even where the caller looks at single messages.

    Raises
    ------
    ValueError
        For a kind that is no operation: a mistake of whoever wrote the algorithm.

    Examples
    --------
    >>> from cluster_sim.collectives.algorithms.registry import ALGORITHMS
    >>> ALGORITHMS["ring"].kinds
    ('all-reduce', 'all-gather', 'reduce-scatter', 'broadcast')
    """

    name: str
    summary: str
    kinds: tuple[str, ...]
    messages: Callable[[CollectiveCall, CommunicationCosts], Messages]
    message_count: Callable[[CollectiveCall, CommunicationCosts], int]
    rounds: Callable[[CollectiveCall, CommunicationCosts], int]
    suits: Callable[[CollectiveCall], bool] = lambda call: True
    memory_accesses: Callable[[CollectiveCall, CommunicationCosts], Fraction] = (
        each_byte_arrives_once
    )
    stands_for: Callable[[CollectiveCall, CommunicationCosts], int | None] = lambda call, costs: (
        None
    )
    crosses_links: bool = False
    streamed_ops: Callable[[CollectiveCall, CommunicationCosts], int] = lambda call, costs: 0
    streams_watched: bool = False

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in KINDS]
        if unknown:
            raise ValueError(
                f"algorithm {self.name}: {unknown[0]!r} is no operation; there are "
                f"{', '.join(KINDS)}"
            )

    def runs(self, call: CollectiveCall) -> bool:
        """Return whether the algorithm can run a call and makes sense for its group."""
        return call.kind in self.kinds and self.suits(call)


def pairs_share(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses if the two ranks of each pair share what one of them received.

    >>> from cluster_sim.collectives.group import Group
    >>> from cluster_sim.hardware.communication_costs import communication_costs
    >>> from topologies.clusters.names import cluster
    >>> chip = Group(cluster("trn2.48xlarge"), [0], 4)
    >>> call, costs = CollectiveCall("all-gather", chip, 1024), communication_costs(chip.cluster)
    >>> int(each_byte_arrives_once(call, costs)), int(pairs_share(call, costs))
    (6, 4)
    """
    pairs, arrivals = call.ranks // 2, call.ranks // 2 - 1
    gather = Fraction(pairs * costs.fused_copy_accesses + arrivals * costs.copy_accesses)
    scatter = Fraction(pairs * costs.fused_reduce_accesses + arrivals * costs.reduce_accesses)
    return gather * call.gathers + scatter * call.reduces


def fewest_accesses(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses of the algorithm with the fewest: pairs that share, if there are pairs."""
    if call.kind in RING_KINDS and has_pairs(call.group):
        return pairs_share(call, costs)
    return each_byte_arrives_once(call, costs)


MOST_SLICES = 16  # most slices of a collective in stages; the ops of its schedule grow with them
MOST_BROADCAST_SLICES = 1024  # most slices of a broadcast along a chain


def stage_slices(call: CollectiveCall) -> int:
    """Return the slices of a collective in stages: as many as leave whole packets, at most 16."""
    return max(1, min(MOST_SLICES, call.size_bytes // (call.ranks * PACKET_BYTES)))


def broadcast_slices(call: CollectiveCall, chains: int) -> int:
    """Return the slices along each of some chains: enough to fill it, of whole packets."""
    most = min(MOST_BROADCAST_SLICES, 4 * call.ranks)
    return max(1, min(most, call.size_bytes // (chains * PACKET_BYTES)))


BYTES_AN_OP = 150
"""Peak memory of building and running a schedule for each op [B]. Measured: rings 107 to 113 B, rdh
123, direct all-to-alls 120, meshes 111 to 114 on Trn2 and 131 on a switch of 1,500 chips, and 150
on a full mesh of as many, which has as many links as its gather has ops."""
SAMPLED_PAIRS = 1024  # pairs of chips from whose mean distance that of all pairs is estimated


def check_op_count(
    kind: str, algorithm: str, ranks: int, ops: int, others: Sequence[str] = ()
) -> None:
    """Refuse a schedule larger than this machine's memory, and name ``others`` that would fit."""
    remedy = f"--algorithm {' or '.join(others)}" if others else "another algorithm"
    if not fits(ops):
        raise InputError(
            f"{kind} by {algorithm} on {ranks:,} ranks is about {ops:.1e} ops and needs "
            f"{format_bytes(ops * BYTES_AN_OP)}; this machine has {format_bytes(machine_bytes())}. "
            f"Use fewer ranks or {remedy}."
        )


def fits(ops: int) -> bool:
    """Return whether this number of ops can be built and run in the memory of this machine."""
    return ops * BYTES_AN_OP <= machine_bytes()


def ops_foreseen(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, costs: CommunicationCosts
) -> int:
    """Estimate, within a factor of two, the ops of calls that are all like the first."""
    first = calls[0]
    hops = _hops(first.group) if algorithm.crosses_links else 1.0
    issued = 1 if costs.issue_ps else 0  # a CC-Core's op before the hops of each message
    return len(calls) * int(algorithm.message_count(first, costs) * (issued + hops))


def hops_along(shape: Torus, src: IntArray, dst: IntArray) -> IntArray:
    """Count the links along each axis between chips of a torus, int64 (axes, pairs)."""
    apart = np.abs(np.stack(coordinates(shape, src)) - np.stack(coordinates(shape, dst)))
    axes = [(axis.wrap, axis.size) for axis in shape.axes]
    wraps, sizes = (np.array(column)[:, None] for column in zip(*axes, strict=True))
    return np.where(wraps, np.minimum(apart, sizes - apart), apart)


def hop_counts(shape: Shape, src: IntArray, dst: IntArray) -> IntArray:
    """Count the links between chips of a domain, int64 (pairs,); on a torus in closed form."""
    if isinstance(shape, Torus):
        return np.asarray(hops_along(shape, src, dst).sum(axis=0))
    return np.asarray(routes(shape, src, dst).hops)


def _hops(group: Group) -> float:
    """Estimate the ops that a message crosses links by: one inside a chip, two between domains."""
    step = max(1, len(group.chips) ** 2 // SAMPLED_PAIRS)
    pair = np.arange(0, len(group.chips) ** 2, step)
    src, dst = group.chips[pair // len(group.chips)], group.chips[pair % len(group.chips)]
    per_domain = group.cluster.chips_per_domain
    inside = src // per_domain == dst // per_domain
    hops = hop_counts(group.cluster.shape, src[inside] % per_domain, dst[inside] % per_domain)
    return float(np.maximum(1, hops).sum() + 2 * (~inside).sum()) / len(pair)
