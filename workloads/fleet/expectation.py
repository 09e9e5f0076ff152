"""Closed forms for the capacity that a fleet can lend and its cost of serving.

They answer questions about small changes: a change of one per cent is lost among the random
failures of a simulation, and there are none here. The demand is known, as for the policy
``oracle``: a unit counts as serving from the moment at which it has to be ordered until its role
has been changed back. The mean number of broken units is taken off. Units are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.names import machine
from workloads.economics import Economics
from workloads.fleet.processes.failures import Failures, failures_from
from workloads.fleet.scenario import Scenario
from workloads.fleet.setup.machines import costs_of
from workloads.fleet.setup.serving import services_from

MINUTE_S = 60.0
REQUESTS = 800
"""Simulated requests behind each point of a capacity table.

Fewer than for a table that is shown: two tables of the same requests differ with little noise.
"""


@dataclass(frozen=True)
class Expectation:
    """Expected outcome of a fleet whose policy knows the demand."""

    lendable_share: float  # share of the chip-hours that serving can lend
    # Price of the chip-hours that are not lent, per million tokens of the demand [USD]; None where
    # the machine has no price
    usd_per_million_tokens: float | None


def lendable_share(scenario: Scenario, capacity: float = 1.0) -> float:
    """Share of the chip-hours that serving can lend."""
    fleet, units = scenario.fleet, scenario.cluster.domains
    working = units * (1 - broken_share(fleet.failures))
    back_s = fleet.change_costs.to_training_s
    lent = lent_units(scenario.need / capacity, working, lead_s=scenario.lead_s, back_s=back_s)
    return float(lent.mean()) / units


def expected(scenario: Scenario) -> Expectation:
    """Return the expectation of a scenario as it stands."""
    share, demand = lendable_share(scenario), scenario.demand
    tokens = float((demand.requests * (demand.prompt_tokens + demand.output_tokens)).sum())
    price = scenario.economics.usd_per_chip_s
    chip_s = demand.minutes * MINUTE_S * scenario.cluster.chips * (1 - share)
    has_price = price > 0 and tokens > 0
    return Expectation(share, price * chip_s / tokens * 1e6 if has_price else None)


def at(base: Scenario, catalogue: Catalogue) -> Expectation:
    """Return the expectation under another catalogue and the same demand."""
    # A demand that was scaled to the fleet is not scaled again, so faster units mean fewer units.
    replicas, name = base.options.fleet, base.options.clusters[0]
    cluster = replace(machine(name, catalogue=catalogue), domains=base.cluster.domains)
    costs = costs_of(cluster, base.options.limits)
    services = services_from(base.demand, cluster, base.models, replicas, requests=REQUESTS)
    failures = base.fleet.failures
    if failures is not None:
        failures = failures_from(cluster, services, domains=bool(failures.domains))
    fields = {
        "cluster": cluster,
        "services": services,
        "fleet": replace(base.fleet, costs=costs, failures=failures),
        "economics": Economics.of(cluster),
    }
    return expected(base.changed(lambda _: fields))


def lent_units(need: FloatArray, working: float, *, lead_s: float, back_s: float) -> FloatArray:
    """Return the units that each minute can lend to training, float (minutes,).

    A unit serves, or is on its way, from ``lead_s`` before it is needed to ``back_s`` after.

    One minute of ten needs all four units, which take a minute there and half a minute back:

    >>> need = np.array([[0, 0, 0, 0, 4.0, 0, 0, 0, 0, 0]])
    >>> lent_units(need, 4.0, lead_s=60.0, back_s=30.0).tolist()
    [4.0, 4.0, 4.0, 0.0, 0.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    """
    kept = np.sum([_kept_units(row, lead_s / MINUTE_S, back_s / MINUTE_S) for row in need], axis=0)
    result: FloatArray = np.maximum(working - kept, 0.0)
    return result


def _kept_units(need: FloatArray, lead: float, back: float) -> FloatArray:
    """Units of a pool that serve or change role in each minute; (minutes,)."""
    if not math.isfinite(lead + back):
        return np.full(len(need), need.max())
    ahead = _interpolated(lead, lambda minutes: _window_maximum(need, minutes, 0))
    behind = _interpolated(back, lambda minutes: _window_maximum(need, 0, minutes))
    return np.maximum(ahead, behind)


def _window_maximum(need: FloatArray, ahead: int, behind: int) -> FloatArray:
    """Largest need from ``behind`` minutes before each minute to ``ahead`` minutes after it."""
    size = min(ahead + behind, len(need) - 1) + 1
    # A window of pandas ends at its row, so windows that begin there are found from behind.
    way = 1 if behind else -1
    maxima: FloatArray = pd.Series(need[::way]).rolling(size, min_periods=1).max().to_numpy()
    return maxima[::way]


def _interpolated(minutes: float, window: Callable[[int], FloatArray]) -> FloatArray:
    """Value of a function of whole minutes between two of them, linearly."""
    whole = math.floor(minutes)
    fraction = minutes - whole
    shorter = window(whole)
    return shorter if not fraction else (1 - fraction) * shorter + fraction * window(whole + 1)


def broken_share(failures: Failures | None) -> float:
    """Mean share of a fleet's servers that are under repair.

    >>> round(broken_share(Failures(99 * 3600.0, 3600.0, servers=1)), 6)
    0.01
    """
    if failures is None:
        return 0.0
    # A unit has `servers` servers and loses one at a time, every mean time between its failures.
    up = failures.unit_mtbf_s * failures.servers
    rates = [failures.repair_s / (up + failures.repair_s)]
    rates += [domain.repair_s / (domain.mtbf_s + domain.repair_s) for domain in failures.domains]
    return 1 - math.prod(1 - rate for rate in rates)
