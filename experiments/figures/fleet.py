"""Figures of a fleet run: roles over time with the demand, power and its ramp, what-ifs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from cluster_sim.plot.palette import KNOWN, colors
from workloads.fleet.results import change_w

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STACK = (
    "serving", "batch", "warming", "draining", "loading", "compiling", "checkpointing", "training",
    "evaluation", "paused", "spare", "broken",
)  # fmt: skip
"""Roles from the bottom of the stack."""
LABELS = {"batch": "batch requests", "paused": "paused in place"}
STEP_MINUTES = 15
"""Minutes over which curves are averaged."""
SMALLEST = 0.002
"""Share of the fleet below which a role is left out of the figure."""


def roles_figure(frame: pd.DataFrame, *, chips_per_unit: int, title: str) -> Figure:
    """Draw the roles over time as a stacked area, and the chips that the demand needs."""
    from matplotlib.figure import Figure

    coarse = _coarse(frame)
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    time = coarse.index.to_numpy()
    fleet = coarse[[f"{role}_units" for role in STACK]].sum(axis=1).max()
    shown = [role for role in STACK if coarse[f"{role}_units"].max() > SMALLEST * fleet]
    thousands = chips_per_unit / 1000
    top.stackplot(
        time,
        [coarse[f"{role}_units"] * thousands for role in shown],
        colors=[KNOWN[role] for role in shown],
        labels=[LABELS.get(role, role) for role in shown],
        linewidth=0,
    )
    top.plot(
        time, coarse["load_units"] * thousands, color="black", lw=1.4, label="needed for the demand"
    )
    top.set_ylabel("chips [thousand]")
    top.set_ylim(0, fleet * thousands)
    top.set_title(f"{title}\n{_finding(frame)}", loc="left", fontsize=11)
    handles, names = top.get_legend_handles_labels()
    top.legend(
        handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False
    )
    bottom.plot(time, 100 * coarse["slo_attainment"], color="#2b6cb0", lw=1)
    bottom.set_ylabel("SLO attained\n[% of requests]")
    bottom.set_ylim(min(95.0, 100 * coarse["slo_attainment"].min()) - 0.5, 100.5)
    _days(bottom, frame)
    return figure


def _finding(frame: pd.DataFrame) -> str:
    units = frame[[f"{role}_units" for role in STACK]].to_numpy().sum()
    roles = ["training_units", "evaluation_units", "checkpointing_units"]
    trains = frame[roles].to_numpy().sum() / units
    batch = frame["batch_units"].to_numpy().sum() / units
    waits = f", {batch:.0%} answer batch requests" if batch else ""
    offered = frame["offered_requests"]
    kept = (frame["slo_attainment"] * offered).sum() / max(float(offered.sum()), 1e-300)
    return f"{trains:.0%} of the chip-hours train{waits}, {kept:.2%} of the requests are in time"


def power_figure(frame: pd.DataFrame, *, title: str) -> Figure:
    """Draw the power of the site, and its change within 15 minutes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    coarse = _coarse(frame)
    time, power = coarse.index.to_numpy(), coarse["power_w"].to_numpy() / 1e6
    top.plot(time, power, color="#2f855a", lw=1.2)
    top.set_ylim(0, power.max() * 1.08)
    top.set_ylabel("power of the site,\n15-minute mean [MW]")
    spread = f"{power.min():,.3g} to {power.max():,.3g} MW, {power.mean():,.3g} in the mean"
    top.set_title(f"{title}\n{spread}", loc="left", fontsize=11)
    change = change_w(frame["power_w"].to_numpy(float)) / 1e6
    bottom.fill_between(frame["time_utc"].to_numpy(), change, color="#718096", lw=0)
    bottom.axhline(0, color="black", lw=0.6)
    largest = float(np.abs(change).max())
    bottom.set_ylabel("change within\n15 min [MW]")
    bottom.set_title(f"largest change within 15 min: {largest:.1f} MW", loc="left", fontsize=9)
    _days(bottom, frame)
    return figure


def scenarios_figure(
    lines: Mapping[str, pd.DataFrame], *, chips_per_unit: int, title: str
) -> Figure:
    """Draw several scenarios: chips that serve, chips that train, requests within the SLO."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 3, 2))
    shades = colors(lines)
    thousands = chips_per_unit / 1000
    for name, frame in lines.items():
        coarse = _coarse(frame)
        time, style = coarse.index.to_numpy(), "-" if name == "base" else "--"
        trains = coarse[["training_units", "evaluation_units"]].sum(axis=1)
        curves = (
            coarse["serving_units"] * thousands,
            trains * thousands,
            100 * coarse["slo_attainment"],
        )
        for axes, curve in zip(panels, curves, strict=True):
            axes.plot(time, curve, color=shades[name], lw=1.3, ls=style, label=name)
    panels[0].set_title(title, loc="left")
    for axes, label in zip(
        panels,
        (
            "chips that serve\n[thousand]",
            "chips lent to training\n[thousand]",
            "SLO attained\n[% of requests]",
        ),
        strict=True,
    ):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[0].legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    longest = max(lines.values(), key=len)
    _days(panels[-1], longest)
    return figure


def _coarse(frame: pd.DataFrame) -> pd.DataFrame:
    numbers = frame.set_index("time_utc").select_dtypes("number")
    return numbers.resample(f"{STEP_MINUTES}min").mean()


def _days(axes: Axes, frame: pd.DataFrame) -> None:
    from matplotlib import dates

    first, last = frame["time_utc"].iloc[0], frame["time_utc"].iloc[-1]
    axes.set_xlim(first, last)
    short = last - first <= pd.Timedelta(days=2)
    every_day: dates.DateLocator = dates.DayLocator()  # type: ignore[no-untyped-call]
    if short:
        every_day = dates.HourLocator(byhour=(0, 6, 12, 18))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(every_day)
    style = dates.DateFormatter("%a %H:%M" if short else "%a %d %b")  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(style)
    axes.set_xlabel("time, UTC")
