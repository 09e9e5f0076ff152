"""Clusters by name: machines, plain shapes, and files."""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING

from topologies.catalogue.catalogue import Catalogue, choose
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import chips_per_server, machine_fabric, machine_shape, machines
from topologies.shapes.basic import (
    AXIS_NAMES,
    MAX_CHIPS,
    Axis,
    Clos,
    FullMesh,
    Shape,
    Switch,
    Torus,
    check_chips,
    check_size,
)
from topologies.shapes.scale_out import Place, layers
from topologies.support.arguments import fitting
from topologies.support.errors import InputError, check_type, shown, suggestion
from topologies.support.units import parse_ps, parse_rate

if TYPE_CHECKING:
    import networkx as nx

RAINIER = "rainier"
BETWEEN = ("building_oversubscription", "site_oversubscription", "site_latency")
"""Rows of the network between Rainier's buildings and sites."""
RAINIER_MACHINE = "trn2-ultraserver"  # machine of which Project Rainier is made
OTHER_NAMES = {
    "nl32x2": "trn3-gen1",
    "nl72x2": "trn3-gen2",
    "trn3-ultraserver": "trn3-gen2",
    "nl72x2-ualink": "trn3-gen2-ualink",
}
"""Machines by other names under which they are known, in lower case."""
NEAREST = {
    "p5en.48xlarge": ("p5e.48xlarge",),
    "gb200-nvl72": ("u-p6e-gb200x72", "p6e-gb200.36xlarge", "a4x-highgpu-4g"),
    "gb300-nvl72": ("u-p6e-gb300x72", "p6e-gb300.36xlarge"),
    "dgx-h100": ("hgx-h100", "a3-highgpu-8g", "a3-megagpu-8g", "standard_nd96isr_h100_v5"),
    "dgx-h200": ("hgx-h200", "a3-ultragpu-8g", "standard_nd96isr_h200_v5"),
    "dgx-b200": ("hgx-b200", "a4-highgpu-8g"),
    "trn2.48xlarge": ("trn2u.48xlarge",),
}
"""Machines, each with names of clouds for others of the same chips, in lower case."""
FILES = (".yaml", ".yml")
GRAPHS = (".graphml", ".json")


CLUSTER_REMEDY = "Pass a name, such as 'trn2.48xlarge', or a Cluster."
CATALOGUE_REMEDY = "Pass a Catalogue, or the path of a CSV file with rows of your own."


@fitting("cluster")
def cluster(
    text: str | nx.Graph[Hashable],
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
    catalogue: Catalogue | str | Path | None = None,
    variant: str | Sequence[str] = (),
) -> Cluster:
    """Make the cluster that a text names, or that a graph of networkx draws.

    Parameters
    ----------
    text : str or networkx.Graph
        Name of a machine (``trn2.48xlarge``), of several on their scale-out fabric
        (``trn2-ultraserver:16``), ``rainier`` or ``rainier:CHIPS``, a plain shape (``ring:8``,
        ``torus:4x4x4``, ``mesh:8``, ``switch:64``, ``clos:64:16``), or the path of a YAML file or
        of a graph in GraphML or node-link JSON; or the graph itself.
    bandwidth, latency : str, optional
        Rate and latency of each directed link of a plain shape, as ``100GB/s`` and ``1us``, and of
        a graph's links that state none; refused for other clusters.
    catalogue, variant : Catalogue or path, and str or sequence of str, optional
        Numbers of machines, by default those shipped, or a CSV file of rows that replace some; and
        named alternatives, or factors on numbers, such as ``"trn2.hbm_bandwidth=x1.5"``.

    Returns
    -------
    Cluster
        Shape and number of the scale-up domains, and the scale-out fabric.

    Raises
    ------
    InputError
        For an unknown name, with the most similar one, and for sizes out of range.

    Examples
    --------
    >>> cluster("trn2-ultraserver:16").chips
    1024
    >>> cluster("torus:4x4x4", bandwidth="100GB/s", latency="1us").shape.sizes
    (4, 4, 4)
    """
    _check_types(text, catalogue, {"bandwidth": bandwidth, "latency": latency})
    catalogue = _with_variants(variant, catalogue)
    if not isinstance(text, str) or text.endswith(GRAPHS):
        return _read(text, catalogue, bandwidth, latency)
    is_file, (kind, colon, count) = text.endswith(FILES), text.partition(":")
    kind = OTHER_NAMES.get(kind.lower(), kind)
    text = f"{kind}{colon}{count}"
    if kind in PLAIN and not is_file:
        shape = plain_shape(text, bandwidth, latency)
        return Cluster(text, shape, chips_per_server=shape.chips, plain=True, catalogue=catalogue)
    if kind != RAINIER and not catalogue.has(kind, "chip") and not is_file:
        raise InputError(_unknown(text, kind, catalogue))
    if (bandwidth, latency) != (None, None):
        raise InputError(_has_rates(text))
    if is_file:
        return _read(text, catalogue)
    if kind == RAINIER:
        return _rainier(text, count if colon else None, catalogue)
    return _machines(text, kind, _whole(text, count, f"{kind}:16") if colon else 1, catalogue)


def _with_variants(
    variant: str | Sequence[str], catalogue: Catalogue | str | Path | None
) -> Catalogue:
    texts = [variant] if isinstance(variant, str) else variant
    check_type("variant", texts, Sequence, "Pass a text, or several in a list.")
    for text in texts:
        check_type("variant", text, str, "Pass a text, or several in a list.")
    return choose(texts, catalogue)


def _check_types(text: object, catalogue: object, rates: Mapping[str, object]) -> None:
    # A caller who has a graph has loaded networkx, which is slow.
    graph = sys.modules["networkx"].Graph if "networkx" in sys.modules else str
    remedy = "Pass a name, such as 'trn2.48xlarge', a path as text, or a graph of networkx."
    check_type("cluster", text, (str, graph), remedy)
    check_type("catalogue", catalogue, (Catalogue, str, Path, NoneType), CATALOGUE_REMEDY)
    for name, rate in rates.items():
        example = "100GB/s" if name == "bandwidth" else "1us"
        check_type(name, rate, (str, NoneType), f"Pass text with its unit, such as {example}.")


def _read(source: str | nx.Graph[Hashable], catalogue: Catalogue, *rates: str | None) -> Cluster:
    """Read a YAML file, or a graph with its rates, by modules that take their time to load."""
    if isinstance(source, str) and source.endswith(FILES):
        from topologies.clusters.yaml_file import cluster_from_file

        return cluster_from_file(source, catalogue)
    from topologies.clusters.graph_file import cluster_from_graph

    bandwidth, latency = rates
    return cluster_from_graph(source, catalogue, bandwidth=bandwidth, latency=latency)


def as_cluster(machine: Cluster | str) -> Cluster:
    """Return a cluster as it is, or the one that a text names; see :func:`cluster`.

    >>> as_cluster("trn2.48xlarge") == as_cluster(cluster("trn2.48xlarge"))
    True
    """
    if isinstance(machine, str):
        return cluster(machine)
    check_type("cluster", machine, Cluster, CLUSTER_REMEDY)
    return machine


def machine(text: str, *, catalogue: Catalogue | None = None) -> Cluster:
    """Make a cluster whose chips can compute, which those of plain shapes and graphs cannot."""
    if text.partition(":")[0] in PLAIN and not text.endswith(FILES):
        raise InputError(
            f"{text[:80]} is a plain shape without chips, so nothing can be computed on it; "
            f"name a machine such as {RAINIER_MACHINE}, or a YAML file."
        )
    if text.endswith(GRAPHS):
        raise InputError(
            f"{shown(text, 80)} is read as a graph, which states no chips, so nothing can be "
            f"computed on it; name a machine such as {RAINIER_MACHINE}, or describe it in YAML."
        )
    named = cluster(text, catalogue=catalogue)
    if not named.chip:
        raise InputError(
            f"{shown(text, 80)} states no chip, so nothing can be computed on it; add one, such as "
            "chip: trn2."
        )
    return named


def _has_rates(text: str) -> str:
    return (
        f"--bandwidth and --latency are for plain shapes ({', '.join(PLAIN.values())}), "
        f"not for {text[:80]}; its rates are in the catalogue (--variant, --catalogue)"
    )


LONGEST_NAME = 256  # of a file that is looked for


def _unknown(text: str, kind: str, catalogue: Catalogue) -> str:
    names = [*machines(catalogue), RAINIER]
    if catalogue.has(kind, "shape"):
        catalogue.name(kind, "chip")  # names the row to add
    chips = {name: catalogue.name(name, "chip") for name in machines(catalogue)}
    with_chip = [name for name, chip in chips.items() if f"{chip}-".startswith(f"{kind.lower()}-")]
    if with_chip:
        return (
            f"unknown cluster {shown(text, 80)!r}: {kind} is a chip, of {', '.join(with_chip)}. "
            f"Write {with_chip[0]}, or {with_chip[0]}:4 for four."
        )
    for name, others in NEAREST.items():
        if kind.lower() in others:
            return (
                f"unknown cluster {shown(text, 80)!r}: the nearest machine here is {name}, of the "
                f"same chips; its network may be another. Write {name}, or {name}:4 for four."
            )
    if len(text) < LONGEST_NAME and Path(text).is_file():
        return (
            f"{shown(text, 80)} is a file, but clusters are read from YAML and from graphs "
            "(.graphml, .json). Name one of those, or a machine, such as p5.48xlarge:8."
        )
    if "," in text:
        return _several(text)
    return (
        f"unknown cluster {shown(text, 80)!r}.{suggestion(kind, [*names, *PLAIN])} "
        f"There are {', '.join(names)}, {', '.join(PLAIN.values())}, NAME:COUNT, YAML files and "
        "graphs (.graphml, .json)."
    )


def _machines(name: str, kind: str, domains: int, catalogue: Catalogue) -> Cluster:
    check_size(f"{name}: a count", domains)
    return Cluster(
        name=name,
        shape=machine_shape(catalogue, kind),
        chip=catalogue.name(kind, "chip"),
        domains=domains,
        scale_out=machine_fabric(catalogue, kind),
        chips_per_server=chips_per_server(catalogue, kind),
        catalogue=catalogue,
    )


def _rainier(name: str, count: str | None, catalogue: Catalogue) -> Cluster:
    """Make Project Rainier, by default with all its UltraServers, or with a number of chips."""
    of_unit = catalogue.integer(RAINIER_MACHINE, "chips")
    chips = catalogue.integer(RAINIER, "domains") * of_unit
    if count is not None:
        chips = _whole(name, count, f"{RAINIER}:{1024 * of_unit}")
        check_chips(name, (chips,))
    if chips == 0 or chips % of_unit:
        nearest = max(1, round(chips / of_unit)) * of_unit
        raise InputError(
            f"{name}: {chips:,} chips are not whole UltraServers of {of_unit}; "
            f"use {RAINIER}:{nearest}"
        )
    return _in_buildings(_machines(name, RAINIER_MACHINE, chips // of_unit, catalogue), catalogue)


def _in_buildings(machine: Cluster, catalogue: Catalogue) -> Cluster:
    """Return Rainier in buildings and sites, with the way and the rate between them."""
    # A building holds an equal share of the first phase's UltraServers, a site one of all that
    # there are, both in whole groups of leaf switches; a smaller cluster is in one building.
    fabric, chips = machine.scale_out, machine.chips
    if fabric is None:
        return machine
    every = catalogue.integer(RAINIER, "domains") * machine.chips_per_domain
    building = every // catalogue.integer(RAINIER, "buildings")
    site = -(-max(every, chips) // catalogue.integer(RAINIER, "sites"))
    leaves = layers(fabric, building, machine.chips_per_server)[:-1][-1:]
    whole = leaves[0].chips if leaves else 1
    sizes = (-(-size // whole) * whole for size in (building, site))
    places = tuple(
        Place(size, catalogue.entry(RAINIER, ratio).exact)
        for ratio, size in zip(BETWEEN, sizes, strict=False)
        if size < chips
    )
    if not places:
        return machine
    fabric, away_ps = replace(fabric, places=places), catalogue.ps(RAINIER, "site_latency")
    inside = len(layers(fabric, chips, machine.chips_per_server)) - len(places)
    near_ps, between_ps = fabric.climb_ps[:-1], (fabric.climb_ps[-1], away_ps)
    climbs_ps = [near_ps[min(number, len(near_ps) - 1)] for number in range(inside)]
    climbs_ps += between_ps[: len(places)]
    return replace(machine, scale_out=replace(fabric, climb_ps=tuple(climbs_ps)))


def _several(text: str) -> str:
    return (
        f"unknown cluster {shown(text, 80)!r}. Name one here; train, plan, serve and collective "
        "take several, side by side."
    )


def _whole(text: str, count: str, example: str) -> int:
    if "," in text:
        raise InputError(_several(text))
    if not re.fullmatch(r"\d{1,9}", count, re.ASCII):
        raise InputError(
            f"{text[:80]}: the count must be a whole number of 1 to {MAX_CHIPS:,}, as {example}"
        )
    return int(count)


PLAIN = {
    "ring": "ring:8",
    "torus": "torus:4x4x4",
    "mesh": "mesh:8",
    "switch": "switch:64",
    "clos": "clos:64:16",
}
"""Kinds of plain shape, each with an example."""


def plain_shape(text: str, bandwidth: str | None, latency: str | None) -> Shape:
    """Parse a plain shape, whose directed links are all equal."""
    # ``ring:N``, ``torus:AxBx…`` (slowest axis first, all wrap), ``mesh:N``, ``switch:N``,
    # ``clos:N:RADIX`` or ``clos:N:RADIX:OVERSUBSCRIPTION``.
    kind, _, dims = text.partition(":")
    sizes, more = _sizes(text, kind, dims)
    if kind != "torus" and len(sizes) > 1:
        raise InputError(f"{text}: a {kind} has one size, as {PLAIN[kind]}.")
    if bandwidth is None or latency is None:
        raise InputError(
            f"{text} needs the bandwidth and latency of a directed link; "
            "give --bandwidth 100GB/s --latency 1us"
        )
    rate, hop_ps = parse_rate(bandwidth), parse_ps(latency)
    if kind == "mesh":
        return FullMesh(sizes[0], rate, hop_ps)
    if kind == "switch":
        return Switch(sizes[0], rate, hop_ps)
    if kind == "clos":
        return Clos(sizes[0], more[0], rate, hop_ps, Fraction(more[1] if len(more) > 1 else 1))
    names = [*AXIS_NAMES[: len(sizes)]][::-1]
    return Torus(
        tuple(Axis(name, size, rate, hop_ps) for name, size in zip(names, sizes, strict=True))
    )


def _sizes(text: str, kind: str, dims: str) -> tuple[list[int], list[int]]:
    """Return the sizes of the dimensions, and the radix and oversubscription of a Clos."""
    example = PLAIN[kind]
    numbers = r"\d{1,9}(x\d{1,9})*" + (r":\d{1,9}(:\d{1,9})?" if kind == "clos" else "")
    if not re.fullmatch(numbers, dims, re.ASCII):
        raise InputError(
            f"{text[:80]}: sizes must be whole numbers of 1 to {MAX_CHIPS:,}, as {example}"
        )
    along, *more = dims.split(":")
    sizes = [int(size) for size in along.split("x")]
    if len(sizes) > len(AXIS_NAMES):
        raise InputError(
            f"{text[:80]}: {len(sizes)} dimensions; at most {len(AXIS_NAMES)}, as {example}"
        )
    for size in sizes:
        check_size(f"{text}: a size", size)
    return sizes, [int(number) for number in more]
