"""Electricity by the hour: reading prices, their cost, and training held while they are high."""

from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from tests.support.refusals import refused
from tests.support.toy_fleet import simulate, view_of
from topologies.support.errors import InputError
from workloads.demand import constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, evaluation_job
from workloads.fleet.inputs.prices import Prices, read_tariff
from workloads.fleet.policies.rules import price_aware, static
from workloads.fleet.results import power_w, role_units, summary
from workloads.fleet.state.services import Fleet, Service
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate

SERVICE = Service("service", fixed_rate(10.0))
ECONOMICS = Economics(busy_w=500.0, idle_w=150.0)
MINUTES = 600
DEAR = (np.arange(MINUTES) >= 200) & (np.arange(MINUTES) < 320)


def test_a_bad_price_file_is_refused_before_capacity_is_simulated(tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the capacity was simulated first")

    monkeypatch.setattr("workloads.fleet.setup.serving.capacity_table", never)
    (bad := tmp_path / "price.csv").write_text("hour,usd_per_mwh\n25,10\n")
    with pytest.raises(
        InputError,
        match=r"hour must be 0 to 23 of a day, .* in one row each. Rows: 1, different hours: 1",
    ):
        cs.run_fleet("trn2-ultraserver:2", model="llama-3.1-8b", days=0.1, price=bad)


def test_a_mistake_in_prices_by_region_names_the_region_and_the_row(tmp_path):
    path = tmp_path / "price.csv"
    rows = [f"{at},{hour},20" for at in ("us", "eu") for hour in range(24)]
    for last, message in (
        ("eu,24,20", "price.csv, region eu: hour must be 0 to 23"),
        ("eu,23,", "price.csv, region eu, row 49: usd_per_mwh is empty; it must be a number"),
    ):
        path.write_text("\n".join(["region,hour,usd_per_mwh", *rows[:-1], last]))
        refused(message, read_tariff, path, zones={"us": -8.0, "eu": 1.0})


def _run(held):
    """Ten units serve; four pause, four checkpoint or shrink, two evaluate."""
    paused = TrainingJob("paused", 4, 4, reclaim="pause")
    jobs = (paused, TrainingJob("saved", 4, 2, reclaim="shrink"), evaluation_job(20))
    return simulate(
        constant(10.0, minutes=MINUTES), [SERVICE], Fleet(20, costs=ChangeCosts.fixed(60.0)),
        static(10), held=held, jobs=jobs, economics=ECONOMICS,
    )  # fmt: skip


def test_training_that_is_held_is_saved_and_goes_on_afterwards():
    free, held = _run(np.zeros(MINUTES, bool)), _run(DEAR)
    units = role_units(held)
    busy = units[:, Role.TRAINING] + units[:, Role.EVALUATION]
    assert busy[:200] == pytest.approx(10.0)
    assert busy[202:320].max() == 0.0
    assert busy[325:] == pytest.approx(10.0)
    assert units[210:320, Role.PAUSED] == pytest.approx(4.0)
    assert units[:, Role.SERVING] == pytest.approx(10.0)
    for (_, before), (_, after) in zip(free.jobs, held.jobs, strict=True):
        assert after.lost_tokens == 0.0
        assert after.tokens / before.tokens == pytest.approx(1 - 120 / MINUTES, abs=0.01)
        assert (after.reclaims, after.starts) == (1, 1)


def test_electricity_costs_its_price_in_every_minute():
    prices = Prices(np.where(DEAR, 90.0, 30.0), cap_usd_per_mwh=50.0)
    held, free = _run(prices.dear), _run(np.zeros(MINUTES, bool))
    numbers = summary(held, prices)
    assert numbers["held_minutes"] == 120
    mwh = power_w(held) / 60 / 1e6
    assert numbers["electricity_usd"] == pytest.approx(30 * mwh[~DEAR].sum() + 90 * mwh[DEAR].sum())
    assert numbers["electricity_usd"] < summary(free, prices)["electricity_usd"]
    assert summary(free)["electricity_usd"] is None


def test_hours_of_a_day_repeat_and_those_of_a_week_begin_on_monday(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("hour,usd_per_mwh\n" + "".join(f"{h},{h - 5}\n" for h in reversed(range(24))))
    day = read_tariff(file)("2024-05-10T22:30", 180)
    assert day.usd_per_mwh.tolist() == [17.0] * 30 + [18.0] * 60 + [-5.0] * 60 + [-4.0] * 30
    assert not day.dear.any()
    file.write_text("hour,usd_per_mwh\n" + "".join(f"{h},{h}\n" for h in range(168)))
    week = read_tariff(file, cap=100.0)("2024-05-12T23:59", 2)  # Sunday, then Monday
    assert (week.usd_per_mwh.tolist(), week.dear.tolist()) == ([167.0, 0.0], [True, False])


def test_dated_prices_hold_until_the_next(tmp_path):
    file = tmp_path / "prices.csv"
    file.write_text("time,usd_per_mwh\n2024-05-10T00:00,10\n2024-05-10T01:00Z,20\n")
    assert read_tariff(file)("2024-05-10T00:59", 2).usd_per_mwh.tolist() == [10.0, 20.0]
    assert len(read_tariff(file)("2024-05-10T00:00", 120).usd_per_mwh) == 120
    refused("do not cover the run", read_tariff(file), "2024-05-10T00:00", 121)


@pytest.mark.parametrize(("text", "message"), [
    ("hour,usd\n0,1\n", "has no 'usd'"),
    ("usd_per_mwh\n1\n", "one of hour and time"),
    ("hour,usd_per_mwh\n0,1\n1,2\n", "0 to 23"),
    ("hour,usd_per_mwh\n0,x\n", "row 2: usd_per_mwh is 'x'; it must be a number from -1,000,000"),
    ("hour,usd_per_mwh\n0,1e300\n", "row 2: usd_per_mwh is '1e.300'; it must be a number"),
    ("time,usd_per_mwh\n2024-05-10,1\n2024-05-09,1\n", "ascending times"),
    ("time,usd_per_mwh\nnoon,1\n2024-05-09,1\n", "ascending times"),
])  # fmt: skip
def test_bad_prices_are_refused(tmp_path, text, message):
    (file := tmp_path / "prices.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_tariff(file)("2024-05-10T00:00", 60)


DAY = 1440
HOURS = np.arange(24)
NIGHT_TARIFF = np.where(HOURS < 8, 20.0, 100.0)


@pytest.mark.parametrize(("hourly", "share", "hours"), [
    (NIGHT_TARIFF, 0.0, 0),
    (NIGHT_TARIFF, 8 / 24, 8),
    (NIGHT_TARIFF, 1.0, 24),
    (np.full(24, 50.0), 0.5, 12),
    (20.0 + HOURS, 0.25, 6),
])  # fmt: skip
def test_the_stated_share_of_each_day_trains(hourly, share, hours):
    prices = np.repeat(np.tile(hourly, 3), 60)
    policy = price_aware(static(1), share=share)
    trains = np.zeros(2 * DAY, bool)
    for minute in range(len(trains)):
        view = view_of(
            minute=minute, hour=minute % DAY / 60, load=np.ones((1, minute + 1)),
            prices_usd_per_mwh=prices[minute:],
        )  # fmt: skip
        trains[minute] = policy(view).training is None
    assert (trains.reshape(2, DAY).sum(axis=1) / 60).tolist() == [hours] * 2


def _by_region(folder):
    """Prices and carbon of two regions by the hour of their clocks."""
    file = folder / "regions.csv"
    rows = [f"{name},{h},{h + base},{carbon * (h + 1)}" for name, base, carbon in
            (("us", 10, 20), ("eu", 60, 5)) for h in HOURS]  # fmt: skip
    file.write_text("region,hour,usd_per_mwh,carbon_g_per_kwh\n" + "\n".join(rows) + "\n")
    return file


def test_prices_and_carbon_are_those_of_a_region_at_its_hour(tmp_path):
    tariff = read_tariff(_by_region(tmp_path), carbon_usd_per_t=50.0, zones={"us": -8.0, "eu": 1.0})
    prices = tariff("2024-05-10T00:00", 24 * 60)
    each = {name: prices.within(name) for name in ("us", "eu")}
    assert each["us"].usd_per_mwh[::60].tolist() == ((HOURS - 8) % 24 + 10).tolist()
    assert each["eu"].usd_per_mwh[::60].tolist() == ((HOURS + 1) % 24 + 60).tolist()
    carbon = 5.0 * ((HOURS + 1) % 24 + 1)
    weighed = each["eu"].usd_per_mwh[::60] + 0.05 * carbon  # 1 g/kWh is 1 kg/MWh
    assert each["eu"].weighed_usd_per_mwh[::60] == pytest.approx(weighed)
    assert each["eu"].carbon_kg(np.full(24 * 60, 2e6)) == pytest.approx(2.0 * carbon.sum())


def _run_regions(folder, policy, **words):
    """Run a day of ten units in either region."""
    machines = {"us": "trn2-ultraserver:10", "eu": "trn2-ultraserver:10"}
    return cs.run_fleet(
        machines, policy=policy, price=_by_region(folder), days=1.0, unit_rate=5.0,
        region=("us=-8:50%", "eu=+1:50%"), failures="off", scale_to_peak=0.4, **words,
    )  # fmt: skip


def test_each_region_trains_when_its_own_power_is_cheap(tmp_path):
    done = _run_regions(tmp_path, "price", price_share=0.5)
    frame, kinds = done.frame(), done.run.kinds
    hour = np.arange(len(frame)) // 60
    prices = done.scenario.prices
    for kind, ahead_h in zip(kinds, (-8, 1), strict=True):
        local = (hour + ahead_h) % 24  # the cheaper half of its day is the first
        assert frame[f"{kind.name}_training_units"][local >= 13].max() == 0
        assert frame[f"{kind.name}_training_units"][(local > 0) & (local < 11)].mean() > 0
    rows = {row["region"]: row for row in done.summary["regions"]}
    for name in ("electricity_usd", "carbon_kg"):
        assert rows["us"][name] + rows["eu"][name] == pytest.approx(done.summary[name])
    whole = power_w(done.run) / 60 / 1e6
    assert done.summary["electricity_usd"] < whole @ prices.within("eu").usd_per_mwh
    ends = done.intervals["carbon_kg"]
    assert ends["low"] <= done.summary["carbon_kg"] <= ends["high"]


def test_the_price_of_trained_tokens_leaves_evaluation_out_where_it_is_said_so():
    """Ten of twenty units serve, eight train and two evaluate, all alike."""
    jobs = (
        TrainingJob("run", 8, 8, tokens_per_s=((8, 100.0),)),
        replace(evaluation_job(20), tokens_per_s=((1, 1.0),)),
    )
    done = summary(
        simulate(constant(10.0, minutes=MINUTES), [SERVICE], Fleet(20), static(10), jobs=jobs)
    )
    hours, tokens = done["chip_hours_by_role"], done["training_tokens"]
    worked = done["inference_chip_hours"] + done["training_chip_hours"]
    alone = done["cost_usd"] * hours["training"] / worked / tokens * 1e6
    assert hours["evaluation"] > 0
    key = "usd_per_million_trained_tokens"
    assert done[f"{key}_without_evaluation"] == pytest.approx(alone)
    assert done[key] > done[f"{key}_without_evaluation"]
