"""Measures of a cluster: hops, cuts, rates, memory and FLOP/s, in closed form at any scale."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.clusters.cluster import Cluster
from topologies.routing import clos
from topologies.shapes.basic import FullMesh, Shape, Switch, Tiered, Torus
from topologies.shapes.measures import (
    all_to_all_bytes_per_s,
    bisection,
    bisections,
    diameter_hops,
    links_per_chip,
    mean_hops,
    scale_up_bytes_per_s,
    switch_hops,
)

_PEAK = "_peak"
_NOT_COUNTED = ("sparse", "vector", "int8")
"""Peaks that are not dense floating-point rates of matrix engines."""


@dataclass(frozen=True)
class Measures:
    """Sizes of a cluster, and one-way rates, hops and cuts of one of its scale-up domains."""

    cluster: str
    chips: int
    domains: int
    servers: int
    nodes: int
    links: int
    diameter_hops: int  # most links between two chips of a domain
    mean_hops: float  # mean number of links over all ordered pairs of different chips of a domain
    # Most switches and forwarding chips between two chips of the same plane, rack and so on
    switch_hops: dict[str, int]
    links_per_chip: float  # mean number of directed scale-up links that leave a chip
    bisection_bytes_per_s: int  # rate through the smallest cut of a domain into halves [B/s]
    # Rate through the cut across the middle of each axis or tier [B/s]
    bisections_bytes_per_s: dict[str, int]
    # Rate of a uniform all-to-all inside a domain that the busiest links allow [B/s]
    all_to_all_bytes_per_s_per_chip: float | None
    scale_up_bytes_per_s_per_chip: int  # mean rate of a chip over all its scale-up links [B/s]
    # Rate of a chip into the scale-out fabric [B/s]; 0 without one
    scale_out_bytes_per_s_per_chip: int
    # Rate between two halves of the servers, by adapters and oversubscription [B/s]
    scale_out_bisection_bytes_per_s: int
    # Number of directed edges of adapters, hosts and Clos, where parallel links count once
    scale_out_links: int
    nics: int
    hosts: int
    # hbm_bytes, hbm_bytes_per_s: memory of all chips [B] and its rate [B/s]; None for plain shapes
    hbm_bytes: int | None
    hbm_bytes_per_s: int | None
    hbm_bytes_per_chip: int | None
    hbm_bytes_per_s_per_chip: int | None
    # flops_per_s, flops_per_s_per_chip: dense peak by precision, of all chips and of one [FLOP/s];
    # empty for plain shapes
    flops_per_s: dict[str, float]
    flops_per_s_per_chip: dict[str, float]


def measure(cluster: Cluster) -> Measures:
    """Measure a cluster without making its graph."""
    shape, fabric = cluster.shape, cluster.scale_out
    switches, links = _counts(shape)
    memory, rate = _hbm(cluster)
    flops = _flops_per_s(cluster)
    return Measures(
        cluster=cluster.name,
        chips=cluster.chips,
        domains=cluster.domains,
        servers=cluster.servers,
        nodes=cluster.domains * (shape.chips + switches),
        links=cluster.domains * links,
        diameter_hops=diameter_hops(shape),
        mean_hops=mean_hops(shape),
        switch_hops=switch_hops(shape),
        links_per_chip=links_per_chip(shape),
        bisection_bytes_per_s=bisection(shape),
        bisections_bytes_per_s=bisections(shape),
        all_to_all_bytes_per_s_per_chip=all_to_all_bytes_per_s(shape),
        scale_up_bytes_per_s_per_chip=scale_up_bytes_per_s(shape),
        scale_out_bytes_per_s_per_chip=fabric.bandwidth_bytes_per_s if fabric else 0,
        scale_out_bisection_bytes_per_s=_scale_out_bisection(cluster),
        scale_out_links=_scale_out_links(cluster),
        nics=fabric.adapters_per_server * cluster.servers if fabric else 0,
        hosts=cluster.servers if fabric else 0,
        hbm_bytes=memory and memory * cluster.chips,
        hbm_bytes_per_s=rate and rate * cluster.chips,
        hbm_bytes_per_chip=memory,
        hbm_bytes_per_s_per_chip=rate,
        flops_per_s={precision: peak * cluster.chips for precision, peak in flops.items()},
        flops_per_s_per_chip=flops,
    )


def _counts(shape: Shape) -> tuple[int, int]:
    """Return the number of switches, and of directed links, of one domain."""
    if isinstance(shape, Torus):
        lines = [(axis.cables, shape.chips // axis.size) for axis in shape.axes]
        return 0, 2 * sum(cables * count for cables, count in lines)
    if isinstance(shape, FullMesh):
        return 0, shape.size * (shape.size - 1)
    if isinstance(shape, Switch):
        return 1, 2 * shape.size
    if isinstance(shape, Tiered):
        ways = [tier.fan * (2 if tier.switches else 1) for tier in shape.tiers]
        return shape.switches, shape.chips * sum(ways)
    counts = (*shape.switches, 0, 0)
    uplinks = shape.size
    uplinks += counts[0] * shape.up * (shape.layers > 1)
    uplinks += counts[1] * (shape.radix // 2) * (shape.layers > 2)
    return sum(shape.switches), 2 * uplinks


def _scale_out_links(cluster: Cluster) -> int:
    """Count the links from chips to adapters, from these to hosts and racks, and between layers."""
    if cluster.scale_out is None:
        return 0
    _, layers = clos(cluster)
    return 2 * (cluster.chips + 2 * cluster.servers + sum(layer.groups for layer in layers[:-1]))


def _scale_out_bisection(cluster: Cluster) -> int:
    """Return the rate of half of all adapters, divided by the largest ratio of a layer."""
    if cluster.scale_out is None:
        return 0
    fabric, layers = clos(cluster)
    half = cluster.chips // 2 * fabric.bandwidth_bytes_per_s
    return half if len(layers) == 1 else int(half / fabric.narrowest)


def _hbm(cluster: Cluster) -> tuple[int | None, int | None]:
    if not cluster.chip or cluster.catalogue is None:
        return None, None
    catalogue = cluster.catalogue
    return (
        catalogue.integer(cluster.chip, "hbm_bytes"),
        catalogue.integer(cluster.chip, "hbm_bandwidth"),
    )


def _flops_per_s(cluster: Cluster) -> dict[str, float]:
    """Return the dense peak of one chip by precision [FLOP/s]."""
    if not cluster.chip or cluster.catalogue is None:
        return {}
    return {
        quantity.removesuffix(_PEAK): cluster.catalogue.value(cluster.chip, quantity)
        for quantity in cluster.catalogue.quantities(cluster.chip)
        if quantity.endswith(_PEAK) and quantity.removesuffix(_PEAK) not in _NOT_COUNTED
    }
