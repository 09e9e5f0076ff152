"""Times of experiments have the intervals that the commands state."""

from __future__ import annotations

import pytest

from cluster_sim.collectives import rows, whole
from experiments.scripts.support import Steps, with_collective_ends
from topologies.clusters.names import cluster
from workloads.confidence.answers import collective_interval
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.usual_plan import complete

PLAN = {"tp": 4, "dp": 2, "global_batch": 8, "seq": 2048}


def test_rows_of_steps_have_the_interval_of_the_step() -> None:
    model, machine = named("llama-3.1-8b"), cluster("dgx-h100")
    row = Steps(model, machine).row(PLAN)
    ends = iteration(model, machine, complete(PLAN, model, machine)).interval
    assert (row["low_s"], row["high_s"]) == pytest.approx((ends.low, ends.high), rel=1e-6)
    assert row["low_s"] < row["iteration_s"] < row["high_s"]


@pytest.mark.parametrize("ideal", [False, True])
def test_rows_of_collectives_have_the_interval_of_the_collective(ideal: bool) -> None:
    machine = cluster("trn2.48xlarge")
    table = rows("all-reduce", whole(machine), [2**16, 2**26], "ring", ideal=ideal)
    for row in with_collective_ends(table, machine, ideal=ideal).to_dict("records"):
        sides = (row["ranks"], row["size_bytes"], row["time_s"])
        ends = collective_interval(machine, *sides, ideal=ideal)
        assert (row["low_s"], row["high_s"]) == (ends.low, ends.high)
        assert (row["low_s"] < row["time_s"] < row["high_s"]) is not ideal
