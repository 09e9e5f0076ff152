"""``cluster-sim topology``: parts and measures of a cluster, and a drawing of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster_sim.progress import one_piece
from experiments.cli.options.inputs import CatalogueInputs, Invocation, MachineInputs
from experiments.cli.output.printing import print_table, print_text
from experiments.reports.formatting import value_text, values_of
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import PLAIN, RAINIER
from topologies.shapes.scale_out import layers
from topologies.support.files.writing import check_target, whole_file
from topologies.support.memory_limit import check_memory, peak_rss_bytes
from topologies.support.options import setting
from topologies.support.units import PS_PER_S, format_memory, format_seconds

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run

ASSUMED = {"bandwidth": "100GB/s", "latency": "1us"}
"""Default rates of a plain shape's links, because hops and counts do not depend on them."""

OF_GRAPHS = ("latency", "bandwidth", "oversubscription", "radix", "rails", "tiers", ".efficiency")
"""Ends of the names of quantities that describe links and how they are joined."""

SHOWN = (
    ("chips", "chips"),
    ("domains", "scale-up domains"),
    ("servers", "servers"),
    ("nodes", "chips and scale-up switches"),
    ("links", "directed scale-up links"),
    ("links_per_chip", "  from a chip"),
    ("diameter_hops", "diameter in hops"),
    ("mean_hops", "mean distance in hops"),
    ("switch_hops", "switches at most, within"),
    ("bisection_bytes_per_s", "bisection of a domain"),
    ("bisections_bytes_per_s", "  cut across"),
    ("scale_up_bytes_per_s_per_chip", "scale-up, a chip"),
    ("all_to_all_bytes_per_s_per_chip", "  uniform all-to-all, a chip at most"),
    ("scale_out_bytes_per_s_per_chip", "scale-out, a chip"),
    ("scale_out_bisection_bytes_per_s", "  bisection of the cluster"),
    ("scale_out_links", "  directed links of adapters, hosts and Clos"),
    ("nics", "network adapters"),
    ("hosts", "hosts"),
    ("hbm_bytes", "HBM, all chips, by the data sheet"),
    ("hbm_bytes_per_s", "  its bandwidth"),
    ("hbm_bytes_per_chip", "HBM, a chip, by the data sheet"),
    ("hbm_bytes_per_s_per_chip", "  its bandwidth"),
    ("flops_per_s", "dense peak, all chips,"),
    ("flops_per_s_per_chip", "dense peak, a chip,"),
    ("build_s", "building the graph took"),
    ("peak_rss_bytes", "most memory held"),
)

BYTES_AN_EDGE = 600
"""Memory of an edge and its share of the nodes: 2.7 GB for the 4.6 million edges of Rainier."""

BYTES_IN_GRAPHML = 6000
"""The same with the elements and the text of GraphML: 0.38 GB for 67,840 edges."""

GRAPHML = ".graphml"
LARGEST_GRAPHML = 10**5  # most edges for which ``--out`` has the graph as GraphML, about 30 MB


@dataclass(frozen=True)
class GraphInputs:
    """Option to build the graph of the cluster."""

    graph: bool = setting(False, "Build the networkx graph as well, and time it")


def topology(
    machine: MachineInputs, catalogue_inputs: CatalogueInputs, graph: GraphInputs, call: Invocation
) -> None:
    """Print sizes, distances, cuts and rates of a cluster.

    Hops, cuts and the all-to-all rate are those of one scale-up domain. Memory and FLOP/s are shown
    for the whole cluster and per chip. Rates are for one direction. With --out the cluster is
    drawn; a name that ends in .graphml is a file of its graph alone, for networkx and others. A
    file of that name is replaced.
    """
    from topologies.views.measures import measure

    unstated = [name for name in ASSUMED if getattr(machine, name) is None]
    is_plain = machine.cluster.partition(":")[0] in PLAIN
    assumed = {name: ASSUMED[name] for name in unstated if is_plain}
    cluster = replace(machine, **assumed).read(catalogue_inputs.watched(machine.cluster))
    sizes, alone = measure(cluster), None
    if call.out is not None and call.out.suffix.lower() == GRAPHML:
        alone, call = call.out, replace(call, out=None)
        check_target(alone)
    call.begin()
    if graph.graph or alone:
        edges = sizes.links + sizes.scale_out_links
        remedy = "Leave --graph out: nothing else that is printed needs it."
        remedy = "Name fewer domains: they are alike." if alone else remedy
        of = f"the graph of {cluster.name} with {edges:,} edges"
        check_memory(of, edges * (BYTES_IN_GRAPHML if alone else BYTES_AN_EDGE), remedy)
    if alone:
        with whole_file(alone) as part:
            part.write_bytes(_graphml(cluster))
    document: dict[str, Any] = asdict(sizes) | {
        "build_s": _built_in_s(cluster, call) if graph.graph else None,
        "peak_rss_bytes": peak_rss_bytes(),
        "assumed": assumed or _assumed_rows(cluster),
        "places": _places(cluster),
    }
    call.answer(document, _print, lambda run, _: _write(run, cluster, document))


ROW = ("value", "unit", "low", "high", "grade", "source", "note")  # of a row of the catalogue


def _assumed_rows(machine: Cluster) -> dict[str, Any]:
    """Return the rates, latencies and rules of a cluster that the catalogue only assumes."""
    catalogue, fabric = machine.catalogue, machine.scale_out
    if catalogue is None or machine.plain:
        return {}
    parts = [part for part in (machine.chip, fabric.name if fabric else "") if part]
    parts += [RAINIER] * bool(fabric and fabric.places)
    entries = [row for part in parts if part in catalogue.parts()
               for row in catalogue.entries(part).values()]  # fmt: skip
    return {
        f"{row.part}.{row.quantity}": values_of(row, *ROW)
        for row in entries
        if row.grade == "assumed" and f"{row.part}.{row.quantity}".endswith(OF_GRAPHS)
    }


def _places(machine: Cluster) -> list[dict[str, Any]]:
    """Return the layers of a scale-out fabric, with the row by which steps between them grow."""
    catalogue, fabric = machine.catalogue, machine.scale_out
    if catalogue is None or fabric is None:
        return []
    names = [f"same_{place}_latency" for place in ("tor", "pod", "building", "campus")]
    climbs = {catalogue.ps(fabric.name, name): (fabric.name, name)
              for name in names if catalogue.has(fabric.name, name)}  # fmt: skip
    climbs.setdefault(catalogue.ps(RAINIER, "site_latency"), (RAINIER, "site_latency"))
    places = []
    for number, layer in enumerate(layers(fabric, machine.chips, machine.chips_per_server)):
        climb_ps = fabric.climb_ps[min(number, len(fabric.climb_ps) - 1)]
        if climb_ps not in climbs:
            continue  # stated in a cluster file
        row = values_of(catalogue.entry(*climbs[climb_ps]), *ROW)
        place = {"layer": layer.name, "chips": layer.chips, "groups": layer.groups}
        adapters = layer.chips * fabric.bandwidth_bytes_per_s
        place["oversubscription"] = round(adapters / (layer.up_bytes_per_s or adapters), 6)
        step_s = (fabric.latency_ps + climb_ps) / PS_PER_S
        _, label = climbs[climb_ps]
        places.append({**place, "step_s": step_s, "added_s": row.pop("value"), "row": label, **row})
    return places


def _built_in_s(machine: Cluster, call: Invocation) -> float:
    """Build the graph, discard it, and return the time that this took [s]."""
    from topologies.views.graph import graph

    with one_piece("building the graph", call.watch):
        begun = time.perf_counter()
        graph(machine)
        return time.perf_counter() - begun


def _print(document: Mapping[str, Any]) -> None:
    shown = SHOWN if document["build_s"] else SHOWN[:-1]  # memory tells of the graph alone
    rows = [row for key, label in shown for row in _rows(key, label, document)]
    print_table(f"{document['cluster']} (rates are one direction)", ["measure", "value"], rows)
    for place in document["places"] if len(document["places"]) > 1 else ():
        groups = f"{place['groups']:,} group{'s' * (place['groups'] > 1)}"
        size = f"{groups} of up to {place['chips']:,} chips"
        added = f"{format_seconds(place['added_s'])} of it by {place['row']}, {place['grade']}"
        step = format_seconds(place["step_s"])
        over = place["oversubscription"]
        thin = f"; what leaves a group has 1/{over:g} of the adapters' rate" if over > 1 else ""
        climbs = f" ({added})" if place["added_s"] else ""
        words = f"a collective's step between servers of a group takes {step}{climbs}{thin}"
        print_text(f"{place['layer']}, {size}: {words}")
    for name, value in document["assumed"].items():
        if isinstance(value, str):
            print(f"assumed, as no --{name} was given: {value} a link")


def _rows(key: str, label: str, document: Mapping[str, Any]) -> list[list[str]]:
    """Rows of one measure: one for a value, one for each entry of a mapping, none if it is zero."""
    value = document[key]
    if not value:
        return []
    if key == "hbm_bytes":  # one kind of unit, so that clusters can be compared
        return [[label, format_memory(value)]]
    name = f"x_{key.removesuffix('_per_chip')}"  # value_text reads the unit at the end of a name
    if not isinstance(value, dict):
        return [[label, value_text(name, value)]]
    return [[f"{label} {part}", value_text(name, item)] for part, item in value.items()]


def _graphml(machine: Cluster) -> bytes:
    import networkx as nx

    return "\n".join(nx.generate_graphml(machine.graph())).encode()


def _write(run: Run, machine: Cluster, document: Mapping[str, Any]) -> None:
    from topologies.drawing import draw
    from topologies.views.graph import LARGEST_TABLE, layer_table, link_table

    run.figure("topology", draw(machine), title=f"Topology of {machine.name}")
    run.json("measures", document, title="Measures")
    if document["links"] <= LARGEST_TABLE * machine.domains:
        run.table("links", link_table(machine), title="Links of one scale-up domain")
    if document["links"] + document["scale_out_links"] <= LARGEST_GRAPHML:
        run.file("graph.graphml", _graphml(machine), title="Graph for networkx and others")
    if machine.scale_out is not None:
        run.table("scale_out", layer_table(machine), title="Scale-out fabric")
