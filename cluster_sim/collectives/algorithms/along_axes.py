"""Properties that all algorithms along the axes of a torus have in common."""

from __future__ import annotations

from fractions import Fraction

from cluster_sim.collectives.algorithms.algorithm import each_byte_arrives_once
from cluster_sim.collectives.algorithms.stages import staged_rounds
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Box, box
from cluster_sim.hardware.communication_costs import CommunicationCosts
from topologies.errors import InputError


def filled_box(call: CollectiveCall, algorithm: str) -> Box:
    """Return the box of a torus that a group fills, or refuse the algorithm that needs one."""
    filled = box(call.group)
    if filled is None:
        raise InputError(f"{algorithm} needs a group that fills a box of a torus")
    return filled


def has_axes(call: CollectiveCall) -> bool:
    """Return whether the group has one rank a chip and fills a box of several axes."""
    filled = box(call.group) if call.group.ranks_per_chip == 1 else None
    return filled is not None and len(filled.sizes) > 1


def rounds(call: CollectiveCall, algorithm: str) -> int:
    """Count the rounds of a collective along all axes; an all-to-all takes one for each axis."""
    sizes = filled_box(call, algorithm).sizes
    return len(sizes) if call.kind == "all-to-all" else staged_rounds(call, [sizes])


def memory_accesses(call: CollectiveCall, costs: CommunicationCosts, algorithm: str) -> Fraction:
    """Count memory accesses for each byte; an all-to-all stores what it forwards at every axis."""
    if call.kind != "all-to-all":
        return each_byte_arrives_once(call, costs)
    sizes = filled_box(call, algorithm).sizes
    moved = sum((Fraction(size - 1, size) for size in sizes), Fraction(0))
    return call.ranks * moved * costs.copy_accesses
