"""What ``auto`` chooses: what the Neuron runtime would on Trainium, the usual elsewhere.

The thresholds are documented for the 64 ranks of a Trn2 server. Larger groups are assumed to use
the same ones; smaller groups leave halving and doubling the earlier the fewer ranks they have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import RUNTIME, wire
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.shapes.links import domain_links

MESH_FIRST_RANKS = 128
"""Ranks beyond which halving and doubling goes before a mesh: CC-Cores issue message by message."""
MOST_MESH_RANKS = 512
"""Ranks beyond which no mesh is tried: its messages grow with the square."""


def automatic(op: str, group: Group, size_bytes: int, sensible: Sequence[str]) -> str:
    """Name of the algorithm that ``auto`` stands for, out of those that make sense."""
    wanted = (*_preferences(op, group, size_bytes), *sensible)
    return next(name for name in wanted if name in sensible)


def _preferences(op: str, group: Group, size_bytes: int) -> tuple[str, ...]:
    if op in ("all-to-all", "permute"):
        return ("dimension-ordered", "direct")
    if op == "broadcast" and is_trainium(group.cluster):
        return _to_all(group, size_bytes)
    domains = len(np.unique(group.domain))
    if domains > 1:
        first = ("hierarchical",) if domains < group.ranks else ()
        return (*first, *_by_size(op, group, size_bytes, "hierarchical", "ring"))
    if not isinstance(group.cluster.shape, Torus):
        return _by_size(op, group, size_bytes, "torus", "multi-ring")
    if drives_pairs(group):
        return _by_size(op, group, size_bytes, "kangaring", "multi-ring")
    return _by_size(op, group, size_bytes, "multi-ring")


def _by_size(op: str, group: Group, size_bytes: int, *large: str) -> tuple[str, ...]:
    """Mesh for small buffers, halving and doubling for larger ones, then ``large``."""
    if not is_trainium(group.cluster):
        return large
    short = _is_short(group, size_bytes)
    if short and group.ranks <= MESH_FIRST_RANKS:
        single = op == "all-reduce" and _one_step_wins(group, size_bytes)
        return ("single-step-mesh", "mesh") if single else ("mesh",)
    mesh = ("mesh",) if short and group.ranks <= MOST_MESH_RANKS else ()
    return ("rdh", *mesh, *large) if halves(group, size_bytes) else large


def _to_all(group: Group, size_bytes: int) -> tuple[str, ...]:
    """Of a broadcast: a message to each, a tree, or slices along rings, as its length asks for.

    What the runtime does is not documented.
    """
    if _one_step_wins(group, size_bytes):
        return ("mesh",)
    return ("rdh", "multi-ring") if _is_short(group, size_bytes) else ("multi-ring",)


def halves(group: Group, size_bytes: int) -> bool:
    """Whether the runtime halves and doubles a buffer, or would but for a faster mesh."""
    numbers = group.cluster.catalogue
    if numbers is None or not is_trainium(group.cluster):
        return False
    most = group.ranks * numbers.integer(RUNTIME, "rdh_below_a_rank")
    return size_bytes < min(most, numbers.integer(RUNTIME, "rdh_below"))


def drives_pairs(group: Group) -> bool:
    """Whether the runtime runs large buffers by KangaRing: with all ranks of each chip of a torus.

    It is documented for the four ranks of a Trn2 chip; the two of Trn1 run rings.
    """
    return isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == _all_cores(group) > 2


def is_trainium(cluster: Cluster) -> bool:
    """Whether the Neuron runtime runs the collectives of a cluster."""
    return cluster.catalogue is not None and cluster.chip.startswith("trn")


def _is_short(group: Group, size_bytes: int) -> bool:
    """Whether steps, not bytes, decide on Trainium."""
    numbers = group.cluster.catalogue
    return numbers is not None and size_bytes <= numbers.integer(RUNTIME, "mesh_up_to")


def _one_step_wins(group: Group, size_bytes: int) -> bool:
    """Whether the whole buffer for everybody costs less than the step that it saves."""
    numbers, chip = group.cluster.catalogue, group.cluster.chip
    if numbers is None:
        return False
    step_ps = numbers.ps(chip, "collective_step")
    links = domain_links(group.cluster.shape)
    local = group.chips % group.cluster.chips_per_domain
    within = (links.src == local[0]) & (
        np.isin(links.dst, local) | (links.dst >= group.cluster.chips_per_domain)
    )
    out = int(wire(group.cluster).scale_up(links.bandwidth_bytes_per_s[within]).sum())
    return (group.ranks - 2) * size_bytes * PS_PER_S < step_ps * max(1, out)


def _all_cores(group: Group) -> int:
    """Ranks of a chip that takes part with all its logical cores; 0 where that is not known."""
    numbers, chip = group.cluster.catalogue, group.cluster.chip
    known = numbers is not None and chip and numbers.has(chip, "ranks_per_chip")
    return numbers.integer(chip, "ranks_per_chip") if known and numbers is not None else 0
