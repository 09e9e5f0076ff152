"""The type of an algorithm, and counts of accesses and slices that several algorithms share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from cluster_sim.collectives.algorithms.neuron_runtime import has_pairs
from cluster_sim.collectives.call import KINDS, RING_KINDS, CollectiveCall
from cluster_sim.collectives.group import Box
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from topologies.errors import InputError


def runs_all_ranks(call: CollectiveCall, costs: CommunicationCosts) -> int | None:
    """Return None, for an algorithm that is always simulated on all ranks."""
    return None


def streams_none(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return 0, for an algorithm that is not run part by part."""
    return 0


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
    suits : function of a call
        Whether the algorithm makes sense for the group of a call of one of these kinds.
    messages : function of a call and costs
        Messages between ranks, without regard to links.
    message_count : function of a call and costs
        Number of rows of ``messages``, joins included, without building them.
    rounds : function of a call and costs
        Number of rounds that follow one another.
    memory_accesses : function of a call and costs
        Reads and writes in all memories for each byte of the buffer.
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
    suits: Callable[[CollectiveCall], bool]
    messages: Callable[[CollectiveCall, CommunicationCosts], Messages]
    message_count: Callable[[CollectiveCall, CommunicationCosts], int]
    rounds: Callable[[CollectiveCall, CommunicationCosts], int]
    memory_accesses: Callable[[CollectiveCall, CommunicationCosts], Fraction]
    stands_for: Callable[[CollectiveCall, CommunicationCosts], int | None] = runs_all_ranks
    crosses_links: bool = False
    streamed_ops: Callable[[CollectiveCall, CommunicationCosts], int] = streams_none
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


def suits_every_group(call: CollectiveCall) -> bool:
    """Accept any group."""
    return True


def filled_box(call: CollectiveCall, algorithm: str) -> Box:
    """Return the box of a torus that a group fills, or refuse the algorithm that needs one."""
    filled = call.group.filled_box
    if filled is None:
        raise InputError(f"{algorithm} needs a group that fills a box of a torus")
    return filled


def each_byte_arrives_once(call: CollectiveCall, costs: CommunicationCosts) -> Fraction:
    """Count the accesses if every rank receives each byte that it lacks once, and nothing else.

    The vendor states the accesses for a chunk between two ranks
    (:mod:`cluster_sim.hardware.communication_costs`). This holds for rings, halving and doubling,
    meshes, stages along axes, chains and trees of a broadcast, and direct all-to-alls.
    """
    ranks = call.ranks
    if ranks == 1:
        return Fraction(0)
    if call.kind == "permute":
        return Fraction(ranks * costs.copy_accesses)
    gather, scatter = (ranks - 1) * costs.copy_accesses, (ranks - 1) * costs.reduce_accesses
    if call.kind == "all-reduce":
        return Fraction(gather + scatter)
    return Fraction(scatter if call.kind == "reduce-scatter" else gather)


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


def stage_slices(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return the slices of a collective in stages: as many as leave whole packets, at most 16."""
    return max(1, min(MOST_SLICES, call.size_bytes // (call.ranks * costs.packet_bytes)))


def broadcast_slices(call: CollectiveCall, costs: CommunicationCosts) -> int:
    """Return the slices of a pipelined broadcast: enough to fill the chain, of whole packets."""
    most = min(MOST_BROADCAST_SLICES, 4 * call.ranks)
    return max(1, min(most, call.size_bytes // costs.packet_bytes))
