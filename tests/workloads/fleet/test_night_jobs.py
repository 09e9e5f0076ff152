"""Jobs that arrive, end and have deadlines; checkpoints that are written to the shared store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.toy_fleet import simulate
from topologies.errors import InputError
from workloads.demand import constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, read_jobs
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import jobs_frame, summary
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.services import Service
from workloads.serving.tables import fixed_rate

PRICES = Economics(750.0, 400.0, usd_per_chip_s=0.001, usd_per_million_tokens=2.0)
SERVICE = Service("chat", fixed_rate(1.0))
DEMAND = constant(60.0, minutes=600)
FREE = ChangeCosts.fixed(0.0)


def _run(*jobs: TrainingJob, costs: ChangeCosts = FREE) -> FleetRun:
    return simulate(
        DEMAND, [SERVICE], Fleet(12, costs=costs), static(2), jobs=jobs, economics=PRICES
    )


def _job(name: str, **changes: object) -> TrainingJob:
    usual = {"units": 10, "min_units": 10, "tokens_per_s": ((10, 100.0),)}
    return TrainingJob(name, **{**usual, **changes})  # type: ignore[arg-type]


def test_a_job_arrives_ends_and_hands_on_its_units() -> None:
    first = _job("first", work_tokens=360_000.0, deadline_s=3700.0, priority=0)
    second = _job("second", arrives_s=7200.0, work_tokens=180_000.0, deadline_s=8000.0, priority=1)
    third = _job("third", priority=2)
    run = _run(first, second, third)
    frame = jobs_frame(run).set_index("job")
    assert frame.loc["first", "finished_h"] == pytest.approx(1.0, abs=0.001)
    assert frame.loc["first", "tokens"] == pytest.approx(360_000.0)
    assert frame.loc["first", "in_time"]
    # The third took the units after an hour and keeps them: it is endless, and nothing reclaims.
    assert frame.loc["third", "tokens"] == pytest.approx(9 * 360_000.0, rel=0.01)
    assert not frame.loc["second", "in_time"]
    document = summary(run)
    assert (document["jobs_in_time"], document["jobs_with_deadline"]) == (1, 2)


def test_a_job_begins_when_it_arrives() -> None:
    """Also between two decisions of the policy."""
    for arrives_s in (0.0, 5 * 3600.0, 5 * 3600.0 + 31.0):
        run = _run(_job("late", arrives_s=arrives_s))
        tokens = (10 * 3600.0 - arrives_s) * 100.0
        assert jobs_frame(run).loc[0, "tokens"] == pytest.approx(tokens, abs=0.11)


def test_checkpoints_are_written_to_the_store() -> None:
    """Ten hours, one checkpoint each half hour, of the job's real size."""
    costs = ChangeCosts.from_catalogue(4)
    run = _run(_job("one", state_bytes=1e12, checkpoint_every_s=1800.0), costs=costs)
    written = run.loaded_bytes / 1e12
    assert 18 <= written <= 20


def test_money_adds_up() -> None:
    run = _run(_job("one"))
    document = summary(run)
    assert document["revenue_usd"] == pytest.approx(document["served_tokens"] * 2e-6)
    cost = document["cost_usd"]
    by_tokens = document["usd_per_million_tokens"] * document["served_tokens"] / 1e6
    by_training = document["usd_per_million_trained_tokens"] * document["training_tokens"] / 1e6
    assert by_tokens == pytest.approx(cost * 2 / 12)  # by the hours of the units
    assert by_training == pytest.approx(cost * 10 / 12)
    assert document["margin_usd"] == pytest.approx(document["revenue_usd"] - cost)


def test_a_file_of_jobs_has_hours(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("name,units,arrives_h,deadline_h,work_tokens\nnight,4,20,30,1e12\n")
    (job,) = read_jobs(path)
    assert (job.arrives_s, job.deadline_s, job.work_tokens) == (72_000.0, 108_000.0, 1e12)
    path.write_text("name,units,arrives_h,deadline_h\nnight,4,20,10\n")
    with pytest.raises(InputError, match="deadline must come later"):
        read_jobs(path)
