"""Placement: the chips that a plan takes from a machine that it does not fill."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, plan
from topologies.clusters.names import cluster
from workloads.training.iteration import iteration
from workloads.training.plan.placement import place


@pytest.mark.parametrize(
    ("machine", "changes", "each"),
    [
        ("gb200-nvl72:4", {"pp": 2, "dp": 128, "ep": 32}, [64, 64, 64, 64]),
        ("gb200-nvl72:2", {"dp": 100}, [50, 50]),
        ("gb200-nvl72:2", {"tp": 4, "dp": 25}, [72, 28]),  # halves would cut a group of tp
        ("gb200-nvl72:2", {"dp": 73}, [72, 1]),  # does not divide
        ("gb200-nvl72:2", {"dp": 144}, [72, 72]),
        ("dgx-h100:2", {"dp": 12}, [8, 4]),  # servers are filled
        ("trn2-ultraserver:2", {"dp": 96}, [64, 32]),  # and so are tori
    ],
)
def test_racks_are_used_alike_unless_that_cuts_a_group(
    machine: str, changes: dict[str, Any], each: list[int]
) -> None:
    where = cluster(machine)
    chips = place(plan(**changes), where).chip
    assert (np.diff(chips) > 0).all()
    assert np.bincount(chips // where.chips_per_domain).tolist() == each


def test_experts_of_racks_in_part_stay_in_a_rack() -> None:
    where, how = cluster("gb200-nvl72:2"), plan(dp=128, ep=16, global_batch=128)
    placed = place(how, where)
    racks = placed.chip[placed.groups("ep")] // where.chips_per_domain
    assert (racks == racks[:, :1]).all()
    # Filled in order the fifth group would have eight ranks in either rack.
    filled = [*range(72), *range(72, 128)]
    across = iteration(SPARSE, where, how, chips=np.array(filled), partial=True)
    assert iteration(SPARSE, where, how, partial=True).iteration_s < across.iteration_s
