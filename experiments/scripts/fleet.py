"""Experiments on a fleet that serves and trains: its policies, and the time of a change."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.plot.palette import colors
from cluster_sim.processes import on_all_cores
from cluster_sim.progress import Watch, one_piece, unwatched
from experiments.figures.layout import canvas, logarithmic
from topologies.clusters.names import cluster as named
from topologies.support.arrays import FloatArray
from workloads.demand import demand_from
from workloads.fleet.front import daily_training, paired_interval
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.policies.forecast import lendable
from workloads.fleet.policies.registry import KINDS
from workloads.fleet.policies.rules import threshold
from workloads.fleet.policies.view import Policy
from workloads.fleet.results import summary
from workloads.fleet.scenario import Scenario, policy_of, scenario
from workloads.fleet.scenario import run as run_scenario
from workloads.models.huggingface import model as read_model
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions

TARGET = 0.997  # share of requests in time at which policies are compared
HEADROOMS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)


def policy_frontier(
    cluster: str = "rainier",
    demand: str = "azure-code",
    model: str = "llama-3.1-405b",
    days: float = 7.0,
    headrooms: tuple[float, ...] = HEADROOMS,
    peak_share: float = 0.9,
    seed: int = 0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Run policies at several headrooms, and ``clock`` with several shares of units at night.

    Each line is a policy of the fleet with several values of one setting: the capacity that it
    keeps above the expected load (headroom), or the share of units that ``clock`` keeps at night.
    Points further to the right train more, higher points miss fewer requests. All runs meet the
    same demand and failures, so the interval of a difference is that of the differences of single
    days.

    ``cluster``: named machine or cluster file, whose scale-up domains are the fleet's units.
    ``demand``: bundled demand or CSV file. ``model``: model that is served and trained.
    ``headrooms``: capacity kept above the expected load, as a share of it. ``peak_share``: share of
    the fleet that the busiest hour of the demand is scaled to need. ``seed``: seed of failures and
    repairs.

    Policies that need prices of electricity or a limit on power are left out.

    Returns ``policy``; ``setting``; ``training_share`` of the chip-hours; ``regret``, the share
    that the policy with foresight trains more at its best; ``training_share_difference`` from the
    policy without foresight that trains most at the target, with the ends of its 80 % interval
    where the run has two days or more; ``share_of_requests_in_time``, the same ``in_worst_15min``;
    ``useful_share_of_training``; ``role_changes``; ``usd_per_million_tokens`` served.
    """
    with one_piece("capacity of a unit", watch):
        scene = scenario(
            named(cluster),
            demand_from([demand]),
            FleetOptions(demand=DemandInputs(days=days, scale_to_peak=peak_share)),
            models=read_model(model),
        )
    points = [
        (name, f"headroom {headroom:.0%}", policy_of(name, scene, headroom=headroom))
        for name in ("static", "threshold", "forecast", "mpc", "oracle")
        for headroom in headrooms
    ]
    for share in (0.2, 0.4, 0.6, 0.8):
        clock = policy_of("clock", scene, night_share=share)
        points.append(("clock", f"{share:.0%} at night", clock))
    answers = on_all_cores(partial(_row, scene, seed), points, watch, task="runs")
    frame = pd.DataFrame([row for row, _ in answers])
    foresight = frame.loc[frame["policy"].isin(WITH_FORESIGHT), "training_share"].max()
    frame.insert(3, "regret", foresight - frame["training_share"])
    for place, (name, values) in enumerate(_differences(frame, answers, scene).items()):
        frame.insert(4 + place, name, values)
    frame.attrs = {"title": f"{demand} on {cluster}, peak hour at {peak_share:.0%} of the fleet"}
    return frame


def _row(
    scene: Scenario, seed: int, point: tuple[str, str, Policy]
) -> tuple[dict[str, Any], FloatArray]:
    """Return a policy, its setting and results, and the chip-hours that it trains on each day."""
    name, setting, policy = point
    done = run_scenario(scene, policy, seed=seed)
    results = summary(done)
    row = {
        "policy": name,
        "setting": setting,
        "training_share": results["training_chip_hours"] / results["chip_hours"],
        **{column: results[key] for key, column in KEPT.items()},
    }
    return row, daily_training(done)


KEPT = {
    "slo_attainment": "share_of_requests_in_time",
    "slo_attainment_worst_15min": "share_in_time_in_worst_15min",
    "training_goodput": "useful_share_of_training",
    "role_changes": "role_changes",
    "usd_per_million_tokens": "usd_per_million_tokens",
}
"""Columns by the keys of a run's summary."""
WITH_FORESIGHT = ("oracle",)


def _differences(
    frame: pd.DataFrame, answers: Sequence[tuple[Mapping[str, Any], FloatArray]], scene: Scenario
) -> dict[str, list[float]]:
    """Return each row's training share less that of the best without foresight, and ends."""
    possible = frame[~frame["policy"].isin(WITH_FORESIGHT)]
    kept = possible[possible["share_of_requests_in_time"] >= TARGET]["training_share"]
    ranked = possible["share_of_requests_in_time"] if kept.empty else kept
    best = list(frame.index).index(ranked.idxmax())
    day_hours = scene.cluster.chips * 24.0
    columns: dict[str, list[float]] = {"": [], "_low": [], "_high": []}
    for row, trained in answers:
        ends = paired_interval(trained / day_hours, answers[best][1] / day_hours)
        columns[""].append(row["training_share"] - answers[best][0]["training_share"])
        columns["_low"].append(math.nan if ends is None else ends.low)
        columns["_high"].append(math.nan if ends is None else ends.high)
    return {f"training_share_difference{end}": values for end, values in columns.items()}


def draw_policy_frontier(frame: pd.DataFrame) -> Figure:
    """Draw missed requests, on a logarithmic axis, against the share of the fleet that trains."""
    figure, axes = canvas(9.5, 6.0)
    shades = colors(dict.fromkeys(frame["policy"]))
    for (name, rows), marker in zip(frame.groupby("policy", sort=False), "sDoP^v", strict=False):
        ordered = rows.sort_values("training_share")
        missed = 100 * (1 - ordered["share_of_requests_in_time"]).clip(lower=1e-5)
        share, shade = 100 * ordered["training_share"], shades[str(name)]
        label = f"{name}: {KINDS[str(name)].summary}"
        axes.plot(share, missed, marker=marker, color=shade, label=label, lw=1)
    logarithmic(axes, "y")
    axes.invert_yaxis()
    trained = "chip-hours in training and evaluation [% of the fleet]   → better"
    axes.set(xlabel=trained, ylabel="requests too late for the SLO [%]   ↑ better")
    axes.axhline(100 * (1 - TARGET), color="0.4", ls="--", lw=1)
    title = frame.attrs.get("title", "")
    lines = [line for line in (title, _finding(frame)) if line]
    axes.set_title("\n".join(lines), loc="left", fontsize=9.5)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    return figure


def _finding(frame: pd.DataFrame) -> str:
    """Sentence with the largest training share of each policy that keeps the target."""
    kept = frame[frame["share_of_requests_in_time"] >= TARGET]
    if kept.empty:
        return f"No policy serves {TARGET:.1%} of requests in time (dashed)"
    most = kept.loc[kept.groupby("policy", sort=False)["training_share"].idxmax()]
    ordered = most.sort_values("training_share", ascending=False)
    shares = ", ".join(f"{row.policy} {row.training_share:.0%}" for row in ordered.itertuples())
    return f"In training with at least {TARGET:.1%} of requests in time (dashed): {shares}"


MOST_HEADROOM, BISECTIONS = 1.5, 5  # largest headroom, and steps of the search for the least one
FLEET = "fleet, threshold"
METHODS = {
    "study, reactive": "study of the load alone: reacts to the last minutes",
    "study, with yesterday": "study of the load alone: also looks at yesterday",
    FLEET: "whole simulation of the fleet, threshold policy",
}


def role_change_value(
    cluster: str = "rainier",
    demand: str = "azure-code",
    minutes: tuple[int, ...] = (1, 5, 15, 30, 60),
    target: float = 0.995,
    days: float = 7.0,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Lend as many chips as the SLO allows, for several durations of a role change.

    Two studies of the load alone, without and with knowledge of the day before, give up as many
    chips as the SLO allows. The whole simulation of the fleet does the same under the threshold
    policy.

    ``cluster``: named machine or cluster file, whose scale-up domains are the fleet's units.
    ``demand``: bundled demand or CSV file. ``minutes``: durations of a role change, one or more
    [min]. ``target``: smallest share of requests within the SLO.

    Two methods are compared. The ``study`` finds the smallest headroom of two controllers with
    which the load exceeds capacity in at most 0.1 % of the minutes, as in
    :func:`workloads.fleet.lendable`. The ``fleet`` is the whole simulation under the threshold
    policy, with the least headroom that keeps ``target`` of the requests within the SLO.

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
    least = on_all_cores(lambda lead: _least(built, lead, target), minutes, watch, task="durations")
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


def draw_role_change_value(frame: pd.DataFrame) -> Figure:
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
