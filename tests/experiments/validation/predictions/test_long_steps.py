"""Steps of many microbatches from runs of few, and plans that do not fit by the model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.validation.predictions import training
from experiments.validation.predictions.training import _too_large
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

MODEL, MACHINE = named("gpt2"), cluster("dgx-a100")
LONG = ParallelPlan(tp=2, pp=2, dp=2, global_batch=80, seq=1024)
INTERLEAVED = ParallelPlan(tp=2, pp=2, vpp=3, dp=2, global_batch=80, seq=1024)


@pytest.fixture
def simulated(monkeypatch):
    """Numbers of microbatches of the steps that are simulated."""
    counts: list[int] = []

    def counted(model, machine, plan, **changes):
        counts.append(plan.microbatches)
        return iteration(model, machine, plan, **changes)

    monkeypatch.setattr(training, "iteration", counted)
    return counts


@pytest.mark.parametrize(
    ("plan", "counts"),
    [
        (LONG, [8, 12]),
        (INTERLEAVED, [8, 12]),
        (ParallelPlan(dp=8, global_batch=96, seq=1024), [12]),
        (ParallelPlan(dp=8, global_batch=64, seq=1024), [8]),
        (ParallelPlan(pp=2, vpp=3, dp=4, global_batch=56, seq=1024), [14]),
    ],
)
def test_a_long_step_is_simulated_by_two_short_ones(simulated, plan, counts):
    training.long_step(MODEL, MACHINE, plan)
    assert simulated == counts


@pytest.mark.parametrize("plan", [LONG, INTERLEAVED])
def test_short_runs_give_the_time_of_a_long_one(plan):
    whole = iteration(MODEL, MACHINE, plan, allow_oversized=True, partial=True)
    assert training.long_step(MODEL, MACHINE, plan).seconds == pytest.approx(
        whole.iteration_s, rel=1e-3
    )


def test_bytes_are_shown_in_billions() -> None:
    step: Any = SimpleNamespace(memory=SimpleNamespace(total=123.44e9, capacity=80e9))
    assert _too_large(step) == "it needs 123.4 GB a rank and a rank has 80.0 GB."
