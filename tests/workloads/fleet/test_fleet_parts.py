"""Parts of the fleet: ledger, store, queue, gangs, limits, forecasts, jobs, user policies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY as DAY
from workloads.fleet.inputs.costs import AT_ONCE, ChangeCosts
from workloads.fleet.inputs.job_file import read_jobs
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs
from workloads.fleet.policies.clock import clock
from workloads.fleet.policies.forecast import days_back, predict, smoothed
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.policies.oracle import oracle
from workloads.fleet.policies.static import static
from workloads.fleet.policies.threshold import threshold
from workloads.fleet.policies.user_policy import load_policy
from workloads.fleet.policies.view import Decision, Limits, View, answer
from workloads.fleet.state.gangs import Gang
from workloads.fleet.state.ledger import Ledger
from workloads.fleet.state.queues import Queue, split_tokens, waits_s
from workloads.fleet.state.roles import GROUPS, Role
from workloads.fleet.state.store import Store
from workloads.serving.capacity import fixed_rate

FREE = ChangeCosts.fixed(0.0)


def _view(**changes: object) -> View:
    values: dict[str, object] = {
        "minute": 0,
        "weekday": 0,
        "hour": 0.0,
        "load": np.ones((1, 1)),
        "history": 0,
        "serving": np.array([5]),
        "coming": np.array([0]),
        "backlog": np.zeros(1),
        "units": 10,
        "broken": 0,
        "lead_s": 0.0,
    }
    return View(**{**values, **changes})  # type: ignore[arg-type]


def test_groups_hold_every_role_once() -> None:
    roles = [role for group in GROUPS.values() for role in group]
    assert sorted(roles) == list(Role)


def test_ledger_books_unit_time_exactly() -> None:
    ledger = Ledger(3, 1)
    ledger.put(np.array([0, 1]), Role.SERVING, 0, 0)
    ledger.put(np.array([1]), Role.DRAINING, 700)
    ledger.advance(1000)
    assert ledger.spent_server_ms[len(Role)] == 1000 + 700
    assert ledger.spent_server_ms[Role.DRAINING] == 300
    assert ledger.spent_server_ms[Role.SPARE] == 1000
    assert ledger.count(Role.SERVING) == 1


def test_store_shares_its_bandwidth_fairly() -> None:
    """Loads of 1 and 2 units, caps 1 and 10 B/s, on 5 B/s: rates 1, then 2 for each of the two."""
    env = simpy.Environment()
    store = Store(env, 5.0)
    slow = store.load(units=1, bytes_per_unit=10.0, cap_bytes_per_s=1.0)
    fast = store.load(units=2, bytes_per_unit=10.0, cap_bytes_per_s=10.0)
    env.run(until=fast)
    assert env.now == 5000
    env.run(until=slow)
    assert env.now == 10_000
    assert store.moved_bytes == pytest.approx(30.0)


def test_store_speeds_up_when_another_load_ends() -> None:
    env = simpy.Environment()
    store = Store(env, 2.0)
    first = store.load(units=1, bytes_per_unit=4.0, cap_bytes_per_s=2.0)
    second = store.load(units=1, bytes_per_unit=8.0, cap_bytes_per_s=2.0)
    env.run(until=first)
    assert env.now == 4000
    env.run(until=second)
    assert env.now == 6000


def test_queue_waits_and_sheds() -> None:
    queue = Queue(np.array([10, 30, 0, 0]), patience_minutes=1.5)
    for minute, capacity in enumerate((10, 10, 10, 10)):
        queue.finish(minute, capacity)
    assert queue.served.tolist() == [10, 10, 10, 5]
    assert queue.shed.tolist() == [0, 5, 0, 0]
    assert queue.backlog.tolist() == [0, 15, 5, 0]
    waits = waits_s(queue)
    assert waits[0] == 0
    assert waits[1] == pytest.approx(60 * (2.25 - 1.5))


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
    st.lists(st.integers(0, 300), min_size=40, max_size=40),
    st.floats(0, 5),
    st.integers(0, 5000),
)
def test_tokens_are_served_queued_or_shed(
    arrivals: list[int], capacity: list[int], patience: float, tokens_each: int
) -> None:
    queue = Queue(np.array(arrivals), patience)
    for minute in range(len(arrivals)):
        queue.finish(minute, capacity[minute])
    tokens = np.array(arrivals) * tokens_each + np.minimum(np.array(arrivals), 1)
    served, waiting, shed = split_tokens(queue, tokens)
    assert served.sum() + waiting[-1] + shed.sum() == tokens.sum()
    assert min(served.min(), waiting.min(), shed.min()) >= 0
    total = queue.served.sum() + queue.shed.sum() + queue.backlog[-1]
    assert total == queue.arrivals.sum()
    assert waits_s(queue).min() >= 0


def _gang(job: TrainingJob, costs: ChangeCosts) -> tuple[simpy.Environment, Ledger, Gang]:
    env = simpy.Environment()
    ledger = Ledger(10, 1)
    return env, ledger, Gang(0, job, env, ledger, costs, 10**9)


def test_a_gang_checkpoints_and_loses_what_it_did_not_save() -> None:
    """100 s of training, 10 s checkpoint, and a stop without notice 40 s later."""
    from dataclasses import replace

    job = TrainingJob("j", units=4, min_units=4, tokens_per_s=((4, 8.0),), checkpoint_every_s=100)
    env, ledger, gang = _gang(job, replace(FREE, checkpoint_stall_s=10.0))
    gang.place(np.arange(4))
    env.run(until=150_000)
    units = gang.stop(keep=False)
    env.run(until=200_000)
    assert units.tolist() == [0, 1, 2, 3]
    assert gang.finish().tokens == 800.0
    assert gang.tally.lost_tokens == 320.0
    assert gang.tally.held_unit_ms == 4 * 150_000
    assert gang.tally.useful_unit_ms == 4 * 100_000
    ledger.advance(150_000)
    assert ledger.spent_server_ms[Role.CHECKPOINTING] == 4 * 10_000


def test_a_restart_waits_and_a_restore_is_shorter() -> None:
    from dataclasses import replace

    job = TrainingJob("j", units=2, min_units=2, reclaim="pause", tokens_per_s=((2, 1.0),))
    env, _, gang = _gang(job, replace(FREE, restart_s=600.0, restore_s=60.0))
    gang.admit(np.arange(2))
    env.run(until=700_000)
    gang.stop(keep=True, in_host=True)
    env.run(until=800_000)
    gang.admit(np.arange(2))
    env.run(until=900_000)
    assert gang.finish().tokens == 100 + 40
    assert gang.tally.starts == 2


def test_a_failure_stops_all_and_shrinks_to_what_fits() -> None:
    from dataclasses import replace

    job = TrainingJob(
        "j", units=9, min_units=3, step_units=3, tokens_per_s=((9, 9.0),), checkpoint_every_s=1e6
    )
    env, _, gang = _gang(job, replace(FREE, recovery=replace(AT_ONCE, restart_s=100.0)))
    gang.place(np.arange(9))
    env.run(until=50_000)
    left = gang.fail(np.array([0]), np.empty(0, np.int64))
    assert (gang.size, len(left)) == (6, 2)
    env.run(until=200_000)
    assert gang.finish().tokens == 6 * 50
    assert gang.tally.lost_tokens == 9 * 50


def test_sizes_and_rates_of_jobs() -> None:
    job = TrainingJob("j", units=100, min_units=10, step_units=20, tokens_per_s=((10, 1.0),))
    assert [job.fits(n) for n in (9, 10, 29, 30, 99, 1000)] == [0, 10, 10, 30, 90, 90]
    curve = TrainingJob("k", units=100, tokens_per_s=((10, 100.0), (100, 500.0)))
    assert curve.rate(5) == 50.0
    assert curve.rate(200) == 1000.0
    assert 100 < curve.rate(30) < 500


@pytest.mark.parametrize("units", [1, 2, 63, 64, 7812])
def test_default_jobs_fit_any_fleet(units: int) -> None:
    assert all(job.min_units <= units for job in default_jobs(units))


def test_jobs_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
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
    assert evaluation.min_units == 1
    assert evaluation.reclaim == "drain"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,unit\na,1\n", "unknown column 'unit'.*Did you mean units"),
        ("name\na\n", "no column 'units'"),
        ("name,units\na,many\n", "row 2: units is 'many'"),
        ("name,units\na,0\n", "min_units 0, units 0"),
        ("name,units,reclaim\na,2,paus\n", "unknown reclaim 'paus'.*Did you mean pause"),
        ("name,units,reclaim\na,2,drain\n", "evaluation is given back by draining"),
        ("name,units,count\na,2,99999\n", "more than 1,000 jobs"),
        ("name,units,priority\na,2,1.5\n", "row 2: priority is '1.5'; it must be a whole number"),
        ("name,units\na,2.5\n", "row 2: units is '2.5'; it must be a whole number"),
        ("name,units,evaluation\na,2,yes\n", "row 2: evaluation is 'yes'"),
        ("name,units,peer_recovery\na,2,2\n", "row 2: peer_recovery is '2'; write 1 or 0"),
        ("name,units\n", "has no rows below its header"),
        (
            "name,units,tokens_per_s\na,2,1e300\n",
            "tokens_per_s is '1e300'; it must be .* from 0 to",
        ),
        ("name,units\na,2\na,3\n", "2 jobs are called 'a'. Give each its own name"),
    ],
)
def test_bad_job_files(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_jobs(path)


def test_limits_quantise_in_blocks_above_the_floor() -> None:
    limits = Limits(floor=68, cap=278, block=30)
    wishes = [limits.quantised(np.array([wish]), 278)[0] for wish in (0, 68, 69, 98.0, 250, 400)]
    assert wishes == [68, 68, 98, 98, 278, 278]
    assert Limits().quantised(np.array([2.2, 3.0]), 10).tolist() == [3, 3]
    assert Limits(cap=4).quantised(np.array([6.0, 2.0]), 10).tolist() == [3, 1]


@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=4),
    st.integers(1, 100),
    st.integers(0, 50),
    st.integers(1, 500),
)
def test_limits_never_exceed_the_fleet(
    wish: list[float], block: int, floor: int, units: int
) -> None:
    blocks = Limits(block=block, floor=floor).quantised(np.array(wish), units)
    assert blocks.sum() <= units
    assert blocks.min() >= 0
    assert blocks.sum() >= min(floor, units)


def test_bad_limits() -> None:
    with pytest.raises(InputError, match="block 0"):
        Limits(block=0)


def test_threshold_rises_at_once_and_falls_after_the_hold() -> None:
    policy = threshold(headroom=0.0, hysteresis=0.0, hold_s=180)
    rise = policy(_view(load=np.array([[5.0, 5, 8]])))
    fall = policy(_view(load=np.array([[5.0, 4, 3]]), serving=np.array([8])))
    assert np.asarray(rise).tolist() == [8.0]
    assert np.asarray(fall).tolist() == [5.0]


def test_clock_knows_the_hour_and_the_weekend() -> None:
    policy = clock(8, 2, night_from=22, night_to=6, weekend_all_night=True)
    hours = [policy(_view(hour=hour)) for hour in (21.9, 22.0, 3.0, 6.0)]
    assert [float(np.asarray(each)[0]) for each in hours] == [8, 2, 2, 8]
    assert np.asarray(policy(_view(hour=12.0, weekday=6))).tolist() == [2]


def test_oracle_orders_ahead_bridges_short_valleys_and_respects_the_ramp() -> None:
    need = np.array([[5.0, 1, 5, 1, 1, 1, 1, 1, 1, 5]])
    ahead = oracle(need, lead_s=120.0, shortest_valley_s=180.0)
    plan = [float(np.asarray(ahead(_view(minute=minute)))[0]) for minute in range(10)]
    assert plan == [5, 5, 5, 1, 1, 1, 1, 5, 5, 5]
    slow = oracle(need, ramp=1)
    assert [float(np.asarray(slow(_view(minute=m)))[0]) for m in (4, 5, 6, 7, 8)] == [1, 1, 2, 3, 4]


def test_forecast_looks_at_the_same_kind_of_day() -> None:
    week = np.concatenate([np.full(DAY, level) for level in (5, 1, 1, 9, 9.0)])
    expected, _ = predict(week[: 3 * DAY + 1], every=15, lead=15, first_weekday=4)
    assert expected[-1] == 9.0 or expected[-1] == 5.0
    assert days_back(np.array([3 * DAY]), 4).tolist() == [3]


def test_forecast_of_flat_load_is_the_load() -> None:
    policy = forecast()
    load = np.full((1, 3 * DAY), 7.0)
    assert policy(_view(minute=3 * DAY, load=load)) == pytest.approx([7.35])
    assert policy(_view(minute=3 * DAY + 1, load=load)) is None


def test_smoothing_is_a_trailing_mean() -> None:
    assert smoothed(np.array([5.0, 0, 0, 0, 0, 10])).tolist() == [5, 2.5, 5 / 3, 1.25, 1, 2]


def test_answers_are_checked() -> None:
    view, before = _view(), np.array([3.0])
    assert answer(lambda _: None, view, before).serving is before
    with pytest.raises(InputError, match="-2 units work for job big"):
        answer(lambda _: Decision(None, jobs={"big": -2}), view, before)
    for wrong in ("many", [1, 2], float("nan"), -0.5, 1e300):
        with pytest.raises(InputError, match="the policy answered"):
            answer(lambda _, wrong=wrong: wrong, view, before)  # type: ignore[misc]
    with pytest.raises(InputError, match="one number for 2 services"):
        answer(static(1), view, np.zeros(2))


def test_a_users_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def policy(view):\n    return view.load[:, -1] * 2\n")
    assert np.asarray(load_policy(path)(_view())).tolist() == [2.0]
    path.write_text("def policy(view):\n    return view.lod\n")
    with pytest.raises(InputError, match="minute 0: AttributeError"):
        load_policy(path)(_view())
    path.write_text("x = 1\n")
    with pytest.raises(InputError, match="defines no function policy"):
        load_policy(path)
    path.write_text("1/0\n")
    with pytest.raises(InputError, match="ZeroDivisionError"):
        load_policy(path)
    path.write_text("raise SystemExit(3)\n")
    with pytest.raises(InputError, match="SystemExit: 3"):
        load_policy(path)
    path.write_text("def policy(view):\n    raise SystemExit(3)\n")
    with pytest.raises(InputError, match="minute 0: SystemExit: 3"):
        load_policy(path)(_view())
    with pytest.raises(InputError, match="there is no such file in"):
        load_policy(tmp_path / "none.py")


def test_what_a_users_policy_prints_stays_off_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("print('loaded')\ndef policy(view):\n    print('asked')\n    return 2\n")
    assert load_policy(path)(_view()) == 2
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "loaded\nasked\n")


def test_costs_come_from_the_catalogue_and_scale() -> None:
    costs = ChangeCosts.from_catalogue(4)
    nvme = costs.load_s(4 * 0.75e12)
    assert nvme == pytest.approx(85, rel=0.01)
    assert costs.scaled(2.0).load_s(4 * 0.75e12) == pytest.approx(2 * nvme)
    assert 300 < costs.to_serving_s(4 * 0.75e12) < 900
    assert ChangeCosts.fixed(300.0).to_serving_s(1e15) == 300.0
    with pytest.raises(InputError, match="Did you mean nvme"):
        ChangeCosts.from_catalogue(4, source="nvm")
    with pytest.raises(InputError, match="below 0"):
        ChangeCosts.fixed(-1.0)


def test_capacity_without_latency_attains_unless_it_queues() -> None:
    capacity = fixed_rate(2.0)
    assert capacity.attained(np.array([0.5, 1.0]), np.array([0.5, 2.0])).tolist() == [1.0, 0.0]
    assert capacity.work(100.0, [1.0, 2.0]).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="above 0"):
        fixed_rate(0.0)
