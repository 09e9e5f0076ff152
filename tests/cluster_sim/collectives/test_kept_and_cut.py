"""Costs and shares that collectives look up once and keep, and rates across cuts of a torus."""

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.algorithms import torus
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.verify import bounds
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.clusters.names import cluster
from topologies.routing import _next_places
from topologies.shapes.links import coordinates, domain_links
from topologies.shapes.scale_out import layers
from topologies.support.files import kept_files

BOX = ((2, 3, 4), (64, 128, 128))


def test_kept_shares_are_those_that_were_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_files, "folders", lambda: (tmp_path,))
    solved = torus._evenest(*BOX)
    assert sum(weight for _, weight in solved) == pytest.approx(torus.WHOLE, abs=len(solved))
    assert torus.shares.__wrapped__(*BOX) == solved
    (kept,) = tmp_path.iterdir()
    with monkeypatch.context() as without:
        without.setattr(torus, "_evenest", None)
        assert torus.shares.__wrapped__(*BOX) == solved
    kept.write_bytes(kept.read_bytes()[:-5])
    assert torus.shares.__wrapped__(*BOX) == solved
    assert torus.shares((8,), (5,)) == torus._evenest((8,), (5,)) == (((0,), torus.WHOLE),)


def test_collectives_of_several_sizes_look_costs_up_once():
    machine = cluster("trn2-ultraserver:2")
    pairs = [Group(machine, [0, 1]), Group(machine, [0, 64])]
    for function in (communication_costs, layers, _next_places):
        function.cache_clear()
    sizes = (2**20 + 1, 2**21 + 1, 2**22 + 1)
    calls = [CollectiveCall("permute", group, size) for group in pairs for size in sizes]
    times = [duration_ps(call) for call in calls]
    assert times == sorted(times[:3]) + sorted(times[3:])
    assert communication_costs.cache_info().misses == 3  # with ``ideal``, ``sbuf`` too, or neither
    assert layers.cache_info().misses == 1
    assert _next_places.cache_info().misses == 3  # axes of an UltraServer
    assert min(each.cache_info().hits for each in (communication_costs, layers, _next_places)) >= 4
    assert communication_costs(machine) == communication_costs.__wrapped__(machine)
    assert communication_costs(machine, ideal=True) != communication_costs(machine)


SHAPES = ("ring:7", "ring:2", "torus:4x3x5", "torus:2x2x2", "torus:8x8", "torus:1x6", "torus:3x2")


@pytest.mark.parametrize("shape", SHAPES)
def test_stretches_of_an_axis_are_left_at_the_rate_of_their_links(shape):
    torus = cluster(shape, bandwidth="100GB/s", latency="1us").shape
    links, place = domain_links(torus), coordinates(torus, np.arange(torus.chips))
    for axis, size in enumerate(torus.sizes):
        for width in {1, size // 2} - {0, size}:
            rates = bounds._outward_by_start(links, place[axis], size, width)
            inside = ((place[axis] - start) % size < width for start in range(size))
            assert rates.tolist() == [bounds._outward(links, each) for each in inside]
