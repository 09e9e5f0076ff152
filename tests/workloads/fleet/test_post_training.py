"""Post-training: its steady state equals a SimPy run of its phases; its split; the fleet."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import document_of
from tests.support.examples import examples
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.fleet.inputs.jobs import (
    BEHIND,
    LOCKSTEP,
    MODES,
    PostTraining,
    Split,
    TrainingJob,
)
from workloads.fleet.setup.night_work import transfer_s

Process = Generator[simpy.Event, Any, None]


def _simulated_step_s(split: Split, behind: int, steps: int = 40) -> float:
    """Mean step of the second half of a run: rollouts and updates as processes that wait."""
    env = simpy.Environment()
    batches: simpy.Store = simpy.Store(env)
    published = [env.event() for _ in range(steps + 1)]
    ends: list[float] = []

    def rollouts() -> Process:
        for step in range(steps):
            if step - behind > 0:
                yield published[step - behind]
            yield env.timeout(split.rollout_s)
            yield batches.put(step)

    def updates() -> Process:
        for step in range(steps):
            yield batches.get()
            yield env.timeout(split.update_s)
            yield env.timeout(split.transfer_s)
            ends.append(env.now)
            published[step + 1].succeed()

    env.process(rollouts())
    env.process(updates())
    env.run()
    half = steps // 2
    return (ends[-1] - ends[half - 1]) / (steps - half)


@given(
    st.floats(1.0, 1e3),
    st.floats(1.0, 1e3),
    st.floats(0.0, 50.0),
    st.integers(1, 20),
    st.integers(1, 20),
)
@examples(60)
def test_the_steady_state_is_that_of_waiting_processes(
    rollout: float, update: float, transfer: float, rollouts: int, updates: int
) -> None:
    for behind, mode in ((0, LOCKSTEP), (1, BEHIND)):
        split = PostTraining(rollout, update, transfer, 1e4, mode).on(rollouts, updates)
        assert split.step_s == pytest.approx(_simulated_step_s(split, behind))


@given(
    st.floats(1.0, 1e3),
    st.floats(1.0, 1e3),
    st.floats(0.0, 500.0),
    st.integers(2, 60),
    st.sampled_from(MODES),
)
@examples(200)
def test_no_other_split_is_faster(
    rollout: float, update: float, transfer: float, units: int, mode: str
) -> None:
    job = PostTraining(rollout, update, transfer, 1e5, mode)
    every = min(job.on(count, units - count).step_s for count in range(1, units))
    best = job.best(units)
    assert best.step_s == pytest.approx(every)
    assert best.rollout_units + best.update_units == units
    assert best.tokens_per_s * best.step_s == pytest.approx(1e5)


def test_the_longer_phase_bounds_a_step() -> None:
    slow_rollouts, slow_updates = (
        PostTraining(rollout, update, 1.0, 1e4).on(4, 4)
        for rollout, update in ((10.0, 1000.0), (1000.0, 10.0))
    )
    assert (slow_rollouts.bound, slow_updates.bound) == ("rollouts", "updates")
    assert slow_rollouts.step_s == pytest.approx(250.0)
    assert slow_updates.step_s == pytest.approx(251.0)
    assert PostTraining(100.0, 100.0, 5.0, 1e4).best(1).step_s == pytest.approx(205.0)
    with pytest.raises(InputError, match=r"post_training 'behind' is none of lockstep"):
        TrainingJob("tuning", 4, post_training="behind")


def test_weights_go_through_all_adapters_of_a_unit() -> None:
    """405 billion parameters of 2 B through 64 adapters of 200 Gbit/s."""
    assert transfer_s(cluster("trn2-ultraserver:4"), 405e9) == pytest.approx(810e9 / 1.6e12)
    assert transfer_s(cluster("trn2-ultraserver"), 405e9) == 0.0


def test_the_fleet_runs_post_training_at_night(tmp_path: Path) -> None:
    rows = "rl,8,8,,one-behind,4000000\ngrpo,4,2,,lockstep,\n"
    (tmp_path / "jobs.csv").write_text(
        "name,units,min_units,reclaim,post_training,step_tokens\n" + rows
    )
    words = [
        "fleet",
        "--cluster",
        "trn2-ultraserver:20",
        "--model",
        "llama-3.1-8b",
        "--days",
        "0.3",
    ]
    words += ["--scale-to-peak", "0.4", "--policy", "static", "--no-compare", "--json", "--quiet"]
    words += ["--training", str(tmp_path / "jobs.csv")]
    document = document_of(words)
    one, other = document["post_training"]
    assert (one["mode"], other["mode"]) == ("one-behind", "lockstep")
    assert one["rollout_units"] + one["update_units"] == 8
    assert one["step_s"] == max(one["rollout_s"], one["update_s"] + one["transfer_s"])
    parts = other["rollout_s"] + other["update_s"] + other["transfer_s"]
    assert other["step_s"] == pytest.approx(parts)
    assert document["training_tokens"] > 0
