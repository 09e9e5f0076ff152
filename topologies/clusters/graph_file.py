"""Clusters from graph files: GraphML, or node-link JSON, as networkx writes them.

The graph is one scale-up domain: nodes are chips, or switches if ``kind`` says so. Edges have
``bandwidth_bytes_per_s`` and ``latency_s``, or texts ``bandwidth`` and ``latency``, and else take
``--bandwidth`` and ``--latency``. An undirected edge is two links.
"""

from __future__ import annotations

import io
import json
import math
import xml.etree.ElementTree
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import networkx as nx

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import AXIS_NAMES, Axis, FullMesh, Shape, Switch, Torus
from topologies.shapes.links import domain_links
from topologies.support.errors import InputError, shown
from topologies.support.files.reading import once_each, read_text
from topologies.support.units import PS_PER_S, parse_ps, parse_rate

# Recognition of the shape of a graph: a ring, grid or torus, a full mesh, or one switch.
#
# Nodes of a graph may have any names, and its edges any order. A shape is recognised if the graph
# of that shape is isomorphic to the given one, with the same rates along each axis. Nothing is
# approximated: a graph of no known shape is refused with the reason.

LARGEST = 4096
"""Most nodes of a graph whose shape is recognised; with more the comparison takes many seconds."""
MOST_AXES = len(AXIS_NAMES)
SMALLEST_STAR = 4
"""Nodes of a star from which its centre counts as a switch even if it is not called one."""


@dataclass(frozen=True, order=True)
class Cable:
    """One link in one direction: bandwidth [B/s] and latency [ps]."""

    bandwidth_bytes_per_s: int
    latency_ps: int


Cables = tuple[Cable, ...]
"""Parallel cables, sorted, from one node to another: the attribute ``cables`` of an edge."""
Steps = dict[Hashable, tuple[int, ...]]
"""Hops over cables of each kind on a shortest path from a corner, by node."""


def check_nodes(nodes: int) -> None:
    """Refuse a graph with too many nodes for its shape to be recognised."""
    if nodes > LARGEST:
        raise InputError(
            f"{nodes:,} nodes; shapes are recognised up to {LARGEST:,}. Describe one scale-up "
            "domain with its axes in a YAML file."
        )


def recognised(graph: nx.DiGraph[Hashable], switches: Collection[Hashable] = ()) -> Shape:
    """Return the shape of a graph, whose edges have ``cables``."""
    nodes, links = len(graph), _cables_by_link(graph)
    check_nodes(nodes)
    if nodes < 2:
        raise InputError(f"{nodes} nodes; a cluster has at least two.")
    for (begin, end), cables in links.items():
        if links.get((end, begin)) != cables:
            pair = f"{shown(str(begin), 40)} and {shown(str(end), 40)}"
            raise InputError(
                f"the links between {pair} differ by direction; each needs the same both ways."
            )
    switch = _hub(graph, switches)
    if switch is not None:
        return _switch(graph, switch)
    return _mesh(graph) if len(links) == nodes * (nodes - 1) else _torus(graph)


def _cables_by_link(graph: nx.DiGraph[Hashable]) -> dict[tuple[Hashable, Hashable], Cables]:
    cables: dict[tuple[Hashable, Hashable], Cables] = nx.get_edge_attributes(graph, "cables")
    return cables


def _hub(graph: nx.DiGraph[Hashable], switches: Collection[Hashable]) -> Hashable | None:
    """Return the switch that all chips are connected to, or None."""
    if len(switches) > 1:
        raise InputError(
            f"{len(switches)} switches; a graph of one switch, or of chips alone, is "
            "recognised. Describe tiers or a Clos in a YAML file."
        )
    if switches:
        (hub,) = switches
        return hub
    nodes, degrees = graph.number_of_nodes(), dict(graph.out_degree)
    hubs = [node for node, degree in degrees.items() if degree == nodes - 1]
    is_star = list(degrees.values()).count(1) == nodes - 1 and len(hubs) == 1
    return hubs[0] if is_star and nodes >= SMALLEST_STAR else None


def _switch(graph: nx.DiGraph[Hashable], hub: Hashable) -> Switch:
    chips = [node for node in graph if node != hub]
    stray = any(hub not in pair for pair in graph.edges)
    if stray or graph.number_of_edges() != 2 * len(chips):
        raise InputError(
            "a chip beside the switch is joined to another, or to nothing; chips of a switch are "
            "joined to it alone. Describe other clusters in a YAML file."
        )
    cables = _only({graph[chip][hub]["cables"] for chip in chips}, "to the switch")
    latency_ps = max(cable.latency_ps for cable in cables)
    total = sum(cable.bandwidth_bytes_per_s for cable in cables)
    return Switch(len(chips), total, latency_ps, len(cables))


def _mesh(graph: nx.DiGraph[Hashable]) -> FullMesh:
    cables = _only(set(_cables_by_link(graph).values()), "of the full mesh")
    rate = sum(cable.bandwidth_bytes_per_s for cable in cables)
    return FullMesh(len(graph), rate, max(cable.latency_ps for cable in cables))


def _only(kinds: set[Cables], what: str) -> Cables:
    if len(kinds) > 1:
        raise InputError(f"links {what} are of {len(kinds)} kinds; all must be alike.")
    (kind,) = kinds
    return kind


def _torus(graph: nx.DiGraph[Hashable]) -> Torus:
    """Return the ring, grid or torus that a graph is isomorphic to; refuse any other graph."""
    # Counts of chips, links and neighbours leave few candidates, and the steps of all nodes from a
    # corner rule out most of these before the graphs themselves are compared.
    bundles = Counter(_cables_by_link(graph).values())
    if len(bundles) > 2 * MOST_AXES:
        raise InputError(
            f"links of {len(bundles)} different rates or latencies; each axis has one, and there "
            f"are at most {MOST_AXES} axes."
        )
    kinds = sorted(bundles)
    steps = _steps(min(graph, key=graph.out_degree), graph, kinds)
    if len(steps) < len(graph):
        raise InputError(f"it is in pieces; {len(steps)} of {len(graph)} nodes are joined.")
    degrees = nx.degree_histogram(graph)
    for torus in _candidates(len(graph), bundles):
        candidate = _torus_graph(torus)
        if nx.degree_histogram(candidate) != degrees:
            continue
        candidate_steps = _steps(0, candidate, kinds)
        if Counter(candidate_steps.values()) == Counter(steps.values()) and _is_isomorphic(
            graph, steps, candidate, candidate_steps
        ):
            return torus
    # A degree counts the links both ways.
    links = " or ".join(str(degree // 2) for degree, count in enumerate(degrees) if count)
    raise InputError(
        f"{len(graph)} chips with {links} neighbours each are no ring, grid, torus, full "
        "mesh or switch with equal links along each axis. Describe the cluster in a YAML file."
    )


def _steps(begin: Hashable, graph: nx.DiGraph[Hashable], kinds: list[Cables]) -> Steps:
    """Count hops over each kind of cables to all nodes; on a torus any shortest path's."""
    steps = {begin: (0,) * len(kinds)}
    for node, neighbour in nx.bfs_edges(graph, begin):
        kind = kinds.index(graph[node][neighbour]["cables"])
        counts = steps[node]
        steps[neighbour] = (*counts[:kind], counts[kind] + 1, *counts[kind + 1 :])
    return steps


def _candidates(chips: int, bundles: Counter[Cables]) -> Iterator[Torus]:
    """Yield the tori with this number of chips and of links of each kind, fewest axes first."""
    total, cables = sum(bundles.values()), sorted({bundle[0] for bundle in bundles})
    for sizes in sorted(_factors(chips, 2), key=lambda sizes: (len(sizes), sizes)):
        if len(sizes) > MOST_AXES:
            continue
        for wraps in product((True, False), repeat=len(sizes)):
            counts = [
                2 * (size if wrap and size > 2 else size - 1) * (chips // size)
                for size, wrap in zip(sizes, wraps, strict=True)
            ]
            if sum(counts) != total:
                continue
            for chosen in product(cables, repeat=len(sizes)):
                sums: Counter[Cables] = Counter()
                for cable, size, wrap, count in zip(chosen, sizes, wraps, counts, strict=True):
                    sums[(cable,) * (2 if wrap and size == 2 else 1)] += count
                if sums == bundles:
                    yield _torus_of(sizes, wraps, chosen)


def _torus_of(sizes: tuple[int, ...], wraps: tuple[bool, ...], kinds: tuple[Cable, ...]) -> Torus:
    names = AXIS_NAMES[: len(sizes)][::-1]
    return Torus(
        tuple(
            Axis(name, size, kind.bandwidth_bytes_per_s, kind.latency_ps, wrap)
            for name, size, wrap, kind in zip(names, sizes, wraps, kinds, strict=True)
        )
    )


def _factors(number: int, least: int) -> Iterator[tuple[int, ...]]:
    """Yield all ways to write a number as a product of factors in ascending order.

    >>> list(_factors(12, 2))
    [(2, 2, 3), (2, 6), (3, 4), (12,)]
    """
    for factor in range(least, math.isqrt(number) + 1):
        if number % factor == 0:
            yield from ((factor, *rest) for rest in _factors(number // factor, factor))
    yield (number,)


def _torus_graph(torus: Torus) -> nx.DiGraph[Hashable]:
    """Return the graph of a torus, with the numbers of its chips as names."""
    links: Links = {}
    table = domain_links(torus)
    columns = (table.src, table.dst, table.bandwidth_bytes_per_s, table.latency_ps)
    for begin, end, *cable in zip(*(column.tolist() for column in columns), strict=True):
        links.setdefault((begin, end), []).append(Cable(*cable))
    return _with_cables(range(torus.chips), links)


Links = dict[tuple[Hashable, Hashable], list[Cable]]
"""Cables from one node to another, by the pair of nodes."""


def _with_cables(nodes: Iterable[Hashable], links: Links) -> nx.DiGraph[Hashable]:
    graph: nx.DiGraph[Hashable] = nx.DiGraph()
    graph.add_nodes_from(nodes)
    for (begin, end), cables in links.items():
        graph.add_edge(begin, end, cables=tuple(sorted(cables)))
    return graph


def _is_isomorphic(
    first: nx.DiGraph[Hashable],
    first_steps: Steps,
    second: nx.DiGraph[Hashable],
    second_steps: Steps,
) -> bool:
    """Return whether two graphs are equal, cables included, but for the names of their nodes."""
    # Steps from a corner serve as labels, without which the search would take far longer.
    first_graph: nx.Graph[Hashable] = nx.Graph(first.edges)
    second_graph: nx.Graph[Hashable] = nx.Graph(second.edges)
    nx.set_node_attributes(first_graph, first_steps, "steps")
    nx.set_node_attributes(second_graph, second_steps, "steps")
    match = nx.vf2pp_isomorphism(first_graph, second_graph, node_label="steps")
    links = _cables_by_link(second)
    return match is not None and all(
        links.get((match[begin], match[end])) == cables
        for (begin, end), cables in _cables_by_link(first).items()
    )


LARGEST_BYTES = 64_000_000  # largest file that is read [B]; 4,096 chips take about a tenth of it
CHIPS = ("chip", "npu", "gpu", "accelerator")  # values of ``kind`` that mean a chip
SWITCH = "switch"


def cluster_from_graph(
    source: Path | str | nx.Graph[Hashable],
    catalogue: Catalogue,
    *,
    bandwidth: str | None = None,
    latency: str | None = None,
) -> Cluster:
    """Read one scale-up domain from a graph, or its file, and recognise its shape."""
    if isinstance(source, nx.Graph):
        name, graph = str(source.name or "graph"), source
        named = f"graph {shown(source.name, 40)}" if source.name else "graph"
    else:
        file, named = Path(source), shown(str(source))
        name = file.stem
        text = read_text(file, limit_bytes=LARGEST_BYTES, remedy="Give one scale-up domain.")
    try:
        if isinstance(source, nx.Graph):
            check_nodes(len(graph))
        else:
            graph = _graphml(text) if file.suffix == ".graphml" else _node_link(text)
        shape = recognised(*_cabled(graph, bandwidth, latency))
        return Cluster(name, shape, plain=True, catalogue=catalogue)
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
        document = json.loads(text, object_pairs_hook=once_each)
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


def _cabled(
    graph: nx.Graph[Hashable], bandwidth: str | None, latency: str | None
) -> tuple[nx.DiGraph[Hashable], list[Hashable]]:
    """Return the same graph with an edge each way that has all cables, and its switches."""
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
    links: Links = {}
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
    return _with_cables(graph, links), switches


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
