"""Clusters from graph files: GraphML, or node-link JSON, as networkx writes them.

The graph is one scale-up domain: nodes are chips, or switches if ``kind`` says so. Edges have
``bandwidth_bytes_per_s`` and ``latency_s`` (numbers), or ``bandwidth`` and ``latency`` (texts with
units, such as ``100GB/s`` and ``1us``); edges without them take ``--bandwidth`` and ``--latency``.
An undirected edge is two links, one in each direction.
"""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import networkx as nx

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, shown
from topologies.files.reading import read_text
from topologies.shapes.recognition import Cable, Sketch, check_nodes, recognised
from topologies.units import PS_PER_S, parse_ps, parse_rate

ENDINGS = (".graphml", ".json")
LARGEST_BYTES = 64_000_000  # largest file that is read [B]; 4,096 chips take about a tenth of it
CHIPS = ("chip", "npu", "gpu", "accelerator")  # values of ``kind`` that mean a chip
SWITCH = "switch"


def cluster_from_graph(
    path: Path | str,
    catalogue: Catalogue,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
) -> Cluster:
    """Read one scale-up domain from a graph and recognise its shape."""
    file, named = Path(path), shown(str(path))
    text = read_text(file, limit_bytes=LARGEST_BYTES, remedy="Give one scale-up domain.")
    try:
        graph = _graphml(text) if file.suffix == ".graphml" else _node_link(text)
        sketch = _sketch(graph, bandwidth, latency)
        return Cluster(file.stem, recognised(sketch), plain=True, catalogue=catalogue)
    except InputError as mistake:
        raise InputError(f"{named}: {mistake}") from None


def _graphml(text: str) -> nx.Graph[Hashable]:
    if "<!" in text.replace("<!--", ""):
        raise InputError(
            "it declares a document type or entities, which GraphML does not need. Leave them out."
        )
    check_nodes(text.count("<node "))  # the parse of a large file takes most of a minute
    try:
        graph: nx.Graph[Hashable] = nx.read_graphml(io.BytesIO(text.encode()))
    except (xml.etree.ElementTree.ParseError, nx.NetworkXError, KeyError, ValueError) as mistake:
        raise InputError(
            f"no GraphML ({shown(str(mistake), 80)}). Write it with networkx.write_graphml."
        ) from None
    return graph


def _node_link(text: str) -> nx.Graph[Hashable]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as mistake:
        raise InputError(f"no JSON ({shown(str(mistake), 80)}). Write the file again.") from None
    keys = set(document) if isinstance(document, dict) else set()
    edges = next((name for name in ("edges", "links") if name in keys), None)
    if edges is None or "nodes" not in keys:
        raise InputError(
            "no node-link JSON; it has the keys nodes and edges (or links). Write it with "
            "networkx.node_link_data."
        )
    check_nodes(len(document["nodes"]) if isinstance(document["nodes"], list) else 0)
    try:
        graph: nx.Graph[Hashable] = nx.node_link_graph(document, edges=edges)
    except (nx.NetworkXError, KeyError, TypeError, ValueError, AttributeError) as mistake:
        reason = shown(f"{type(mistake).__name__}: {mistake}", 80)
        raise InputError(
            f"no node-link JSON ({reason}). Write it with networkx.node_link_data."
        ) from None
    return graph


def _sketch(graph: nx.Graph[Hashable], bandwidth: str | None, latency: str | None) -> Sketch:
    switches = []
    for node, attributes in graph.nodes(data=True):
        kind = str(attributes.get("kind", CHIPS[0])).lower()
        if kind == SWITCH:
            switches.append(node)
        elif kind not in CHIPS:
            raise InputError(
                f"node {shown(str(node), 40)} is of kind {shown(kind, 40)}; only chips and "
                "switches of one scale-up domain are read, so leave the others out."
            )
    links: dict[tuple[Hashable, Hashable], list[Cable]] = {}
    for begin, end, attributes in graph.edges(data=True):
        if begin == end:
            raise InputError(f"node {shown(str(begin), 40)} has a link to itself; leave it out.")
        cables = _cables(attributes, f"{begin}-{end}", bandwidth, latency)
        for pair in [(begin, end)] if graph.is_directed() else [(begin, end), (end, begin)]:
            links.setdefault(pair, []).extend(cables)
    if not links:
        raise InputError("it has no links; a cluster's chips are joined. Add them.")
    for name, unit, stated in (
        ("bandwidth", "_bytes_per_s", bandwidth),
        ("latency", "_s", latency),
    ):
        every = (name in edge or name + unit in edge for *_, edge in graph.edges(data=True))
        if stated is not None and all(every):
            raise InputError(
                f"every link states its {name}; leave --{name} {shown(stated, 30)} out."
            )
    fixed = {pair: tuple(sorted(cables)) for pair, cables in links.items()}
    return Sketch(tuple(graph.nodes), frozenset(switches), fixed)


def _cables(
    attributes: Mapping[str, Any], link: str, bandwidth: str | None, latency: str | None
) -> list[Cable]:
    """Return the cables of an edge, which may stand for several and state their total bandwidth."""
    where = f"link {shown(link, 60)}"
    count = attributes.get("links", 1)
    if not isinstance(count, int) or not 1 <= count <= 1024:
        raise InputError(f"{where}: links is {shown(repr(count), 30)}; it is 1 to 1,024.")
    rate = _stated(attributes, "bandwidth", "_bytes_per_s", where)
    time = _stated(attributes, "latency", "_s", where)
    if rate is None and bandwidth is not None:
        rate = parse_rate(bandwidth)
    if time is None and latency is not None:
        time = parse_ps(latency)
    for name, value in (("bandwidth", rate), ("latency", time)):
        if value is None:
            example = "100GB/s" if name == "bandwidth" else "1us"
            raise InputError(f"{where} has no {name}; add it, or give --{name} {example}.")
    return [Cable(int(rate or 0) // count, int(time or 0))] * count


def _stated(attributes: Mapping[str, Any], name: str, unit: str, where: str) -> int | None:
    """Return the rate [B/s] or latency [ps] that an edge states, or None."""
    text, number = attributes.get(name), attributes.get(name + unit)
    if number is not None:
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        if not is_number or not 0 <= number < 1e15:
            raise InputError(
                f"{where}: {name}{unit} is {shown(repr(number), 30)}; it is a number of at least 0."
            )
        return round(float(number) * (PS_PER_S if name == "latency" else 1))
    if text is None:
        return None
    if not isinstance(text, str):
        raise InputError(
            f"{where}: {name} is {shown(repr(text), 30)}; write it with its unit, or as "
            f"{name}{unit}."
        )
    return parse_rate(text) if name == "bandwidth" else parse_ps(text)
