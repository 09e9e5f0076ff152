"""Jobs of a fleet: files, sizes, arrival and deadlines, costs of changes, post-training."""

from collections.abc import Generator
from types import SimpleNamespace
from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from tests.support.commands import document_of
from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.toy_fleet import simulate, slower
from topologies.support.errors import InputError
from workloads.demand import constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import MODES, PostTraining, TrainingJob, read_jobs
from workloads.fleet.policies.rules import static
from workloads.fleet.policies.view import Decision, View
from workloads.fleet.results import jobs_frame, summary
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.services import Fleet, Service
from workloads.fleet.state.world import World
from workloads.serving.tables import fixed_rate


def test_sizes_and_rates_of_jobs():
    job = TrainingJob("j", units=100, min_units=10, step_units=20, tokens_per_s=((10, 1.0),))
    assert [job.fits(n) for n in (9, 10, 29, 30, 99, 1000)] == [0, 10, 10, 30, 90, 90]
    curve = TrainingJob("k", units=100, tokens_per_s=((10, 100.0), (100, 500.0)))
    assert (curve.rate(5), curve.rate(200)) == (50.0, 1000.0)
    assert 100 < curve.rate(30) < 500


def test_jobs_from_a_file(tmp_path):
    (path := tmp_path / "jobs.csv").write_text(
        "name,units,min_units,step_units,count,iteration_s,step_tokens,reclaim,evaluation\n"
        "big,16,4,4,1,2.0,1000,shrink,\n"
        "small,2,,,3,,,,\n"
        "eval,8,,,,,,,1\n"
    )
    big, *small, evaluation = read_jobs(path)
    assert (big.rate(16), big.fits(10)) == (500.0, 8)
    assert [job.name for job in small] == ["small-1", "small-2", "small-3"]
    assert all(job.fixed for job in small)
    assert evaluation.evaluation
    assert (evaluation.min_units, evaluation.reclaim) == (1, "drain")
    path.write_text("name,units,arrives_h,deadline_h,work_tokens\nnight,4,20,30,1e12\n")
    (job,) = read_jobs(path)
    assert (job.arrives_s, job.deadline_s, job.work_tokens) == (72_000.0, 108_000.0, 1e12)


@pytest.mark.parametrize(("text", "message"), [
    ("name,unit\na,1\n", "has no 'unit'.*Did you mean units"),
    ("name\na\n", "no column 'units'"),
    ("name,units\na,0\n", "min_units 0, units 0"),
    ("name,units,reclaim\na,2,paus\n", "reclaim 'paus' is none of .*Did you mean pause"),
    ("name,units,reclaim\na,2,drain\n", "evaluation is given back by draining"),
    ("name,units,count\na,2,99999\n", "more than 1,000 jobs"),
    ("name,units\na,2.5\n", "row 2: units is '2.5'; it must be a whole number"),
    ("name,units,evaluation\na,2,2\n", "row 2: evaluation is '2'; write 1 or 0"),
    ("name,units,arrives_h,deadline_h\nnight,4,20,10\n", "deadline must come later"),
    ("name,units,team_units\na,2,4\n", "team_units 4 is a quota of team ''; it needs a team"),
    ("name,units,team,team_units\na,4,red,3\n", "at least the min_units 4"),
    ("name,units,team,team_units\na,2,red,3\nb,2,red,4\n", "team 'red' has 3 and 4 team_units"),
    ("name,units\n", "has no rows below its header"),
    ("name,units\na,2\na,3\n", "2 jobs are called 'a'. Give each its own name"),
])  # fmt: skip
def test_bad_job_files(tmp_path, text, message):
    (path := tmp_path / "jobs.csv").write_text(text)
    refused(message, read_jobs, path)


def test_costs_come_from_the_catalogue_and_scale():
    costs = ChangeCosts.from_catalogue(4)
    nvme = costs.load_s(4 * 0.75e12)
    assert nvme == pytest.approx(85, rel=0.01)
    assert slower(costs, 2.0).load_s(4 * 0.75e12) == pytest.approx(2 * nvme)
    assert 300 < costs.to_serving_s(4 * 0.75e12) < 900
    assert ChangeCosts.fixed(300.0).to_serving_s(1e15) == 300.0
    refused("Did you mean nvme", ChangeCosts.from_catalogue, 4, source="nvm")
    refused("below 0", ChangeCosts.fixed, -1.0)


PRICES = Economics(750.0, 400.0, usd_per_chip_s=0.001, usd_per_million_tokens=2.0)
SERVICE = Service("chat", fixed_rate(1.0))
DEMAND = constant(60.0, minutes=600)
FREE = ChangeCosts.fixed(0.0)


def _run(*jobs: TrainingJob, costs: ChangeCosts = FREE) -> FleetRun:
    fleet = Fleet(12, costs=costs)
    return simulate(DEMAND, [SERVICE], fleet, static(2), jobs=jobs, economics=PRICES)


def _job(name: str, **changes: object) -> TrainingJob:
    usual = {"units": 10, "min_units": 10, "tokens_per_s": ((10, 100.0),)}
    return TrainingJob(name, **{**usual, **changes})  # type: ignore[arg-type]


def test_a_job_arrives_ends_and_hands_on_its_units():
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


def test_jobs_of_a_team_never_have_more_than_its_units():
    """Ten units are free: four for the red jobs, in order of priority, and six for the other."""
    team = {"min_units": 1, "reclaim": "shrink", "team": "red", "team_units": 4}
    first, waits = _job("first", work_tokens=720_000.0, **team), _job("waits", priority=1, **team)
    run = _run(first, waits, _job("other", min_units=1, reclaim="shrink", priority=2))
    frame = jobs_frame(run).set_index("job")
    # Four of ten units have forty of a hundred tokens/s: 720,000 take five hours, then the next.
    assert frame.loc["first", "finished_h"] == pytest.approx(5.0, abs=0.001)
    assert frame.loc["waits", "tokens"] == pytest.approx(5 * 3600 * 40, rel=0.01)
    assert frame.loc["other", "tokens"] == pytest.approx(10 * 3600 * 60, rel=0.01)
    assert frame["team"].tolist() == ["red", "red", ""]
    # Units that a mate will take back after a pause count, and those that are joining it.
    job = _job("red", **team | {"team_units": 8})
    gang, mate = (SimpleNamespace(job=job, size=2, paused=[7], joining=1) for _ in range(2))
    other = SimpleNamespace(job=_job("other"), size=9, paused=[], joining=0)
    world: Any = SimpleNamespace(job_limits={}, gangs=[gang, mate, other])
    assert World.fits(world, gang, 9) == 8 - (2 + 1 + 1)


def test_serving_takes_units_first_from_jobs_beyond_limits_of_their_own():
    """A job of low priority keeps all five; one of high priority gives two of its five."""
    elastic = {"units": 5, "min_units": 1, "reclaim": "shrink", "tokens_per_s": ((5, 50.0),)}
    jobs = _job("least", priority=9, **elastic), _job("most", **elastic)

    def policy(view: View) -> Decision:
        return Decision(4.0, jobs={"most": 3}) if view.minute >= 60 else Decision(2.0)

    run = simulate(DEMAND, [SERVICE], Fleet(12, costs=FREE), policy, jobs=jobs)
    frame = jobs_frame(run).set_index("job")
    assert frame["reclaims"].to_dict() == {"least": 0, "most": 1}
    assert frame.loc["most", "tokens"] == pytest.approx(3600 * (50.0 + 9 * 30.0), rel=1e-3)


def test_a_job_begins_when_it_arrives():
    """Also between two decisions of the policy."""
    for arrives_s in (0.0, 5 * 3600.0, 5 * 3600.0 + 31.0):
        run = _run(_job("late", arrives_s=arrives_s))
        tokens = (10 * 3600.0 - arrives_s) * 100.0
        assert jobs_frame(run).loc[0, "tokens"] == pytest.approx(tokens, abs=0.11)


def test_money_adds_up():
    document = summary(_run(_job("one")))
    assert document["revenue_usd"] == pytest.approx(document["served_tokens"] * 2e-6)
    cost = document["cost_usd"]
    by_tokens = document["usd_per_million_tokens"] * document["served_tokens"] / 1e6
    by_training = document["usd_per_million_trained_tokens"] * document["training_tokens"] / 1e6
    assert by_tokens == pytest.approx(cost * 2 / 12)  # by the hours of the units
    assert by_training == pytest.approx(cost * 10 / 12)
    assert document["margin_usd"] == pytest.approx(document["revenue_usd"] - cost)


Process = Generator[simpy.Event, Any, None]


def _simulated_step_s(split: Any, behind: int, steps: int = 40) -> float:
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
    st.floats(1.0, 1e3), st.floats(1.0, 1e3), st.floats(0.0, 50.0), st.integers(1, 20),
    st.integers(1, 20),
)  # fmt: skip
@examples(60)
def test_a_steady_state_is_that_of_waiting_processes(rollout, update, transfer, rollouts, updates):
    for behind, mode in enumerate(MODES):
        split = PostTraining(rollout, update, transfer, 1e4, mode).on(rollouts, updates)
        assert split.step_s == pytest.approx(_simulated_step_s(split, behind))


@given(
    st.floats(1.0, 1e3), st.floats(1.0, 1e3), st.floats(0.0, 500.0), st.integers(2, 60),
    st.sampled_from(MODES),
)  # fmt: skip
@examples(200)
def test_no_other_split_is_faster(rollout, update, transfer, units, mode):
    job = PostTraining(rollout, update, transfer, 1e5, mode)
    every = min(job.on(count, units - count).step_s for count in range(1, units))
    best = job.best(units)
    assert best.step_s == pytest.approx(every)
    assert best.rollout_units + best.update_units == units
    assert best.tokens_per_s * best.step_s == pytest.approx(1e5)


def test_the_longer_phase_bounds_a_step():
    splits = [PostTraining(*each, 1.0, 1e4).on(4, 4) for each in ((10.0, 1000.0), (1000.0, 10.0))]
    slow_rollouts, slow_updates = splits
    assert (slow_rollouts.bound, slow_updates.bound) == ("rollouts", "updates")
    assert slow_rollouts.step_s == pytest.approx(250.0)
    assert slow_updates.step_s == pytest.approx(251.0)
    assert PostTraining(100.0, 100.0, 5.0, 1e4).best(1).step_s == pytest.approx(205.0)
    with pytest.raises(InputError, match=r"post_training 'behind' is none of lockstep"):
        TrainingJob("tuning", 4, post_training="behind")


def test_the_fleet_runs_post_training_at_night(tmp_path):
    jobs = tmp_path / "jobs.csv"
    rows = "rl,8,8,,one-behind,4000000\ngrpo,4,2,,lockstep,\n"
    jobs.write_text("name,units,min_units,reclaim,post_training,step_tokens\n" + rows)
    words = (
        "fleet --cluster trn2-ultraserver:20 --model llama-3.1-8b --days 0.1 --policy static "
        "--unit-rate 5 --scale-to-peak 0.4 --no-compare --no-intervals"
    )
    done = document_of(words, f"--training={jobs}")
    one, other = done["post_training"]
    assert (one["mode"], other["mode"]) == ("one-behind", "lockstep")
    assert one["rollout_units"] + one["update_units"] == 8
    assert one["step_s"] == max(one["rollout_s"], one["update_s"] + one["transfer_s"])
    parts = other["rollout_s"] + other["update_s"] + other["transfer_s"]
    assert other["step_s"] == pytest.approx(parts)
    assert done["training_tokens"] > 0
