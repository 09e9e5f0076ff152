"""Collectives whose buffers stay in the scratchpads (SBUF) of the cores: what fits there."""

from __future__ import annotations

from cluster_sim.collectives.group import Group
from topologies.errors import InputError
from topologies.units import format_bytes

FROM_MEMORY = ("all-to-all", "all-to-all-v")
"""Operations whose operands must be in HBM (nki/api/nki.collectives.rst)."""


def scratchpad_bytes(group: Group) -> int:
    """Scratchpad of one rank [B]: that of the cores that it is made of.

    A rank is a logical NeuronCore, of as many cores as the runtime joins by default or, with more
    ranks a chip, as are left for each.

    Examples
    --------
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


def check_scratchpad(op: str, group: Group, size_bytes: int) -> None:
    """Refuse what cannot run in scratchpads: an operation, or a buffer that does not fit in one."""
    room = scratchpad_bytes(group)
    if op in FROM_MEMORY:
        raise InputError(f"{op} in SBUF: the runtime wants its operands in HBM. Leave out --sbuf")
    if size_bytes > room:
        raise InputError(
            f"a buffer of {format_bytes(size_bytes)} does not fit in the SBUF of a rank, "
            f"{format_bytes(room)}. Use at most that, or leave out --sbuf"
        )
