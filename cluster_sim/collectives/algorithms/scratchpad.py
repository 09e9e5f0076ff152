"""Limits of collectives whose buffers stay in the scratchpads (SBUF) of the cores."""

from __future__ import annotations

from cluster_sim.collectives.group import Group
from topologies.errors import InputError
from topologies.units import format_bytes

FROM_MEMORY = ("all-to-all", "all-to-all-v")
"""Operations whose operands must be in HBM (nki/api/nki.collectives.rst)."""


def scratchpad_bytes(group: Group) -> int:
    """Return the size of the scratchpads of one rank [B], those of all its cores together.

    A rank is a logical NeuronCore. It consists of as many cores as the runtime joins by default or,
    with more ranks a chip, of an equal share of the chip's cores.

    >>> from topologies.clusters.names import cluster
    >>> [scratchpad_bytes(Group(cluster("trn2.48xlarge"), [0], each)) // 2**20 for each in (4, 8)]
    [56, 28]
    """
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    if catalogue is None or not chip or not catalogue.has(chip, "ranks_per_chip"):
        raise InputError(
            f"{group.cluster.name} has no scratchpads that collectives could run in; use Trainium"
        )
    ranks = max(catalogue.integer(chip, "ranks_per_chip"), group.ranks_per_chip)
    return max(1, catalogue.integer(chip, "cores") // ranks) * catalogue.integer(
        chip, "core_sbuf_bytes"
    )


def check_scratchpad(kind: str, group: Group, size_bytes: int) -> None:
    """Refuse an operation, or a buffer, for which scratchpads cannot be used."""
    room = scratchpad_bytes(group)
    if kind in FROM_MEMORY:
        raise InputError(f"{kind} in SBUF: the runtime wants its operands in HBM. Leave out --sbuf")
    if size_bytes > room:
        raise InputError(
            f"a buffer of {format_bytes(size_bytes)} does not fit in the SBUF of a rank, "
            f"{format_bytes(room)}. Use at most that, or leave out --sbuf"
        )
