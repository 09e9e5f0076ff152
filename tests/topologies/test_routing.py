"""Routes are continuous and shortest, ties follow their rule, and splits conserve traffic."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.small_shapes import GB, closes, distances, equal_paths, shapes, tori, torus
from topologies.clusters.names import cluster
from topologies.routing import Routes, routes
from topologies.shapes.basic import Clos, Shape
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
def test_routes_are_joined_and_shortest(shape):
    src, dst = all_pairs(shape.chips)
    routed = routes(shape, src, dst)
    assert_joined(shape, src, dst, routed)
    assert np.array_equal(routed.hops.reshape(shape.chips, -1), distances(shape))
    assert len(routes(shape, src[:0], dst[:0])) == 0


@given(tori(24), st.sampled_from([-1, 0, 1]), st.data())
def test_any_axis_order_and_tie_gives_a_shortest_route(shape, tie, data):
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


def test_the_fastest_axis_is_corrected_first():
    shape = torus(4, 4)
    links = domain_links(shape)
    routed = routes(shape, [0], [5])
    assert links.dst[routed.link].tolist() == [1, 5]
    assert links.dst[routes(shape, [0], [5], axis_order=[0, 1]).link].tolist() == [4, 5]


@pytest.mark.parametrize(
    ("tie", "src", "through"), [(0, 0, 1), (0, 1, 0), (1, 1, 2), (-1, 0, 3), (-1, 2, 1)]
)
def test_ties_go_up_from_even_chips_and_down_from_odd_ones_unless_told(tie, src, through):
    routed = routes(torus(4), [src], [(src + 2) % 4], tie=tie)
    assert domain_links(torus(4)).dst[routed.link].tolist() == [through, (src + 2) % 4]
    links = domain_links(torus(2))  # an axis of two takes either cable
    assert [links.lane[routes(torus(2), [0], [1], tie=tie).link[0]] for tie in (1, -1)] == [0, 1]


def test_trn3_crosses_boards_racks_and_its_switches():
    gen1, gen2 = (cluster(f"trn3-gen{number}").shape for number in (1, 2))
    assert domain_links(gen2).dst[routes(gen2, [0], [72]).link].tolist() == [72]
    assert [routes(shape, [0], [1]).hops.tolist() for shape in (gen1, gen2)] == [[1], [2]]
    for shape, (same_plane, same_rack, other_rack) in ((gen1, (1, 2, 3)), (gen2, (1, 3, 4))):
        src, dst = all_pairs(shape.chips)
        between = routes(shape, src, dst).hops - 1  # switches and chips on the way
        here, there = (coordinates(shape, chips) for chips in (src, dst))
        rack = (here[0] == there[0]) & (src != dst)
        assert set(between[rack & (here[2] == there[2])]) == {same_plane}
        assert between[rack].max() == same_rack
        assert between[here[0] != there[0]].max() == other_rack


def test_mistakes_are_refused():
    for src, dst, order, message in (
        (0, 4, None, "destination chip 4 is not one of 0 to 3"),
        (-1, 0, None, "source chip -1 is not one of 0 to 3"),
        (0, 1, [0, 0], r"axis order \[0, 0\] does not name each of 1 axes once"),
    ):
        refused(message, routes, torus(4), [src], [dst], axis_order=order)


@given(closes(24), st.data())
def test_the_route_of_a_clos_is_one_of_the_equal_paths(shape, data):
    chips = st.integers(0, shape.chips - 1)
    src, dst = data.draw(chips), data.draw(chips)
    path = routes(shape, [src], [dst]).link.tolist()
    assert path in equal_paths(shape, src, dst)


def test_the_destination_chooses_among_the_paths_of_a_fat_tree():
    shape = Clos(16, 4, GB, 0)
    paths = equal_paths(shape, 0, 15)
    assert len(paths) == 4
    taken = [routes(shape, [0], [dst]).link.tolist()[1:3] for dst in range(12, 16)]
    assert len({tuple(hops) for hops in taken}) == 4


def test_cyclic_axis_orders_share_the_axes_evenly():
    shape = torus(4, 4, 4)
    src, dst = all_pairs(64)
    ways = [(order, tie) for order in list(permutations(range(3)))[::2] for tie in (1, -1)]
    links = [routes(shape, src, dst, axis_order=order, tie=tie).link for order, tie in ways]
    assert set(np.bincount(np.concatenate(links), minlength=384).tolist()) == {6 * 32}
