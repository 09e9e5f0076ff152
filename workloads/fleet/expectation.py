"""Closed forms for the capacity that a fleet can lend and its cost of serving.

They answer questions about small changes: a change of one per cent is lost among the random
failures of a simulation, and there are none here. The demand is known, as for the policy
``oracle``: a unit counts as serving from the moment at which it has to be ordered until its role
has been changed back. The mean number of broken units is taken off. Units are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.machines import machine_of
from topologies.clusters.names import machine
from topologies.support.arrays import FloatArray
from workloads.demand.trace import largest_within
from workloads.economics import Economics
from workloads.fleet.processes.failures import failures_from
from workloads.fleet.scenario import Scenario
from workloads.fleet.setup.machines import Machines, costs_of
from workloads.fleet.setup.serving import services_from
from workloads.fleet.state.services import Failures, pools_from, speeds_of

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
    return _of_chips(scenario, _lent_shares(scenario, capacity))


def _of_chips(scenario: Scenario, shares: Sequence[float]) -> float:
    """Share of all chip-hours, from those of each kind."""
    chips = [kind.cluster.chips for kind in scenario.kinds]
    return float(np.dot(shares, chips)) / sum(chips)


def _lent_shares(scenario: Scenario, capacity: float = 1.0) -> list[float]:
    """Share of the unit-hours of each kind that serving can lend."""
    kinds = scenario.kinds
    back_s = max(kind.fleet.costs.to_training_s for kind in kinds)
    kept = kept_units(scenario.need / capacity, lead_s=scenario.lead_s, back_s=back_s)
    pools, speeds = pools_from(scenario.services), speeds_of(scenario.horizon.demand, kinds)
    working = [kind.fleet.steady_units * (1 - broken_share(kind.fleet.failures)) for kind in kinds]
    lent = [np.full(kept.shape[1], units) for units in working]
    for away in (False, True):  # units of other regions answer what those at home cannot
        for number, kind in enumerate(kinds):
            for pool, row in enumerate(kept):
                if (pools[pool].region != kind.region) == away and (speed := speeds[number, pool]):
                    units = np.minimum(row / speed, lent[number])
                    lent[number] -= units
                    row -= units * speed
    shares = zip(lent, kinds, strict=True)
    return [float(units.mean()) / kind.fleet.steady_units for units, kind in shares]


def expected(scenario: Scenario) -> Expectation:
    """Return the expectation of a scenario as it stands."""
    lent, demand = _lent_shares(scenario), scenario.demand
    tokens = float((demand.requests * (demand.prompt_tokens + demand.output_tokens)).sum())
    prices = [kind.usd_per_s for kind in scenario.kinds]
    kept = [1 - share for share in lent]
    usd = demand.minutes * MINUTE_S * float(np.dot(prices, kept))
    has_price = all(prices) and tokens > 0
    return Expectation(_of_chips(scenario, lent), usd / tokens * 1e6 if has_price else None)


def at(base: Scenario, catalogue: Catalogue) -> Expectation:
    """Return the expectation under another catalogue and the same demand."""
    # A demand that was scaled to the fleet is not scaled again, so faster units mean fewer units.
    machines = [machine(name, catalogue=catalogue) for name in base.options.clusters]
    named = {machine_of(cluster): cluster for cluster in machines}
    count = len(base.services) // len({service.region for service in base.services})
    # Lengths are alike in all regions, and the busiest has requests.
    requests = base.demand.requests.reshape(-1, count * base.demand.minutes).sum(axis=1)
    begin = count * int(requests.argmax())
    demand = base.demand.some(begin, begin + count)

    def moved(kind: Machines) -> dict[str, Any]:
        """Return the fields of a kind that change."""
        cluster = replace(named[kind.name.partition("@")[0]], domains=kind.cluster.domains)
        costs, failures = costs_of(cluster, base.options.limits), kind.fleet.failures
        fresh = services_from(demand, cluster, base.models, base.options.fleet, requests=REQUESTS)
        if failures is not None:
            failures = failures_from(cluster, fresh, domains=bool(failures.domains))
        services = (
            replace(fresh[number % count], name=old.name, weights=old.weights, region=old.region)
            for number, old in enumerate(kind.services)
        )
        return {
            "cluster": cluster,
            "services": tuple(services),
            "fleet": replace(kind.fleet, costs=costs, failures=failures),
            "economics": Economics.of(cluster),
        }

    return expected(base.changed(moved))


def kept_units(need: FloatArray, *, lead_s: float, back_s: float) -> FloatArray:
    """Return the units that each minute keeps from training; float (pools, minutes).

    A unit serves, or is on its way, from ``lead_s`` before it is needed to ``back_s`` after.
    """
    return np.array([_kept_units(row, lead_s / MINUTE_S, back_s / MINUTE_S) for row in need])


def _kept_units(need: FloatArray, lead: float, back: float) -> FloatArray:
    """Units of a pool that serve or change role in each minute; (minutes,)."""
    if not math.isfinite(lead + back):
        return np.full(len(need), need.max())
    ahead = _interpolated(lead, lambda minutes: largest_within(need, ahead=minutes))
    behind = _interpolated(back, lambda minutes: largest_within(need, behind=minutes))
    return np.maximum(ahead, behind)


def _interpolated(minutes: float, window: Callable[[int], FloatArray]) -> FloatArray:
    """Value of a function of whole minutes between two of them, linearly."""
    whole = math.floor(minutes)
    fraction = minutes - whole
    shorter = window(whole)
    return shorter if not fraction else (1 - fraction) * shorter + fraction * window(whole + 1)


def broken_share(failures: Failures | None) -> float:
    """Mean share of a fleet's servers that are under repair."""
    if failures is None:
        return 0.0
    # A unit has `servers` servers and loses one at a time, every mean time between its failures.
    up = failures.unit_mtbf_s * failures.servers
    rates = [failures.repair_s / (up + failures.repair_s)]
    rates += [domain.repair_s / (domain.mtbf_s + domain.repair_s) for domain in failures.domains]
    return 1 - math.prod(1 - rate for rate in rates)
