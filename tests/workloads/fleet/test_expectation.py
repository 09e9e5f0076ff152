"""The closed form of a fleet's lending agrees with a simulated policy that knows the demand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_fleet import slower
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.demand import Demand
from workloads.demand.bundled import demand
from workloads.fleet.expectation import at, broken_share, expected, kept_units, lendable_share
from workloads.fleet.processes.failures import Domain, Failures
from workloads.fleet.results import summary
from workloads.fleet.scenario import Scenario, policy_of, run, scenario
from workloads.fleet.setup.serving import services_from
from workloads.fleet.state.services import Service
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, PolicyInputs

UNITS = 200


def _options(**words: Any) -> FleetOptions:
    period = DemandInputs(days=1, start_day=1)
    return FleetOptions(FleetInputs(unit_rate=20.0), period, PolicyInputs(**words))


@pytest.fixture(scope="module")
def base() -> Scenario:
    options = _options(kind=("trn2-ultraserver:50", f"trn2-ultraserver:{UNITS - 50}"))
    return scenario(cluster(f"trn2-ultraserver:{UNITS}"), demand("azure-conv"), options)


def _simulated(built: Scenario) -> float:
    simulated = summary(run(built, policy_of("oracle", built)))
    return float(simulated["training_chip_hours"] / simulated["chip_hours"])


def test_the_closed_form_is_what_foresight_lends(base):
    """The level within a point, and what longer changes or more demand do within a tenth."""
    middle, share = expected(base).lendable_share, _simulated(base)
    assert middle == pytest.approx(share, abs=0.01)
    costs = slower(base.fleet.change_costs, 2.0)
    moved = (
        base.changed(lambda _: {"fleet": replace(base.fleet, costs=costs)}),
        base.at(replace(base.horizon, demand=base.horizon.demand.times(0.9))),
    )
    for other in moved:
        change = expected(other).lendable_share - middle
        assert abs(change) > 0.01
        assert change == pytest.approx(_simulated(other) - share, rel=0.1)


@pytest.mark.parametrize("capacity", [0.95, 1.2])
def test_a_faster_unit_lends_what_the_same_demand_leaves(base, capacity):
    """The ends of the interval of a unit's capacity, against runs of units that are as fast."""
    other = scenario(
        base.cluster,
        base.demand,
        FleetOptions(
            FleetInputs(unit_rate=20.0 * capacity),
            DemandInputs(days=1, scale_to_peak=0.9 / capacity),
        ),
    )
    assert other.demand.requests == pytest.approx(base.demand.requests)
    share = lendable_share(base, capacity)
    assert share == pytest.approx(lendable_share(other), abs=1e-6)
    assert share == pytest.approx(_simulated(other), abs=0.01)
    assert (share > lendable_share(base)) == (capacity > 1)


def test_what_is_not_lent_is_paid_for(base):
    forecast = expected(base)
    demand = base.demand
    tokens = float((demand.requests * (demand.prompt_tokens + demand.output_tokens)).sum())
    usd = base.economics.usd_per_chip_s * demand.minutes * 60 * UNITS * 64
    paid_usd = usd * (1 - forecast.lendable_share)
    assert forecast.usd_per_million_tokens == pytest.approx(paid_usd / tokens * 1e6)
    assert at(base, shipped_catalogue()) == forecast  # of kinds that are one, as of --cluster


@pytest.mark.parametrize("regions", [(), ("us=-8:70%", "eu=+1:30%")])
def test_the_closed_form_of_several_kinds_is_what_foresight_lends(regions):
    names = ("us", "eu", "us") if regions else ("", "", "")
    clusters = [cluster(each) for each in ("trn2-ultraserver:60", "trn3-gen2:30", "trn3-gen2:20")]
    options = _options(kind=("trn2-ultraserver", "trn3-gen2"), region=regions)
    built = scenario(clusters, demand("azure-conv"), options, places=names)
    whole = expected(built)
    assert whole.lendable_share == pytest.approx(_simulated(built), abs=0.015)
    assert at(built, shipped_catalogue()).lendable_share == pytest.approx(whole.lendable_share)
    assert whole.usd_per_million_tokens == pytest.approx(
        at(built, shipped_catalogue()).usd_per_million_tokens
    )


def test_a_region_without_users_may_be_the_first(monkeypatch):
    clusters = [cluster("trn2-ultraserver:30"), cluster("trn2-ultraserver:60")]
    options = _options(region=("us=-8:0%", "eu=+1:100%"))
    built = scenario(clusters, demand("azure-conv"), options, places=("us", "eu"))
    timed: list[float] = []

    def services(demand: Demand, *rest: Any, **words: Any) -> tuple[Service, ...]:
        """Note the requests for which units are timed; none would be refused."""
        timed.append(demand.requests.sum())
        return services_from(demand, *rest, **words)

    monkeypatch.setattr("workloads.fleet.expectation.services_from", services)
    assert at(built, shipped_catalogue()) == expected(built)
    assert timed == [built.demand.requests.sum()] * 2


def _lent(need: FloatArray, units: float, **changes: float) -> FloatArray:
    """Units that are not kept in each minute."""
    return np.asarray(units - kept_units(need, **changes).sum(axis=0))


def test_changes_without_end_leave_what_the_peak_does_not_need():
    need = np.array([[1.0, 4.0, 2.0], [1.0, 1.0, 1.0]])
    endless = _lent(need, 10.0, lead_s=float("inf"), back_s=0.0)
    assert endless.tolist() == [5.0] * 3
    free = _lent(need, 10.0, lead_s=0.0, back_s=0.0)
    assert free.tolist() == [8.0, 5.0, 7.0]
    # Half a minute is half way between none and one.
    half = _lent(need, 10.0, lead_s=30.0, back_s=0.0)
    assert half.tolist() == [6.5, 5.0, 7.0]


def test_broken_shares_of_servers_and_of_larger_parts_come_together():
    servers = Failures(97 * 3600.0 / 4, 3 * 3600.0, servers=4)
    assert broken_share(servers) == pytest.approx(0.03)
    more = replace(servers, domains=(Domain("rack", 9 * 3600.0, 3600.0),))
    assert broken_share(more) == pytest.approx(1 - 0.97 * 0.9)
    assert broken_share(None) == 0.0
