"""Documented choices of the Neuron runtime: halving and doubling, KangaRing, meshes.

The thresholds are documented for the 64 ranks of a Trn2 server. Larger groups are assumed to use
the same ones; for smaller groups the limit of halving and doubling is in proportion to the ranks.
Inside a server of Trn1 a mesh was measured up to a length in proportion to the ranks, and above it
rings: 8, 16 and 32 ranks turn at 1, 2 and 4 MiB.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import RUNTIME, communication_costs
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.arrays import IntArray
from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.shapes.links import domain_links

MESH_LIMIT = "mesh_up_to_a_rank"
"""Quantity of a chip whose meshes were measured up to a length in proportion to the ranks."""


def halves_and_doubles(group: Group, size_bytes: int) -> bool:
    """Return whether a buffer is short enough that the runtime would halve and double it."""
    catalogue = group.cluster.catalogue
    if catalogue is None or not is_trainium(group.cluster):
        return False
    most = group.ranks * catalogue.integer(RUNTIME, "rdh_below_a_rank")
    return size_bytes < min(most, catalogue.integer(RUNTIME, "rdh_below"))


def drives_pairs(group: Group) -> bool:
    """Return whether the runtime runs large buffers by KangaRing.

    It is documented for the four ranks of a Trn2 chip, all of which take part; the two ranks of a
    Trn1 chip run rings.
    """
    return (
        isinstance(group.cluster.shape, Torus) and group.ranks_per_chip == _logical_cores(group) > 2
    )


def is_trainium(cluster: Cluster) -> bool:
    """Return whether the Neuron runtime runs the collectives of a cluster."""
    if cluster.catalogue is None or not cluster.chip:
        return False
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


def is_short(group: Group, size_bytes: int) -> bool:
    """Return whether a buffer is so short that a Trainium chip uses a mesh, which has few steps."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    if catalogue is None:
        return False
    most = catalogue.integer(RUNTIME, "mesh_up_to")
    if goes_from_mesh_to_rings(group):
        most = max(most, group.ranks * catalogue.integer(chip, MESH_LIMIT))
    return size_bytes <= most


def goes_from_mesh_to_rings(group: Group) -> bool:
    """Return whether rings follow a mesh at once, as was measured inside servers of Trn1."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    measured = catalogue is not None and bool(chip) and catalogue.has(chip, MESH_LIMIT)
    return measured and len(group.domains) == 1 and group.ranks_per_chip == _logical_cores(group)


def waits_for_receivers(group: Group, size_bytes: int) -> bool:
    """Return whether messages of rings and of halving and doubling wait for their receivers.

    A mesh writes into buffers of its own, so that one handshake at the start is enough. Rings and
    halving and doubling use buffers again, and each sender waits until its receiver has room:
    measured inside servers of Trn1 and Trn2, at lengths for which no mesh is used, and assumed of
    the servers of an UltraServer. Shorter buffers and groups of several domains are taken to wait
    once.
    """
    inside = len(group.domains) == 1
    return inside and is_trainium(group.cluster) and not is_short(group, size_bytes)


def one_step_wins(group: Group, size_bytes: int) -> bool:
    """Return whether whole buffers to all, through one chip's links, cost less than a step."""
    catalogue = group.cluster.catalogue
    if catalogue is None:
        return False
    step_ps = catalogue.ps(group.cluster.chip, "collective_step")
    out = int(_rates_out(group).sum())
    return (group.ranks - 2) * size_bytes * PS_PER_S < step_ps * max(1, out)


def tree_wins(group: Group, size_bytes: int) -> bool:
    """Return whether whole buffers, once a level, cost less than the steps of a ring of slices."""
    catalogue = group.cluster.catalogue
    if catalogue is None:
        return False
    step_ps = catalogue.ps(group.cluster.chip, "collective_step")
    link = int(_rates_out(group).max(initial=1))
    levels = (group.ranks - 1).bit_length()
    return levels * size_bytes * PS_PER_S < (group.ranks - 1) * step_ps * link


def _rates_out(group: Group) -> IntArray:
    """Rates of the links from the first chip of a group to its others, (links,) [B/s]."""
    links = domain_links(group.cluster.shape)
    local = group.chips % group.cluster.chips_per_domain
    within = (links.src == local[0]) & (
        np.isin(links.dst, local) | (links.dst >= group.cluster.chips_per_domain)
    )
    return np.asarray(
        communication_costs(group.cluster).scale_up(links.bandwidth_bytes_per_s[within])
    )


def _logical_cores(group: Group) -> int:
    """Return the ranks of a chip with all its logical cores; 0 if the catalogue states none."""
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    has_cores = catalogue is not None and chip and catalogue.has(chip, "ranks_per_chip")
    return catalogue.integer(chip, "ranks_per_chip") if has_cores and catalogue is not None else 0


def has_pairs(group: Group) -> bool:
    """Return whether each chip takes part with an even number of ranks."""
    return group.ranks_per_chip % 2 == 0
