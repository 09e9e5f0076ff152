"""The algorithm behind ``auto``: on Trainium what the Neuron runtime runs, else the usual one."""

from __future__ import annotations

from collections.abc import Sequence

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.all_to_all import DIMENSION_ORDERED, DIRECT
from cluster_sim.collectives.algorithms.hierarchical import HIERARCHICAL
from cluster_sim.collectives.algorithms.kangaring import KANGARING
from cluster_sim.collectives.algorithms.mesh import MESH, SINGLE_STEP_MESH
from cluster_sim.collectives.algorithms.neuron_runtime import (
    drives_pairs,
    goes_from_mesh_to_rings,
    halves_and_doubles,
    is_short,
    is_trainium,
    one_step_wins,
    tree_wins,
)
from cluster_sim.collectives.algorithms.rdh import RDH
from cluster_sim.collectives.algorithms.ring import MULTI_RING, RING
from cluster_sim.collectives.algorithms.torus import TORUS
from cluster_sim.collectives.call import CollectiveCall
from topologies.shapes.basic import Torus

MESH_FIRST_RANKS = 64
"""Ranks beyond which halving and doubling is preferred to a mesh, whose messages CC-Cores issue one
after the other: the ranks of a Trn2 server, for which the runtime's meshes are documented."""
MOST_MESH_RANKS = 512
"""Ranks beyond which no mesh is chosen: its messages grow with the square of the ranks."""

MOST_CYCLE_RANKS = 1024
"""Ranks beyond which a torus other than Trainium is run axis by axis: a cycle through all chips
takes a step for each of them, and its schedule grows with the square of their number."""

Preferences = tuple[Algorithm, ...]
"""Algorithms in order of preference."""


def automatic(call: CollectiveCall, sensible: Sequence[Algorithm]) -> Algorithm:
    """Choose the algorithm that ``auto`` stands for, among those that make sense for a call."""
    preferred = (*_preferences(call), *sensible)
    return next(algorithm for algorithm in preferred if algorithm in sensible)


def _preferences(call: CollectiveCall) -> Preferences:
    """List algorithms that are preferred for a call, whether they make sense for it or not."""
    group = call.group
    if call.kind in ("all-to-all", "permute"):
        return (DIMENSION_ORDERED, DIRECT)
    if call.kind == "broadcast" and is_trainium(group.cluster):
        return _broadcast(call)
    domains = len(group.domains)
    if domains > 1:
        first = (HIERARCHICAL,) if domains < group.ranks else ()
        return (*first, *_by_size(call, HIERARCHICAL, RING))
    if not isinstance(group.cluster.shape, Torus):
        return _by_size(call, TORUS, MULTI_RING)
    if drives_pairs(group):
        return _by_size(call, KANGARING, MULTI_RING)
    if group.ranks > MOST_CYCLE_RANKS and not is_trainium(group.cluster):
        return (TORUS, MULTI_RING)
    return _by_size(call, MULTI_RING)


def _by_size(call: CollectiveCall, *large: Algorithm) -> Preferences:
    """Prefer a mesh for small buffers, halving and doubling for larger ones, then ``large``."""
    group, size_bytes = call.group, call.size_bytes
    if not is_trainium(group.cluster):
        return large
    short = is_short(group, size_bytes)
    if short and group.ranks <= MESH_FIRST_RANKS:
        single = call.kind == "all-reduce" and one_step_wins(group, size_bytes)
        return (SINGLE_STEP_MESH, MESH) if single else (MESH,)
    if goes_from_mesh_to_rings(group):
        return large
    mesh = (MESH,) if short and group.ranks <= MOST_MESH_RANKS else ()
    return (RDH, *mesh, *large) if halves_and_doubles(group, size_bytes) else large


def _broadcast(call: CollectiveCall) -> Preferences:
    """Prefer single messages, a tree, or slices along rings; the runtime's choice is assumed."""
    if one_step_wins(call.group, call.size_bytes):
        return (MESH,) if call.group.ranks <= MESH_FIRST_RANKS else (RDH, MESH)
    return (RDH, MULTI_RING) if tree_wins(call.group, call.size_bytes) else (MULTI_RING,)
