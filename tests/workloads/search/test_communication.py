"""Communication of candidates: groups and times beside those of the trainer."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.schedule.picoseconds import PS_PER_S
from tests.support.toy_training import plan, sixteen
from topologies.clusters.names import cluster
from workloads.search.communication import BLOCKS, SIZES, communication_s
from workloads.search.estimate import group
from workloads.training.plan.placement import place
from workloads.training.program.group_times import exchange_ps


@pytest.mark.parametrize("axis", ["tp", "cp", "dp", "pp", "etp", "ep", "edp", "norm"])
@pytest.mark.parametrize("order", [("tp", "cp", "dp", "pp"), ("pp", "dp", "tp", "cp")])
def test_groups_are_those_of_the_placement(axis: str, order: tuple[str, ...]) -> None:
    for per_chip in (1, 2):
        degrees = {"tp": 2, "cp": 2, "pp": 2, "dp": 2 * per_chip, "ep": 4, "etp": 1}
        one = plan(**degrees, order=order, ranks_per_chip=per_chip)
        for machine in (sixteen(), cluster("gb200-nvl72:2")):
            placed = place(one, machine)
            chips = placed.chip[placed.groups(axis)]
            assert group(one, axis, machine).tolist() in chips.tolist()


@pytest.mark.parametrize("axis", ["dp", "pp", "ep", "edp", "norm"])
def test_groups_of_racks_in_part_are_those_of_the_placement(axis: str) -> None:
    racks, one = cluster("gb200-nvl72:2"), plan(pp=2, dp=64, ep=32)
    placed = place(one, racks)
    assert group(one, axis, racks).tolist() in placed.chip[placed.groups(axis)].tolist()


@pytest.mark.parametrize("op", ["all-gather", "reduce-scatter"])
def test_within_a_domain_times_of_the_sizes_that_were_run_are_exact(op: str) -> None:
    chips = np.arange(8)
    times = communication_s(sixteen(), chips, op, SIZES[:3])
    exact = [exchange_ps(sixteen(), chips, op, size) / PS_PER_S for size in SIZES[:3]]
    assert times.tolist() == exact


def test_between_domains_a_hop_is_exact_and_a_ring_is_its_rounds() -> None:
    four = cluster("trn2.48xlarge:4")
    pair = np.array([0, 16])
    sent = communication_s(four, pair, "send", BLOCKS[2])
    assert float(sent) == exchange_ps(four, pair, "send", BLOCKS[2]) / PS_PER_S
    ring, size = np.arange(4) * 16, 2**26
    exact = exchange_ps(four, ring, "all-gather", size) / PS_PER_S
    assert float(communication_s(four, ring, "all-gather", size)) == pytest.approx(exact, rel=0.02)


def test_over_and_within_domains_the_longer_part_counts() -> None:
    four = cluster("trn2.48xlarge:4")
    chips, size = np.arange(64).reshape(4, 16)[:, ::4].ravel(), 2**28
    for op in ("all-gather", "reduce-scatter", "all-reduce"):
        exact = exchange_ps(four, chips, op, size) / PS_PER_S
        assert float(communication_s(four, chips, op, size)) == pytest.approx(exact, rel=0.1)
    assert communication_s(four, np.array([5]), "all-reduce", [1, 2]).tolist() == [0.0, 0.0]


def test_on_nvidia_machines_times_are_those_of_the_simulator() -> None:
    h100 = cluster("dgx-h100:4")
    chips, sizes = np.arange(16) * 2, [2**20, 2**28]
    exact = [exchange_ps(h100, chips, "all-reduce", size) / PS_PER_S for size in sizes]
    assert communication_s(h100, chips, "all-reduce", sizes).tolist() == exact
