"""The memory of a schedule is estimated before it is built."""

import numpy as np
import pytest

from cluster_sim.collectives import KINDS, Group, compose, duration_ps, measure, whole
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.algorithms import algorithm as footprint
from cluster_sim.collectives.algorithms.registry import fitting_algorithms, suitable
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.clusters.names import cluster
from topologies.errors import InputError


@pytest.mark.parametrize(
    ("machine", "cores"),
    [("trn2.48xlarge", 1), ("trn1.32xlarge", 2), ("trn2-ultraserver", 1), ("trn2.48xlarge:4", 1)],
)
@pytest.mark.parametrize("op", KINDS)
def test_ops_are_foreseen_within_a_factor_of_two_or_not_far_above(machine, cores, op):
    group, size = whole(cluster(machine), cores), 2**26
    costs = communication_costs(group.cluster)
    call = Call(op, group, size)
    for algorithm in suitable(call):
        foreseen = footprint.ops_foreseen([call], algorithm, costs)
        assert 0.45 < foreseen / len(compose(call, algorithm).schedule) < 2.5, algorithm.name


def test_what_does_not_fit_in_this_machine_is_refused_before_it_is_built():
    everything = whole(cluster("rainier"))
    message = r"all-to-all by direct on 499,968 ranks is about 7\.\de\+11 ops and needs .* TB; this"
    with pytest.raises(InputError, match=message):
        compose(Call("all-to-all", everything, 2**30), "direct")


def test_best_tries_what_fits(monkeypatch):
    group = whole(cluster("trn2-ultraserver"))
    monkeypatch.setattr(footprint, "machine_bytes", lambda: 2 * 10**6)
    fit = fitting_algorithms([Call("all-gather", group, 2**20)])
    assert {one.name for one in fit} == {"ring", "mesh", "rdh", "torus", "per-axis"}
    row, _ = measure(Call("all-gather", group, 2**20), "best")
    assert row["ops"] * footprint.BYTES_AN_OP < 4 * 10**6
    with pytest.raises(InputError, match="all-gather by multi-ring on 64 ranks"):
        compose(Call("all-gather", group, 2**20), "multi-ring")


def test_a_group_too_large_to_hold_is_measured_by_a_few_that_stand_for_all():
    everything = whole(cluster("rainier"))
    row, trace = measure(Call("all-reduce", everything, 2**30))
    assert trace.total_ps == duration_ps(Call("all-reduce", everything, 2**30))
    assert row["algorithm"] == "hierarchical"
    assert row["steps"] == 2 * (9 + 1 + 1 + 2 + 2 + 6 + 30)  # 4x4x4, then 2·2·3·3·7·31 domains
    assert row["semantics"] == "not-checked"
    with pytest.raises(InputError, match="all-to-all by direct on 499,968 ranks"):
        measure(Call("all-to-all", everything, 2**30))


def test_groups_at_once_on_nvidia_take_as_long_as_one():
    server = cluster("p5.48xlarge")
    halves = [Group(server, np.arange(4)), Group(server, np.arange(4, 8))]
    calls = [Call("all-reduce", half, 2**24) for half in halves]
    both, one = measure(calls)[0], measure(calls[0])[0]
    assert both["algorithm"] == one["algorithm"] == "nccl"
    assert (both["time_s"], both["ranks"]) == (one["time_s"], 4)
    assert both["ops"] == 2 * one["ops"] - 2


def test_an_unknown_algorithm_is_told_from_one_that_makes_no_sense_here():
    node = whole(cluster("trn2.48xlarge"))
    with pytest.raises(InputError, match=r"unknown algorithm 'rng'\. Did you mean ring\?"):
        compose(Call("all-reduce", node, 2**20), "rng")
    with pytest.raises(InputError, match="direct does not make sense for all-reduce"):
        compose(Call("all-reduce", node, 2**20), "direct")
