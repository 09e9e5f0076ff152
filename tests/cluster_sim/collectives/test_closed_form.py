"""Closed forms of NCCL's times: rows of the command agree with the times that training uses."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import Group, duration_ps, measure, whole
from cluster_sim.schedule.table import PS_PER_S
from tests.support.conservation import violations
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("machine", ["dgx-h100", "p5.48xlarge:2"])
def test_auto_on_nvidia_takes_the_time_that_training_is_charged(
    op: str, engine: str, machine: str
) -> None:
    group = whole(cluster(machine))
    row, trace = measure(Call(op, group, 2**26), engine=engine)
    assert trace.total_ps == duration_ps(Call(op, group, 2**26))
    assert (row["algorithm"], row["semantics"]) == ("nccl", "not-checked")
    assert row["ops"] == group.ranks + 2
    assert 0 < row["lower_bound_s"] <= row["time_s"]
    assert not violations(trace)


def test_nothing_to_move_takes_no_time() -> None:
    row, _ = measure(Call("all-reduce", whole(cluster("dgx-h100")), 0))
    assert row["time_s"] == 0


def test_a_named_algorithm_is_still_run_chunk_by_chunk() -> None:
    row, _ = measure(Call("all-reduce", whole(cluster("dgx-h100")), 2**20), "ring")
    assert (row["algorithm"], row["semantics"]) == ("ring", "proven")


def test_reduction_in_the_switch_halves_what_a_rank_must_send() -> None:
    group = whole(cluster("dgx-h100"))
    ring, _ = measure(Call("all-reduce", group, 2**30), "ring")
    nccl, _ = measure(Call("all-reduce", group, 2**30))
    assert nccl["lower_bound_s"] == pytest.approx(ring["lower_bound_s"] / 2)
    assert nccl["lower_bound_s"] < nccl["time_s"] < ring["lower_bound_s"] * 1.05


def test_a_small_group_keeps_part_of_its_adapters_beside_others() -> None:
    """One or two chips of each server leave adapters to other groups; half of a server does not."""
    servers = cluster("dgx-h100:4")
    size = 2**32

    def rate(each: int) -> float:
        chips = (np.arange(4)[:, None] * 8 + np.arange(each)).ravel()
        call = Call("all-gather", Group(servers, chips), size)
        over_adapters = size * (len(chips) - 1) / len(chips) / each
        return over_adapters / (duration_ps(call) / PS_PER_S)

    kept = shipped_catalogue().value("nccl-beside", "efficiency")
    assert 0.9 * kept * 50e9 < rate(1) < kept * 50e9
    assert 0.9 * kept * 50e9 < rate(2) < kept * 50e9
    assert rate(4) > 0.85 * 50e9
