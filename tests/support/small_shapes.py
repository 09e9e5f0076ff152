"""Small shapes for property tests, and measures of them by brute force on their graphs."""

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
    sides = zip(names, sizes, gb_per_s, strict=True)
    return Torus(tuple(Axis(name, size, rate * GB, 10**6, wrap) for name, size, rate in sides))


def _sizes(largest: int, most_chips: int) -> st.SearchStrategy[list[int]]:
    sides = st.lists(st.integers(1, largest), min_size=1, max_size=3)
    return sides.filter(lambda sizes: int(np.prod(sizes)) <= most_chips)


@st.composite
def tori(draw: st.DrawFn, most_chips: int = 60) -> Torus:
    """Tori and grids of up to three dimensions, sizes 1 and 2 among them."""
    axes = []
    for number, size in enumerate(draw(_sizes(7, most_chips))):
        rate, wrap = draw(st.integers(1, 4)) * GB, draw(st.booleans())
        axes.append(Axis(f"axis {number}", size, rate, 1000, wrap))
    return Torus(tuple(axes))


@st.composite
def tiereds(draw: st.DrawFn, most_chips: int = 48) -> Tiered:
    """Products of up to three tiers of direct links, switches or rings."""
    tiers = []
    for number, size in enumerate(draw(_sizes(6, most_chips))):
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
    return st.one_of(
        tori(most_chips),
        tiereds(most_chips),
        st.builds(FullMesh, st.integers(1, 12), st.just(GB), st.just(1000)),
        st.builds(Switch, st.integers(1, 12), st.just(GB), st.just(1000)),
        closes(min(most_chips, 16)),
    )


def distances(shape: Shape) -> np.ndarray:
    """Hops between all chips by breadth-first search, (chips, chips)."""
    links, graph = domain_links(shape, fold=False), nx.DiGraph()
    graph.add_nodes_from(range(links.nodes))
    graph.add_edges_from(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    hops = dict(nx.all_pairs_shortest_path_length(graph))
    chips = range(shape.chips)
    return np.array([[hops[one][other] for other in chips] for one in chips], np.int64)


def smallest_cut(shape: Shape) -> int:
    """Bisection by trying every half; each switch joins the side on which it costs less."""
    links = domain_links(shape, fold=False)
    best = None
    for half in combinations(range(shape.chips), shape.chips // 2):
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
