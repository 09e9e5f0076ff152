"""Which algorithm does which operation on which group, and the one front door, :func:`compose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.all_to_all import dimension_ordered, direct
from cluster_sim.collectives.axis_exchange import axis_exchange
from cluster_sim.collectives.choice import automatic
from cluster_sim.collectives.composed import Collective
from cluster_sim.collectives.cube import cube, halving_doubling, has_pairs, is_cube, kangaring
from cluster_sim.collectives.cycles import Cycles, all_rings, one_ring
from cluster_sim.collectives.footprint import fits, ops_of, refuse_huge
from cluster_sim.collectives.group import Group, box
from cluster_sim.collectives.hierarchical import hierarchical, symmetric
from cluster_sim.collectives.lower import Facts, lower
from cluster_sim.collectives.mesh import mesh, single_step_mesh
from cluster_sim.collectives.one_to_many import (
    chain_broadcast,
    mesh_broadcast,
    permute,
    tree_broadcast,
)
from cluster_sim.collectives.ring import RING_OPS, ring
from cluster_sim.collectives.scratchpad import refuse_large
from cluster_sim.collectives.sends import Sends, side_by_side
from cluster_sim.collectives.torus import torus
from cluster_sim.fabric import fabric
from cluster_sim.schedule import Schedule
from cluster_sim.wire import Wire, wire
from topologies.errors import InputError, suggestion

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "permute")
MAX_BYTES = 2**50
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
    sends: Callable[[str, Group, int, Wire], Sends]


Builder = Callable[[str, Group, int, Wire], Sends]


def _on(rings: Callable[[Group], Cycles]) -> Builder:
    def made(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
        if op == "broadcast":
            slices = broadcast_slices(group.ranks, size_bytes, costs)
            return chain_broadcast(rings(group), size_bytes, slices)
        return ring(op, rings(group), size_bytes, costs.slices)

    return made


def _mesh(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    if op == "broadcast":
        return mesh_broadcast(group.ranks, size_bytes)
    return mesh(op, group.ranks, size_bytes)


def _rdh(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    if op == "broadcast":
        return tree_broadcast(cube(group), size_bytes)
    return halving_doubling(op, group, size_bytes, costs.slices)


def _direct(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    return permute(group.ranks, size_bytes) if op == "permute" else direct(group, size_bytes)


def _dimension_ordered(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    found = box(group)
    if found is None:
        raise InputError("dimension-ordered needs a group that fills a box of a torus")
    return dimension_ordered(group, found, size_bytes)


def _torus(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    found = box(group)
    if found is None:
        raise InputError("torus needs a group that fills a box of a torus")
    if op == "all-to-all":
        return axis_exchange(group, found, size_bytes)
    return torus(op, group, found, size_bytes, slices_for(group, size_bytes, costs))


def _hierarchical(op: str, group: Group, size_bytes: int, costs: Wire) -> Sends:
    return hierarchical(op, group, size_bytes, slices_for(group, size_bytes, costs))


def slices_for(group: Group, size_bytes: int, costs: Wire) -> int:
    """Slices of a collective in stages: as many as leave whole packets, at most ``MOST_SLICES``."""
    return max(1, min(MOST_SLICES, size_bytes // (group.ranks * costs.packet_bytes)))


def broadcast_slices(ranks: int, size_bytes: int, costs: Wire) -> int:
    """Slices of a pipelined broadcast: enough to fill the chain, of whole packets."""
    return max(1, min(MOST_BROADCAST_SLICES, 4 * ranks, size_bytes // costs.packet_bytes))


def _ops(op: str, groups: Sequence[Group], size_bytes: int, name: str, costs: Wire) -> int:
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


def algorithms(op: str, group: Group) -> list[str]:
    """Algorithms that make sense for an operation on a group.

    Raises
    ------
    InputError
        When there is no such operation.
    """
    if op not in OPS:
        raise InputError(
            f"unknown collective {op!r}.{suggestion(op, OPS)} There are {', '.join(OPS)}."
        )
    return [name for name, one in ALGORITHMS.items() if op in one.ops and one.suits(group)]


def fitting(op: str, groups: Sequence[Group], size_bytes: int) -> list[str]:
    """Algorithms that make sense and whose schedules fit in this machine; if none does, all."""
    sensible = algorithms(op, groups[0])
    costs = wire(groups[0].cluster)
    small = [name for name in sensible if fits(_ops(op, groups, size_bytes, name, costs))]
    return small or sensible


def chosen(op: str, group: Group, size_bytes: int, algorithm: str) -> str:
    """Name of the algorithm that runs: ``auto`` resolved, one that makes no sense refused."""
    sensible = algorithms(op, group)
    if algorithm == "auto":
        return automatic(op, group, size_bytes, sensible)
    if algorithm not in sensible:
        raise InputError(
            f"{algorithm} does not make sense for {op} on {len(group.chips)} chips of "
            f"{group.cluster.name}; these do: auto, best, {', '.join(sensible)}"
        )
    return algorithm


def compose(
    op: str,
    groups: Group | Sequence[Group],
    size_bytes: int,
    algorithm: str = "auto",
    *,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
) -> Collective:
    """Build a collective on one group, or on several disjoint ones at once.

    Parameters
    ----------
    op : str
        One of ``OPS``.
    groups : Group or sequence of Group
    size_bytes : int
        As in nccl-tests: all-reduce the buffer; all-gather the gathered buffer; reduce-scatter the
        whole input; all-to-all the whole buffer of one rank [B].
    algorithm : str
        A name from :func:`algorithms`, or ``auto``.
    ideal : bool
        Link rates and latencies only.
    sbuf : bool
        The buffers are in the scratchpads of the cores and nothing is drawn from memory.
    contended : bool
        Others may draw on the same memories (:mod:`cluster_sim.collectives.streams`): what is drawn
        from them is written out even where this collective by itself cannot fill them.

    Raises
    ------
    InputError
        For unknown names, an algorithm that makes no sense here, sizes out of range, and buffers
        that do not fit in a scratchpad or whose schedule does not fit in this machine.
    """
    many = [groups] if isinstance(groups, Group) else list(groups)
    _check(many, size_bytes)
    cluster = many[0].cluster
    if sbuf:
        for group in many:
            refuse_large(op, group, size_bytes)
    name = chosen(op, many[0], size_bytes, algorithm)
    for group in many[1:]:
        chosen(op, group, size_bytes, name)
    costs = wire(cluster, ideal=ideal, sbuf=sbuf)
    refuse_huge(
        op, name, sum(group.ranks for group in many), _ops(op, many, size_bytes, name, costs)
    )
    sends = side_by_side([ALGORITHMS[name].sends(op, one, size_bytes, costs) for one in many])
    chips = np.concatenate([group.chip_of_rank for group in many])
    domains = np.unique(chips // cluster.chips_per_domain)
    facts: Facts = {
        "collective": op,
        "algorithm": name,
        "cluster": cluster.name,
        "ranks": sends.ranks,
        "groups": len(many),
        "size_bytes": int(size_bytes),
        "ideal": ideal or cluster.plain,
        "sbuf": sbuf,
    }
    steps = int(sends.step.max(initial=-1)) + 1
    covered = fabric(cluster, domains, costs=costs)
    made = lower(sends, chips, covered, facts, contended=contended)
    owner = np.repeat(np.arange(len(many), dtype=np.int32), [group.ranks for group in many])
    return Collective(op, name, made, sends.chunks, chips, owner, steps)


def build(
    op: str,
    groups: Group | Sequence[Group],
    size_bytes: int,
    algorithm: str = "auto",
    *,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
) -> Schedule:
    """Schedule of a collective; see :func:`compose` for the parameters.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.machines import cluster
    >>> ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    >>> build("all-reduce", whole(ring), 2**30, "ring").facts["ranks"]
    8
    """
    made = compose(op, groups, size_bytes, algorithm, ideal=ideal, sbuf=sbuf, contended=contended)
    return made.schedule


def _check(groups: Sequence[Group], size_bytes: int) -> None:
    if not groups:
        raise InputError("no group is given; a collective needs at least one")
    if not 0 <= size_bytes <= MAX_BYTES:
        raise InputError(f"a size of {size_bytes} B is not between 0 and {MAX_BYTES} B (1 PiB)")
    chips = np.concatenate([group.chips for group in groups])
    if len(np.unique(chips)) < len(chips):
        raise InputError("groups share a chip; replica groups must be disjoint")
    if any(group.cluster != groups[0].cluster for group in groups):
        raise InputError("groups of different clusters cannot run in one schedule")
