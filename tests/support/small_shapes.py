"""Small shapes for property tests, and measures of them by brute force on their graphs."""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, pairwise

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from topologies.shapes.basic import Axis, Clos, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.links import domain_links

GB = 10**9


def torus(*sizes: int, rates: tuple[int, ...] = (), wrap: bool = True) -> Torus:
    """Torus of these sizes, slowest first; rates in GB/s, 100 where none is given."""
    gb_per_s = rates or (100,) * len(sizes)
    names = "UVWXYZ"[-len(sizes) :][::-1]
    return Torus(
        tuple(
            Axis(name, size, rate * GB, 1_000_000, wrap)
            for name, size, rate in zip(names, sizes, gb_per_s, strict=True)
        )
    )


@st.composite
def tori(draw: st.DrawFn, most_chips: int = 60) -> Torus:
    """Tori and grids of up to three dimensions, sizes 1 and 2 among them."""
    sizes = draw(
        st.lists(st.integers(1, 7), min_size=1, max_size=3).filter(
            lambda sides: int(np.prod(sides)) <= most_chips
        )
    )
    return Torus(
        tuple(
            Axis(f"axis {k}", size, draw(st.integers(1, 4)) * GB, 1000, draw(st.booleans()))
            for k, size in enumerate(sizes)
        )
    )


@st.composite
def tiereds(draw: st.DrawFn, most_chips: int = 48) -> Tiered:
    """Products of up to three tiers of direct links, switches or rings."""
    sizes = draw(
        st.lists(st.integers(1, 6), min_size=1, max_size=3).filter(
            lambda sides: int(np.prod(sides)) <= most_chips
        )
    )
    tiers = []
    for number, size in enumerate(sizes):
        rate = 60 * draw(st.integers(1, 4)) * GB
        ring = size > 2 and draw(st.booleans())
        switches = 0 if ring else draw(st.integers(0, 3))
        tiers.append(Tier(f"tier {number}", size, rate, 1000, switches, ring))
    return Tiered(tuple(tiers))


@st.composite
def closes(draw: st.DrawFn, most_chips: int = 60) -> Clos:
    """Clos of one to three layers, full and partly full."""
    radix, over = draw(st.sampled_from([4, 6, 8])), draw(st.sampled_from([1, 3]))
    largest = radix * over // (1 + over) * radix * radix // 2
    size = draw(st.integers(1, min(most_chips, largest)))
    return Clos(size, radix, GB, 1000, Fraction(over))


def shapes(most_chips: int = 40) -> st.SearchStrategy[Shape]:
    """Any shape."""
    return st.one_of(
        tori(most_chips),
        tiereds(most_chips),
        st.builds(FullMesh, st.integers(1, 12), st.just(GB), st.just(1000)),
        st.builds(Switch, st.integers(1, 12), st.just(GB), st.just(1000)),
        closes(min(most_chips, 16)),
    )


def as_graph(shape: Shape, *, fold: bool = False) -> nx.MultiDiGraph:
    """The links of a shape as a graph made the slow way."""
    links = domain_links(shape, fold=fold)
    multigraph = nx.MultiDiGraph()
    multigraph.add_nodes_from(range(links.nodes))
    for src, dst, rate in zip(
        links.src.tolist(), links.dst.tolist(), links.bandwidth_bytes_per_s.tolist(), strict=True
    ):
        multigraph.add_edge(src, dst, rate=rate)
    return multigraph


def distances(shape: Shape) -> np.ndarray:
    """Hops between all chips by breadth-first search, (chips, chips)."""
    values = np.zeros((shape.chips, shape.chips), np.int64)
    graph = as_graph(shape)
    for chip in range(shape.chips):
        lengths = nx.single_source_shortest_path_length(graph, chip)
        values[chip] = [lengths[other] for other in range(shape.chips)]
    return values


def halves(chips: int) -> Iterator[tuple[int, ...]]:
    """Every smaller half of the chips."""
    yield from combinations(range(chips), chips // 2)


def smallest_cut(shape: Shape) -> int:
    """Bisection by trying every half; each switch joins the side on which it costs less."""
    links = domain_links(shape, fold=False)
    best = None
    for half in halves(shape.chips):
        inside = np.zeros(links.nodes, bool)
        inside[list(half)] = True
        best_of_half = _cut(links.src, links.dst, links.bandwidth_bytes_per_s, inside, shape.chips)
        best = best_of_half if best is None else min(best, best_of_half)
    return best or 0


def _cut(src: np.ndarray, dst: np.ndarray, rate: np.ndarray, inside: np.ndarray, chips: int) -> int:
    """Capacity that leaves the inside; switches are only joined to chips here."""
    direct = (src < chips) & (dst < chips)
    total = int(rate[direct & inside[src] & ~inside[dst]].sum())
    for switch in range(chips, len(inside)):
        mine = rate[(dst == switch) & inside[src]].sum()
        theirs = rate[(dst == switch) & ~inside[src]].sum()
        total += int(min(mine, theirs))
    return total


def equal_paths(shape: Clos, src: int, dst: int) -> list[list[int]]:
    """All shortest paths between two chips, as rows of the links, found on the graph."""
    links = domain_links(shape)
    pairs = zip(links.src.tolist(), links.dst.tolist(), strict=True)
    row = {ends: number for number, ends in enumerate(pairs)}
    paths = nx.all_shortest_paths(nx.DiGraph(list(row)), src, dst)
    return [[row[hop] for hop in pairwise(nodes)] for nodes in paths]
