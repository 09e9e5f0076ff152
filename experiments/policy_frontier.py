"""The policy frontier: SLO attainment against training chip-hours, policies at several settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workloads.fleet.scenario import Scenario
    from workloads.fleet.view import Policy

HEADROOMS = (0.0, 0.1, 0.2, 0.35, 0.5, 0.75)


def run(
    cluster: str = "rainier",
    demand: str = "azure-code",
    model: str = "llama-3.1-405b",
    days: float = 7.0,
    headrooms: tuple[float, ...] = HEADROOMS,
    peak_share: float = 0.9,
    seed: int = 0,
) -> pd.DataFrame:
    """Run every built-in policy at several headrooms.

    Returns
    -------
    DataFrame
        ``policy, headroom, slo_attainment, slo_attainment_worst_15min, training_share,
        training_chip_hours, training_goodput, role_changes, usd_per_million_tokens``.
    """
    from topologies.machines import cluster as named
    from workloads.demand import demand_of
    from workloads.fleet.scenario import run as run_scenario
    from workloads.fleet.scenario import scenario
    from workloads.fleet.summary import summary
    from workloads.huggingface import model as read_model

    made = scenario(
        named(cluster),
        demand_of([demand]),
        model=read_model(model),
        days=days,
        peak_share=peak_share,
    )
    rows = []
    for name, headroom, policy in _policies(made, headrooms):
        done = summary(run_scenario(made, policy, seed=seed), made.economics)
        rows.append(
            {
                "policy": name,
                "headroom": headroom,
                "training_share": done["training_chip_hours"] / done["chip_hours"],
                **{key: done[key] for key in KEPT},
            }
        )
    frame = pd.DataFrame(rows)
    frame.attrs = {"title": f"{demand} on {cluster}, peak hour at {peak_share:.0%} of the fleet"}
    return frame


KEPT = (
    "slo_attainment",
    "slo_attainment_worst_15min",
    "training_chip_hours",
    "training_goodput",
    "role_changes",
    "usd_per_million_tokens",
)


def _policies(made: Scenario, headrooms: tuple[float, ...]) -> Iterator[tuple[str, float, Policy]]:
    from workloads.fleet.choose import policy_of

    for name in ("static", "threshold", "forecast", "oracle"):
        for headroom in headrooms:
            yield name, headroom, policy_of(name, made, headroom=headroom)
    for share in (0.2, 0.4, 0.6, 0.8):
        yield "clock", 0.0, policy_of("clock", made, night_share=share)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw missed requests (logarithmic) against the share of the fleet that trains."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter

    figure, axes = plt.subplots(figsize=(8.5, 5.5), layout="constrained")
    for (name, rows), marker in zip(frame.groupby("policy", sort=False), "sDo^v", strict=False):
        ordered = rows.sort_values("training_share")
        missed = 100 * (1 - ordered["slo_attainment"]).clip(lower=1e-5)
        axes.plot(100 * ordered["training_share"], missed, marker=marker, label=name, lw=1)
    axes.set_yscale("log")
    for each in (axes.yaxis.set_major_formatter, axes.yaxis.set_minor_formatter):
        each(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.invert_yaxis()
    axes.set_xlabel("chip-hours in training and evaluation [% of the fleet]   → better")
    axes.set_ylabel("requests that miss the SLO [%]   ↑ better")
    axes.set_title(frame.attrs.get("title", "Policy frontier"), loc="left")
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False, title="policy")
    return figure
