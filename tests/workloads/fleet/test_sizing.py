"""Demand compared with the fleet, and the quarters of an hour that missed the SLO."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_fleet import simulate
from topologies.clusters.names import cluster
from workloads.demand import azure_code, constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import evaluation_job
from workloads.fleet.missed import missed_note, missed_quarters
from workloads.fleet.policies.rules import threshold
from workloads.fleet.results import attainment, service_minutes
from workloads.fleet.scenario import scenario, what_ifs
from workloads.fleet.state.services import Fleet, Service
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions
from workloads.serving import fixed_rate

FLEET = cluster("trn2-ultraserver:50")


def _scenario(demand, period=None):
    inputs = FleetInputs(unit_rate=2.0, failures="off")
    return scenario(FLEET, demand, FleetOptions(inputs, period or DemandInputs()), seed=3)


def test_counts_stand_as_they_are_and_twice_the_demand_needs_twice_the_units():
    one, two = (_scenario(constant(600.0 * k, minutes=1440)).sizing for k in (1, 2))
    assert one.demand_scale == two.demand_scale == 1.0
    assert one.demand_peak_requests_per_s == 10.0
    assert (one.units_needed_peak, two.units_needed_peak) == (5.0, 10.0)
    assert one.capacity_requests_per_s == two.capacity_requests_per_s == 100.0
    assert one.unit_capacity_tokens_per_s == 2.0 * 1100.0


def test_shapes_are_scaled_to_nine_tenths_and_say_so():
    code = _scenario(azure_code())
    assert code.sizing.units_needed_peak == pytest.approx(45.0)
    assert "90% of the fleet" in code.scaling
    half = _scenario(azure_code(), DemandInputs(scale_to_peak=0.5))
    assert half.sizing.units_needed_peak == pytest.approx(25.0)
    assert _scenario(constant(1.0, minutes=60)).scaling == ""


def test_the_noise_of_a_what_if_is_the_base_s():
    base = _scenario(constant(600.0, minutes=600), DemandInputs(noise="0.1"))
    grown = what_ifs(base, ["growth=1e-9"])[1][1]
    assert np.array_equal(base.demand.requests, grown.demand.requests)


def test_a_week_repeats_for_whole_weeks():
    twelve = _scenario(azure_code(), DemandInputs(days=84.0))
    assert twelve.demand.minutes == 84 * 1440
    assert np.array_equal(twelve.demand.requests[0, :10080], twelve.demand.requests[0, -10080:])


LEAD_S = 600.0


def _step(after, minute=120):
    """Ten units of requests, then so many."""
    flat = constant(600.0, minutes=300)
    return replace(flat, requests=np.where(np.arange(300) < minute, 600.0, after)[None, :])


def _run(demand, headroom):
    costs = replace(ChangeCosts.fixed(0.0), drain_s=LEAD_S)
    services, fleet = [Service("chat", fixed_rate(1.0))], Fleet(40, costs=costs)
    policy, jobs = threshold(headroom=headroom), [evaluation_job(40)]
    return simulate(demand, services, fleet, policy, jobs=jobs)


def _attained(run):
    minutes = [service_minutes(run, 0)]
    offered = minutes[0].offered_requests
    return float((attainment(minutes) * offered).sum() / offered.sum())


def test_the_note_names_the_quarter_and_a_headroom_that_keeps_the_slo():
    """Need rises from 10 to 15 units at minute 120, ten minutes before new units serve."""
    run = _run(_step(900.0), 0.1)
    first, *_ = missed_quarters(run, LEAD_S)
    assert (first.needed_units, first.rise) == (15.0, 1.5)
    assert first.time_utc.endswith("02:00")
    assert first.share > 0.5
    note = missed_note(run, LEAD_S, attained=_attained(run), wanted=0.999)
    assert "from 2024-01-01T02:00, which needed 15 units" in note
    assert "1.50 times the need of 10 minutes before" in note
    assert "steps at every full hour" in note
    advised = float(re.search(r"--headroom ([0-9.]+)", note)[1])
    assert advised == pytest.approx(0.5)
    better = _run(_step(900.0), advised)
    assert _attained(run) < 0.99 < 0.999 < _attained(better)
    assert missed_note(better, LEAD_S, attained=_attained(better), wanted=0.999) == ""


def test_a_need_beyond_the_fleet_and_a_rise_beyond_any_headroom_say_so():
    large = _run(_step(6000.0, 125), 0.1)
    assert "more than the fleet has" in missed_note(large, LEAD_S, attained=0.5, wanted=0.99)
    steep = _run(_step(2100.0, 125), 0.1)
    note = missed_note(steep, LEAD_S, attained=_attained(steep), wanted=0.999)
    assert "No --headroom up to 1 meets such rises" in note
    assert "--policy forecast, which" in note
    how = {"wanted": 0.999, "policy": "forecast"}
    by_forecast = missed_note(steep, LEAD_S, attained=_attained(steep), **how)
    assert by_forecast.endswith("more units that always serve do: --floor.")
    assert "full hour" not in note


def test_units_are_busy_with_what_arrives_and_waits_and_idle_without():
    """Ten units for thirteen minutes of requests at 100 %, then at 50 %, then none."""
    run = _run(_step(0.0, minute=13), headroom=0.0)
    queue, minutes = run.queues[0], service_minutes(run, 0)
    assert minutes.utilisation[:10].tolist() == [1.0] * 10
    assert minutes.utilisation[-100:].tolist() == [0.0] * 100
    assert queue.backlog[-100:].tolist() == [0] * 100
    share = service_minutes(_run(constant(300.0, minutes=60), headroom=1.0), 0).utilisation
    assert share.iloc[-1] == pytest.approx(0.5)
