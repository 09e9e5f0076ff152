"""Money, energy and regret of a fleet."""

from __future__ import annotations

import pytest

from tests.support.toy_fleet import FLAT_DAY, SERVICE, simulate
from topologies.clusters.names import cluster
from workloads.economics import Economics
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import regret, summary


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
