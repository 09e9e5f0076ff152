"""A week of a fleet that serves by day and trains by night.

The upper panel shows the role of every chip and the chips that the demand needs, the lower one the
share of requests that keep the SLO. The demand is scaled so that its busiest hour fills the fleet.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from experiments.figures.fleet import roles_figure
from topologies.clusters.names import cluster as named_cluster
from workloads.demand import demand_from
from workloads.fleet.results import summary, timeline
from workloads.fleet.scenario import policy_of, scenario
from workloads.fleet.scenario import run as run_scenario
from workloads.models.huggingface import model as read_model
from workloads.options.fleet import DemandInputs, FleetOptions

CLUSTER, DEMAND, MODEL = "rainier", "azure-code", "llama-3.1-405b"


def run(
    cluster: str = CLUSTER,
    demand: str = DEMAND,
    model: str = MODEL,
    policy: str = "forecast",
    days: float = 7.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Run one fleet under one policy.

    ``cluster``: named machine or cluster file, whose scale-up domains are the fleet's units.
    ``demand``: bundled demand or CSV file, scaled so that its busiest hour fills the fleet.
    ``model``: model that is served and trained. ``policy``: name of a built-in policy, or a Python
    file with one. ``seed``: seed of failures and repairs.

    Returns one row a minute, see :func:`workloads.fleet.results`; ``attrs`` hold
    the summary.
    """
    machine = named_cluster(cluster)
    options = FleetOptions(demand=DemandInputs(days=days))
    week = scenario(machine, demand_from([demand]), options, models=read_model(model))
    result = run_scenario(week, policy_of(policy, week), seed=seed)
    frame = timeline(result)
    frame.attrs = {
        "title": f"{machine.chips:,} chips of {cluster}, {demand}, {policy} policy",
        "chips_per_unit": machine.chips_per_domain,
        "summary": summary(result),
    }
    return frame


def brief(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarise each day in one row; the run directory has the table of every minute.

    Returns ``day``; the means ``serving_units``, ``training_units`` and ``load_units``;
    ``slo_attainment`` of the day's requests; ``served_tokens`` and ``energy_mwh``.
    """
    weighted = frame.assign(
        kept=frame["slo_attainment"] * frame["offered_requests"],
        training=frame["training_units"] + frame["evaluation_units"],
    )
    days = weighted.groupby(frame["time_utc"].dt.strftime("%a %d %b"), sort=False)
    return pd.DataFrame(
        {
            "serving_units": days["serving_units"].mean(),
            "training_units": days["training"].mean(),
            "load_units": days["load_units"].mean(),
            "slo_attainment": days["kept"].sum() / days["offered_requests"].sum(),
            "served_tokens": days["served_tokens"].sum(),
            "energy_mwh": days["power_w"].sum() * 60 / 3.6e9,
        }
    ).rename_axis("day")


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the roles as a stacked area with the demand on top."""
    chips = {"": int(frame.attrs.get("chips_per_unit", 64))}
    return roles_figure(frame, chips_per_unit=chips, title=frame.attrs.get("title", "Fleet"))
