"""The fabric: links, CC-Cores, engines and adapters of the domains that a group touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cluster_sim.hardware.communication_costs import (
    DMA_SHARES,
    CommunicationCosts,
    communication_costs,
)
from cluster_sim.schedule.table import NO_RESOURCE, Resources
from topologies.clusters.cluster import Cluster
from topologies.routing import clos, routes, scale_out_paths, shared_links
from topologies.shapes.links import Links, domain_links
from topologies.support.arrays import BoolArray, IntArray, distinct, pointers

WAYS = ("-up", "-down")
"""Ends of the names of the kinds of links between racks."""


@dataclass(frozen=True, eq=False)
class Uplinks:
    """Links of oversubscribed fabrics that groups of chips share and could overload."""

    row: IntArray  # of each link in SharedLinks of topologies.routing, ascending
    tables: tuple[Resources, ...] = ()  # such as ToR-up:3, one for each kind

    def __len__(self) -> int:
        return len(self.row)

    def crossed(self, cluster: Cluster, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
        """Find the links that pairs of chips cross, as numbers of pairs and places in ``row``."""
        paths = scale_out_paths(cluster, src, dst)
        pair = np.repeat(np.arange(len(paths)), np.diff(paths.ptr))
        place = np.minimum(np.searchsorted(self.row, paths.link), len(self.row) - 1)
        is_uplink = self.row[place] == paths.link
        return pair[is_uplink], place[is_uplink]


def uplinks(cluster: Cluster, chips: IntArray, adapter_bytes_per_s: int) -> Uplinks:
    """Return the links above some chips that carry less than all adapters below them can send.

    >>> from topologies.clusters.names import cluster
    >>> len(uplinks(cluster("trn2.48xlarge:64"), np.arange(1024), 20 * 10**9))
    0
    """
    none = Uplinks(np.empty(0, np.int32))
    if cluster.scale_out is None:
        return none
    layers = clos(cluster)[1][:-1]
    thin = [layer for layer in layers if layer.up_bytes_per_s < layer.chips * adapter_bytes_per_s]
    if not thin:
        return none
    links, rows, tables = shared_links(cluster), [], []
    for layer in thin:
        below = distinct(chips // layer.chips)
        for way in WAYS:
            kind = links.kinds.index(layer.name + way)
            row = np.searchsorted(links.kind, kind) + below
            rows.append(row)
            rate = links.capacity_bytes_per_s[row]
            tables.append(Resources.table(layer.name + way, below, slots=0, capacity=rate))
    return Uplinks(np.concatenate(rows).astype(np.int32), tuple(tables))


OF_CHIPS = ("cc", "engine", "tx", "rx", "hbm", "dma")
"""Kinds of resource that every chip has, in the order of their numbers: CC-Cores, compute engine,
and the sending and the receiving side of its adapter; and, shared by flows, memory and DMA engines
if the accesses of messages to memory are known. Links such as ``link:0-1`` come before, and those
of an oversubscribed scale-out fabric behind (:class:`Uplinks`)."""


@dataclass(frozen=True, eq=False)
class Paths:
    """Links on the way between the chips of each pair."""

    ptr: IntArray  # (pairs + 1,): pair k crosses resource[ptr[k]:ptr[k + 1]]
    resource: IntArray  # (hops,): link or adapter; NO_RESOURCE for a hop inside a chip
    latency_ps: IntArray  # (hops,): from the end of the hop to the arrival

    def never_empty(self) -> Paths:
        """Return the same paths, with a hop over ``NO_RESOURCE`` for each pair without hops."""
        empty = np.diff(self.ptr) == 0
        if not empty.any():
            return self
        at = self.ptr[:-1][empty]
        return Paths(
            self.ptr + pointers(empty),
            np.insert(self.resource, at, NO_RESOURCE),
            np.insert(self.latency_ps, at, 0),
        )

    def or_else(self, first: BoolArray, other: Paths) -> Paths:
        """Return these paths for the pairs in ``first``, and those of ``other`` for the rest."""
        hops = np.diff(self.ptr)
        hops[~first] = np.diff(other.ptr)
        kept = np.repeat(first, hops)
        resource, latency = np.empty(len(kept), np.int64), np.empty(len(kept), np.int64)
        resource[kept], resource[~kept] = self.resource, other.resource
        latency[kept], latency[~kept] = self.latency_ps, other.latency_ps
        return Paths(pointers(hops), resource, latency)


@dataclass(frozen=True, eq=False)
class Fabric:
    """Numbered resources of scale-up domains: links by domain, then other kinds chip by chip."""

    cluster: Cluster
    domains: IntArray  # global numbers of the domains covered, ascending
    links: Links  # of one domain
    costs: CommunicationCosts
    # By resource; 0 for resources that are no links or adapters.
    rate: IntArray
    latency_ps: IntArray
    forwards: BoolArray  # the node behind forwards a message that it still receives
    resources: Resources  # those of the uplinks last
    uplinks: Uplinks  # oversubscribed links of the scale-out fabric
    ways: Mapping[int, IntArray] = field(default_factory=dict)  # instead of links that are down

    def link(self, domain: npt.ArrayLike, link: npt.ArrayLike) -> IntArray:
        """Return the resource of link ``link`` (a row of ``links``) of a domain."""
        return np.asarray(self._row(domain) * len(self.links) + np.asarray(link))

    def of_chip(self, kind: str, chip: npt.ArrayLike) -> IntArray:
        """Return the resource of a kind, such as ``cc`` or ``hbm``, of each chip."""
        each = self.cluster.chips_per_domain
        domain, local = np.divmod(np.asarray(chip), each)
        first = len(self.domains) * (len(self.links) + OF_CHIPS.index(kind) * each)
        return np.asarray(first + self._row(domain) * each + local)

    def _row(self, domain: npt.ArrayLike) -> IntArray:
        return np.searchsorted(self.domains, np.asarray(domain))

    def route(self, src: npt.ArrayLike, dst: npt.ArrayLike) -> Paths:
        """Return the resources between the chips of each pair: links, two adapters, or none."""
        sources, targets = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        each = self.cluster.chips_per_domain
        here, there = sources // each, targets // each
        inside = here == there
        if inside.all():
            local = routes(self.cluster.shape, sources % each, targets % each)
            return self.along(sources, local.ptr, local.link)
        local = routes(self.cluster.shape, sources[inside] % each, targets[inside] % each)
        hops = np.full(len(sources), 2, np.int64)
        hops[inside] = local.hops
        ptr = pointers(hops)
        resource = np.empty(int(ptr[-1]), np.int64)
        in_domain = np.repeat(inside, hops)
        resource[in_domain] = self.link(np.repeat(here[inside], local.hops), local.link)
        outside = np.stack(
            [self.of_chip("tx", sources[~inside]), self.of_chip("rx", targets[~inside])], axis=1
        )
        resource[~in_domain] = outside.ravel()
        latency = self.latency_ps[resource]
        if len(outside):
            between = scale_out_paths(self.cluster, sources[~inside], targets[~inside])
            after = np.maximum(0, between.latency_ps - self.costs.step_ps)
            latency[~in_domain] = np.stack([after, np.zeros_like(after)], axis=1).ravel()
        return Paths(ptr, resource, latency)

    def climbing(self, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
        """Return the oversubscribed links between chips of different domains, with their pairs."""
        pair, row = self.uplinks.crossed(self.cluster, src, dst)
        return pair, len(self.resources) - len(self.uplinks) + row

    def along(self, src: npt.ArrayLike, ptr: IntArray, link: IntArray) -> Paths:
        """Return paths over rows of ``links``, in the domains that the source chips are in."""
        first = self.link(np.asarray(src) // self.cluster.chips_per_domain, 0)
        resource = link.astype(np.int64)
        if first.any():  # else all are in the first domain
            resource += np.repeat(first, np.diff(ptr))
        return Paths(ptr, resource, self.latency_ps[resource])


def fabric(
    cluster: Cluster,
    domains: npt.ArrayLike | None = None,
    *,
    ideal: bool = False,
    costs: CommunicationCosts | None = None,
) -> Fabric:
    """Number the resources of some domains of a cluster, by default of all."""
    picked = distinct(np.arange(cluster.domains) if domains is None else np.asarray(domains))
    links = domain_links(cluster.shape)
    costs = costs or communication_costs(cluster, ideal=ideal)
    chips = (
        picked[:, None] * cluster.chips_per_domain + np.arange(cluster.chips_per_domain)
    ).ravel()
    tables = [
        _link_table(cluster, picked, links),
        Resources.table("cc", chips, slots=costs.cc_slots),
        Resources.table("engine", chips),
        Resources.table("tx", chips),
        Resources.table("rx", chips),
    ]
    first_nic = sum(map(len, tables[:-2]))
    if costs.hbm_bytes_per_s:
        tables += [
            Resources.table("hbm", chips, slots=0, capacity=costs.hbm_bytes_per_s),
            Resources.table("dma", chips, slots=0, capacity=DMA_SHARES * costs.dma_bytes_per_s),
        ]
    shared = uplinks(cluster, chips, costs.scale_out_bytes_per_s)
    resources = Resources.concat([*tables, *shared.tables])
    nics = slice(first_nic, first_nic + 2 * len(chips))
    rate = np.zeros(len(resources), np.int64)
    latency = np.zeros(len(resources), np.int64)
    usable = costs.scale_up(links.bandwidth_bytes_per_s)
    rate[: len(picked) * len(links)] = np.tile(usable, len(picked))
    latency[: len(picked) * len(links)] = np.tile(links.latency_ps, len(picked))
    rate[nics] = costs.scale_out_bytes_per_s
    forwards = (resources.peer >= cluster.chips) | (not costs.stores)
    forwards[nics] = True
    return Fabric(cluster, picked, links, costs, rate, latency, forwards, resources, shared)


def _link_table(cluster: Cluster, domains: IntArray, links: Links) -> Resources:
    """Return the links of all domains; switches have numbers after the cluster's last chip."""
    each, switches = cluster.chips_per_domain, links.nodes - cluster.chips_per_domain

    def global_node(node: IntArray) -> IntArray:
        chip = domains[:, None] * each + node
        switch = cluster.chips + domains[:, None] * switches + (node - each)
        return np.where(node < each, chip, switch).ravel()

    return Resources.table(
        "link",
        global_node(links.src),
        global_node(links.dst),
        np.tile(links.lane, len(domains)),
        switches_from=cluster.chips,
    )
