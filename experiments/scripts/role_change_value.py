"""The chips that can be lent, as a function of the time that a change of role takes.

Two studies of the load alone, without and with knowledge of the day before, give up as many chips
as the SLO allows. The whole simulation of the fleet does the same under the threshold policy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from cluster_sim.progress import Watch, unwatched
from experiments.figures.layout import canvas
from experiments.scripts.support import each
from topologies.clusters.names import cluster as named
from workloads.demand import demand_from
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.policies.forecast import lendable
from workloads.fleet.policies.rules import threshold
from workloads.fleet.results import summary
from workloads.fleet.scenario import Scenario, scenario
from workloads.fleet.scenario import run as run_scenario
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions

MOST_HEADROOM, BISECTIONS = 1.5, 5
"""Largest headroom, and steps of the search for the least one."""
FLEET = "fleet, threshold"
METHODS = {
    "study, reactive": "study of the load alone: reacts to the last minutes",
    "study, with yesterday": "study of the load alone: also looks at yesterday",
    FLEET: "whole simulation of the fleet, threshold policy",
}


def run(
    cluster: str = "rainier",
    demand: str = "azure-code",
    minutes: tuple[int, ...] = (1, 5, 15, 30, 60),
    target: float = 0.995,
    days: float = 7.0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Lend as many chips as the SLO allows, for several durations of a role change.

    Two methods are compared. The ``study`` finds the smallest headroom of two controllers with
    which the load exceeds capacity in at most 0.1 % of the minutes, as in
    :func:`workloads.fleet.lendable`. The ``fleet`` is the whole simulation under the threshold
    policy, with the least headroom that keeps ``target`` of the requests within the SLO.

    ``cluster``: named machine or cluster file, whose scale-up domains are the fleet's units.
    ``demand``: bundled demand or CSV file. ``minutes``: durations of a role change, one or more
    [min]. ``target``: smallest share of requests within the SLO.

    Returns ``minutes, method, headroom, freed_share, freed_chips, slo_attainment``.
    """
    machine = named(cluster)
    built = scenario(
        machine,
        demand_from([demand]),
        FleetOptions(
            FleetInputs(unit_rate=10.0, failures="off"), DemandInputs(days=days, scale_to_peak=0.9)
        ),
    )
    rows = [
        (row.lead_minutes, f"study, {row.controller}", row.headroom, row.freed, np.nan)
        for row in lendable(built.need.sum(axis=0), lead_minutes=minutes).itertuples()
    ]
    least = each(lambda lead: _least(built, lead, target), minutes, watch, task="durations")
    rows += [(lead, FLEET, *freed) for lead, freed in zip(minutes, least, strict=True)]
    names = ["minutes", "method", "headroom", "freed_share", "slo_attainment"]
    frame = pd.DataFrame(rows, columns=names)
    frame["freed_chips"] = frame["freed_share"] * machine.chips
    frame.attrs = {"title": f"{demand} on {machine.chips:,} chips of {cluster}"}
    return frame


def _least(week: Scenario, lead: int, target: float) -> tuple[float, float, float]:
    """Return the least headroom that keeps the target, with its freed share and attainment."""
    fleet = replace(week.fleet, costs=ChangeCosts.fixed(60.0 * lead))
    timed = week.changed(lambda _: {"fleet": fleet})

    def tried(headroom: float) -> tuple[float, float, float]:
        done = summary(run_scenario(timed, threshold(headroom=headroom)))
        freed = 1 - done["inference_chip_hours"] / done["chip_hours"]
        return headroom, float(freed), float(done["slo_attainment"])

    low, high = 0.0, MOST_HEADROOM
    best = None
    for _ in range(BISECTIONS):
        result = tried((low + high) / 2)
        if result[2] >= target:
            best, high = result, result[0]
        else:
            low = result[0]
    return best or tried(MOST_HEADROOM)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the lendable share of the fleet against the duration of a role change."""
    figure, axes = canvas(8.5, 5)
    shades = colors(dict.fromkeys(frame["method"]))
    for (method, rows), marker in zip(frame.groupby("method", sort=False), "osD^v", strict=False):
        name, shade = METHODS.get(str(method), str(method)), shades[str(method)]
        shares = 100 * rows["freed_share"]
        axes.plot(rows["minutes"], shares, marker=marker, color=shade, label=name)
    across = "time from an order until the unit serves [min]"
    axes.set(xlabel=across, ylabel="chip-hours that need not serve [% of the fleet]")
    whole = frame[frame["method"] == FLEET].sort_values("minutes")
    first, last = whole.iloc[0], whole.iloc[-1]
    finding = (
        f"Changing roles in {first.minutes} instead of {last.minutes} min lends "
        f"{first.freed_share:.0%} instead of {last.freed_share:.0%} of the fleet"
    )
    title = frame.attrs.get("title", "")
    axes.set_title("\n".join(line for line in (title, finding) if line), loc="left", fontsize=10)
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure
