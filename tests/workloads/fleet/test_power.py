"""Power, energy and money: caps over several kinds of units, and kinds whose power is unknown."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from tests.support.examples import examples
from tests.support.toy_fleet import FLAT_DAY, SERVICE, simulate, view_of
from topologies.clusters.names import cluster
from workloads.economics import Economics
from workloads.fleet.policies.power import left_w, units_within
from workloads.fleet.policies.rules import static
from workloads.fleet.policies.view import JobView, KindView, View
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import kind_units, regret, summary
from workloads.fleet.state.world import Role


def _kind(name: str, units: int, serving: int, busy_w: float) -> KindView:
    """Return a kind whose units draw a third of their power when idle."""
    at_work, none = np.array([serving]), np.zeros(1, np.int64)
    speed = np.ones(1)
    return KindView(name, units, 0, at_work, none, 0, speed, busy_w, busy_w / 3, "", speed)


def _view(*kinds: KindView, jobs: tuple[JobView, ...] = ()) -> View:
    units, serving = sum(kind.units for kind in kinds), [kind.serving for kind in kinds]
    return view_of(units=units, serving=np.sum(serving, axis=0), look_at_jobs=lambda: jobs,
                   kinds=kinds)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 3), st.floats(10, 99), st.floats(0.1, 9)),
        min_size=2,
        max_size=3,
    ),
    st.floats(0, 1.2),
)
@examples(60)
def test_as_much_trains_within_the_watts_as_by_brute_force(
    stated: list[tuple[int, int, float, float]], level: float
) -> None:
    kinds = [
        _kind(f"kind {n}", units, min(serving, units), busy_w)
        for n, (units, serving, busy_w, _) in enumerate(stated)
    ]
    view, worth = _view(*kinds), np.array([each[-1] for each in stated])
    rises = np.array([kind.rise_w for kind in kinds])
    cap_w = level * sum(kind.units * kind.unit_busy_w for kind in kinds)
    watts = left_w(view, cap_w)
    spare = [kind.units - int(kind.serving.sum()) for kind in kinds]
    allowed = np.array(units_within(view, watts, worth, (), np.full(len(kinds), np.inf)))
    assert rises @ allowed <= max(watts, 0.0) * (1 + 1e-12)
    trained = worth @ np.minimum(allowed, spare)
    choices = itertools.product(*(range(units + 1) for units in spare))
    best = max(
        (worth @ np.array(units) for units in choices if rises @ np.array(units) <= watts),
        default=0.0,
    )
    assert trained <= best + 1e-9
    assert trained >= best - worth.max() + 1e-9 or trained == pytest.approx(best)


def test_training_is_shed_first_where_a_watt_trains_least() -> None:
    view = _view(_kind("frugal", 10, 0, 30.0), _kind("hungry", 10, 0, 90.0))
    worth, rest = np.array([1.0, 2.0]), np.full(2, np.inf)
    assert [kind.rise_w for kind in view.kinds] == [20.0, 60.0]
    for watts, units in ((800.0, [10, 10]), (500.0, [10, 5]), (150.0, [7, 0]), (-1.0, [0, 0])):
        assert units_within(view, watts, worth, (), rest) == units
    # Units of a plan go first, and a gang gets no part of its fewest units, or of its steps.
    assert units_within(view, 150.0, worth, [0, 2], rest) == [1, 2]
    gangs = JobView("a", 9, 4, 0, kind="frugal", step_units=5), JobView("b", 9, 1, 0, kind="hungry")
    view = _view(*view.kinds, jobs=gangs)
    assert units_within(view, 140.0, worth, (), np.zeros(2)) == [4, 1]
    assert units_within(view, 70.0, worth, (), np.zeros(2)) == [0, 1]


@pytest.mark.parametrize("policy", ["power-cap", "mpc"])
@pytest.mark.parametrize("serves", ["trn2-ultraserver", "trn3-gen2"])
def test_a_fleet_of_two_kinds_keeps_its_cap(policy: str, serves: str) -> None:
    words = {"unit_rate": 5.0, "days": 0.4, "scale_to_peak": 0.5, "failures": "off"}
    cap_w = 2.0e6
    done = cs.run_fleet(
        ["trn2-ultraserver:10", "trn3-gen2:10"],
        policy=policy,
        power_cap=cap_w / 1e6,
        serve_on=serves,
        **words,  # type: ignore[arg-type]
    )
    draw_w = done.frame()["power_w"].to_numpy()
    trains = sum(kind_units(kind)[:, Role.TRAINING] for kind in done.run.kinds)
    over = draw_w > cap_w * (1.001 if policy == "power-cap" else 1.04)
    assert not (over & (trains > 0)).any()
    assert all(kind["training_tokens"] > 0 for kind in done.summary["kinds"])


def test_energy_of_a_site_is_unknown_where_that_of_a_kind_is(
    tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds, prices = ["trn2-ultraserver:4", "tpu-v6e-pod:2"], tmp_path / "prices.csv"
    prices.write_text("hour,usd_per_mwh\n" + "".join(f"{hour},50\n" for hour in range(24)))
    done = cs.run_fleet(kinds, unit_rate=5.0, days=0.1, policy="threshold", price=prices).summary
    for name in ("energy_joules", "power_peak_w", "electricity_usd", "cost_with_electricity_usd"):
        assert done[name] is None
    assert done["cost_usd"] > 0
    assert [row["energy_joules"] is None for row in done["kinds"]] == [False, True]
    line = ["fleet", "--unit-rate", "5", "--days", "0.1", "--no-compare", "--no-intervals"]
    assert run([*line, *(f"--kind={kind}" for kind in kinds)]) == 0
    assert "no power of tpu-v6e-pod; trn2-ultraserver drew" in capsys.readouterr().err


def test_regret_is_zero_for_the_oracle_itself() -> None:
    best = {"training_chip_hours": 50.0, "slo_attainment": 1.0}
    none = {"training_chip_hours": 10.0, "slo_attainment": 1.0}
    assert regret(best, best, none)["regret_training_chip_hours"] == 0.0
    assert regret(best, best, none)["captured"] == 1.0
    assert regret(none, best, none)["captured"] == 0.0


def test_economics_of_machines() -> None:
    rainier = Economics.of(cluster("rainier"))
    assert rainier.busy_w == 750.0
    assert rainier.usd_per_chip_s * 3600 == pytest.approx(2.235)
    assert Economics.of(cluster("p5en.48xlarge:4")).idle_w > 0


def test_energy_and_cost_of_a_day() -> None:
    run = simulate(FLAT_DAY, [SERVICE], Fleet(100), static(100))
    numbers = summary(run)
    half = 100 * 64 * (400 + 0.5 * 350) * 1.12
    assert numbers["power_mean_w"] == pytest.approx(half, rel=0.01)
    assert numbers["cost_usd"] == pytest.approx(100 * 64 * 24 * 2.235)
    assert numbers["usd_per_training_step"] is None
