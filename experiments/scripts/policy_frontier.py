"""The trade-off between SLO attainment and training chip-hours, for six policies.

Each line is a policy of the fleet with several values of its setting, such as the headroom. Points
further to the right train more, higher points miss fewer requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from cluster_sim.progress import Watch, one_piece, unwatched
from experiments.scripts.points import each

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workloads.fleet.policies.view import Policy
    from workloads.fleet.scenario import Scenario

TARGET = 0.997
"""Share of requests in time at which policies are compared."""
HEADROOMS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)


def run(
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

    Policies that need prices of electricity or a limit on power are left out.

    Parameters
    ----------
    cluster : str
        Named machine or cluster file, whose scale-up domains are the fleet's units.
    demand : str
        Bundled demand or CSV file.
    model : str
        Model that is served and trained.
    days : float
        Simulated time; by default a week, to include weekdays and a weekend [d].
    headrooms : tuple of float
        Capacity kept above the expected load, as a share of it.
    peak_share : float
        Share of the fleet that the busiest hour of the demand is scaled to need.
    seed : int
        Seed of failures and repairs.
    watch : function of (sequence, str), optional
        Shows the progress, see :func:`experiments.scripts.points.each`.

    Returns
    -------
    DataFrame
        ``policy``; its setting, ``headroom`` or ``night_share``; ``training_share``,
        ``slo_attainment``, ``slo_attainment_worst_15min``, ``training_chip_hours``,
        ``training_goodput``, ``role_changes`` and ``usd_per_million_tokens``.
    """
    from topologies.clusters.names import cluster as named
    from workloads.demand import demand_from
    from workloads.fleet.scenario import scenario
    from workloads.fleet.setup.period import Period
    from workloads.models.huggingface import model as read_model

    with one_piece("capacity of a unit", watch):
        scene = scenario(
            named(cluster),
            demand_from([demand]),
            model=read_model(model),
            period=Period(days, scale_to_peak=peak_share),
        )
    points = list(_policies(scene, headrooms))
    frame = pd.DataFrame(each(partial(_row, scene, seed), points, watch, task="runs"))
    frame.attrs = {"title": f"{demand} on {cluster}, peak hour at {peak_share:.0%} of the fleet"}
    return frame


def _row(
    scene: Scenario, seed: int, point: tuple[str, Mapping[str, float], Policy]
) -> dict[str, Any]:
    """Return a policy, its setting, and the results of the fleet under it."""
    from workloads.fleet.results.summary import summary
    from workloads.fleet.scenario import run as run_scenario

    name, setting, policy = point
    results = summary(run_scenario(scene, policy, seed=seed), scene.economics)
    return {
        "policy": name,
        "headroom": setting.get("headroom"),
        "night_share": setting.get("night_share"),
        "training_share": results["training_chip_hours"] / results["chip_hours"],
        **{key: results[key] for key in KEPT},
    }


KEPT = (
    "slo_attainment",
    "slo_attainment_worst_15min",
    "training_chip_hours",
    "training_goodput",
    "role_changes",
    "usd_per_million_tokens",
)


def _policies(
    week: Scenario, headrooms: tuple[float, ...]
) -> Iterator[tuple[str, dict[str, float], Policy]]:
    """Yield the name, the setting and the function of each policy."""
    from workloads.fleet.policy_by_name import policy_of

    for name in ("static", "threshold", "forecast", "mpc", "oracle"):
        for headroom in headrooms:
            yield name, {"headroom": headroom}, policy_of(name, week, headroom=headroom)
    for share in (0.2, 0.4, 0.6, 0.8):
        yield "clock", {"night_share": share}, policy_of("clock", week, night_share=share)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw missed requests, on a logarithmic axis, against the share of the fleet that trains."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    from cluster_sim.plot.palette import colors

    figure = Figure(figsize=(9.5, 5.5), layout="constrained")
    axes = figure.subplots()
    shades = colors(dict.fromkeys(frame["policy"]))
    for (name, rows), marker in zip(frame.groupby("policy", sort=False), "sDoP^v", strict=False):
        ordered = rows.sort_values("training_share")
        missed = 100 * (1 - ordered["slo_attainment"]).clip(lower=1e-5)
        share, shade = 100 * ordered["training_share"], shades[str(name)]
        axes.plot(share, missed, marker=marker, color=shade, label=name, lw=1)
    axes.set_yscale("log")
    for set_formatter in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        set_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.invert_yaxis()
    axes.set_xlabel("chip-hours in training and evaluation [% of the fleet]   → better")
    axes.set_ylabel("requests that miss the SLO [%]   ↑ better")
    axes.axhline(100 * (1 - TARGET), color="0.4", ls="--", lw=1)
    title = frame.attrs.get("title", "")
    lines = [line for line in (title, _finding(frame)) if line]
    axes.set_title("\n".join(lines), loc="left", fontsize=9.5)
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, title="policy")
    return figure


def _finding(frame: pd.DataFrame) -> str:
    """Sentence with the largest training share of each policy that keeps the target."""
    kept = frame[frame["slo_attainment"] >= TARGET].groupby("policy", sort=False)
    most = kept["training_share"].max().sort_values(ascending=False)
    if most.empty:
        return f"No policy serves {TARGET:.1%} of requests in time (dashed)"
    shares = ", ".join(f"{name} {share:.0%}" for name, share in most.items())
    return f"In training with at least {TARGET:.1%} of requests in time (dashed): {shares}"
