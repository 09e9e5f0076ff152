"""Collectives between buildings and sites: latencies and rates by hand, and Rainier in order."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import cluster_sim as cs
from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.few_ranks import far_stages_ps, with_latency_of_stages
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Switch
from topologies.shapes.scale_out import Place, ScaleOut

GB = 10**9
RATE, LATENCY_PS, AWAY_PS = 10 * GB, 1_000_000, 50_000_000
BUILDING = 4  # domains of one chip


def two_buildings(ratio: int) -> Cluster:
    """Eight domains of one chip, four of them in a building under one switch."""
    places = (Place(BUILDING, Fraction(ratio)),)
    fabric = ScaleOut("own", RATE, LATENCY_PS, 4, RATE, climb_ps=(0, AWAY_PS), places=places)
    return Cluster("own", Switch(1, RATE, 0), "", 8, fabric, plain=True)


def test_only_the_far_stage_pays_the_way_to_another_building() -> None:
    where = two_buildings(1)
    even = with_latency_of_stages(Group(where, range(8)), np.arange(8), [2, 2, 2])
    assert even.scale_out is not None
    assert even.scale_out.latency_ps == -(-(3 * LATENCY_PS + AWAY_PS) // 3)


@pytest.mark.parametrize("ratio", [1, 2, 7])
def test_the_far_stage_takes_longer_by_what_leaves_a_building(ratio: int) -> None:
    """The third of three halvings has an eighth of the bytes, there and back."""
    where = two_buildings(ratio)
    call = CollectiveCall("all-reduce", Group(where, range(8)), 8 * GB)
    costs = communication_costs(where)
    longer_ps = far_stages_ps(call, costs, np.arange(8)[:, None], [2, 2, 2])
    expected_s = 2 * GB * (ratio / RATE - 1 / RATE)
    assert longer_ps == pytest.approx(expected_s * 1e12, rel=1e-9)


def test_across_buildings_takes_longer_than_within_and_across_sites_longer_still() -> None:
    catalogue = shipped_catalogue()
    changes = (
        ("rainier:73728", {}),
        ("rainier:147456", {}),
        ("rainier:147456", {"rainier.building_oversubscription": "seven-to-one"}),
        ("rainier", {"rainier.sites": "three-campuses"}),
    )
    clusters = [cluster(name, catalogue=catalogue.with_variants(rows)) for name, rows in changes]
    for size_bytes in (4096, 2**30):
        times = [
            cs.collective_time("all-reduce", each, size_bytes=size_bytes).time_ps
            for each in clusters
        ]
        assert times == sorted(times)
        assert times[0] < times[1] < times[3]
