"""Hamiltonian cycles share out the links of a shape; detours go around cables that are down."""

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, compose, duration_ps, prove, whole
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.algorithms.cycles import (
    Grid,
    all_rings,
    hamiltonian_cycles,
    most,
    one_ring,
    rate_units,
    snake,
)
from cluster_sim.hardware.fabric import fabric
from cluster_sim.hardware.faults import around, with_detours
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from tools.ship_cycles import shipped_boxes
from topologies.clusters.names import cluster
from topologies.support.errors import InputError


def cable_uses(orders, sizes):
    """Count the uses of each undirected step of a grid, by axis; fails on any other step."""
    at = np.stack(np.unravel_index(orders, sizes), axis=-1)
    then = np.roll(at, -1, axis=1)
    ring = np.array(sizes)
    moved = (then - at) % ring
    one = np.where((moved == 1) | (moved == ring - 1), 1, np.where(moved == 0, 0, 99))
    assert (one.sum(axis=-1) == 1).all(), "a step that is not to a neighbour"
    axis = one.argmax(axis=-1)
    ends = np.sort([orders, np.roll(orders, -1, axis=1)], axis=0).reshape(2, -1).T
    uses = [Counter() for _ in sizes]
    for number, cable in zip(axis.ravel(), ends.tolist(), strict=True):
        uses[number][tuple(cable)] += 1
    return uses


def test_five_cycles_use_every_cable_of_the_ultraserver():
    cycles = hamiltonian_cycles((4, 4, 4), (True,) * 3, (1, 2, 2))
    assert cycles.both_ways
    assert cycles.orders.shape == (5, 64)
    z, y, x = cable_uses(cycles.orders, (4, 4, 4))
    assert len(z) == len(y) == len(x) == 64
    assert set(z.values()) == {1}
    assert set(y.values()) == set(x.values()) == {2}


@pytest.mark.parametrize("grid", shipped_boxes(), ids=str)
def test_shipped_cycles_are_hamiltonian_and_share_links_by_their_rates(grid):
    cycles = hamiltonian_cycles(grid.sizes, grid.wraps, grid.units)
    assert (np.sort(cycles.orders, axis=1) == np.arange(grid.chips)).all()
    orders = cycles.orders
    if cycles.both_ways:
        orders = np.concatenate([orders, orders[:, ::-1]])
    cable_uses(orders, grid.sizes)
    at = np.stack(np.unravel_index(orders, grid.sizes), axis=-1)
    axis = (at != np.roll(at, -1, axis=1)).argmax(axis=-1)
    arcs = np.stack([orders, np.roll(orders, -1, axis=1), axis], axis=-1).reshape(-1, 3)
    found_arcs, uses = np.unique(arcs, axis=0, return_counts=True)
    load = uses / np.array(grid.units)[found_arcs[:, 2]]
    # All cycles carry the same share, so the fullest arc sets the time; none is over its unit.
    scale = 2 if load.max() > 1 else 1
    assert load.max() <= scale


@given(sizes=st.lists(st.integers(3, 6), min_size=2, max_size=2).map(tuple))
@examples(10)
def test_two_cycles_part_the_cables_of_any_torus(sizes):
    cycles = hamiltonian_cycles(sizes, (True, True), (1, 1))
    assert cycles.orders.shape == (2, sizes[0] * sizes[1])
    for axis in cable_uses(cycles.orders, sizes):
        assert set(axis.values()) == {1}


@pytest.mark.parametrize("name", ["torus:4x4", "torus:3x4x4", "trn2.48xlarge", "torus:2x4"])
def test_an_order_that_a_symmetry_moves_has_the_same_rings(name):
    """Shifted columns made a ring 27 % slower, and all rings at once 2.4 times."""
    links = {} if "trn2" in name else {"bandwidth": "100GB/s", "latency": "1us"}
    machine = cluster(name, **links)
    chips, sizes = np.arange(machine.chips), machine.shape.sizes
    moved = [np.roll(chips.reshape(sizes), 1, axis).ravel() for axis in range(len(sizes))]
    moved.append(chips.reshape(sizes)[..., ::-1].ravel())
    if sizes[-2:] == (4, 4):
        moved.append(np.swapaxes(chips.reshape(sizes), -1, -2).ravel())
    groups = [whole(machine), *(Group(machine, order) for order in moved)]
    for algorithm in ("ring", "multi-ring", "auto"):
        times = {duration_ps(Call("all-reduce", group, 2**26), algorithm) for group in groups}
        assert len(times) == 1


def test_any_other_order_is_followed_at_its_cost():
    server = cluster("trn2.48xlarge")
    grid = np.arange(16).reshape(4, 4)
    for order in (
        grid[:, [1, 0, 2, 3]].ravel(),
        np.concatenate([np.roll(grid[0], 1), grid[1:].ravel()]),
        [0, 1, 5, 4],
        [5, 0, 9, 2],
    ):
        ranks = np.arange(len(order))
        assert one_ring(Group(server, order)).tolist() == [ranks.tolist()]
    fitted, crossed = (Group(server, order) for order in ([0, 1, 2, 3], [0, 2, 1, 3]))
    assert all_rings(crossed).tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]
    calls = [Call("all-reduce", group, 2**26) for group in (fitted, crossed)]
    for algorithm in ("auto", "multi-ring"):
        times = [duration_ps(call, algorithm) for call in calls]
        assert times[1] > 1.5 * times[0]


@pytest.mark.parametrize("chips", range(2, 13))
def test_rings_of_a_full_mesh_share_no_cable(chips):
    group = whole(cluster(f"mesh:{chips}", bandwidth="1GB/s", latency="1us"))
    order = all_rings(group)
    assert len(order) == max(1 + (chips == 3), 2 * ((chips - 1) // 2))
    pairs = np.stack([order, np.roll(order, -1, axis=1)], axis=-1).reshape(-1, 2)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert (np.sort(order) == np.arange(chips)).all()


@pytest.mark.parametrize("sizes", [(3, 4), (4, 3), (2, 3, 4), (3, 3, 4), (2, 2), (2,), (5,), ()])
def test_a_snake_visits_all_by_neighbours(sizes):
    order = snake(sizes)
    assert sorted(order) == list(range(int(np.prod(sizes))))
    at = np.stack(np.unravel_index(order, sizes), axis=-1) if sizes else np.zeros((1, 0))
    assert (np.abs(np.diff(at, axis=0)).sum(axis=1) == 1).all()
    # A grid with an even number of chips in rows has a cycle of neighbours, without wrapping.
    closes = np.abs(at[0] - at[-1]).sum() == 1
    assert closes == (len(order) % 2 == 0 and len(order) > 1)


def test_three_rows_of_a_server_are_as_fast_as_a_row_more():
    server = cluster("trn1.32xlarge")
    calls = [Call("all-gather", Group(server, range(chips)), 6_530_882) for chips in (8, 12, 13)]
    few, rows, more = map(duration_ps, calls)
    assert few < rows < more < 1.1 * rows


def test_a_rate_that_is_no_small_multiple_keeps_its_cycles():
    """One per cent more bandwidth must not cost the cycles of a torus."""
    cube, wraps = (4, 4, 4), (True, True, True)
    assert rate_units(cube, wraps, (64, 129, 129)) == rate_units(cube, wraps, (64, 128, 128))
    assert rate_units(cube, wraps, (64, 128, 128)) == (1, 2, 2)
    assert rate_units((4, 4), (True, True), (100, 1_000)) == (1, 4)


def test_a_faster_axis_never_costs_cycles_of_a_torus_bandwidth():
    """Six cycles of one unit carry less than ten of (1, 2, 2) from 6 / 5 of the rate on."""
    cube, wraps = (4, 4, 4), (True, True, True)

    def carried(rate: int) -> Fraction:
        rates = (100, rate, rate)
        units = rate_units(cube, wraps, rates)
        share = min(Fraction(rate, unit) for rate, unit in zip(rates, units, strict=True))
        return most(Grid(cube, wraps, units)) * share

    assert [rate_units(cube, wraps, (100, rate, rate)) for rate in (119, 121)] == [
        (1, 1, 1),
        (1, 2, 2),
    ]
    by_rate = [carried(rate) for rate in range(100, 500)]
    assert by_rate == sorted(by_rate)


def test_more_cycles_are_run_where_links_take_longer_than_cores_do_to_issue():
    """Of ratio 5 / 2 ten cycles carry 10 · 100 and fourteen 14 · 250 / 3, but cores issue more."""
    cube, wraps, rates = (4, 4, 4), (True, True, True), (100, 250, 250)
    assert [most(Grid(cube, wraps, units)) for units in ((1, 2, 2), (1, 3, 3))] == [10, 14]
    # Cores take 10 / issued and 14 / issued, links 1 / 1000 and 3 / 3500.
    for issued, units in ((1, (1, 2, 2)), (13_999, (1, 2, 2)), (14_000, (1, 3, 3))):
        assert rate_units(cube, wraps, rates, Fraction(1, issued)) == units
    assert rate_units(cube, wraps, (100, 200, 200), Fraction(1)) == (1, 2, 2)


def test_every_pair_of_a_torus_is_joined_without_the_dead_cables():
    down = ("link:0-1", "link:1-0", "link:0-4", "link:5-6")
    torus = fabric(cluster("trn2.48xlarge"))
    broken = with_detours(torus, down)
    src, dst = np.divmod(np.arange(256), 16)
    paths = around(torus.route(src, dst), broken)
    names = torus.resources.names(paths.resource)
    assert not set(names) & set(down)
    for pair in range(256):
        hops = names[paths.ptr[pair] : paths.ptr[pair + 1]]
        places = [str(src[pair]), *(hop.split("-")[1] for hop in hops)]
        assert places[-1] == str(dst[pair])
        assert hops == [f"link:{a}-{b}" for a, b in pairwise(places)]
    assert (paths.latency_ps == torus.latency_ps[paths.resource]).all()


def test_a_second_cable_takes_over_and_nothing_else_moves():
    """Chips of an axis of two have two cables; whoever used neither keeps its way."""
    two = fabric(cluster("torus:2x4", bandwidth="100GB/s", latency="1us"))
    assert {"link:0-4", "link:0-4.1"} <= set(two.resources.names())
    broken = with_detours(two, ["link:0-4"])
    (way,) = broken.ways.values()
    assert two.resources.names(way) == ["link:0-4.1"]
    paths = two.route([0, 1], [1, 5])
    assert (around(paths, broken).resource == paths.resource).all()
    assert with_detours(two, ["link:99-100"]) is two


@pytest.mark.parametrize("kind", ["all-reduce", "all-to-all", "broadcast"])
@pytest.mark.parametrize("name", ["ring:6", "torus:4x4"])
def test_collectives_are_right_and_slower_around_a_dead_cable(name, kind):
    call = CollectiveCall(kind, whole(cluster(name, bandwidth="100GB/s", latency="1us")), 2**20)
    usual, broken = compose(call), compose(call, down=("link:0-1", "link:1-0"))
    assert prove(broken) == "proven"
    assert run(broken.schedule).total_ps > run(usual.schedule).total_ps


def test_a_chip_without_another_way_is_refused():
    line = fabric(cluster("mesh:2", bandwidth="100GB/s", latency="1us"))
    with pytest.raises(InputError, match="no other links lead from chip 0 to 1"):
        with_detours(line, ["link:0-1"])
    with pytest.raises(InputError, match="link:3-s0 is down, and a chip has no other way"):
        with_detours(fabric(cluster("dgx-h100")), ["link:3-s0"])
