"""Regions with chips, users and clocks of their own: routes, laws, what users state wrongly."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from tests.support.toy_fleet import FREE, PRICES
from topologies.clusters.names import cluster
from workloads.demand import Horizon, constant
from workloads.demand.trace import beside
from workloads.fleet.inputs.jobs import evaluation_job
from workloads.fleet.policies.rules import static, threshold
from workloads.fleet.policies.view import Limits
from workloads.fleet.results import kind_shares, role_chip_ms, service_minutes, summary
from workloads.fleet.setup.machines import Region, in_regions, regions_from, services_in
from workloads.fleet.simulation import simulate
from workloads.fleet.state.services import Failures, Fleet, Kind, Service
from workloads.fleet.state.world import Role
from workloads.options.fleet import PolicyInputs
from workloads.serving.tables import fixed_rate

MINUTES = 60
NAMES = ("us", "eu", "asia")

APART_S = {("us", "eu"): 0.1, ("us", "asia"): 0.2, ("eu", "asia"): 0.3}
REGIONS = {
    name: Region(
        name, 0.0, 1.0, {other: APART_S.get((name, other), APART_S.get((other, name), 0.0))
                         for other in NAMES},
    )
    for name in NAMES
}  # fmt: skip


def _kind(region, units, rate=2.0, **others):
    """Return a region's units, which serve at a rate, and evaluate what is left."""
    services = (Service("chat", fixed_rate(rate), weights_bytes=1e12),)
    fleet = Fleet(units, costs=FREE, failures=others.pop("failures", None))
    return Kind(
        f"kind@{region}", services_in(services, list(REGIONS.values())), fleet,
        (evaluation_job(units),), PRICES, region=region, round_trip_s=REGIONS[region].round_trip_s,
        **others,
    )  # fmt: skip


def _demand(*per_s, minutes=MINUTES):
    """Return a constant demand of three regions."""
    parts = [constant(60.0 * rate, minutes=minutes) for rate in per_s]
    return beside(parts, [f"chat@{name}" for name in NAMES])


def _units(run):
    """Mean units of each kind that answer each region's requests in the last minute."""
    return [kind.service_units[-1].round(6).tolist() for kind in run.kinds]


def test_each_region_serves_its_own_users_as_long_as_it_can():
    kinds = [_kind("us", 4), _kind("eu", 6), _kind("asia", 5)]
    run = simulate(_demand(6, 8, 2), kinds, threshold(headroom=0.0))
    assert _units(run) == [[3, 0, 0], [0, 4, 0], [0, 0, 1]]
    rows = summary(run)["regions"]
    assert [row["served_elsewhere_share"] for row in rows] == [0.0, 0.0, 0.0]
    assert [row["served_requests"] for row in rows] == [6 * 3600, 8 * 3600, 2 * 3600]


def test_what_a_region_lacks_comes_from_the_nearest_with_room():
    kinds = [_kind("us", 4), _kind("eu", 6), _kind("asia", 9)]
    # Users in us need 4 + 5 units: 2 of eu's 6 are free and nearer than asia's.
    run = simulate(_demand(18, 8, 2), kinds, static([9, 4, 1]))
    assert _units(run) == [[4, 0, 0], [2, 4, 0], [3, 0, 1]]
    assert all(queue.waiting == 0 for queue in run.queues)
    rows = {row["region"]: row for row in summary(run)["regions"]}
    assert rows["us"]["served_elsewhere_share"] == pytest.approx(5 / 9)
    lent = {name: rows[name]["training_chip_hours"] for name in NAMES}
    assert lent == {"us": 0.0, "eu": 0.0, "asia": 5 * 64.0}


def test_a_region_in_which_nothing_serves_is_served_from_elsewhere():
    kinds = [_kind("eu", 6), _kind("us", 4, serves=False), _kind("asia", 1)]
    run = simulate(_demand(4, 2, 2), kinds, threshold(headroom=0.0))
    assert _units(run) == [[2, 1, 0], [0, 0, 0], [0, 0, 1]]
    assert summary(run)["regions"][0]["served_elsewhere_share"] == 1.0


@pytest.mark.parametrize("floor", [0, 7])
def test_a_single_region_serves_those_that_only_train(floor):
    kinds = [_kind("eu", 9), _kind("us", 4, serves=False), _kind("asia", 5, serves=False)]
    limits = Limits(floor=floor)
    kinds = [replace(kind, fleet=replace(kind.fleet, limits=limits)) for kind in kinds]
    run = simulate(_demand(4, 2, 2), kinds, threshold(headroom=0.0))
    assert run.kinds[0].service_units[-1].round(6).tolist() == [2, max(1, floor - 3), 1]
    assert not any(kind.service_units.any() for kind in run.kinds[1:])
    assert summary(run)["slo_attainment"] == 1.0


def test_the_way_to_another_region_counts_as_time_to_first_token():
    at_home, away = (
        simulate(_demand(*rates), [_kind("us", 4), _kind("eu", 9), _kind("asia", 1)], static(units))
        for rates, units in (((8, 2, 2), [4, 1, 1]), ((16, 2, 2), [8, 1, 1]))
    )
    for run, wait_s in ((at_home, 0.0), (away, 0.1)):
        minutes = service_minutes(run, 0)
        alone_s = run.kinds[0].services[0].capacity.ttft_quantile_s(np.ones(MINUTES), 0.99)
        assert np.allclose(minutes.ttft_p99_s - minutes.wait_s - alone_s, wait_s)


@given(
    units=st.lists(st.integers(1, 7), min_size=3, max_size=3),
    rates=st.lists(st.sampled_from([0.5, 2.0, 3.1]), min_size=3, max_size=3),
    loads=st.lists(st.floats(0.0, 12.0), min_size=3, max_size=3),
    never=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 5),
)
@examples(25)
def test_every_request_and_every_chip_of_every_region_is_counted(units, rates, loads, never, seed):
    loads = [load + 0.01 for load in loads]
    kinds = [
        _kind(name, *each, serves=number != never, failures=Failures(1e5, 3600.0))
        for number, (name, *each) in enumerate(zip(NAMES, units, rates, strict=True))
    ]
    demand = _demand(*loads, minutes=240)
    run = simulate(demand, kinds, threshold(), rng=np.random.default_rng(seed))
    for queue in run.queues:
        assert queue.arrivals.sum() == queue.served.sum() + queue.shed.sum() + queue.waiting
    for kind in run.kinds:
        spent = role_chip_ms(replace(run, kinds=(kind,))).sum(axis=1)
        assert np.array_equal(spent, np.arange(241) * 60_000 * kind.units * 64)
        # Units answer for as long as they serve, whoever asks.
        served = np.diff(kind.spent_server_ms[:, len(Role) :].sum(axis=1)) / (60_000 * kind.servers)
        assert np.allclose(kind.service_units.sum(axis=1), served)
        assert (kind.service_units >= -1e-9).all()
    numbers = summary(run)
    for name in ("chips", "training_chip_hours", "cost_usd", "energy_joules"):
        assert sum(row[name] for row in numbers["regions"]) == pytest.approx(numbers[name])
    assert all(np.allclose(kind_shares(run, number).sum(axis=0), 1.0) for number in range(3))


def test_a_single_region_is_a_fleet_in_one_place():
    words = {"unit_rate": 5.0, "days": 1.5, "policy": "threshold"}
    plain = cs.run_fleet("trn2-ultraserver:9", "azure-code", **words)
    region = cs.run_fleet({"us": "trn2-ultraserver:9"}, "azure-code", region="us=0:100%", **words)
    for name in ("training_tokens", "served_tokens", "slo_attainment", "cost_usd", "role_changes"):
        assert region.summary[name] == plain.summary[name]


def test_round_trips_go_the_shorter_way_round_unless_they_are_stated():
    """Users eight hours behind and nine ahead are seven hours apart over the other ocean."""
    words = {"region": ("us=-8:50%", "eu=+1:20%", "asia=+9:30%"), "round_trip": ("us/eu=145ms",)}
    machine = cluster("trn2-ultraserver:2")
    us, eu, asia = regions_from(PolicyInputs(**words), [(machine, name) for name in NAMES])
    hour_s = machine.numbers.value("fleet.region", "round_trip_of_an_hour")
    assert us.round_trip_s == pytest.approx({"us": 0.0, "eu": 0.145, "asia": 7 * hour_s})
    assert asia.round_trip_s["eu"] == eu.round_trip_s["asia"] == pytest.approx(8 * hour_s)


def test_users_of_a_region_come_by_its_clock():
    demand = constant(60.0, minutes=1440).times(np.arange(1440.0))
    moved = in_regions(Horizon(demand), [Region("a", 1.0, 0.25, {}), Region("b", -2.0, 0.75, {})])
    assert moved.demand.services == ("service@a", "service@b")
    first, second = moved.demand.requests
    assert (first[0], second[120]) == (0.25 * 60 * 60, 0.0)
    assert moved.demand.requests.sum() == pytest.approx(demand.requests.sum())
