"""Costs, layers and tables that all groups of a cluster ask for: looked up once, and the same."""

from __future__ import annotations

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.clusters.names import cluster
from topologies.routing import _next_places
from topologies.shapes.scale_out import layers


def test_collectives_of_several_sizes_look_costs_up_once() -> None:
    machine = cluster("trn2-ultraserver:2")
    pairs = [Group(machine, [0, 1]), Group(machine, [0, 64])]
    for function in (communication_costs, layers, _next_places):
        function.cache_clear()
    times = [
        duration_ps(CollectiveCall("permute", group, size))
        for group in pairs
        for size in (2**20 + 1, 2**21 + 1, 2**22 + 1)
    ]
    assert times == sorted(times[:3]) + sorted(times[3:])
    assert communication_costs.cache_info().misses == 2  # with ``ideal`` stated, and without
    assert layers.cache_info().misses == 1
    assert _next_places.cache_info().misses == 3  # axes of an UltraServer
    assert min(each.cache_info().hits for each in (communication_costs, layers, _next_places)) >= 4
    assert communication_costs(machine) == communication_costs.__wrapped__(machine)
    assert communication_costs(machine, ideal=True) != communication_costs(machine)
