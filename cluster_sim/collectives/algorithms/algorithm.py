"""The type of an algorithm: an object with all that the program needs to know about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from cluster_sim.collectives.call import KINDS, CollectiveCall
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts


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
