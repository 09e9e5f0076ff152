"""Handshakes of rings and of halving and doubling inside a server of Trainium."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, whole
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, choose_algorithm
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.messages import side_by_side
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.trace.trace import run
from topologies.clusters.names import cluster

MIB = 2**20
EIGHT_RANKS = (0, 1, 4, 5)
"""Chips of eight ranks, joined in a ring of four."""


def messages_of(call, algorithm, slices=2):
    costs = replace(communication_costs(call.group.cluster), slices=slices)
    return ALGORITHMS[algorithm].messages(call, costs)


def time_ps(call, messages):
    return run(lower(messages, call.group.chip_of_rank, fabric(call.group.cluster), {})).total_ps


@pytest.mark.parametrize("algorithm", ["ring", "rdh"])
@pytest.mark.parametrize(("slices", "longer_ps"), [(1, 2_800_000), (2, 0)])
def test_a_round_takes_a_handshake_unless_another_slice_is_on_the_wire(
    algorithm, slices, longer_ps
):
    # Two chips: a round of the reduce-scatter, then one of the all-gather, which waits.
    server = cluster("trn1.32xlarge")
    call = CollectiveCall("all-reduce", Group(server, [0, 1]), 2 * MIB)
    messages = messages_of(call, algorithm, slices)
    once = time_ps(call, replace(messages, handshakes=False))
    assert time_ps(call, messages) - once == longer_ps


@pytest.mark.parametrize(
    ("machine", "cores", "algorithm", "size", "expected"),
    [
        ("trn2.48xlarge", 4, "kangaring", MIB + 1, True),
        ("trn2.48xlarge", 4, "rdh", MIB + 1, True),
        ("trn2.48xlarge", 4, "rdh", MIB, False),
        ("trn2.48xlarge", 4, "mesh", MIB + 1, False),
        ("trn2.48xlarge:2", 4, "hierarchical", 64 * MIB, False),
        ("trn2.48xlarge:2", 4, "ring", 64 * MIB, False),
        ("trn1.32xlarge", 2, "multi-ring", 4 * MIB, False),
        ("trn1.32xlarge", 2, "multi-ring", 4 * MIB + 1, True),
        ("dgx-h100", 1, "ring", 64 * MIB, False),
    ],
)
def test_only_rings_and_halving_inside_a_server_of_trainium_wait(
    machine, cores, algorithm, size, expected
):
    call = CollectiveCall("all-reduce", whole(cluster(machine), cores), size)
    assert messages_of(call, algorithm).handshakes is expected


def test_groups_side_by_side_wait_as_each_of_them_does():
    server = cluster("trn2.48xlarge")
    calls = [CollectiveCall("all-reduce", Group(server, chips), 2 * MIB) for chips in ([0, 1], [2])]
    assert side_by_side([messages_of(call, "ring") for call in calls]).handshakes


@pytest.mark.parametrize(
    ("chips", "last_of_mesh"), [(EIGHT_RANKS, MIB), (range(8), 2 * MIB), (range(16), 4 * MIB)]
)
def test_a_mesh_of_trn1_ends_at_128_kib_a_rank_and_rings_follow(chips, last_of_mesh):
    group = Group(cluster("trn1.32xlarge"), chips, 2)
    names = [
        choose_algorithm(CollectiveCall("all-reduce", group, size)).name
        for size in (last_of_mesh, last_of_mesh + 1)
    ]
    assert names == ["mesh", "multi-ring"]


@pytest.mark.parametrize(("servers", "chips"), [(64, np.arange(64) * 16), (1, np.arange(16))])
def test_groups_of_trn1_that_were_not_measured_keep_the_limits_of_the_runtime(servers, chips):
    group = Group(cluster(f"trn1.32xlarge:{servers}"), chips)
    assert choose_algorithm(CollectiveCall("all-reduce", group, 2 * MIB)).name == "rdh"


def test_a_buffer_above_56_mb_leaves_halving_and_doubling():
    group = whole(cluster("trn2.48xlarge"), 4)
    names = [
        choose_algorithm(CollectiveCall("all-reduce", group, size)).name
        for size in (56 * 10**6 - 1, 56 * 10**6, 64 * MIB)
    ]
    assert names == ["rdh", "kangaring", "kangaring"]


@pytest.mark.parametrize(
    ("machine", "chips", "cores", "op", "mib", "measured_us"),
    [
        ("trn1.32xlarge", EIGHT_RANKS, 2, "all-reduce", 2, 86.8),
        ("trn1.32xlarge", range(8), 2, "all-reduce", 4, 163.4),
        ("trn1.32xlarge", range(8), 2, "all-reduce", 8, 252.8),
        ("trn1.32xlarge", range(16), 2, "all-reduce", 8, 307.1),
        ("trn1.32xlarge", range(16), 2, "all-reduce", 16, 391.6),
        ("trn2.48xlarge", range(16), 4, "all-reduce", 2, 80.7),
        ("trn2.48xlarge", range(16), 4, "all-reduce", 4, 106.1),
        ("trn2.48xlarge", range(16), 4, "all-gather", 2, 34.6),
        ("trn2.48xlarge", range(16), 4, "reduce-scatter", 2, 45.0),
    ],
)
def test_middle_sizes_take_what_nccom_test_measured(machine, chips, cores, op, mib, measured_us):
    group = Group(cluster(machine), chips, cores)
    us = duration_ps(CollectiveCall(op, group, mib * MIB)) / 1e6
    assert us == pytest.approx(measured_us, rel=0.1)
