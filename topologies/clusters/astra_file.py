"""Clusters from network files of ASTRA-sim's analytical backend.

Such a YAML file lists dimensions, the fastest first: ``topology`` (``Ring``, ``FullyConnected``,
``Switch``), ``npus_count``, ``bandwidth`` [GB/s, of 2³⁰ bytes] of a link in one direction, and
``latency`` [ns] of a hop. Their meaning is that of the backend's source (astra-network-analytical,
commit 599a047: ``Ring.cpp``, ``FullyConnected.cpp``, ``Switch.cpp``, ``NetworkFunction.cpp`` and
``MultiDimTopology.cpp``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, shown, suggestion
from topologies.shapes.basic import MAX_CHIPS, Axis, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.scale_out import ScaleOut
from topologies.units import PS_PER_NS

KEYS = ("topology", "npus_count", "bandwidth", "latency")
RING, MESH, SWITCH = BLOCKS = ("Ring", "FullyConnected", "Switch")
BYTES_PER_GB = 2**30
MOST_DIMENSIONS = 8
LARGEST_RADIX = 2**16
"""Radix of the scale-out switch, which ASTRA-sim does not limit: enough for a single layer."""


@dataclass(frozen=True)
class Dimension:
    """A dimension: its building block, chips, rate of a link [B/s] and latency of a hop [ps]."""

    block: str
    size: int
    bandwidth_bytes_per_s: int
    latency_ps: int


def is_astra_network(document: Mapping[str, Any]) -> bool:
    """Return whether a YAML document has the keys of an ASTRA-sim network.

    >>> is_astra_network({"topology": ["Ring"], "npus_count": [8]})
    True
    """
    return "topology" in document and "npus_count" in document


def cluster_from_astra(document: Mapping[str, Any], path: Path, catalogue: Catalogue) -> Cluster:
    """Make the plain cluster that an ASTRA-sim network describes.

    Rings followed by a last ``Switch`` become domains on a non-blocking scale-out fabric. Any other
    network becomes one domain: rings alone a torus, a single ``FullyConnected`` or ``Switch`` a
    full mesh or a switch, and other combinations a tiered shape.
    """
    dimensions = _dimensions(document)
    *inner, outer = dimensions
    if not inner or outer.block != SWITCH or any(below.block != RING for below in inner):
        return Cluster(path.stem, _shape(dimensions), plain=True, catalogue=catalogue)
    below = _shape(inner)
    fabric = ScaleOut(
        name="scale-out",
        bandwidth_bytes_per_s=outer.bandwidth_bytes_per_s,
        latency_ps=2 * outer.latency_ps,  # to the switch and from it
        radix=LARGEST_RADIX,
        port_bytes_per_s=outer.bandwidth_bytes_per_s,
        adapters_per_server=below.chips,
    )
    return Cluster(
        path.stem,
        below,
        domains=outer.size,
        scale_out=fabric,
        chips_per_server=below.chips,
        plain=True,
        catalogue=catalogue,
    )


def _dimensions(document: Mapping[str, Any]) -> list[Dimension]:
    unknown = next((str(key) for key in document if key not in KEYS), None)
    if unknown is not None:
        raise InputError(f"unknown key {shown(unknown, 60)}. An ASTRA-sim network has {_listed()}.")
    lists = []
    for key in KEYS:
        value = document.get(key)
        if not isinstance(value, list) or not value:
            raise InputError(f"{key} must be a list of one value a dimension, as in {_listed()}.")
        lists.append(value)
    if len({len(value) for value in lists}) > 1 or len(lists[0]) > MOST_DIMENSIONS:
        lengths = ", ".join(f"{key} {len(value)}" for key, value in zip(KEYS, lists, strict=True))
        raise InputError(f"{lengths} values; each has one a dimension, at most {MOST_DIMENSIONS}.")
    return [_dimension(*row) for row in zip(*lists, strict=True)]


def _listed() -> str:
    return "topology: [Ring], npus_count: [8], bandwidth: [50.0], latency: [500.0]"


def _dimension(block: Any, size: Any, bandwidth: Any, latency: Any) -> Dimension:
    if block not in BLOCKS:
        near = suggestion(str(block), BLOCKS) or f" There are {', '.join(BLOCKS)}."
        raise InputError(f"topology {shown(str(block), 40)!r} is no building block.{near}")
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MAX_CHIPS:
        raise InputError(
            f"npus_count {shown(str(size), 40)}: give a whole number of 1 to {MAX_CHIPS:,}."
        )
    gb_per_s = _number("bandwidth", bandwidth)
    if gb_per_s <= 0:
        raise InputError(f"bandwidth {bandwidth}: it must be above 0 GB/s.")
    latency_ps = round(_number("latency", latency) * PS_PER_NS)
    return Dimension(block, size, round(gb_per_s * BYTES_PER_GB), latency_ps)


def _number(name: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1e6 or not math.isfinite(value):
        raise InputError(f"{name} {shown(str(value), 40)}: a number of 0 to 1,000,000.")
    return float(value)


def _shape(dimensions: list[Dimension]) -> Shape:
    if all(dimension.block == RING for dimension in dimensions):
        names = "XYZWVUTS"[: len(dimensions)]
        axes = [
            Axis(name, ring.size, ring.bandwidth_bytes_per_s, ring.latency_ps)
            for name, ring in zip(names, dimensions, strict=True)
        ]
        return Torus(tuple(reversed(axes)))
    (first, *others) = dimensions
    if not others:
        kind = FullMesh if first.block == MESH else Switch
        return kind(first.size, first.bandwidth_bytes_per_s, first.latency_ps)
    tiers = [_tier(number, dimension) for number, dimension in enumerate(dimensions)]
    return Tiered(tuple(reversed(tiers)))


def _tier(number: int, dimension: Dimension) -> Tier:
    """Return a tier of direct links, each at the full rate, or of one switch.

    A ring of two chips becomes a pair with one link, since a ring in a tier has three or more.
    """
    size, rate = dimension.size, dimension.bandwidth_bytes_per_s
    if dimension.block == SWITCH:
        return Tier(f"dim{number}", size, rate, dimension.latency_ps, switches=1)
    ring = dimension.block == RING and size > 2
    links = 2 if ring else max(1, size - 1)
    return Tier(f"dim{number}", size, rate * links, dimension.latency_ps, ring=ring)
