"""Failures of a fleet: published rates, closed forms, and servers that are down."""

from dataclasses import replace
from math import exp, inf, sqrt

import numpy as np
import pytest

from tests.support.toy_fleet import SERVICE, scaled_to_fleet, simulate
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.views.measures import measure
from workloads.demand import constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, evaluation_job
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import failures_from
from workloads.fleet.results import role_server_ms, summary
from workloads.fleet.state.services import Domain, Failures, Fleet, Service
from workloads.fleet.state.world import Role
from workloads.job.causes import failure_rates
from workloads.serving.tables import fixed_rate

COSTS = ChangeCosts.from_catalogue(4)


def _broken_unit_h(domain, parts, size_units, hours):
    """Expected unit-hours under repair by a time, from none at the start: independent repairs."""
    rate_per_h, repair_h = parts / domain.mtbf_s * 3600, domain.repair_s / 3600
    return rate_per_h * size_units * repair_h * (hours - repair_h * (1 - exp(-hours / repair_h)))


def _run_with(failures, units, days, seed):
    return simulate(
        constant(60.0, minutes=days * 1440),
        [Service("chat", fixed_rate(3.5), 1e9)],
        Fleet(units, costs=COSTS, failures=failures),
        static(units // 2),
        # A unit in the middle of a change of role is out whole, not by the server that failed.
        jobs=default_jobs(units) if failures.domains else (),
        rng=np.random.default_rng(seed),
    )


@pytest.mark.parametrize(("racks", "parts", "size"), [
    ((), 6400, 0.25),
    ((Domain("rack", 200 * 3600.0, 2 * 3600.0, units=0, servers=2),), 3200, 0.5),
    ((Domain("rack", 200 * 3600.0, 2 * 3600.0, units=4),), 400, 4.0),
], ids=["servers by themselves", "half a unit", "four units"])  # fmt: skip
def test_broken_hours_of_a_domain_are_those_of_the_closed_form(racks, parts, size):
    """Within five standard errors of a compound Poisson process; overlaps take up to a share."""
    units, days, seeds = 1600, 1, 2
    (domain,) = racks or (Domain("server", 200 * 3600.0, 2 * 3600.0, units=0),)
    own_s = 1e15 if racks else domain.mtbf_s / 4
    failures = Failures(own_s, domain.repair_s, servers=4, domains=racks)
    runs = [_run_with(failures, units, days, seed) for seed in range(seeds)]
    assert parts == domain.count(units, 4)
    expected = _broken_unit_h(domain, parts, size, days * 24)
    events = parts * days * 86400 / domain.mtbf_s
    counted = [run.failures_by_domain[domain.name] for run in runs]
    assert np.mean(counted) == pytest.approx(events, rel=0.05, abs=5 * sqrt(events / seeds))
    broken = np.mean([role_server_ms(run.kinds[0])[-1, Role.BROKEN] for run in runs]) / 4 / 3.6e6
    spread = 5 * sqrt(2 / (events * seeds))
    assert broken == pytest.approx(expected, rel=spread + 0.05)
    for run in runs:
        total = role_server_ms(run.kinds[0])
        assert np.all(total.sum(axis=1) == np.arange(run.minutes + 1) * 60_000 * units * 4)


def test_domains_of_machines_from_the_catalogue():
    """Servers fail by cause, cables and racks by their own rates; a rack of NVL72 is the unit."""
    names = ("trn2-ultraserver:2000", "gb200-nvl72:100")
    trainium, nvl72 = (failures_from(cluster(name), (), domains=True) for name in names)
    domains = {one.name: one for one in trainium.domains}
    assert set(domains) == {"rack", "power feed", "scale-up domain"}
    assert (domains["rack"].units, domains["rack"].servers) == (0, 2)
    catalogue = shipped_catalogue()
    copper_h = catalogue.value("reliability", "copper_link_mttf") / 3600
    cables = measure(cluster("trn2-ultraserver")).links / 2
    assert domains["scale-up domain"].mtbf_s / 3600 == pytest.approx(copper_h / (cables + 64))
    of_a_server_per_s = sum(
        count / catalogue.value(f"failure.{name}", "mtbf")
        for name, count in (("chip", 16), ("hbm", 16), ("host", 1), ("power", 1), ("nic", 16))
    )
    assert 1 / trainium.unit_mtbf_s == pytest.approx(4 * of_a_server_per_s)
    assert next(one.units for one in nvl72.domains if one.name == "rack") == 1
    assert failures_from(cluster("trn2-ultraserver:2000"), ()).domains == ()


def _trained_through(failures, days):
    """A fleet of 100 units of which 90 are in one gang that always trains."""
    units = 100
    return simulate(
        constant(60.0, minutes=days * 1440), [Service("chat", fixed_rate(3.5), 1e9)],
        Fleet(units, costs=COSTS, failures=failures), static(10),
        jobs=[TrainingJob("base", units=90, step_tokens=16e6)],
    )  # fmt: skip


def test_faults_that_take_nothing_out_stop_the_gang_that_they_strike():
    """Ninety of a hundred units train, so nine in ten faults stop the gang; the rest only count."""
    faults = {"switch": 2 * 3600.0, "software": 6 * 3600.0}
    run = _trained_through(Failures(1e15, 3600.0, servers=4, interruptions=faults), 3)
    for name, mtbf_s in faults.items():
        expected = 3 * 86400 / mtbf_s
        assert abs(run.failures_by_domain[name] - expected) < 4 * sqrt(expected)
    assert run.failures == sum(run.failures_by_domain.values())
    ((_, tally),) = run.jobs
    assert abs(tally.failures - 0.9 * run.failures) < 4 * sqrt(0.09 * run.failures)
    assert tally.lost_tokens > 0
    spent = role_server_ms(run.kinds[0])
    assert spent[-1, Role.BROKEN] == 0
    assert np.all(spent.sum(axis=1) == np.arange(run.minutes + 1) * 60_000 * 100 * 4)
    quiet = _trained_through(Failures(1e15, 3600.0, servers=4), 3)
    assert spent[-1, Role.SERVING] == role_server_ms(quiet.kinds[0])[-1, Role.SERVING]
    assert spent[-1, Role.LOADING] > role_server_ms(quiet.kinds[0])[-1, Role.LOADING]
    assert tally.tokens < quiet.jobs[0][1].tokens


def test_faults_that_never_occur_change_nothing():
    some = Failures(40 * 3600.0, 3600.0, servers=4)
    never = replace(some, interruptions={"switch": inf})
    without, with_them = _trained_through(some, 1), _trained_through(never, 1)
    assert without.failures_by_domain == with_them.failures_by_domain != {}
    assert np.array_equal(without.kinds[0].spent_server_ms, with_them.kinds[0].spent_server_ms)


def test_interruptions_of_machines_are_those_of_a_job_on_all_chips():
    """A single server needs no fabric, so only its software stops what it trains."""
    machine = cluster("trn2-ultraserver:2000")
    rates = {one.name: one.per_s for one in failure_rates(machine, machine.chips).causes}
    shipped = failures_from(machine, (), domains=True).interruptions
    assert shipped == pytest.approx({
        name.replace("_", " "): 1 / rates[name] for name in ("optical_link", "switch", "software")
    })  # fmt: skip
    alone = failures_from(cluster("dgx-h100"), (), domains=True).interruptions
    assert [*alone] == ["software"]
    assert not failures_from(machine, ()).interruptions


@pytest.mark.parametrize("servers", [2, 4])
def test_a_lost_server_takes_its_share_and_no_more(servers):
    """40 serving units, one server of two or four down for ever with each failure."""
    flat = constant(1.0, minutes=600)
    load = scaled_to_fleet(flat, [SERVICE], 40)
    forever = Failures(unit_mtbf_s=20 * 3600.0, repair_s=1e12, servers=servers)
    run = simulate(load, [SERVICE], Fleet(40, costs=COSTS, failures=forever), static(40))
    total = role_server_ms(run.kinds[0])
    lost = np.diff(total[:, Role.BROKEN]) // 60_000
    assert run.failures > 5
    assert lost[-1] == run.failures
    assert np.array_equal(total.sum(axis=1), np.arange(601) * 40 * servers * 60_000)
    capacity = run.queues[0].capacity[-1] / run.queues[0].capacity[0]
    assert capacity == pytest.approx(1 - run.failures / 40 / servers, abs=0.01)
    hours = summary(run)
    assert hours["broken_chip_hours"] == pytest.approx(
        total[-1, Role.BROKEN] * 64 / servers / 3.6e6
    )


def test_serving_is_topped_up_for_servers_that_are_down():
    load = scaled_to_fleet(constant(1.0, minutes=1440), [SERVICE], 40)
    often = Failures(unit_mtbf_s=40 * 3600.0, repair_s=10 * 3600.0, servers=4)
    seen = []
    fleet, jobs = Fleet(60, costs=ChangeCosts.fixed(0.0), failures=often), [evaluation_job(60)]
    run = simulate(load, [SERVICE], fleet, lambda view: seen.append(view.broken) or 40.0, jobs=jobs)
    # A policy sees the servers that are down as units, of which it counts whole ones.
    down = np.diff(role_server_ms(run.kinds[0])[:, Role.BROKEN]) / (4 * 60_000)
    assert down.max() > 2
    assert np.abs(seen - down).max() < 1.5
    serving = np.diff(role_server_ms(run.kinds[0])[:, Role.SERVING])[60:] / (4 * 60_000)
    assert serving.min() > 38.0
    assert serving.mean() == pytest.approx(40.0, abs=0.6)
