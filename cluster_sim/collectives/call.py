"""A collective call: an operation, a group of ranks, and a number of bytes."""

from __future__ import annotations

from dataclasses import dataclass

from cluster_sim.collectives.group import Group
from topologies.support.errors import InputError, check_choice

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "permute")
"""Operations, as nccl-tests names and sizes them."""
RING_KINDS = ("all-reduce", "all-gather", "reduce-scatter")
"""Operations made of a reduce-scatter, an all-gather, or the one after the other."""
MAX_BYTES = 2**50  # largest buffer [B]


@dataclass(frozen=True)
class CollectiveCall:
    """One collective operation of one group.

    Attributes
    ----------
    kind : str
        One of ``KINDS``.
    group : Group
    size_bytes : int
        Size as nccl-tests counts it [B]: for an all-reduce and a broadcast the buffer, for an
        all-gather the gathered buffer, for a reduce-scatter the whole input of a rank, for an
        all-to-all and a permute the whole buffer of a rank.

    Raises
    ------
    InputError
        When there is no such operation, or the size is out of range.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    >>> CollectiveCall("all-reduce", whole(ring), 2**20).ways
    2
    """

    kind: str
    group: Group
    size_bytes: int

    def __post_init__(self) -> None:
        check_choice("collective", self.kind, KINDS)
        if not 0 <= self.size_bytes <= MAX_BYTES:
            raise InputError(
                f"a size of {self.size_bytes} B is not between 0 and {MAX_BYTES} B (1 PiB)"
            )
        size = int(self.size_bytes)
        if size != self.size_bytes:
            raise InputError(f"a size of {self.size_bytes} B is not a whole number of bytes")
        object.__setattr__(self, "size_bytes", size)

    @property
    def ranks(self) -> int:
        """Number of ranks in the group."""
        return self.group.ranks

    @property
    def reduces(self) -> bool:
        """Return whether contributions of the ranks are summed."""
        return self.kind in ("all-reduce", "reduce-scatter")

    @property
    def gathers(self) -> bool:
        """Return whether each rank ends with the whole result, and not with a shard of it."""
        return self.kind in ("all-reduce", "all-gather")

    @property
    def ways(self) -> int:
        """Passes over the buffer: 2 for an all-reduce, which scatters and then gathers, else 1."""
        return self.reduces + self.gathers if self.kind in RING_KINDS else 1
