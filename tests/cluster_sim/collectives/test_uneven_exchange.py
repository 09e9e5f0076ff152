"""All-to-all-v on NVIDIA's machines: NCCL's exchange at the load of the busiest port."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl import load_of, uneven_load, uneven_ps
from cluster_sim.collectives.group import Group, whole
from cluster_sim.collectives.results import measure_v, skewed
from topologies.clusters.names import cluster


@pytest.mark.parametrize("name", ["p5.48xlarge", "dgx-h100:2", "dgx-a100:4"])
@pytest.mark.parametrize("size", [2**16, 2**20, 2**26])
def test_equal_parts_are_the_all_to_all(name: str, size: int) -> None:
    group = whole(cluster(name))
    row, trace = measure_v(group, skewed(group.ranks, size, 0.0))
    assert trace.total_ps == duration_ps(CollectiveCall("all-to-all", group, size))
    assert (row["collective"], row["algorithm"]) == ("all-to-all-v", "nccl")


@pytest.mark.parametrize(("gpus", "few"), [(1, 1), (3, 1), (4, 0), (8, 0)])
def test_ranks_are_few_where_they_are_under_half_a_server(gpus: int, few: int) -> None:
    group = Group(cluster("dgx-h100:2"), np.array([*range(gpus), *range(8, 8 + gpus)]))
    assert load_of(CollectiveCall("all-reduce", group, 2**20)).beside == few


def test_the_busiest_port_is_that_of_the_rank_that_most_is_sent_to() -> None:
    group = whole(cluster("dgx-h100:2"))
    sent = np.zeros((16, 16), np.int64)
    sent[:, 3] = 100
    load = uneven_load(group, sent)
    assert (load.inside, load.outside, load.shard, load.size) == (1500, 800, 100, 1600)
    even = load_of(CollectiveCall("all-to-all", group, 100))
    assert (load.steps, load.far_steps, load.messages) == (even.steps, 1, 8)
    assert uneven_ps(group, sent) == uneven_ps(group, sent.T.copy())


def test_nothing_to_send_takes_no_time() -> None:
    group = whole(cluster("dgx-h100"))
    assert uneven_ps(group, np.zeros((8, 8), np.int64)) == 0
