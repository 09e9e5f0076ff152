"""Communication of candidates: groups and times beside those of the trainer."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from cluster_sim.collectives.duration.duration import Geometry
from tests.support.toy_training import exchange_ps, plan, sixteen
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.units import PS_PER_S
from workloads.search.estimate import Communication, unlike_groups
from workloads.training.layers.steps import collective
from workloads.training.plan.placement import place
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import group_of

AXES = ("tp", "cp", "dp", "pp", "etp", "ep", "edp", "norm")


def assert_all_geometries(one: ParallelPlan, axis: str, machine: Cluster) -> None:
    """Check that there is one group of each geometry that groups of the placement have."""
    placed, unlike = place(one, machine), unlike_groups(one, axis, machine)
    every = placed.chip[placed.groups(axis)]
    assert {tuple(chips) for chips in unlike.tolist()} <= {tuple(chips) for chips in every.tolist()}

    def geometries(groups: IntArray) -> list[Geometry]:
        return [Geometry(group_of(machine, chips)) for chips in groups]

    assert set(geometries(unlike)) == set(geometries(every))


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("pp", "dp", "tp", "cp")])
def test_each_geometry_of_the_placement_has_a_group(axis: str, order: tuple[str, ...]) -> None:
    for per_chip in (1, 2):
        degrees = {"tp": 2, "cp": 2, "pp": 2, "dp": 2 * per_chip, "ep": 4, "etp": 1}
        one = plan(**degrees, order=order, ranks_per_chip=per_chip)
        for machine in (sixteen(), cluster("gb200-nvl72:2")):
            assert_all_geometries(one, axis, machine)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize(
    ("machine", "degrees"),
    [
        ("gb200-nvl72:2", {"pp": 2, "dp": 64, "ep": 32}),
        ("gb200-nvl72:4", {"tp": 16, "pp": 9, "dp": 2}),
        ("trn2-ultraserver:6", {"tp": 32, "pp": 3, "dp": 4, "order": ("tp", "cp", "pp", "dp")}),
        ("trn2.48xlarge:48", {"tp": 4, "cp": 2, "pp": 3, "dp": 32}),
        ("dgx-h100:9", {"pp": 3, "dp": 24, "ep": 4, "order": ("tp", "cp", "pp", "dp")}),
    ],
)
def test_groups_that_straddle_domains_are_told_apart(
    axis: str, machine: str, degrees: dict[str, object]
) -> None:
    assert_all_geometries(plan(**degrees), axis, cluster(machine))


def test_replicas_in_alternate_halves_of_domains_are_timed_as_a_ring() -> None:
    """Three stages of 32 chips leave every replica in another half of its UltraServer."""
    machine = cluster("trn2-ultraserver:24")
    beside = plan(tp=32, pp=3, dp=16, order=("tp", "cp", "pp", "dp"))
    apart = plan(tp=32, pp=3, dp=16, order=("tp", "cp", "dp", "pp"))
    communication, step = Communication(machine, 1), collective("sum", "dp", "all-reduce", 2**28)
    in_ring_s, in_order_s = (communication.times(one)(step) for one in (beside, apart))
    for one, time_s in ((beside, in_ring_s), (apart, in_order_s)):
        placed = place(one, machine)
        chips = placed.chip[placed.groups("dp")][0]
        exact_s = exchange_ps(machine, chips, "all-reduce", 2**28) / PS_PER_S
        assert time_s == pytest.approx(exact_s, rel=1e-3)


@pytest.mark.parametrize("machine", ["trn2.48xlarge:4", "dgx-h100:8", "trn1.32xlarge:4"])
@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter", "all-reduce"])
def test_times_are_those_of_the_slowest_group_to_the_picosecond(machine: str, op: str) -> None:
    where, one = cluster(machine), plan(tp=4, cp=2, pp=2, dp=4)
    placed = place(one, where)
    for axis in ("tp", "cp", "dp"):
        step = collective("step", axis, op, 2**24)
        every_ps = [
            exchange_ps(where, chips, op, 2**24) for chips in placed.chip[placed.groups(axis)]
        ]
        assert Communication(where, 1).times(one)(step) == max(every_ps) / PS_PER_S


def test_a_hop_of_a_stage_takes_the_time_of_its_slowest_pair() -> None:
    racks = cluster("gb200-nvl72:4")
    one = plan(tp=16, pp=9, dp=2)
    pipes = place(one, racks).chip[place(one, racks).groups("pp")]
    hops_s = Communication(racks, 1).hops_s(one, 2**24)
    for stage in range(one.pp):
        pairs = pipes[:, [stage, (stage + 1) % one.pp]]
        every_ps = [exchange_ps(racks, pair, "send", 2**24) for pair in np.unique(pairs, axis=0)]
        assert hops_s[stage] == max(every_ps) / PS_PER_S


def test_tied_embeddings_are_exchanged_between_first_and_last_stage() -> None:
    where, one = cluster("trn2.48xlarge:4"), plan(tp=4, pp=4, dp=4)
    pipes = place(one, where).chip[place(one, where).groups("pp")]
    ends, communication = pipes[:, [0, -1]], Communication(where, 1)
    assert set(map(tuple, communication.groups(one, "tie"))) <= set(map(tuple, ends))
    every_ps = [exchange_ps(where, pair, "all-reduce", 2**24) for pair in ends]
    step = collective("tied", "tie", "all-reduce", 2**24)
    assert communication.times(one)(step) == max(every_ps) / PS_PER_S


def test_switches_tell_groups_apart_where_they_are_oversubscribed() -> None:
    wide = cluster("trn2.48xlarge:48")
    assert wide.scale_out is not None
    narrow = replace(wide, scale_out=replace(wide.scale_out, oversubscription=Fraction(2)))
    one = plan(tp=16, dp=3, pp=16)  # three servers lie under one switch of four, or under two
    assert_all_geometries(one, "dp", narrow)
    assert len(unlike_groups(one, "dp", wide)) == 1
    assert len(unlike_groups(one, "dp", narrow)) > 1
