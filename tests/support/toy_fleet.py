"""A service, prices and laws of conservation for the tests of fleets."""

from dataclasses import replace

import numpy as np

from workloads.demand import constant, period_means
from workloads.economics import Economics
from workloads.fleet import View, simulation
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.results import role_server_ms, summary
from workloads.fleet.state.services import Kind, Service, units_needed
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate

WEIGHTS_BYTES = 4 * 0.75e12
"""Weights that a unit loads: four instances of a model of 0.75 TB."""
SERVICE = Service("chat", fixed_rate(3.5), WEIGHTS_BYTES)
FREE = ChangeCosts.fixed(0.0)
PRICES = Economics(750.0, 400.0, 1.12, 2.235 / 3600)
FLAT_DAY = constant(60 * 3.5 * 50, minutes=1440)
"""A day of requests that keep fifty units busy."""


def simulate(demand, services, fleet, policy, *, jobs=(), economics=PRICES, **others):
    """Run a fleet of one kind of units."""
    kind = Kind("unit", tuple(services), fleet, tuple(jobs), economics)
    return simulation.simulate(demand, [kind], policy, **others)


def view_of(**changes):
    """Return what a policy sees of ten units, of which five serve a load of one; or other units."""
    usual = {
        "minute": 0, "weekday": 0, "hour": 0.0, "load": np.ones((1, 1)), "history": 0,
        "serving": np.array([5]), "coming": np.array([0]), "backlog": np.zeros(1), "units": 10,
        "broken": 0, "lead_s": 0.0,
    }  # fmt: skip
    return View(**{**usual, **changes})


def slower(costs, factor):
    """Multiply every duration, and divide the loading rates, by one factor."""
    durations = {
        name: getattr(costs, name) * factor
        for name in costs.__dataclass_fields__
        if name.endswith("_s") and "bytes" not in name
    }
    return replace(costs, load_bytes_per_s=costs.load_bytes_per_s / factor, **durations)


def check_conserved(run):
    """Assert that server time, chip-hours, tokens and the time of jobs add up."""
    total, servers = role_server_ms(run.kinds[0]), run.kinds[0].servers
    assert np.all(total.sum(axis=1) == np.arange(run.minutes + 1) * 60_000 * run.units * servers)
    assert np.all(np.diff(total, axis=0) >= 0)
    numbers = summary(run)
    groups = ("inference", "training", "moving", "idle", "broken")
    hours = sum(numbers[f"{name}_chip_hours"] for name in groups)
    assert hours == numbers["chip_hours"]
    parts = numbers["served_tokens"] + numbers["queued_tokens"] + numbers["shed_tokens"]
    assert parts == numbers["offered_tokens"]
    held = sum(tally.held_unit_ms for _, tally in run.jobs)
    not_jobs = (Role.EVALUATION, Role.SERVING, Role.SPARE, Role.BROKEN, Role.PAUSED)
    assert 0 <= held <= (total[-1].sum() - total[-1, list(not_jobs)].sum()) / servers
    assert all(tally.useful_unit_ms <= tally.held_unit_ms + 1e-3 for _, tally in run.jobs)


def scaled_to_fleet(demand, services, units, *, peak_share=1.0):
    """Scale demand so that its busiest hour needs a share of the fleet."""
    peak = float(period_means(units_needed(demand, services).sum(axis=0), 60).max())
    return demand.times(peak_share * units / peak)
