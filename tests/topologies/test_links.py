"""Arrays of links: exact small cases, and properties of every shape."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

from tests.support.small_shapes import GB, shapes, tori, torus
from topologies.clusters.names import cluster
from topologies.shapes.basic import FullMesh, Shape, Switch, Tier, Tiered, Torus
from topologies.shapes.links import DOWN, UP, axis_links, coordinates, domain_links


def ends(shape: Shape, *, fold: bool = True) -> list[tuple[int, int, int]]:
    links = domain_links(shape, fold=fold)
    return list(zip(links.src.tolist(), links.dst.tolist(), links.lane.tolist(), strict=True))


def test_a_ring_of_one_has_no_link() -> None:
    assert ends(torus(1)) == []
    assert len(domain_links(torus(1, 1))) == 0


def test_a_ring_of_two_has_two_cables_each_way() -> None:
    assert sorted(ends(torus(2))) == [(0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)]


def test_the_up_link_of_a_pair_and_the_down_link_back_are_one_cable() -> None:
    links, number = domain_links(torus(2)), axis_links(torus(2))
    assert links.lane[number[0, 0, UP]] == links.lane[number[1, 0, DOWN]] == 0
    assert links.lane[number[1, 0, UP]] == links.lane[number[0, 0, DOWN]] == 1


def test_a_ring_of_three() -> None:
    assert ends(torus(3)) == [(0, 1, 0), (0, 2, 0), (1, 2, 0), (1, 0, 0), (2, 0, 0), (2, 1, 0)]


def test_an_open_line_of_three() -> None:
    assert ends(torus(3, wrap=False)) == [(0, 1, 0), (1, 2, 0), (1, 0, 0), (2, 1, 0)]


def test_trn2_device_0_touches_12_3_4_and_1() -> None:
    links = domain_links(cluster("trn2.48xlarge").shape)
    assert sorted(links.dst[links.src == 0].tolist()) == [1, 3, 4, 12]
    assert len(links) == 64


def test_the_z_links_of_an_ultraserver_join_equal_positions_at_half_rate() -> None:
    links = domain_links(cluster("trn2-ultraserver").shape)
    z = links.tier == links.tiers.index("Z")
    assert len(links) == 384
    assert set(links.bandwidth_bytes_per_s[z]) == {64 * GB}
    assert set(links.bandwidth_bytes_per_s[~z]) == {128 * GB}
    assert np.array_equal(links.src[z] % 16, links.dst[z] % 16)


def test_full_mesh_and_switch_of_three() -> None:
    assert [pair[:2] for pair in ends(FullMesh(3, GB, 0))] == [
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 2),
        (2, 0),
        (2, 1),
    ]
    assert [pair[:2] for pair in ends(Switch(3, GB, 0))] == [
        (0, 3),
        (1, 3),
        (2, 3),
        (3, 0),
        (3, 1),
        (3, 2),
    ]


def test_tiers_of_two_boards_below_a_plane_each() -> None:
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
def test_egress_of_trn3_is_512_512_128_by_tier(name: str) -> None:
    shape = cluster(name).shape
    for fold in (True, False):
        links = domain_links(shape, fold=fold)
        for tier, rate in zip(range(3), (128, 512, 512), strict=True):
            of_chips = (links.tier == tier) & (links.src < shape.chips)
            egress = np.bincount(links.src[of_chips], links.bandwidth_bytes_per_s[of_chips])
            assert egress.tolist() == [rate * GB] * shape.chips


@given(shapes())
def test_every_link_has_a_way_back_of_the_same_kind(shape: Shape) -> None:
    links = domain_links(shape, fold=False)
    kind = (links.tier, links.bandwidth_bytes_per_s, links.latency_ps, links.lane, links.links)
    there = Counter(zip(links.src, links.dst, *kind, strict=True))
    back = Counter(zip(links.dst, links.src, *kind, strict=True))
    assert there == back


@given(shapes())
def test_links_are_told_apart_by_ends_and_lane(shape: Shape) -> None:
    limits = ends(shape, fold=False)
    assert len(set(limits)) == len(limits)
    assert all(src != dst for src, dst, _ in limits)


@given(shapes())
def test_folding_keeps_what_every_chip_can_send_and_its_cables(shape: Shape) -> None:
    egress = []
    for fold in (True, False):
        links = domain_links(shape, fold=fold)
        egress.append(
            [
                np.bincount(links.src, each, links.nodes)[: shape.chips]
                for each in (links.bandwidth_bytes_per_s, links.links)
            ]
        )
    assert np.array_equal(*egress)


@given(tori())
def test_a_torus_is_the_product_of_cycles_and_paths(shape: Torus) -> None:
    lines = [
        nx.cycle_graph(axis.size) if axis.wrap and axis.size > 2 else nx.path_graph(axis.size)
        for axis in shape.axes
    ]
    product = lines[0]
    for line in lines[1:]:
        product = nx.cartesian_product(product, line)
    flat = {node: np.ravel_multi_index(_flat(node), shape.sizes) for node in product}
    expected = {(flat[a], flat[b]) for a, b in product.edges}
    links = {(src, dst) for src, dst, _ in ends(shape)}
    assert links == expected | {(b, a) for a, b in expected}


def _flat(node: object) -> tuple[int, ...]:
    return (*_flat(node[0]), node[1]) if isinstance(node, tuple) else (int(str(node)),)


@given(tori())
def test_axis_links_lead_one_step_up_or_down(shape: Torus) -> None:
    links, number = domain_links(shape), axis_links(shape)
    at = coordinates(shape, np.arange(shape.chips))
    for a, axis in enumerate(shape.axes):
        for way, step in ((UP, 1), (DOWN, -1)):
            row = number[:, a, way]
            there = np.flatnonzero(row >= 0)
            reached = coordinates(shape, links.dst[row[there]])
            assert np.array_equal(links.src[row[there]], there)
            assert np.array_equal(reached[a], (at[a][there] + step) % axis.size)
    assert np.array_equal(np.sort(number[number >= 0]), np.arange(len(links)))


@pytest.mark.slow
def test_a_million_chips_are_a_matter_of_arithmetic() -> None:
    links = domain_links(torus(100, 100, 100))
    assert len(links) == 6_000_000
    assert links.dst.max() == 999_999
