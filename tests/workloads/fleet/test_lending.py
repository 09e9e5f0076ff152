"""Lending for a night: windows, calibration on unseen traces, loans, and the command."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.commands import document_of
from tests.support.examples import examples
from tests.support.refusals import refused
from topologies.clusters.names import cluster
from workloads.confidence.poisson import fewest_of_sizes
from workloads.fleet.lending.answer import (
    BatchNeed,
    Night,
    Terms,
    largest_return,
    lend,
    whole_loans,
    without_short_loans,
)
from workloads.fleet.lending.backtest import Nights, expectations
from workloads.fleet.lending.front import read_calendar, with_shared_return
from workloads.fleet.processes.failures import failures_from

DAY = 1440


def _trace(seed, days=50, *, noise, level, weekend):
    """Requests a minute with a day's shape, quiet weekends, days of unequal size, and noise."""
    rng = np.random.default_rng(seed)
    minute = np.arange(days * DAY)
    hour = minute % DAY / 60
    shape = 1 + 0.8 * np.sin((hour - 9) / 12 * np.pi)
    size = np.exp(np.cumsum(rng.normal(0, level / 3, days)) + rng.normal(0, level, days))
    mean = 1000 * shape * np.where(minute // DAY % 7 >= 5, weekend, 1.0) * size[minute // DAY]
    return rng.poisson(mean * rng.gamma(noise**-2, noise**2, len(minute))).astype(float)


NOISY = _trace(2, noise=0.15, level=0.1, weekend=0.7)


def _units(trace, units=1000):
    return trace / trace.max() * 0.9 * units


@pytest.mark.parametrize("each_s", [0.0, 20.0, 45.0, 70.0, 200.0, 2000.0])
def test_units_that_share_a_store_are_back_in_time_and_no_others_count(each_s):
    day = np.repeat([30.0, 10.0, 20.0, 5.0, 100.0], [240, 45, 90, 120, 945])
    plain = lend(np.tile(day, 14), "2024-01-01T00:00", Night("08:15"), Terms(100, start_s=60.0))
    shared = with_shared_return(plain, lambda units: units * each_s)
    together = largest_return(shared.runs)
    assert shared.terms.reclaim_s == max(together, 1) * each_s
    for run in shared.runs:
        assert (run.last - run.first) * 60 > 60.0 + together * each_s
    # Lending for one unit more than return would leave units out for nothing.
    fewer_s = max(together - 1, 1) * each_s
    freer = replace(plain, terms=replace(plain.terms, reclaim_s=fewer_s))
    assert freer.unit_hours >= shared.unit_hours
    assert with_shared_return(plain, lambda _: 0.0).unit_hours >= shared.unit_hours


def test_the_backtest_is_what_would_have_been_answered():
    """The walk through the history gives each night the answer that a cut history gives."""
    need, question = _units(NOISY), Night("06:00", confidence=0.85)
    whole = lend(need, "2024-01-01T00:00", question, Terms(1000))
    for place in (3, 7, len(whole.tested) - 1):
        day = len(need) // DAY - len(whole.nights) + int(whole.tested.number[place])
        cut = lend(need[: day * DAY], "2024-01-01T00:00", question, Terms(1000))
        assert np.array_equal(cut.tested.coming, whole.tested.capacity[place])


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12))
@examples(60)
def test_loans_add_up_to_the_windows(units):
    edges = list(range(0, 60 * len(units) + 1, 60))
    total = np.zeros(60 * len(units), int)
    for loan in whole_loans(edges, units):
        total[loan.first : loan.last] += loan.units
    assert total.tolist() == np.repeat(units, 60).tolist()


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(0, 400))
@examples(60)
def test_a_unit_is_lent_for_longer_than_a_change_there_and_back(units, least):
    """Each unit's stretches are cut by brute force: the n-th unit is free where n are."""
    edges = list(range(0, 60 * len(units) + 1, 60))
    lent = without_short_loans(edges, np.array(units), least)
    expected = np.zeros(len(units), int)
    for number in range(1, max(units) + 1):
        free = "".join("x" if count >= number else " " for count in units)
        for stretch in re.finditer("x+", free):
            if 60 * len(stretch[0]) > least:
                expected[stretch.start() : stretch.end()] += 1
    assert lent.tolist() == expected.tolist()
    most = max(np.maximum(-np.diff([*units, 0]), 0), default=0)
    assert largest_return(whole_loans(edges, units)) == most


@pytest.mark.parametrize(("hours", "lent"), [(0.0, 800.0), (4.9, 800.0), (5.0, 0.0)])
def test_units_that_could_not_be_back_are_not_lent(hours, lent):
    """Ten hours of 80 units, and a change that takes as long in either direction."""
    day = np.repeat([20.0, 80.0], [600, 840])
    terms = Terms(100, start_s=hours * 3600, reclaim_s=hours * 3600, tokens_per_unit_s=1.0)
    loan = lend(np.tile(day, 21), "2024-01-01T00:00", Night("10:00"), terms)
    assert loan.unit_hours == loan.summary()["backtest"]["lent_unit_hours"] / len(loan.tested)
    assert loan.unit_hours == lent
    assert loan.training_tokens == pytest.approx(lent / 10 * (10 - 2 * hours) * 3600)
    assert bool(loan.short_note) == (lent == 0)


def test_change_time_inf_lends_nothing():
    done = cs.lend("trn2-ultraserver:60", "burstgpt", unit_rate=10.0, change_time="inf")
    never = done.summary
    assert (never["lent_unit_hours"], never["loans"], never["usd"]) == (0.0, [], 0.0)
    assert never["reclaim_latency_s"] is None
    assert "are not lent, as no unit can change its role" in done.loan.short_note


def test_reserve_counts_racks_that_fail():
    """Mean units out of 7,812: 7.03 by servers, 1.39 by racks of half a unit, 0.08 by cables."""
    machine = cluster("rainier")
    out = failures_from(machine, (), domains=True).units_out(machine.domains)
    assert out[1] == pytest.approx(7.031 + 2.776 / 2 + 0.080, abs=2e-3)
    assert fewest_of_sizes(0.95, out) == 14 > fewest_of_sizes(0.95, {1: 7.031})


def test_what_a_loan_earns():
    """Ten hours of 80 units: chip-hours by price, tokens without starting and giving back.

    A batch tier takes its part of the 800 unit-hours before anything trains.
    """
    day = np.repeat([20.0, 80.0], [600, 840])
    terms = Terms(
        100, 64, start_s=600.0, reclaim_s=300.0, tokens_per_unit_s=1000.0, usd_per_chip_s=0.001
    )
    loan = lend(np.tile(day, 21), "2024-01-01T00:00", Night("10:00"), terms)
    assert loan.unit_hours == 800.0
    assert loan.usd == pytest.approx(800 * 64 * 3.6)
    assert loan.training_tokens == pytest.approx(80 * (36_000 - 900) * 1000.0)
    summary = loan.summary()
    assert summary["loans"][0]["reclaim_at"] == "2024-01-22T09:55"
    assert summary["backtest"]["lent_unit_hours"] == summary["backtest"]["hindsight_unit_hours"]
    assert summary["backtest"]["violated"] == 0
    free = replace(loan, terms=Terms(100, tokens_per_unit_s=2.0, goodput=0.9))
    for batch_h, trained_h in ((0.0, 800.0), (300.0, 500.0), (900.0, 0.0)):
        both = replace(free, batch=BatchNeed(batch_h, 0))
        assert both.training_tokens == pytest.approx(trained_h * 3600 * 2.0 * 0.9)


def test_mistakes_are_told_in_a_line(tmp_path):
    flat = np.full(3 * DAY, 10.0)
    refused("whole nights; at least 5", lend, flat, "2024-01-01T00:00", Night("06:00"), Terms(20))
    refused("not a time of day", lend, flat, "2024-01-01T00:00", Night("6am"), Terms(20))
    refused("confidence of 1 is not in", Night, "06:00", confidence=1.0)
    for text, expected in (("25 December", "'25' is no date; write 2"), ("", "has no date; write")):
        (tmp_path / "holidays.txt").write_text(text)
        refused(expected, read_calendar, tmp_path / "holidays.txt")


def _weeks_with_holidays():
    """Eight weeks whose Wednesdays are holidays, with half of the load, in every other week."""
    days = np.where(np.arange(56) % 7 >= 5, 40.0, 80.0)
    rest = np.arange(2, 56, 14)
    days[rest] = 30.0
    dates = pd.Timestamp("2024-01-01") + pd.to_timedelta(rest, unit="D")
    noise = np.random.default_rng(4).normal(0, 1.0, 56 * DAY)
    return np.repeat(days, DAY) + noise, tuple(dates.strftime("%Y-%m-%d"))


def test_nights_are_judged_by_weekday_and_on_holidays():
    need, dates = _weeks_with_holidays()
    plain = lend(need, "2024-01-01T00:00", Night("06:00"), Terms(100))
    tested = plain.summary()["backtest"]
    assert sum(row["nights"] for row in tested["by_weekday"]) == tested["nights"]
    assert sum(row["violated"] for row in tested["by_weekday"]) == tested["violated"]
    assert [row["weekday"] for row in tested["by_weekday"]][:2] == ["Monday", "Tuesday"]
    seen = plain.nights.unlike
    assert [place for place in np.flatnonzero(seen) if plain.nights.weekday[place] != 2] == []
    assert tested["holidays"]["calendar"] is False
    stated = lend(need, "2024-01-01T00:00", Night("06:00", holidays=dates), Terms(100))
    judged = stated.summary()["backtest"]["holidays"]
    assert judged["calendar"] is True
    assert judged["nights"] == 3  # the first of the four is before the first answer
    assert judged["violated"] == 0


@pytest.mark.parametrize(
    ("holiday", "last", "recent"),
    [(None, 8, [7, 8, 9, 10, 11]), (8, 1, [4, 7, 9, 10, 11]), (1, 8, [7, 8, 9, 10, 11])],
)
def test_a_night_is_expected_to_be_like_earlier_ones_of_its_kind(holiday, last, recent):
    """A Tuesday decided on before the Monday ended; each night needs its own number of units."""
    number, days = 15, np.arange(16)
    need = np.ones((15, 2))  # 2 % of its mean are added to every expectation
    level = np.where(days == number, 3.98, 0.98)  # four times as busy before, with these 2 %
    calendar = days == (-1 if holiday is None else holiday)
    days_of, edges = days[:15, None] + 0.0, np.array([0, 2])
    nights = Nights(need, edges, days_of, level, days % 7, calendar, days - 1)
    both = np.mean([day for day in (1, 8) if day != holiday] + recent)
    forms = [last, np.mean(recent), both, both * 2.0, both * 4.0**0.8]
    assert expectations(nights, number)[:, 0] - 0.02 == pytest.approx(forms)


def test_a_night_differs_from_its_weekday_by_more_than_half():
    need, days = np.ones((21, 2)), np.arange(22)
    need[[8, 10, 11]] = [[0.0], [1.49], [1.51]]  # one of the three nights of each weekday
    others = np.array([0, 2]), need[:, :1], np.ones(22), days % 7, days < 0, days - 1
    assert np.flatnonzero(Nights(need, *others).unlike).tolist() == [8, 11]


def test_a_weekday_that_breaks_too_often_is_named():
    loan = lend(_weeks_with_holidays()[0], "2024-01-01T00:00", Night("06:00"), Terms(100))
    fridays = np.where(loan.nights.weekday[loan.tested.number] == 4, True, False)
    broken = replace(loan, tested=replace(loan.tested, violated=fridays))
    count = int(fridays.sum())
    assert f"exceeded the answer on {count} of {count} Fridays" in broken.weekday_note
    none = replace(loan, tested=replace(loan.tested, violated=np.zeros(len(fridays), bool)))
    assert none.weekday_note == ""


def test_a_loan_carries_all_its_uncertain_inputs():
    """Tokens are less sure than unit-hours, and without any uncertainty everything is a point."""
    stated = {"unit_rate": 10.0, "confidence": "90%", "scale_to_peak": 0.8}
    certain = cs.lend("trn2-ultraserver:40", "burstgpt", **stated, failures="off")
    ends, summary = certain.intervals, certain.summary
    assert ends["inputs"]["capacity"]["low"] == ends["inputs"]["failures"]["high"] == 1.0
    hours = ends["lent_unit_hours"]
    taken = np.quantile(certain.loan.taken_back, 0.9)
    assert hours["low"] == pytest.approx(summary["lent_unit_hours"] * (1 - taken), rel=0.1)
    assert hours["high"] == pytest.approx(summary["lent_unit_hours"])
    width = ends["training_tokens"]["high"] / ends["training_tokens"]["low"]
    steps = ends["inputs"]["step_time"]
    assert width == pytest.approx(steps["high"] / steps["low"], rel=0.05)
    failing = cs.lend("trn2-ultraserver:40", "burstgpt", **stated)
    assert failing.loan.terms.goodput < 1.0
    goodput = failing.intervals["training_goodput"]
    assert goodput["low"] < failing.loan.terms.goodput < goodput["high"]
    assert certain.intervals["training_goodput"] == {"low": 1.0, "high": 1.0}


def test_a_loan_is_shown_by_night_by_lead_time_and_in_a_picture(tmp_path):
    tonight = cs.lend("trn2-ultraserver:50", "burstgpt", unit_rate=1.0, failures="off")
    assert tonight.interval.low <= tonight.loan.unit_hours <= tonight.interval.high
    assert len(tonight.frame()) == tonight.summary["backtest"]["nights"]
    until = tonight.loan.begin.normalize() + pd.Timedelta(hours=30)  # 06:00 of the next day
    middles = tonight.frame().night + (until - tonight.loan.begin) % pd.Timedelta(days=1) / 2
    assert [*tonight.frame().weekday] == [*middles.dt.day_name()]
    assert "unit-hours" in repr(tonight)
    words = ["lend", "--cluster=trn2-ultraserver:50", "--demand=burstgpt", "--unit-rate=1"]
    document = document_of([*words, "--failures=off", f"--out={tmp_path / 'run'}", "--json"])
    assert document["lent_unit_hours"] == tonight.summary["lent_unit_hours"]
    assert (tmp_path / "run" / "lend.png").is_file()


def test_what_a_loan_draws_and_costs_is_that_of_its_chips_for_its_hours():
    terms = Terms(100, watts_per_chip=500.0, usd_per_chip_s=0.5, tokens_per_unit_s=2e6)
    day = np.repeat([20.0, 80.0], [600, 840])
    loan = lend(np.tile(day, 21), "2024-01-01T00:00", Night("10:00"), terms)
    assert loan.energy_joules == pytest.approx(loan.unit_hours * 3600 * 64 * 500.0)
    assert loan.training_tokens == pytest.approx(loan.unit_hours * 3600 * 2e6)
    assert loan.usd_per_million_tokens == pytest.approx(64 * 0.5 / 2)
