"""Lower bounds of collectives, and those too large for memory."""

import numpy as np
import pytest

from cluster_sim import collectives
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.verify import bounds
from tests.support.refusals import refused
from topologies.clusters.names import cluster
from topologies.routing import routes
from topologies.shapes.links import domain_links


def timed(text):
    return cluster(text, bandwidth="100GB/s", latency="1us")


def test_an_all_to_all_on_a_clos_is_bound_by_what_its_switches_carry():
    machine = timed("clos:64:16")
    call = Call("all-to-all", collectives.Group(machine, range(64)), 2**28)
    assert collectives.lower_bound(call).time_ps == 63 * 2**28 // 64 * 10 + 10**6
    thin = timed("clos:32:16:4")
    half = np.arange(32) < 16
    links = domain_links(thin.shape)
    assert bounds.switches_are_stacked(links, 32)
    assert bounds.stacked_outward(links, half) < 16 * 100 * 10**9


def test_the_farthest_pair_of_a_torus_in_closed_form_is_that_of_the_routes():
    shape = cluster("trn2-ultraserver").shape
    src, dst = (side.ravel() for side in np.meshgrid(range(64), range(64)))
    paths = routes(shape, src, dst)
    pair = np.repeat(np.arange(len(paths)), paths.hops)
    latency = np.bincount(pair, domain_links(shape).latency_ps[paths.link], len(paths))
    assert bounds._farthest_inside(shape, src, dst) == latency.max()


def test_a_collective_too_large_for_memory_is_refused_before_its_routes_are_listed():
    machine = timed("torus:65536")
    call = Call("all-to-all", collectives.Group(machine, range(65536)), 2**30)
    message = "all-to-all by dimension-ordered on 65,536 ranks is about"
    refused(message, collectives.compose, call)
    assert collectives.lower_bound(call).what.startswith("cut across")


def test_what_leaves_a_rack_with_one_member_crosses_its_switches():
    machine = cluster("trn2.48xlarge:64")
    racks, size = range(0, machine.chips, 64), 2**30  # a chip of every rack, 1.6 TB/s from each
    group = collectives.Group(machine, racks)
    call = Call("all-to-all", group, size)
    (cut,) = bounds._rack_cuts(call, least=0)
    assert cut.what == "cut around a ToR"
    assert cut.time_ps == pytest.approx(size * 15 / 16 / 1.6, abs=1)


@pytest.mark.parametrize(("name", "kind", "size", "crossed"), [
    ("dgx-h100:2", "all-to-all", 2**22, 64 * 2**18),
    ("p5en.48xlarge:8", "all-gather", 2**30, 7 * 2**27),
    ("p5en.48xlarge:8", "reduce-scatter", 2**30, 7 * 2**27),
])  # fmt: skip
def test_bytes_around_a_domain_arrive_after_the_latency_of_a_step(name, kind, size, crossed):
    machine = cluster(name)
    fabric = machine.scale_out
    group = collectives.Group(machine, range(machine.chips))
    bound = collectives.lower_bound(Call(kind, group, size))
    assert bound.what == "cut around a domain"
    crossed_ps = crossed * 10**12 // (8 * fabric.bandwidth_bytes_per_s)
    assert bound.time_ps == crossed_ps + fabric.latency_ps + fabric.climb_ps[0]


def test_a_domain_below_two_switches_is_not_cut_at_them():
    machine = cluster("trn4-ultraserver:2")  # domains of 72 chips, of which a switch serves 64
    call = Call("all-to-all", collectives.Group(machine, range(144)), 2**24)
    assert not list(bounds._rack_cuts(call, least=0))
    assert collectives.lower_bound(call).time_ps < collectives.duration_ps(call)
