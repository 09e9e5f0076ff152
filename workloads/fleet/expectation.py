"""Closed forms of what a fleet can lend and what its serving costs, for questions of small changes.

A simulation answers a change of one per cent with its luck; this does not. It knows the demand, as
the policy ``oracle`` does: units serve from when they have to be ordered until their role has been
changed back, and so many are broken as break in the mean. Units are not rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import FloatArray
from topologies.clusters.cluster import Cluster
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.processes.failures import Failures
from workloads.fleet.scenario import Scenario
from workloads.fleet.setup.failure_domains import failures_from
from workloads.fleet.setup.serving import services_from

MINUTE_S = 60.0
REQUESTS = 800
"""Requests of the runs behind a capacity table; differences of tables need fewer than tables."""


@dataclass(frozen=True)
class Expectation:
    """Expected outcome of a fleet whose policy knows the demand.

    Attributes
    ----------
    lendable_share : float
        Share of the chip-hours that serving can lend.
    usd_per_million_tokens : float or None
        Price of the chip-hours that are not lent, for each million of tokens asked for; None where
        the machine has no price.
    """

    lendable_share: float
    usd_per_million_tokens: float | None


def expected(scenario: Scenario) -> Expectation:
    """Return the expectation of a scenario as it stands."""
    fleet, units = scenario.fleet, scenario.cluster.domains
    working = units * (1 - broken_share(fleet.failures))
    lent = lent_units(
        scenario.need, working, lead_s=scenario.lead_s, back_s=fleet.change_costs.to_training_s
    )
    share = float(lent.mean()) / units
    demand = scenario.demand
    tokens = float((demand.requests * (demand.prompt_tokens + demand.output_tokens)).sum())
    price = scenario.economics.usd_per_chip_s
    chip_s = demand.minutes * MINUTE_S * scenario.cluster.chips * (1 - share)
    has_price = price > 0 and tokens > 0
    return Expectation(share, price * chip_s / tokens * 1e6 if has_price else None)


def at(base: Scenario, cluster: Cluster, costs: ChangeCosts) -> Expectation:
    """Return the expectation with other numbers of the catalogue, the demand as it is.

    A shape that was scaled to the fleet keeps its size, so that a faster unit means fewer units.

    Parameters
    ----------
    base : Scenario
    cluster : Cluster
        The same machine with other numbers.
    costs : ChangeCosts
        Costs of changes with those numbers.
    """
    services = services_from(base.demand, cluster, base.models, base.serving, requests=REQUESTS)
    failures = base.fleet.failures
    if failures is not None:
        failures = failures_from(cluster, services, domains=bool(failures.domains))
    moved = replace(
        base,
        cluster=cluster,
        services=services,
        fleet=replace(base.fleet, costs=costs, failures=failures),
        economics=Economics.of(cluster),
    )
    return expected(moved)


def lent_units(need: FloatArray, working: float, *, lead_s: float, back_s: float) -> FloatArray:
    """Return the units that each minute can lend to training, float (minutes,).

    A unit serves, or is on its way, from ``lead_s`` before it is needed to ``back_s`` after.

    Parameters
    ----------
    need : float array (pools, minutes)
        Units that each minute needs.
    working : float
        Units that are not broken, in the mean.
    lead_s, back_s : float
        Time from training to serving, and from serving to training [s].

    Examples
    --------
    One minute of ten needs all four units, which take a minute there and half a minute back:

    >>> need = np.array([[0, 0, 0, 0, 4.0, 0, 0, 0, 0, 0]])
    >>> lent_units(need, 4.0, lead_s=60.0, back_s=30.0).tolist()
    [4.0, 4.0, 4.0, 0.0, 0.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    """
    kept = np.sum([_kept(row, lead_s / MINUTE_S, back_s / MINUTE_S) for row in need], axis=0)
    result: FloatArray = np.maximum(working - kept, 0.0)
    return result


def _kept(need: FloatArray, lead: float, back: float) -> FloatArray:
    """Largest need of the minutes ahead and behind; linear between whole minutes."""
    if not math.isfinite(lead + back):
        return np.full(len(need), need.max())
    ahead = _between(lead, lambda minutes: _largest(need, minutes, 0))
    behind = _between(back, lambda minutes: _largest(need, 0, minutes))
    return np.maximum(ahead, behind)


def _largest(need: FloatArray, ahead: int, behind: int) -> FloatArray:
    """Largest need from so many minutes behind to so many ahead, at most the whole run."""
    from scipy import ndimage  # slow to import

    size = min(ahead + behind, len(need) - 1) + 1
    # scipy centres a window; the origin moves it so that it ends, or begins, at the minute itself.
    origin = (size - 1) // 2 if behind else -(size // 2)
    moved: FloatArray = ndimage.maximum_filter1d(need, size, mode="nearest", origin=origin)
    return moved


def _between(minutes: float, window: Callable[[int], FloatArray]) -> FloatArray:
    low = math.floor(minutes)
    part = minutes - low
    short = window(low)
    return short if not part else (1 - part) * short + part * window(low + 1)


def broken_share(failures: Failures | None) -> float:
    """Share of a fleet's servers that are under repair, in the mean.

    Examples
    --------
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
