"""Shapes and their links: sizes, ends, rates and folds."""

import functools
from collections import Counter
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tests.support.refusals import refusal_by
from tests.support.small_shapes import GB, shapes, tori, torus
from topologies.clusters.names import cluster, plain_shape
from topologies.shapes.basic import Axis, Clos, FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.links import domain_links


def test_sizes_cables_tiers_and_layers():
    cables = [Axis("X", size, GB, 0, wrap).cables for wrap in (True, False) for size in (1, 2, 5)]
    assert cables == [0, 2, 5, 0, 1, 4]
    assert (torus(4, 3, 2).chips, torus(4, 3, 2).sizes) == (24, (4, 3, 2))
    tiers = (Tier("cross", 2, 128, 0), Tier("rack", 18, 512, 0, 10), Tier("sled", 4, 512, 0, 8))
    gen2 = Tiered(tiers)
    assert (gen2.planes, gen2.switches) == ((0, 8, 36), 2 * 184)
    assert Tier("rack", 18, 512 * GB, 0, 10).link_bytes_per_s == 51_200_000_000
    assert Tier("mesh", 5, 100, 0).link_bytes_per_s == 25
    assert Tier("alone", 1, 100, 0, 3).fan == 0
    fat_tree = Clos(16, 4, GB, 0)
    assert (fat_tree.layers, fat_tree.switches, fat_tree.leaves_per_pod) == (3, (8, 8, 4), 2)
    assert [Clos(size, 8, GB, 0).layers for size in (1, 8, 9, 32, 33, 128)] == [1, 1, 2, 2, 3, 3]
    for size, radix, down, up in ((64, 8, 6, 2), (9, 4, 3, 1)):  # at most one port leads up
        thin = Clos(size, radix, GB, 0, Fraction(3))
        assert (thin.down, thin.up) == (down, up)


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Axis("X", 0, GB, 0), "axis X: a size of 0 is not between 1 and 16,777,216"),
    (lambda: Axis("X", 4, 0, 0), "axis X: a bandwidth of 0 B/s is not between 1 and 2^53 B/s"),
    (lambda: Axis("X", 4, GB, -1), "axis X: a latency of -1 ps is not between 0 and 2^62 ps"),
    (lambda: Torus(()), "a torus needs at least one axis"),
    (lambda: Switch(-3, GB, 0), "switch: a size of -3 is not"),
    (lambda: Tier("rack", 4, GB, 0, -1), "tier rack: -1 switches; at least 0"),
    (lambda: Tier("rack", 2, GB, 0, ring=True), "tier rack: a ring with 2 chips; a ring joins"),
    (lambda: Tier("rack", 4, 2, 0, 3), "link of tier rack: a bandwidth of 0 B/s"),
    (lambda: Tiered(()), "a tiered shape needs at least one tier"),
    (lambda: Clos(9, 4, GB, 0, Fraction(4)), "an oversubscription of 4 is not between 1 and 3"),
    (lambda: Clos(16, 5, GB, 0), "a radix of 5 is not an even number from 4 to 65,536"),
    (lambda: Clos(17, 4, GB, 0), "more than three layers of switches of 4 ports; at most 16"),
])  # fmt: skip
def test_refusals_name_the_thing_and_the_limit(make, message):
    assert message in refusal_by(make)


def test_plain_shapes_from_text():
    sides = (("Z", 2), ("Y", 3), ("X", 4))
    axes = tuple(Axis(name, size, 100 * GB, 10**6) for name, size in sides)
    assert plain_shape("torus:2x3x4", "100GB/s", "1us") == Torus(axes)
    assert plain_shape("ring:8", "1GB/s", "0us") == Torus((Axis("X", 8, GB, 0),))
    assert plain_shape("mesh:8", "1GB/s", "1us") == FullMesh(8, GB, 10**6)
    assert plain_shape("switch:64", "1GB/s", "1us") == Switch(64, GB, 10**6)
    assert plain_shape("clos:64:8:3", "1GB/s", "1us") == Clos(64, 8, GB, 10**6, Fraction(3))


@pytest.mark.parametrize(("text", "message"), [
    ("ring:0", "ring:0: a size of 0 is not between 1"),
    ("ring", "sizes must be whole numbers"),
    ("ring:٣", "sizes must be whole numbers"),
    ("mesh:4x4", "a mesh has one size, as mesh:8"),
    ("torus:" + "x".join("2" * 7), "7 dimensions; at most 6"),
    ("torus:999999999x999999999", "a size of 999,999,999 is not between"),
    ("clos:64", "as clos:64:16"),
    ("ring:8/1us", "ring:8 needs the bandwidth and latency"),
    ("ring:8/100", "bandwidth '100' has no unit"),
])  # fmt: skip
def test_bad_plain_shapes_are_refused_in_one_line(text, message):
    text, _, bandwidth = text.partition("/")
    rate = {"": "1GB/s", "1us": None}.get(bandwidth, bandwidth)
    refusal = refusal_by(plain_shape, text, rate, "1us")
    assert message in refusal
    assert len(refusal) < 250


def ends(shape: Shape, *, fold: bool = True) -> list[tuple[int, int, int]]:
    links = domain_links(shape, fold=fold)
    return list(zip(links.src.tolist(), links.dst.tolist(), links.lane.tolist(), strict=True))


TRIANGLE = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@pytest.mark.parametrize(("shape", "expected"), [
    (torus(1, 1), []),
    (torus(2), [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]),
    (torus(3), [(src, dst, 0) for src, dst in TRIANGLE]),
    (torus(3, wrap=False), [(0, 1, 0), (1, 0, 0), (1, 2, 0), (2, 1, 0)]),
    (FullMesh(3, GB, 0), [(src, dst, 0) for src, dst in TRIANGLE]),
    (Switch(2, GB, 0), [(0, 2, 0), (1, 2, 0), (2, 0, 0), (2, 1, 0)]),
])  # fmt: skip
def test_links_of_the_smallest_shapes(shape, expected):
    assert sorted(ends(shape)) == expected


def test_the_z_links_of_an_ultraserver_join_equal_positions_at_half_rate():
    machines = (cluster(f"trn2{name}").shape for name in (".48xlarge", "-ultraserver"))
    server, links = map(domain_links, machines)
    assert sorted(server.dst[server.src == 0].tolist()) == [1, 3, 4, 12]
    z = links.tier == links.tiers.index("Z")
    assert len(links) == 384
    assert set(links.bandwidth_bytes_per_s[z]) == {64 * GB}
    assert set(links.bandwidth_bytes_per_s[~z]) == {128 * GB}
    assert np.array_equal(links.src[z] % 16, links.dst[z] % 16)


def test_tiers_of_two_boards_below_a_plane_each():
    shape = Tiered((Tier("rack", 2, 100, 7, 3), Tier("board", 2, 50, 9)))
    links = domain_links(shape, fold=False)
    rack = links.tier == 0
    assert links.nodes == 4 + 2 * 3
    assert np.count_nonzero(rack) == 2 * 4 * 3
    # chips 0 and 2 stand in plane 0 (switches 4, 5, 6), chips 1 and 3 in plane 1 (7, 8, 9)
    assert sorted(links.dst[rack & (links.src == 2)].tolist()) == [4, 5, 6]
    assert sorted(links.dst[rack & (links.src == 3)].tolist()) == [7, 8, 9]
    assert ends(shape)[-4:] == [(0, 1, 0), (1, 0, 0), (2, 3, 0), (3, 2, 0)]
    assert set(links.latency_ps[rack]) == {7}


@pytest.mark.parametrize("name", ["trn3-gen1", "trn3-gen2"])
def test_egress_of_trn3_is_512_512_128_by_tier(name):
    shape = cluster(name).shape
    for fold in (True, False):
        links = domain_links(shape, fold=fold)
        for tier, rate in zip(range(3), (128, 512, 512), strict=True):
            of_chips = (links.tier == tier) & (links.src < shape.chips)
            egress = np.bincount(links.src[of_chips], links.bandwidth_bytes_per_s[of_chips])
            assert egress.tolist() == [rate * GB] * shape.chips


@given(shapes())
def test_every_link_has_a_way_back_of_the_same_kind(shape):
    links = domain_links(shape, fold=False)
    kind = (links.tier, links.bandwidth_bytes_per_s, links.latency_ps, links.lane, links.links)
    there = Counter(zip(links.src, links.dst, *kind, strict=True))
    back = Counter(zip(links.dst, links.src, *kind, strict=True))
    assert there == back
    limits = list(zip(links.src, links.dst, links.lane, strict=True))
    assert len(set(limits)) == len(limits)  # told apart by ends and lane
    assert (links.src != links.dst).all()


@given(shapes())
def test_folding_keeps_what_every_chip_can_send_and_its_cables(shape):
    folded, whole = (domain_links(shape, fold=fold) for fold in (True, False))
    for column in ("bandwidth_bytes_per_s", "links"):
        egress = [np.bincount(x.src, getattr(x, column), x.nodes) for x in (folded, whole)]
        assert np.array_equal(*(each[: shape.chips] for each in egress))


@given(tori())
def test_a_torus_is_the_product_of_cycles_and_paths(shape):
    wraps = [axis.wrap and axis.size > 2 for axis in shape.axes]
    kinds = [nx.cycle_graph if wrap else nx.path_graph for wrap in wraps]
    lines = [kind(axis.size) for kind, axis in zip(kinds, shape.axes, strict=True)]
    product = functools.reduce(nx.cartesian_product, lines)
    flat = {node: np.ravel_multi_index(_flat(node), shape.sizes) for node in product}
    expected = {(flat[a], flat[b]) for a, b in product.edges}
    links = {(src, dst) for src, dst, _ in ends(shape)}
    assert links == expected | {(b, a) for a, b in expected}


def _flat(node: object) -> tuple[int, ...]:
    return (*_flat(node[0]), node[1]) if isinstance(node, tuple) else (int(str(node)),)
