"""Cycles that a collective of the Neuron runtime runs at once, and the DMA queues of each."""

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, compose, whole
from cluster_sim.collectives.algorithms.cycles import all_rings
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.hardware.communication_costs import DMA_SHARES, communication_costs
from topologies.clusters.names import cluster

GIB = 2**30


def seconds(op, machine, chips, cores, size):
    group = Group(cluster(machine), np.arange(chips), cores)
    return duration_ps(CollectiveCall(op, group, size)) / 1e12


def dma_shares(schedule):
    kind = schedule.resources.kinds.index("dma")
    on_dma = schedule.resources.kind[schedule.flows.resource] == kind
    return set(schedule.flows.weight[on_dma].tolist())


@pytest.mark.parametrize(
    ("cycles", "shares"), [(1, 60), (2, 30), (4, 15), (5, 12), (7, 10), (10, 10)]
)
def test_cycles_copy_side_by_side_up_to_the_rate_of_all_engines(cycles, shares):
    costs = communication_costs(cluster("trn2.48xlarge"))
    assert costs.dma_shares(cycles) == shares
    # 60 / 460 GB/s of one cycle; 2,944 GB/s of all engines are 9.4 shares.
    assert costs.dma_bytes_per_s * DMA_SHARES / shares <= costs.engines_bytes_per_s


@pytest.mark.parametrize(
    ("chips", "algorithm", "shares"),
    [(16, "kangaring", 15), (16, "rdh", 60), (16, "bidirectional-ring", 30), (8, "kangaring", 30)],
)
def test_a_byte_copied_inside_a_chip_takes_its_share_of_the_engines(chips, algorithm, shares):
    group = Group(cluster("trn2.48xlarge"), np.arange(chips), 4)
    assert dma_shares(compose(CollectiveCall("all-gather", group, 2**26), algorithm).schedule) == {
        shares
    }


def test_ranks_of_one_chip_copy_as_fast_whatever_the_number_of_cycles():
    chip = Group(cluster("trn2.48xlarge"), [0], 4)
    call = CollectiveCall("all-gather", chip, 2**26)
    assert (
        dma_shares(compose(call, "bidirectional-ring").schedule)
        == dma_shares(compose(call, "ring").schedule)
        == {60}
    )


@pytest.mark.parametrize(
    ("op", "measured_s"),
    [("all-gather", 5.86e-3), ("reduce-scatter", 7.74e-3), ("all-reduce", 13.28e-3)],
)
def test_a_whole_server_of_trn2_takes_what_nccom_test_measured(op, measured_s):
    # 2 GiB on 64 ranks, March 2026, the mean of fp32 and bf16; memory is the limit.
    assert seconds(op, "trn2.48xlarge", 16, 4, 2 * GIB) == pytest.approx(measured_s, rel=0.2)


def test_eight_chips_of_trn1_are_as_fast_as_four_and_half_as_fast_as_sixteen():
    # 2 GiB on 8, 16 and 32 ranks: 56.0, 58.5 and 32.4 ms.
    four, eight, sixteen = (
        seconds("all-reduce", "trn1.32xlarge", chips, 2, 2 * GIB) for chips in (4, 8, 16)
    )
    assert eight / four == pytest.approx(58.5 / 56.0, rel=0.05)
    assert eight / sixteen == pytest.approx(58.5 / 32.4, rel=0.1)


def test_the_runtime_runs_one_cycle_where_a_chip_has_three_cables():
    server, plain = (
        cluster("trn2.48xlarge"),
        whole(cluster("torus:2x4", bandwidth="1GB/s", latency="1us")),
    )
    assert len(all_rings(Group(server, range(8))).order) == 2
    assert len(all_rings(Group(server, range(16))).order) == 4
    assert len(all_rings(plain).order) > 2
