"""Time and memory of building the networkx graphs of three clusters, each in its own process.

All times are processor time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict

import networkx as nx

from topologies.clusters.names import cluster
from topologies.support.memory_limit import peak_rss_bytes
from topologies.views.graph import edge_table, graph, node_names

CLUSTERS = ("trn2-ultraserver:64", "rainier", "rainier:1000000")
COMPARED = CLUSTERS[0]
ROUNDS = 5


def main() -> None:
    """Print a table of graphs, and the speed compared with a loop of ``add_edge``."""
    print(f"{'cluster':<20} {'chips':>11} {'nodes':>11} {'edges':>11} {'build':>11} {'memory':>11}")
    for name in CLUSTERS:
        child = [sys.executable, "-m", "benchmarks.graph_build", name]
        done = subprocess.run(child, capture_output=True, text=True, check=True)
        row = json.loads(done.stdout)
        print(
            f"{name:<20} {row['chips']:>11,} {row['nodes']:>11,} {row['edges']:>11,} "
            f"{row['build_s']:>9.2f} s {row['peak_rss_bytes'] / 1e9:>8.2f} GB"
        )
    fast, slow = (
        min(_seconds(build) for _ in range(ROUNDS))
        for build in (lambda: graph(cluster(COMPARED)), lambda: _by_add_edge(COMPARED))
    )
    print(f"{COMPARED}: {slow / fast:.1f}x as fast as a loop of add_edge ({fast:.3f} s)")


def _measured(name: str) -> dict[str, float]:
    machine = cluster(name)
    begun = time.process_time()
    multigraph = graph(machine)
    build_s = time.process_time() - begun
    return {
        "chips": machine.chips,
        "nodes": multigraph.number_of_nodes(),
        "edges": multigraph.number_of_edges(),
        "build_s": build_s,
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _seconds(build: Callable[[], object]) -> float:
    begun = time.process_time()
    build()
    return time.process_time() - begun


def _by_add_edge(name: str) -> None:
    """Build the same graph with one call of ``add_edge`` for each edge."""
    table = edge_table(cluster(name))
    names, kinds = node_names(table), [asdict(kind) for kind in table.kinds]
    multigraph: nx.MultiDiGraph[int | str] = nx.MultiDiGraph()
    multigraph.add_nodes_from(names, kind="chip")
    rows = zip(table.src.tolist(), table.dst.tolist(), table.kind.tolist(), strict=True)
    for src, dst, kind in rows:
        multigraph.add_edge(names[src], names[dst], **kinds[kind])


if __name__ == "__main__":
    print(json.dumps(_measured(sys.argv[1])))
