"""Collectives among the logical cores of one chip take the times measured on Trn2."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.duration.duration import duration_ps
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster


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
