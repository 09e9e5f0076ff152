"""Limits of the Neuron runtime: collectives that it would refuse are refused here, with the reason.

The rules are those of neuron-runtime/about/collectives.rst and the pages on collectives between
servers; other machines, and plain shapes, refuse nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import is_trainium
from cluster_sim.collectives.algorithms.cycles import one_ring
from cluster_sim.collectives.algorithms.hierarchical import rank_table
from cluster_sim.collectives.group import Group
from topologies.clusters.cluster import Cluster
from topologies.routing import routes
from topologies.shapes.basic import Torus
from topologies.shapes.links import domain_links
from topologies.support.arrays import BoolArray, IntArray, distinct
from topologies.support.errors import InputError

ALL_THE_SAME = "Or simulate it all the same with --unrestricted."  # end of every refusal


def check_restrictions(op: str, groups: Group | Sequence[Group]) -> None:
    """Refuse groups that the Neuron runtime refuses, naming the limit exceeded."""
    many = [groups] if isinstance(groups, Group) else list(groups)
    if not many or not is_trainium(many[0].cluster):
        return
    for group in many:
        _refuse_cores(group)
        if op == "permute":
            _refuse_strangers(group)
        elif op == "all-to-all-v":
            _refuse_uneven_exchange(group)
        _refuse_asymmetric(op, group)


def along_ring(group: Group) -> Group:
    """Return the group in the order in which the runtime's ring visits its chips."""
    # For ascending order the runtime chooses the ring, and with it the neighbours of a permute.
    if not group.ascending or len(group.domains) > 1 or not is_trainium(group.cluster):
        return group
    chips_only = Group(group.cluster, group.chips)
    order = one_ring(chips_only)[0]
    start = int(np.argmin(order))
    return Group(group.cluster, group.chips[np.roll(order, -start)], group.ranks_per_chip)


def _refuse_cores(group: Group) -> None:
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    if catalogue is None or not catalogue.has(chip, "cores"):
        return
    cores = catalogue.integer(chip, "cores")
    if group.ranks_per_chip > cores:
        raise InputError(
            f"{group.ranks_per_chip} ranks a chip; {chip} has {cores} NeuronCores. "
            f"Use 1 to {cores}. {ALL_THE_SAME}"
        )


def _refuse_strangers(group: Group) -> None:
    """Refuse a permute whose messages go to chips that are no physical neighbours."""
    src, dst = group.chips, np.roll(group.chips, -1)
    src, dst = src[src != dst], dst[src != dst]
    each = group.cluster.chips_per_domain
    far = src // each != dst // each
    if far.any():
        k = int(np.argmax(far))
        raise InputError(
            f"permute from chip {src[k]} to chip {dst[k]}: they are in different domains, which no "
            "NeuronLink joins, and the runtime sends only round rings of physical neighbours. "
            f"Use chips of one domain. {ALL_THE_SAME}"
        )
    hops = _cables(group.cluster, src % each, dst % each)
    if (hops > 1).any():
        k = int(np.argmax(hops > 1))
        raise InputError(
            f"permute from chip {src[k]} to chip {dst[k]}: no link joins them ({hops[k]} hops), "
            "and the runtime sends only round rings of physical neighbours. "
            f"Order the group along such a ring. {ALL_THE_SAME}"
        )


def _cables(cluster: Cluster, src: IntArray, dst: IntArray) -> IntArray:
    """Count the chips that a message passes, its target included; switches do not count."""
    links = domain_links(cluster.shape)
    crossed = routes(cluster.shape, src, dst)
    ends_at_chip: BoolArray = links.dst[crossed.link] < cluster.chips_per_domain
    pair = np.repeat(np.arange(len(crossed)), crossed.hops)
    return np.bincount(pair[ends_at_chip], minlength=len(crossed))


def _refuse_asymmetric(op: str, group: Group) -> None:
    """Refuse groups across nodes that do not have the same local chips on every node."""
    if rank_table(group) is not None:
        return
    each = group.cluster.chips_per_domain
    domains, counts = np.unique(group.domain, return_counts=True)
    if counts.min() != counts.max():
        few, many = int(np.argmin(counts)), int(np.argmax(counts))
        raise InputError(
            f"{op}: the group has {counts[few]} chips in domain {domains[few]} and {counts[many]} "
            f"in domain {domains[many]}; the runtime wants as many on every node. "
            f"Use the same chips of each domain. {ALL_THE_SAME}"
        )
    places = [np.sort(group.chips[group.domain == domain] % each) for domain in domains]
    other = next(
        (k for k, chips in enumerate(places) if not np.array_equal(chips, places[0])), None
    )
    if other is None:  # the same chips, in another order
        return
    stranger = int(np.setdiff1d(places[other], places[0])[0])
    raise InputError(
        f"{op}: the group has chip {stranger} of domain {domains[other]} but not of domain "
        f"{domains[0]}; the runtime wants the same local chips on every node. "
        f"Use the same chips of each domain. {ALL_THE_SAME}"
    )


def _refuse_uneven_exchange(group: Group) -> None:
    """Refuse an all-to-all-v inside a torus node, or of a few ranks of chips on a switch."""
    cluster = group.cluster
    # Allowed between chips of one place in several torus nodes, and all ranks on a NeuronSwitch.
    if isinstance(cluster.shape, Torus):
        places = distinct(group.chips % cluster.chips_per_domain)
        if len(places) > 1:
            raise InputError(
                f"all-to-all-v between chips {places[0]} and {places[1]} of a torus: the runtime "
                "runs it only across nodes, among chips of the same local number. "
                f"Use one chip of each domain, or all-to-all. {ALL_THE_SAME}"
            )
        return
    catalogue = cluster.catalogue
    cores = catalogue.integer(cluster.chip, "ranks_per_chip") if catalogue is not None else 1
    if len(group.chips) < 2 or group.ranks_per_chip != cores:
        raise InputError(
            f"all-to-all-v on {len(group.chips)} chips of {group.ranks_per_chip} ranks: on a "
            f"NeuronSwitch the runtime wants several chips with all {cores} ranks of each. "
            f"Add --ranks-per-chip {cores}. {ALL_THE_SAME}"
        )
