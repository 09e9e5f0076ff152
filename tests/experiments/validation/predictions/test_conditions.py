"""Rows with conditions: jobs, and steps of long sequences."""

from types import SimpleNamespace

import pytest

from experiments.validation.predictions import training
from experiments.validation.predictions.jobs import TIMES, predict
from topologies.clusters.names import cluster
from workloads.job.goodput import expected_goodput
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

ROW = {
    "cluster": "dgx-h100", "chips": 1024, "server_failures_per_1000_days": 31.25,
    "checkpoint_interval_s": 600, "checkpoint_stall_s": 20, "restart_s": 100, "detection_s": 10,
    "peer_copy_interval_s": None, "warm_spares": None, "goodput": 0.9,
}  # fmt: skip
"""128 servers, one of which fails every six hours."""


def test_failures_of_servers_add_up():
    outcome = predict({**ROW, "goodput": None})
    assert outcome.predicted == {"mtbf_s": pytest.approx(21_600)}


def test_goodput_is_that_of_exponential_failures():
    """Half of an interval, detection and restart are lost to each of the 400 failures."""
    outcome = predict(ROW)
    expected = expected_goodput(600, 21_600, checkpoint_s=20, restart_s=100, detection_s=10)
    assert outcome.predicted["goodput"] == pytest.approx(expected, abs=0.003)
    assert outcome.provenance == {"failure_rates": "stated"}


def test_times_that_a_row_leaves_out_are_assumed():
    """A goodput at Daly's interval is at least that of any other with the same times."""
    stall_alone = predict({**ROW, "checkpoint_interval_s": None})
    assert stall_alone.provenance["columns"] == "assumed: checkpoint_interval_s"
    assert stall_alone.predicted["goodput"] > predict(ROW).predicted["goodput"] - 0.003
    nothing = predict({**ROW, **dict.fromkeys(TIMES)})
    assert nothing.provenance["columns"] == f"assumed: {', '.join(TIMES)}"


MODEL, MACHINE = named("gpt2"), cluster("dgx-a100")
LONG = ParallelPlan(tp=2, pp=2, dp=2, global_batch=80, seq=1024)
INTERLEAVED = ParallelPlan(tp=2, pp=2, vpp=3, dp=2, global_batch=80, seq=1024)


@pytest.mark.parametrize(("plan", "counts"), [
    (LONG, [8, 12]),
    (INTERLEAVED, [8, 12]),
    (ParallelPlan(dp=8, global_batch=96, seq=1024), [12]),
])  # fmt: skip
def test_short_runs_give_the_time_of_a_long_one(plan, counts, monkeypatch):
    whole = iteration(MODEL, MACHINE, plan, allow_oversized=True, partial=True)
    simulated = []

    def counted(model, machine, plan, **more):
        simulated.append(plan.microbatches)
        return iteration(model, machine, plan, **more)

    monkeypatch.setattr(training, "iteration", counted)
    seconds = training.long_step(MODEL, MACHINE, plan).seconds
    assert seconds == pytest.approx(whole.iteration_s, rel=1e-3)
    assert simulated == counts


def test_bytes_are_shown_in_billions():
    step = SimpleNamespace(memory=SimpleNamespace(total=123.44e9, capacity=80e9))
    assert training._too_large(step) == "it needs 123.4 GB a rank and a rank has 80.0 GB."
