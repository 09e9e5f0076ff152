"""Detours: messages go around cables that are down, and arrive all the same."""

from itertools import pairwise

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, compose, whole
from cluster_sim.collectives.verify.proof import prove
from cluster_sim.hardware.fabric import fabric
from cluster_sim.hardware.faults import around, with_detours
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster
from topologies.errors import InputError


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
