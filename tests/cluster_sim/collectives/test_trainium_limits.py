"""Limits of links, adapters and latencies for Trainium's collectives, and times in one chip."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall
from cluster_sim.collectives.algorithms.registry import MESH_FIRST_RANKS
from cluster_sim.collectives.duration.duration import collective_time, duration_ps
from cluster_sim.collectives.group import Group
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.measures import scale_up_bytes_per_s

KIB, MIB = 2**10, 2**20
SHARES = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "broadcast": 1.0}
"""Bytes that leave a rank, over those of the buffer and (ranks - 1) / ranks."""
GROUPS = [
    ("trn1.32xlarge", 8, 1),
    ("trn1.32xlarge", 16, 2),
    ("inf2.48xlarge", 12, 1),
    ("trn2.48xlarge", 4, 4),
    ("trn2.48xlarge", 16, 1),
    ("trn2-ultraserver", 64, 1),
    ("trn3-gen1", 16, 4),
    ("trn3-gen2", 8, 1),
]


@pytest.mark.parametrize(("machine", "chips", "per_chip"), GROUPS)
@pytest.mark.parametrize("kind", SHARES)
def test_no_collective_beats_its_links_or_its_step(machine, chips, per_chip, kind):
    group = Group(cluster(machine), np.arange(chips), per_chip)
    step_s = shipped_catalogue().value(group.cluster.chip, "collective_step")
    links = scale_up_bytes_per_s(group.cluster.shape)
    for size in (KIB, MIB, 64 * MIB):
        seconds = collective_time(kind, group, size_bytes=size).time_s
        assert seconds >= step_s
        # Ranks of one chip share its links; what leaves the chip crosses them once.
        left = SHARES[kind] * size * (chips - 1) / chips
        assert seconds >= left / links


@pytest.mark.parametrize("machine", ["trn1.32xlarge:2", "trn2.48xlarge:2", "trn3-gen1:2"])
def test_no_collective_between_domains_beats_its_adapters(machine):
    group = Group(cluster(machine), np.arange(cluster(machine).chips))
    adapters = group.cluster.chips_per_domain * group.cluster.scale_out.bandwidth_bytes_per_s
    for kind, share in SHARES.items():
        seconds = collective_time(kind, group, size_bytes=64 * MIB).time_s
        assert seconds > share * 64 * MIB / 2 / adapters


@pytest.mark.parametrize(("machine", "chips", "per_chip"), GROUPS)
def test_a_longer_broadcast_hardly_takes_less_where_a_tree_gives_way_to_rings(
    machine, chips, per_chip
):
    group = Group(cluster(machine), np.arange(chips), per_chip)
    sizes = [2**power for power in range(10, 25)]
    times = [collective_time("broadcast", group, size_bytes=size).time_s for size in sizes]
    # The length from which rings win is an estimate, which leaves out the steps inside chips.
    assert all(long > 0.9 * short for short, long in pairwise(times))


def test_more_ranks_than_meshes_are_documented_for_halve_and_double():
    server = cluster("trn2.48xlarge")
    documented, more = (Group(server, np.arange(16), cores) for cores in (4, 8))
    assert documented.ranks == MESH_FIRST_RANKS
    for kind in ("all-gather", "reduce-scatter", "all-reduce"):
        few, many = (
            collective_time(kind, group, size_bytes=256 * KIB) for group in (documented, more)
        )
        assert (few.algorithm, many.algorithm) == ("mesh", "rdh")
        assert few.time_s < many.time_s < 2 * few.time_s


@pytest.fixture(scope="module")
def trn2() -> Cluster:
    return cluster("trn2.48xlarge")


def bus_gb_per_s(trn2: Cluster, kind: str, chips: int, per_chip: int, size: int) -> float:
    group = Group(trn2, np.arange(chips), per_chip)
    seconds = duration_ps(CollectiveCall(kind, group, size)) / 1e12
    ways = 2 if kind == "all-reduce" else 1
    return ways * (group.ranks - 1) / group.ranks * size / seconds / 1e9


@pytest.mark.parametrize(
    ("kind", "ranks", "measured"),
    [
        ("all-gather", 2, 64.5),
        ("all-gather", 4, 125.1),
        ("all-reduce", 2, 37.8),
        ("all-reduce", 4, 107.1),
        ("reduce-scatter", 2, 91.8),
        ("reduce-scatter", 4, 101.7),
        ("all-to-all", 4, 54.2),
    ],
)
def test_one_chip(trn2: Cluster, kind: str, ranks: int, measured: float) -> None:
    assert bus_gb_per_s(trn2, kind, 1, ranks, 2**30) == pytest.approx(measured, rel=0.06)


@pytest.mark.parametrize(
    ("kind", "size", "measured"),
    [("all-gather", 2**32, 86.5), ("reduce-scatter", 2**29, 76.4)],
)
def test_two_chips(trn2: Cluster, kind: str, size: int, measured: float) -> None:
    assert bus_gb_per_s(trn2, kind, 2, 4, size) == pytest.approx(measured, rel=0.06)


def test_smallest_all_reduce_inside_a_chip_takes_what_a_profiler_saw(trn2: Cluster) -> None:
    group = Group(trn2, np.arange(1), 4)
    assert 6.7e6 < duration_ps(CollectiveCall("all-reduce", group, 4096)) < 13.9e6
