"""Remarks on a run: the quarters of an hour in which requests missed their SLO, and their cause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from topologies.support.arrays import FloatArray
from workloads.demand.trace import largest_within
from workloads.fleet.inputs.prices import J_PER_MWH
from workloads.fleet.results import kind_units, service_minutes
from workloads.fleet.simulation import FleetRun
from workloads.fleet.state.world import Role

QUARTER = 15  # minutes of a quarter of an hour, for which a reactive policy also looks back
HOUR = 60
MOST_HEADROOM = 1.0
"""Headroom above which it is not the remedy: it would always keep twice the units needed."""
ROUNDED = 0.05  # step to which a headroom is rounded up


@dataclass(frozen=True)
class Missed:
    """A quarter of an hour in which requests missed their SLO."""

    time_utc: str
    share: float  # share of this quarter in all requests of the run that missed their SLO
    # needed_units, serving_units: most units that a minute of the quarter needed, and the mean
    # number that served
    needed_units: float
    serving_units: float
    # Units needed in a minute over the most that were needed in the 15 minutes before the order for
    # it had to be given. This is the largest such ratio of the quarter and of the quarters right
    # before it that missed as well; infinity where no earlier need was known
    rise: float


def missed_quarters(run: FleetRun, lead_s: float) -> list[Missed]:
    """Return the quarters of an hour in which requests missed their SLO, the worst first."""
    each = [service_minutes(run, number) for number in range(len(run.queues))]
    late = np.sum([outcome.offered_requests * (1 - outcome.attainment) for outcome in each], axis=0)
    load = run.load.sum(axis=0)
    serving = sum(kind_units(kind)[:, Role.SERVING] * kind.reach.mean() for kind in run.kinds)
    rise = _rise(load, max(1, math.ceil(lead_s / 60.0)) if math.isfinite(lead_s) else len(load))
    first = np.arange(0, run.minutes, QUARTER)
    sums = np.add.reduceat(late, first)
    rises = np.maximum.reduceat(rise, first)
    for row in range(1, len(first)):  # a queue outlasts the rise that caused it
        if sums[row - 1] > 0 and math.isfinite(rises[row - 1]):
            rises[row] = max(rises[row], rises[row - 1])
    result = []
    for row in np.argsort(-sums, kind="stable").tolist():
        if sums[row] <= 0:
            break
        part = slice(first[row], first[row] + QUARTER)
        result.append(
            Missed(
                time_utc=run.demand.index[int(first[row])].strftime("%Y-%m-%dT%H:%M"),
                share=float(sums[row] / late.sum()),
                needed_units=float(load[part].max()),
                serving_units=float(serving[part].mean()),
                rise=float(rises[row]),
            )
        )
    return result


def missed_note(
    run: FleetRun, lead_s: float, *, attained: float, wanted: float, policy: str = "threshold"
) -> str:
    """Sentence about the worst quarter of an hour and its remedy; empty where the SLO is kept."""
    if attained >= wanted:
        return ""
    quarters = missed_quarters(run, lead_s)
    worst = quarters[0]
    of_first = f", counted as {run.kinds[0].name}," if len(run.kinds) > 1 else ""
    sentence = (
        f"{attained:.2%} of the requests keep the SLO, and {100 * wanted:.4g}% are asked for; "
        f"{worst.share:.0%} of those that miss it came in the 15 minutes from {worst.time_utc}, "
        f"which needed {worst.needed_units:,.0f} units{of_first} while {worst.serving_units:,.0f} "
        "served"
    )
    if worst.needed_units > sum(kind.units * kind.reach.mean() for kind in run.kinds):
        return f"{sentence}, more than the fleet has; fewer requests or more units keep it."
    if not worst.rise > 1 or math.isinf(worst.rise):
        return f"{sentence}."
    load, steps = run.load.sum(axis=0), ""
    moved = np.flatnonzero(np.abs(np.diff(load)) > 1e-3 * load.max()) + 1
    if len(moved) and (moved % HOUR == 0).all():
        steps = " Demand is known by the hour and steps at every full hour."
    headroom = _headroom(quarters, allowed=(1 - wanted) / (1 - attained))
    remedy = f"--headroom {headroom:.2f} on what is needed now meets such rises."
    if headroom > MOST_HEADROOM:
        forecast = "--policy forecast, which keeps what its past errors ask for, or "
        remedy = (
            "No --headroom up to 1 meets such rises; more units that always serve do: "
            f"{forecast if policy == 'threshold' else ''}--floor."
        )
    return (
        f"{sentence}: {worst.rise:.2f} times the need of {math.ceil(lead_s / 60)} minutes before, "
        f"the time in which a unit comes back.{steps} {remedy}"
    )


def _headroom(quarters: list[Missed], *, allowed: float) -> float:
    """Headroom that covers the rises of all quarters but the worst."""
    covered, largest = 0.0, 0.0
    for missed in sorted(quarters, key=lambda quarter: quarter.rise):
        if math.isfinite(missed.rise):
            largest = max(largest, missed.rise - 1)
        covered += missed.share
        if covered >= 1 - allowed:
            break
    return math.ceil(largest / ROUNDED - 1e-9) * ROUNDED


def _rise(load: FloatArray, lead: int) -> FloatArray:
    """Load of each minute over the largest of the 15 minutes that ended ``lead`` minutes before."""
    before = largest_within(load, behind=QUARTER - 1)
    result = np.full(len(load), np.inf)
    if lead < len(load):
        visible = before[: len(load) - lead]
        with np.errstate(divide="ignore", invalid="ignore"):
            result[lead:] = np.where(visible > 0, load[lead:] / visible, np.inf)
    return result


def over_cap_note(results: Mapping[str, Any]) -> str:
    """Sentence about the minutes above the cap on power; empty if there are none.

    >>> over_cap_note({"over_cap_minutes": 2, "over_cap_w": 1.4e5, "minutes": 1440})[:64]
    'the site drew more than its power cap in 2 of 1,440 minutes, by '
    >>> over_cap_note({"over_cap_minutes": 2, "over_cap_w": 2.375e9, "minutes": 1440})[59:79]
    ', by up to 2,375 MW:'
    >>> over_cap_note({"over_cap_minutes": 0})
    ''
    """
    if not results.get("over_cap_minutes"):
        return ""
    over = results["over_cap_w"] / 1e6
    most = f"{over:,.0f}" if over >= 100 else f"{over:.3g}"
    return (
        f"the site drew more than its power cap in {results['over_cap_minutes']:,} of "
        f"{results['minutes']:,} minutes, by up to {most} MW: nothing "
        "trained then, and what serves, changes roles or idles draws as much."
    )


WAITING = 0.05  # share of the chip-hours that idle from which a cap is said to hold units back


def idle_draw_note(run: FleetRun, results: Mapping[str, Any]) -> str:
    """Sentence about what idle units take of a cap that lets others wait; empty otherwise."""
    cap_w = float(run.cap_w.min())
    idle_w = sum(kind.units * kind.unit_idle_w for kind in run.kinds)
    rise_w = sum(kind.units * kind.unit_busy_w for kind in run.kinds) - idle_w
    if (
        math.isinf(cap_w)
        or rise_w <= 0
        or results["idle_chip_hours"] < (WAITING * results["chip_hours"])
    ):
        return ""
    return (
        f"{run.units:,} units draw {idle_w / 1e6:.3g} MW while idle, of a power cap of "
        f"{cap_w / 1e6:.3g} MW; where it holds units back, each further one lets "
        f"{idle_w / rise_w:.2g} fewer train."
    )


def power_note(results: Mapping[str, Any]) -> str:
    """Sentence about machines whose power is not stated; empty where that of all is."""
    energies_j = {
        row.get("kind", "its machines"): row["energy_joules"]
        for row in results.get("kinds", [results])
    }
    unknown = ", ".join(name for name, joules in energies_j.items() if joules is None)
    drawn = [
        f"; {name} drew {joules / J_PER_MWH:,.4g} MWh"
        for name, joules in energies_j.items()
        if joules
    ]
    if not unknown:
        return ""
    return (
        "energy and power of the site are not stated, as the catalogue has no power of "
        f"{unknown}{''.join(drawn)}."
    )
