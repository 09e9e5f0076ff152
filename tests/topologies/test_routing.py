"""Routes are continuous and shortest, ties follow their rule, and splits conserve traffic."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.small_shapes import GB, closes, distances, equal_paths, shapes, tori, torus
from topologies.clusters.names import cluster
from topologies.errors import InputError
from topologies.routing import Routes, routes
from topologies.shapes.basic import Clos, Shape, Switch, Torus
from topologies.shapes.links import coordinates, domain_links


def all_pairs(chips: int) -> tuple[np.ndarray, np.ndarray]:
    src, dst = np.divmod(np.arange(chips * chips), chips)
    return src, dst


def assert_joined(shape: Shape, src: np.ndarray, dst: np.ndarray, routed: Routes) -> None:
    """Every route starts at its source, each link where the one before ends, and arrives."""
    links = domain_links(shape)
    for k in range(len(routed)):
        link = routed.link[routed.ptr[k] : routed.ptr[k + 1]]
        visited = [int(src[k]), *links.dst[link].tolist()]
        assert visited[:-1] == links.src[link].tolist()
        assert visited[-1] == dst[k]


@given(shapes(24))
def test_routes_are_joined_and_shortest(shape: Shape) -> None:
    src, dst = all_pairs(shape.chips)
    routed = routes(shape, src, dst)
    assert_joined(shape, src, dst, routed)
    assert np.array_equal(routed.hops.reshape(shape.chips, -1), distances(shape))


@given(tori(24), st.sampled_from([-1, 0, 1]), st.data())
def test_any_axis_order_and_tie_gives_a_shortest_route(
    shape: Torus, tie: int, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(range(len(shape.axes))))
    src, dst = all_pairs(shape.chips)
    routed = routes(shape, src, dst, axis_order=order, tie=tie)
    assert_joined(shape, src, dst, routed)
    assert np.array_equal(routed.hops, routes(shape, src, dst).hops)
    tiers = domain_links(shape).tier[routed.link]
    rank = np.argsort(order)[tiers]
    pair = np.repeat(np.arange(len(routed)), routed.hops)
    same = pair[1:] == pair[:-1]
    assert (np.diff(rank)[same] >= 0).all()


def test_the_fastest_axis_is_corrected_first() -> None:
    shape = torus(4, 4)
    links = domain_links(shape)
    routed = routes(shape, [0], [5])
    assert links.dst[routed.link].tolist() == [1, 5]
    assert links.dst[routes(shape, [0], [5], axis_order=[0, 1]).link].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("tie", "src", "through"), [(0, 0, 1), (0, 1, 0), (1, 1, 2), (-1, 0, 3), (-1, 2, 1)]
)
def test_ties_go_up_from_even_chips_and_down_from_odd_ones_unless_told(
    tie: int, src: int, through: int
) -> None:
    routed = routes(torus(4), [src], [(src + 2) % 4], tie=tie)
    assert domain_links(torus(4)).dst[routed.link].tolist() == [through, (src + 2) % 4]


@pytest.mark.parametrize(("sizes", "load"), [((4, 4), 8), ((4, 4, 4), 32), ((8,), 8)])
def test_uniform_traffic_loads_all_links_of_a_torus_alike(
    sizes: tuple[int, ...], load: int
) -> None:
    shape = torus(*sizes)
    counts = np.bincount(routes(shape, *all_pairs(shape.chips)).link)
    assert set(counts.tolist()) == {load}


def test_an_axis_of_two_takes_either_cable() -> None:
    links = domain_links(torus(2))
    assert [links.lane[routes(torus(2), [0], [1], tie=tie).link[0]] for tie in (1, -1)] == [0, 1]


@pytest.mark.parametrize(
    ("name", "same_plane", "same_rack", "other_rack"),
    [("trn3-gen1", 1, 2, 3), ("trn3-gen2", 1, 3, 4)],
)
def test_switch_hops_of_trn3(name: str, same_plane: int, same_rack: int, other_rack: int) -> None:
    """Switches and forwarding chips on the way, after the sheet's count."""
    shape = cluster(name).shape
    src, dst = all_pairs(shape.chips)
    between = routes(shape, src, dst).hops - 1
    here, there = (coordinates(shape, chips) for chips in (src, dst))
    plane = (here[0] == there[0]) & (here[2] == there[2]) & (src != dst)
    rack = (here[0] == there[0]) & (src != dst)
    assert set(between[plane]) == {same_plane}
    assert between[rack].max() == same_rack
    assert between[here[0] != there[0]].max() == other_rack


def test_trn3_reaches_the_other_rack_by_the_chip_in_the_same_position() -> None:
    shape = cluster("trn3-gen2").shape
    routed = routes(shape, [0], [72])
    assert domain_links(shape).dst[routed.link].tolist() == [72]


def test_chips_of_a_board_are_joined_directly_on_gen1_and_by_a_switch_on_gen2() -> None:
    assert routes(cluster("trn3-gen1").shape, [0], [1]).hops.tolist() == [1]
    assert routes(cluster("trn3-gen2").shape, [0], [1]).hops.tolist() == [2]


def test_no_pairs_no_routes() -> None:
    empty = np.empty(0, int)
    for shape in (torus(4, 4), Switch(4, GB, 0), Clos(16, 4, GB, 0), cluster("trn3-gen1").shape):
        routed = routes(shape, empty, empty)
        assert (len(routed), len(routed.link)) == (0, 0)


def test_a_chip_and_itself_need_no_link() -> None:
    for shape in (torus(4), Switch(4, GB, 0), Clos(16, 4, GB, 0), cluster("trn3-gen2").shape):
        assert routes(shape, [1, 2], [1, 3]).hops[0] == 0


def test_mistakes_are_refused() -> None:
    with pytest.raises(InputError, match="destination chip 4 is not one of 0 to 3"):
        routes(torus(4), [0], [4])
    with pytest.raises(InputError, match="source chip -1 is not one of 0 to 3"):
        routes(torus(4), [-1], [0])
    with pytest.raises(InputError, match=r"axis order \[0, 0\] does not name each of 2 axes once"):
        routes(torus(4, 4), [0], [1], axis_order=[0, 0])


def test_a_million_pairs_at_once() -> None:
    shape = cluster("trn2-ultraserver").shape
    chips = np.random.default_rng(1).integers(0, 64, (2, 10**6))
    routed = routes(shape, chips[0], chips[1])
    assert routed.hops.max() == 6
    assert abs(routed.hops.mean() - 3.0) < 0.01


@given(closes(24), st.data())
def test_the_route_of_a_clos_is_one_of_the_equal_paths(shape: Clos, data: st.DataObject) -> None:
    chips = st.integers(0, shape.chips - 1)
    src, dst = data.draw(chips), data.draw(chips)
    path = routes(shape, [src], [dst]).link.tolist()
    assert path in equal_paths(shape, src, dst)


def test_the_destination_chooses_among_the_paths_of_a_fat_tree() -> None:
    shape = Clos(16, 4, GB, 0)
    paths = equal_paths(shape, 0, 15)
    assert len(paths) == 4
    taken = [routes(shape, [0], [dst]).link.tolist()[1:3] for dst in range(12, 16)]
    assert len({tuple(hops) for hops in taken}) == 4


def test_cyclic_axis_orders_share_the_axes_evenly() -> None:
    shape = torus(4, 4, 4)
    src, dst = all_pairs(64)
    loads = [
        np.bincount(routes(shape, src, dst, axis_order=order, tie=tie).link, minlength=384)
        for order in list(permutations(range(3)))[::2]
        for tie in (1, -1)
    ]
    assert set(np.sum(loads, axis=0).tolist()) == {6 * 32}
