"""Policies that see prices, power and a forecast, the registry, and the documented example."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.demand import azure_code, constant
from workloads.economics import Economics
from workloads.fleet.inputs.prices import Prices
from workloads.fleet.policies.registry import KINDS, bound_of, policy_named
from workloads.fleet.policies.view import Situation, View
from workloads.fleet.results import power_w, role_units, summary, timeline
from workloads.fleet.scenario import Scenario, policy_of, run, scenario
from workloads.fleet.state.world import Role
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, PolicyInputs

UNITS = 100
ECONOMICS = Economics(750.0, 400.0, 1.12, 0.001)
WEIGHING = ("price", "power-cap", "mpc", "mpc-oracle")
HOW_TO = Path(__file__).parents[3] / "docs" / "how-to" / "add-a-policy.md"


def _hourly_prices(_start: str, minutes: int) -> Prices:
    """Dear from noon to midnight."""
    hours = np.arange(minutes) // 60 % 24
    return Prices(np.where(hours < 12, 20.0, 100.0))


def _scenario(*, days: float = 2.0, priced: bool = False) -> Scenario:
    options = FleetOptions(
        FleetInputs(unit_rate=5.0, failures="off"), DemandInputs(days=days, start_day=3.0)
    )
    built = scenario(cluster(f"trn2-ultraserver:{UNITS}"), azure_code(), options)
    built = replace(
        built.changed(lambda _: {"economics": ECONOMICS}),
        tariff=_hourly_prices if priced else None,
    )
    return built.at(built.horizon)


def test_every_policy_is_one_entry_and_says_what_it_does() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.bound in KINDS
        assert bound_of(name) == ("mpc-oracle" if name in WEIGHING else "oracle")
        assert len(kind.summary) > 20
    situation = Situation(np.ones((1, 60)), 60.0, 60.0)
    with pytest.raises(InputError, match="Did you mean threshold"):
        policy_named("treshold", PolicyInputs(), situation)
    with pytest.raises(InputError, match="add --price"):
        policy_named("price", PolicyInputs(), situation)
    with pytest.raises(InputError, match="add --power-cap"):
        policy_named("power-cap", PolicyInputs(), situation)


def test_price_trains_only_in_the_cheap_half() -> None:
    prepared = _scenario(priced=True)
    done = run(prepared, policy_of("price", prepared, price_share=0.5))
    units = role_units(done)[:, [Role.TRAINING, Role.EVALUATION]].sum(axis=1)
    hours = np.arange(done.minutes) // 60 % 24
    # Evaluation that is ordered out at noon drains for a minute, and no more.
    assert units[(hours >= 12) & (np.arange(done.minutes) % 60 > 10)].max() < 1.0
    assert units[(hours < 12) & (np.arange(done.minutes) % 60 > 40)].mean() > 20
    always = run(prepared, policy_of("price", prepared, price_share=1.0))
    cheap, dear = (summary(each, prepared.prices) for each in (done, always))
    assert cheap["electricity_usd"] < dear["electricity_usd"]
    assert cheap["slo_attainment"] == pytest.approx(dear["slo_attainment"], abs=0.01)


def test_power_stays_under_its_cap_and_serving_goes_on() -> None:
    prepared = _scenario()
    free = run(prepared, policy_of("forecast", prepared))
    cap_w = 0.9 * float(power_w(free).max())
    held = run(prepared, policy_of("power-cap", prepared, power_cap=cap_w / 1e6))
    trains = role_units(held)[:, [Role.TRAINING, Role.EVALUATION]].any(axis=1)
    assert not (trains & (power_w(held) > cap_w * (1 + 1e-9))).any()
    kept, was = (summary(each) for each in (held, free))
    assert kept["slo_attainment"] == pytest.approx(was["slo_attainment"], abs=0.01)
    assert kept["training_chip_hours"] < was["training_chip_hours"]


def test_a_view_tells_prices_power_and_a_forecast() -> None:
    prepared = _scenario(days=0.2, priced=True)
    seen: list[View] = []

    def policy(view: View) -> float:
        seen.append(view)
        return 50.0

    done = run(prepared, policy)
    last = seen[-1]
    assert last.prices_usd_per_mwh[0] == prepared.prices.usd_per_mwh[last.minute]  # type: ignore[union-attr]
    actual = timeline(done)["power_w"].iloc[last.minute - 1]
    assert last.power_w == pytest.approx(actual, rel=0.05)
    ahead = last.forecast(120)
    assert ahead.shape == (1, 120)
    came = done.load[0, last.minute : last.minute + 1]
    assert ahead[0, 0] == pytest.approx(float(came[0]), rel=0.8)


def test_the_documented_example_runs(tmp_path: Path) -> None:
    """The code of docs/how-to/add-a-policy.md, as a file of a user and as a built-in policy."""
    blocks = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.S)
    mine = tmp_path / "mine.py"
    mine.write_text(blocks[0])
    options = FleetOptions(FleetInputs(unit_rate=5.0, failures="off"))
    built = scenario(cluster("trn2-ultraserver:20"), constant(60 * 50.0, minutes=600), options)
    prepared = replace(built, tariff=_hourly_prices).at(built.horizon)
    done = summary(run(prepared, policy_of(str(mine), prepared)))
    assert done["slo_attainment"] == 1.0
    names: dict[str, object] = {}
    exec(blocks[-1], names)
    kind = names["KIND"]
    assert kind.name == "half"  # type: ignore[attr-defined]
    built = kind.build(PolicyInputs(), Situation(prepared.need, 60.0, 60.0))  # type: ignore[attr-defined]
    assert summary(run(prepared, built))["inference_chip_hours"] > 0
