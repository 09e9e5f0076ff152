"""Policies: the registry, answers and their limits, a user's file, prices, power and a forecast."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.toy_fleet import view_of
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.demand import azure_code, constant
from workloads.demand.trace import MINUTES_PER_DAY as DAY
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.forecast import Margins, days_back, largest_ahead, predict, smoothed
from workloads.fleet.policies.registry import KINDS, bound_of, load_policy, policy_named
from workloads.fleet.policies.rules import forecast, oracle, static, threshold
from workloads.fleet.policies.view import Decision, Limits, Situation, View, answer
from workloads.fleet.results import summary, timeline
from workloads.fleet.scenario import policy_of, run, scenario
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, PolicyInputs

WEIGHING = ("price", "power-cap", "mpc", "mpc-oracle")
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-policy.md"


def _hourly_prices(_start: str, minutes: int) -> Prices:
    """Dear from noon to midnight."""
    hours = np.arange(minutes) // 60 % 24
    return Prices(np.where(hours < 12, 20.0, 100.0))


def test_every_policy_is_one_entry_and_says_what_it_does():
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.bound in KINDS
        assert bound_of(name) == ("mpc-oracle" if name in WEIGHING else "oracle")
        assert len(kind.summary) > 20
    situation = Situation(np.ones((1, 60)), 60.0, 60.0)
    for name, message in (
        ("treshold", "Did you mean threshold"),
        ("price", "add --price"),
        ("power-cap", "add --power-cap"),
    ):
        refused(message, policy_named, name, PolicyInputs(), situation)


def test_a_view_tells_prices_power_and_a_forecast():
    demand = DemandInputs(days=0.2, start_day=3.0)
    options = FleetOptions(FleetInputs(unit_rate=5.0, failures="off"), demand)
    built = scenario(cluster("trn2-ultraserver:100"), azure_code(), options)
    prepared = replace(built, tariff=_hourly_prices).at(built.horizon)
    seen: list[View] = []
    done = run(prepared, lambda view: seen.append(view) or 50.0)
    last = seen[-1]
    assert last.prices_usd_per_mwh[0] == prepared.prices.usd_per_mwh[last.minute]
    actual = timeline(done)["power_w"].iloc[last.minute - 1]
    assert last.power_w == pytest.approx(actual, rel=0.05)
    ahead = last.forecast(120)
    assert ahead.shape == (1, 120)
    assert ahead[0, 0] == pytest.approx(done.load[0, last.minute], rel=0.8)


def test_the_documented_example_runs(tmp_path):
    """The code of docs/how-to/add-a-policy.md, as a file of a user and as a built-in policy."""
    blocks = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.S)
    (mine := tmp_path / "mine.py").write_text(blocks[0])
    options = FleetOptions(FleetInputs(unit_rate=5.0, failures="off"))
    built = scenario(cluster("trn2-ultraserver:20"), constant(60 * 50.0, minutes=600), options)
    prepared = replace(built, tariff=_hourly_prices).at(built.horizon)
    assert summary(run(prepared, policy_of(str(mine), prepared)))["slo_attainment"] == 1.0
    names: dict[str, object] = {}
    exec(blocks[-1], names)
    kind = names["KIND"]
    assert kind.name == "half"
    built = kind.build(PolicyInputs(), Situation(prepared.need, 60.0, 60.0))
    assert summary(run(prepared, built))["inference_chip_hours"] > 0


def test_limits_quantise_in_blocks_above_the_floor():
    limits = Limits(floor=68, cap=278, block=30)
    wishes = [limits.quantised(np.array([wish]), 278)[0] for wish in (0, 68, 69, 98.0, 250, 400)]
    assert wishes == [68, 68, 98, 98, 278, 278]
    assert Limits().quantised(np.array([2.2, 3.0]), 10).tolist() == [3, 3]
    assert Limits(cap=4).quantised(np.array([6.0, 2.0]), 10).tolist() == [3, 1]


@given(
    st.lists(st.floats(0, 1000), min_size=1, max_size=4), st.integers(1, 100), st.integers(0, 50),
    st.integers(1, 500),
)  # fmt: skip
def test_limits_never_exceed_the_fleet(wish, block, floor, units):
    blocks = Limits(block=block, floor=floor).quantised(np.array(wish), units)
    assert blocks.sum() <= units
    assert blocks.min() >= 0
    assert blocks.sum() >= min(floor, units)


def test_threshold_rises_at_once_and_falls_after_the_hold():
    policy = threshold(headroom=0.0, hysteresis=0.0, hold_s=180)
    rise = policy(view_of(load=np.array([[5.0, 5, 8]])))
    fall = policy(view_of(load=np.array([[5.0, 4, 3]]), serving=np.array([8])))
    assert (np.asarray(rise).tolist(), np.asarray(fall).tolist()) == ([8.0], [5.0])


def test_oracle_orders_ahead_bridges_short_valleys_and_respects_the_ramp():
    def orders(minutes: range, **how: float) -> list[float]:
        policy = oracle(need, **how)
        return [float(np.asarray(policy(view_of(minute=minute)))[0]) for minute in minutes]

    need = np.array([[5.0, 1, 5, 1, 1, 1, 1, 1, 1, 5]])
    ahead = orders(range(10), lead_s=120.0, shortest_valley_s=180.0)
    assert ahead == [5, 5, 5, 1, 1, 1, 1, 5, 5, 5]
    assert orders(range(4, 9), ramp=1) == [1, 1, 2, 3, 4]


def test_a_forecast_learns_from_the_errors_of_eight_weeks():
    """What came before them, and their reference days, changes nothing."""
    rng = np.random.default_rng(5)
    shape = 100 + 50 * np.sin(np.arange(DAY) / DAY * 2 * np.pi)
    load = np.tile(shape, 70) * np.exp(rng.normal(0, 0.05, 70 * DAY))
    other = load.copy()
    other[: 6 * DAY] *= rng.uniform(0.2, 5, 6 * DAY)  # wild, and forgotten
    for first_weekday in (0, 3):
        seen = [(each[: 70 * DAY - 5], first_weekday) for each in (load, other)]
        assert len({Margins(0.999).expect(each, 15, begins) for each, begins in seen}) == 1
        seen.append((load[13 * DAY : 70 * DAY - 5], (first_weekday + 13) % 7))
        words = {"every": 15, "steps": 96, "lead": 15}
        ahead = [largest_ahead(each, **words, first_weekday=begins) for each, begins in seen]
        assert (ahead[0] == ahead).all()
        # The reference of a day is the same day of the week before, whatever is left out.
        assert ahead[0][50] == pytest.approx(shape[(70 * DAY - 6 + 15 + 750) % DAY], rel=0.15)


@pytest.mark.parametrize("lead", [1, 22, 200])
def test_errors_that_are_remembered_are_those_of_the_whole_load(lead):
    """A margin that grows with the load is the quantile of the errors of all decisions so far."""
    rng = np.random.default_rng(lead)
    load = rng.uniform(0, 9, 9 * DAY) * (rng.random(9 * DAY) < 0.1)  # often nothing for a while
    margins = Margins(0.97)
    for end in [1, *range(8, len(load), 45)]:
        expected, came = predict(load[:end], every=15, lead=lead, first_weekday=4)
        ended = np.isfinite(came) & (expected > 0)
        ratio = np.quantile(came[ended] / expected[ended], 0.97) if ended.any() else 1.0
        assert margins.expect(load[:end], lead, 4) == expected[-1] * np.clip(ratio, 1.0, 3.0)


def test_forecast_looks_at_the_same_kind_of_day():
    week = np.concatenate([np.full(DAY, level) for level in (5, 1, 1, 9, 9.0)])
    expected, _ = predict(week[: 3 * DAY + 1], every=15, lead=15, first_weekday=4)
    assert expected[-2:].tolist() == [5.0, 5.0]
    assert days_back(np.array([3 * DAY]), 4).tolist() == [3]
    # The forecast of a flat load is the load with its headroom, every quarter of an hour.
    policy = forecast()
    load = np.full((1, 3 * DAY), 7.0)
    assert policy(view_of(minute=3 * DAY, load=load)) == pytest.approx([7.35])
    assert policy(view_of(minute=3 * DAY + 1, load=load)) is None
    # Smoothing is a trailing mean.
    assert smoothed(np.array([5.0, 0, 0, 0, 0, 10])).tolist() == [5, 2.5, 5 / 3, 1.25, 1, 2]


@pytest.mark.parametrize(("wrong", "message"), [
    *((wrong, "the policy answered") for wrong in ("many", [1, 2], float("nan"), -0.5, 1e300)),
    (Decision(None, jobs={"big": -2}), "-2 units work for job big"),
    *((Decision(None, wrong), "units train; it must be a whole number")
      for wrong in (2.5, [None], [float("nan")], ["many"], "3", True)),
    *((Decision(None, batch=wrong), "units do batch work; it") for wrong in ("3", [1], True)),
    (Decision(None, jobs={"big": "2"}), "lets '2' units work for job big; it must be a number"),
    *((Decision(None, power_w=wrong), "caps power at") for wrong in ("3", [1, 2], True)),
    (Decision(None, []), "limits training of 0 kinds of units; there"),
    (Decision(None, [1, 1]), "limits training of 2 kinds of units; there"),
])  # fmt: skip
def test_an_answer_that_says_nothing_is_refused(wrong, message):
    refused(message, answer, lambda _: wrong, view_of(kinds=(None,)), np.array([3.0]))


def test_answers_are_kept_and_limit_training():
    view, before = view_of(kinds=(None,)), np.array([3.0])
    assert answer(lambda _: None, view, before).serving is before
    for limits in (2, 2.0, [2], (2,), np.array([2]), np.int64(2)):
        training = answer(lambda _, limits=limits: Decision(None, limits), view, before).training
        assert np.atleast_1d(np.asarray(training)).tolist() == [2]
    with pytest.raises(InputError, match="one number for 2 services"):
        answer(static(1), view_of(load=np.ones((2, 1))), np.zeros(2))


def test_a_users_policy_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def policy(view):\n    return view.load[:, -1] * 2\n")
    assert np.asarray(load_policy(path)(view_of())).tolist() == [2.0]
    for text, message in (
        ("def policy(view):\n    return view.lod\n", "minute 0: AttributeError"),
        ("def policy(view):\n    raise SystemExit(3)\n", "minute 0: SystemExit: 3"),
        ("x = 1\n", "defines no function policy"),
        ("1/0\n", "ZeroDivisionError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_policy(path)(view_of())
    refused("there is no such file in", load_policy, tmp_path / "none.py")


def test_what_a_users_policy_prints_stays_off_standard_output(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("print('loaded')\ndef policy(view):\n    print('asked')\n    return 2\n")
    assert load_policy(path)(view_of()) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "loaded\nasked\n")


def test_settings_of_a_user_s_policy_are_parameters_of_its_function(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def policy(view, margin=1.5, floor=1):\n    return margin * floor\n")
    assert load_policy(path)(view_of()) == 1.5
    assert load_policy(path, "margin=2,floor=3")(view_of()) == 6.0
    for stated, message in (
        ("margn=2", r"has no 'margn'\. Did you mean margin\?"),
        ("floor=2.5", r"floor is '2\.5'; write a value such as floor=1\."),
        ("margin", r"margin is ''; write a value such as margin=1\.5\."),
    ):
        refused(message, load_policy, path, stated)


@pytest.mark.parametrize(("hysteresis", "load", "backlog", "units"), [
    (0.05, 96.0, 0.0, 100.0),
    (0.05, 94.0, 0.0, 94.0),
    (0.2, 81.0, 0.0, 100.0),
    (0.2, 79.0, 0.0, 79.0),
    (0.0, 99.0, 0.0, 99.0),
    (0.5, 130.0, 0.0, 130.0),  # more load than units is followed at once
    (0.05, 90.0, 300.0, 120.0),  # waiting work of 300 unit-minutes takes 30 more for ten
])  # fmt: skip
def test_units_stay_while_fewer_than_the_hysteresis_are_idle(hysteresis, load, backlog, units):
    """Units wanted of 100 that serve, after an hour of a load, without headroom."""
    loads, waiting = np.full((1, 60), load), np.full(1, backlog)
    view = view_of(minute=60, load=loads, serving=np.array([100]), units=200, backlog=waiting)
    assert np.asarray(threshold(headroom=0.0, hysteresis=hysteresis)(view)).tolist() == [units]
