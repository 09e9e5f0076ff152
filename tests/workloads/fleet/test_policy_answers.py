"""Answers of single policies, their limits and hysteresis, and a user's policy file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY as DAY
from workloads.fleet.policies.forecast import days_back, predict, smoothed
from workloads.fleet.policies.registry import load_policy
from workloads.fleet.policies.rules import clock, forecast, oracle, static, threshold
from workloads.fleet.policies.view import Decision, Limits, View, answer


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


def test_clock_knows_the_hour() -> None:
    policy = clock(8, 2, night_from=22, night_to=6)
    hours = [policy(_view(hour=hour)) for hour in (21.9, 22.0, 3.0, 6.0)]
    assert [float(np.asarray(each)[0]) for each in hours] == [8, 2, 2, 8]


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
        answer(static(1), _view(load=np.ones((2, 1))), np.zeros(2))


def test_limits_of_training_are_whole_numbers_for_all_kinds_or_each() -> None:
    view, before = _view(kinds=(None,)), np.array([3.0])
    for limits in (2, 2.0, [2], (2,), np.array([2]), np.int64(2)):
        training = answer(lambda _, limits=limits: Decision(None, limits), view, before).training  # type: ignore[misc]
        assert np.atleast_1d(np.asarray(training)).tolist() == [2]
    for wrong in (2.5, [None], [float("nan")], ["many"]):
        with pytest.raises(InputError, match="units train; it must be a whole number"):
            answer(lambda _, wrong=wrong: Decision(None, wrong), view, before)  # type: ignore[misc]
    for number in (0, 2):
        with pytest.raises(InputError, match=f"limits training of {number} kinds of units; there"):
            answer(lambda _, number=number: Decision(None, [1] * number), view, before)  # type: ignore[misc]


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
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "loaded\nasked\n")


def test_settings_of_a_user_s_policy_are_parameters_of_its_function(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def policy(view, margin=1.5, floor=1):\n    return margin * floor\n")
    assert load_policy(path)(_view()) == 1.5
    assert load_policy(path, "margin=2,floor=3")(_view()) == 6.0
    for stated, message in (
        ("margn=2", r"has no 'margn'\. Did you mean margin\?"),
        ("floor=2.5", r"floor is '2\.5'; write a value such as floor=1\."),
        ("margin", r"margin is ''; write a value such as margin=1\.5\."),
    ):
        with pytest.raises(InputError, match=message):
            load_policy(path, stated)


def wished(load: float, backlog: float = 0.0, **options: float) -> float:
    """Units that the policy wants of 100 that serve, after an hour of a load without headroom."""
    view = View(
        minute=60, weekday=0, hour=1.0, load=np.full((1, 60), load), history=0,
        serving=np.array([100]), coming=np.array([0]), backlog=np.full(1, backlog),
        units=200, broken=0, lead_s=0.0,
    )  # fmt: skip
    wishes = np.asarray(threshold(headroom=0.0, **options)(view), float)
    return float(wishes[0])


def test_waiting_requests_are_worked_off_within_ten_minutes() -> None:
    """The work of 300 units for a minute takes 30 more for ten."""
    assert wished(90.0, backlog=300.0) == 120.0


@pytest.mark.parametrize(
    ("hysteresis", "load", "units"),
    [
        (0.05, 96.0, 100.0),
        (0.05, 94.0, 94.0),
        (0.2, 81.0, 100.0),
        (0.2, 79.0, 79.0),
        (0.0, 99.0, 99.0),
    ],
)
def test_units_stay_while_fewer_than_the_hysteresis_are_idle(
    hysteresis: float, load: float, units: float
) -> None:
    assert wished(load, hysteresis=hysteresis) == units


def test_more_load_than_units_is_followed_at_once() -> None:
    assert wished(130.0, hysteresis=0.5) == 130.0
