"""Algorithms by name: which does which operation on which group, and what ``auto`` stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster_sim.collectives.algorithms.all_to_all import dimension_ordered, direct
from cluster_sim.collectives.algorithms.auto import automatic
from cluster_sim.collectives.algorithms.axis_exchange import axis_exchange
from cluster_sim.collectives.algorithms.cube import (
    cube,
    halving_doubling,
    has_pairs,
    is_cube,
    kangaring,
)
from cluster_sim.collectives.algorithms.cycles import Cycles, all_rings, one_ring
from cluster_sim.collectives.algorithms.footprint import fits, ops_of
from cluster_sim.collectives.algorithms.hierarchical import hierarchical, symmetric
from cluster_sim.collectives.algorithms.mesh import mesh, single_step_mesh
from cluster_sim.collectives.algorithms.one_to_many import (
    chain_broadcast,
    mesh_broadcast,
    permute,
    tree_broadcast,
)
from cluster_sim.collectives.algorithms.ring import RING_OPS, ring
from cluster_sim.collectives.algorithms.torus import torus
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts, wire
from topologies.errors import InputError, suggestion

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "permute")
MOST_SLICES = 16
MOST_BROADCAST_SLICES = 1024
CHAIN_OPS = (*RING_OPS, "broadcast")


@dataclass(frozen=True)
class Algorithm:
    """One way to run some operations.

    Attributes
    ----------
    ops : tuple of str
    suits : function of a group
        Whether it makes sense there.
    sends : function of operation, group, size and wire
    """

    ops: tuple[str, ...]
    suits: Callable[[Group], bool]
    sends: Callable[[str, Group, int, CommunicationCosts], Messages]


Builder = Callable[[str, Group, int, CommunicationCosts], Messages]


def _on(rings: Callable[[Group], Cycles]) -> Builder:
    def made(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
        if op == "broadcast":
            slices = broadcast_slices(group.ranks, size_bytes, costs)
            return chain_broadcast(rings(group), size_bytes, slices)
        return ring(op, rings(group), size_bytes, costs.slices)

    return made


def _mesh(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
    if op == "broadcast":
        return mesh_broadcast(group.ranks, size_bytes)
    return mesh(op, group.ranks, size_bytes)


def _rdh(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
    if op == "broadcast":
        return tree_broadcast(cube(group), size_bytes)
    return halving_doubling(op, group, size_bytes, costs.slices)


def _direct(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
    return permute(group.ranks, size_bytes) if op == "permute" else direct(group, size_bytes)


def _dimension_ordered(
    op: str, group: Group, size_bytes: int, costs: CommunicationCosts
) -> Messages:
    found = box(group)
    if found is None:
        raise InputError("dimension-ordered needs a group that fills a box of a torus")
    return dimension_ordered(group, found, size_bytes)


def _torus(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
    found = box(group)
    if found is None:
        raise InputError("torus needs a group that fills a box of a torus")
    if op == "all-to-all":
        return axis_exchange(group, found, size_bytes)
    return torus(op, group, found, size_bytes, slices_for(group, size_bytes, costs))


def _hierarchical(op: str, group: Group, size_bytes: int, costs: CommunicationCosts) -> Messages:
    return hierarchical(op, group, size_bytes, slices_for(group, size_bytes, costs))


def slices_for(group: Group, size_bytes: int, costs: CommunicationCosts) -> int:
    """Slices of a collective in stages: as many as leave whole packets, at most ``MOST_SLICES``."""
    return max(1, min(MOST_SLICES, size_bytes // (group.ranks * costs.packet_bytes)))


def broadcast_slices(ranks: int, size_bytes: int, costs: CommunicationCosts) -> int:
    """Slices of a pipelined broadcast: enough to fill the chain, of whole packets."""
    return max(1, min(MOST_BROADCAST_SLICES, 4 * ranks, size_bytes // costs.packet_bytes))


def ops_foreseen(
    op: str, groups: Sequence[Group], size_bytes: int, name: str, costs: CommunicationCosts
) -> int:
    """Roughly how many ops groups of one size have."""
    first = groups[0]
    slices = (
        broadcast_slices(first.ranks, size_bytes, costs)
        if op == "broadcast"
        else slices_for(first, size_bytes, costs)
    )
    return len(groups) * ops_of(op, first, name, costs, slices)


def _any(group: Group) -> bool:
    return True


def _has_axes(group: Group) -> bool:
    found = box(group) if group.ranks_per_chip == 1 else None
    return found is not None and len(found.sizes) > 1


def _fills_box(group: Group) -> bool:
    return group.ranks_per_chip == 1 and box(group) is not None


ALGORITHMS = {
    "ring": Algorithm(CHAIN_OPS, _any, _on(one_ring)),
    "bidirectional-ring": Algorithm(CHAIN_OPS, _any, _on(lambda group: one_ring(group).both_ways)),
    "multi-ring": Algorithm(CHAIN_OPS, _any, _on(all_rings)),
    "torus": Algorithm((*RING_OPS, "all-to-all"), _has_axes, _torus),
    "hierarchical": Algorithm(RING_OPS, symmetric, _hierarchical),
    "mesh": Algorithm(CHAIN_OPS, _any, _mesh),
    "single-step-mesh": Algorithm(
        ("all-reduce",), _any, lambda _op, group, size, _: single_step_mesh(group.ranks, size)
    ),
    "rdh": Algorithm(CHAIN_OPS, is_cube, _rdh),
    "kangaring": Algorithm(
        RING_OPS, has_pairs, lambda op, group, size, costs: kangaring(op, group, size, costs.slices)
    ),
    "direct": Algorithm(("all-to-all", "permute"), _any, _direct),
    "dimension-ordered": Algorithm(("all-to-all",), _fills_box, _dimension_ordered),
}


def check_op(op: str) -> None:
    """Refuse what is no operation.

    Raises
    ------
    InputError
        With the nearest one.
    """
    if op not in OPS:
        raise InputError(
            f"unknown collective {op[:40]!r}.{suggestion(op, OPS)} There are {', '.join(OPS)}."
        )


def algorithms(op: str, group: Group) -> list[str]:
    """Algorithms that make sense for an operation on a group.

    Raises
    ------
    InputError
        When there is no such operation.
    """
    check_op(op)
    return [name for name, one in ALGORITHMS.items() if op in one.ops and one.suits(group)]


def fitting(op: str, groups: Sequence[Group], size_bytes: int) -> list[str]:
    """Algorithms that make sense and whose schedules fit in this machine; if none does, all."""
    sensible = algorithms(op, groups[0])
    return [name for name in sensible if fits_by(op, groups, size_bytes, name)] or sensible


def fits_by(op: str, groups: Sequence[Group], size_bytes: int, name: str) -> bool:
    """Whether the schedule of an algorithm fits in this machine."""
    costs = wire(groups[0].cluster)
    return fits(ops_foreseen(op, groups, size_bytes, name, costs))


def chosen(op: str, group: Group, size_bytes: int, algorithm: str) -> str:
    """Name of the algorithm that runs: ``auto`` resolved, one that makes no sense refused."""
    sensible = algorithms(op, group)
    if algorithm == "auto":
        return automatic(op, group, size_bytes, sensible)
    known = ("auto", "best", *ALGORITHMS)
    if algorithm not in known:
        raise InputError(
            f"unknown algorithm {algorithm[:40]!r}.{suggestion(algorithm, known)} For {op} on "
            f"{group.cluster.name} there are {', '.join(('auto', 'best', *sensible))}."
        )
    if algorithm not in sensible:
        raise InputError(
            f"{algorithm} does not make sense for {op} on {len(group.chips)} chips of "
            f"{group.cluster.name}; these do: auto, best, {', '.join(sensible)}"
        )
    return algorithm
