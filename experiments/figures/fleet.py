"""Figures of a fleet: roles and power over time, what-ifs, and chips to lend by confidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib import dates
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cluster_sim.plot.palette import KNOWN, colors
from experiments.figures.layout import canvas, legend_beside
from workloads.fleet.lending.answer import Loan, at_confidence
from workloads.fleet.lending.backtest import surest
from workloads.fleet.results import change_w

STACK = (
    "serving", "batch", "warming", "draining", "loading", "compiling", "checkpointing", "training",
    "evaluation", "paused", "spare", "broken",
    "maintenance",
)  # fmt: skip
"""Roles from the bottom of the stack."""
ATTAINED = "SLO attained\n[% of requests]"
LABELS = {"batch": "batch requests", "paused": "paused in place"}
STEP_MINUTES = 15  # minutes over which curves are averaged
IN_THOUSANDS = 10_000  # chips from which an axis counts thousands of them
SMALLEST = 0.002  # share of the fleet below which a role is left out of the figure


def roles_figure(frame: pd.DataFrame, *, chips_per_unit: Mapping[str, int], title: str) -> Figure:
    """Draw the roles over time as a stacked area for each kind, and the chips that demand needs."""
    coarse, kinds = _coarse(frame), list(chips_per_unit)
    figure, panels = canvas(
        *(11, 3.0 + 3.5 * len(kinds), len(kinds) + 1, 1),
        sharex=True,
        height_ratios=(*[4] * len(kinds), 1),
    )
    time, largest = coarse.index.to_numpy(), coarse[[f"{role}_units" for role in STACK]].max()
    fleet = coarse[[f"{role}_units" for role in STACK]].sum(axis=1).max()
    shown = [role for role in STACK if largest[f"{role}_units"] > SMALLEST * fleet]
    for axes, kind in zip(panels, kinds, strict=False):
        prefix = f"{kind}_" if len(kinds) > 1 else ""
        units = [coarse[f"{prefix}{role}_units"] for role in shown]
        most = np.sum(units, axis=0).max() * chips_per_unit[kind]
        scale, unit = (1000, " [thousand]") if most >= IN_THOUSANDS else (1, "")
        per_unit = chips_per_unit[kind] / scale
        axes.stackplot(
            time,
            [each * per_unit for each in units],
            colors=[KNOWN[role] for role in shown],
            labels=[LABELS.get(role, role) for role in shown],
            linewidth=0,
        )
        if not prefix:  # several kinds share what is needed
            need = coarse["load_units"] * per_unit
            axes.plot(time, need, color="black", lw=1.4, label="needed for the demand")
        axes.set_ylabel(f"chips{f' of {kind}' if prefix else ''}{unit}")
        axes.set_ylim(0, most / scale)
    top, bottom = panels[0], panels[-1]
    top.set_title(f"{title}\n{_finding(frame, chips_per_unit)}", loc="left", fontsize=11)
    legend_beside(top, upwards=True)
    bottom.plot(time, 100 * coarse["slo_attainment"], color="#2b6cb0", lw=1)
    bottom.set_ylabel(ATTAINED)
    bottom.set_ylim(min(95.0, 100 * coarse["slo_attainment"].min()) - 0.5, 100.5)
    _days(bottom, frame)
    return figure


def _finding(frame: pd.DataFrame, chips_per_unit: Mapping[str, int]) -> str:
    trained, answered, whole = (
        float(_chips(frame, chips_per_unit, roles).sum())
        for roles in (("training", "evaluation", "checkpointing"), ("batch",), STACK)
    )
    trains, batch = trained / whole, answered / whole
    waits = f", {batch:.0%} answer batch requests" if batch else ""
    offered = frame["offered_requests"]
    kept = (frame["slo_attainment"] * offered).sum() / max(float(offered.sum()), 1e-300)
    return f"{trains:.0%} of the chip-hours train{waits}, {kept:.2%} of the requests are in time"


def _chips(
    frame: pd.DataFrame, chips_per_unit: Mapping[str, int], roles: Sequence[str]
) -> pd.Series[float]:
    """Chips of all kinds of units in some roles, in each row of a frame."""
    prefixes = {f"{kind}_" * (len(chips_per_unit) > 1): n for kind, n in chips_per_unit.items()}
    each = [frame[f"{of}{role}_units"] * n for of, n in prefixes.items() for role in roles]
    return pd.concat(each, axis=1).sum(axis=1)


def power_figure(frame: pd.DataFrame, *, title: str) -> Figure:
    """Draw the power of the site, and its change within 15 minutes."""
    figure, (top, bottom) = canvas(11, 5, 2, 1, sharex=True, height_ratios=(2, 1))
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
    bottom.set_title(f"largest change within 15 min: {largest:.3g} MW", loc="left", fontsize=9)
    _days(bottom, frame)
    return figure


def scenarios_figure(
    lines: Mapping[str, pd.DataFrame], *, chips_per_unit: Mapping[str, int], title: str
) -> Figure:
    """Draw several scenarios: chips that serve, chips that train, requests within the SLO."""
    figure, panels = canvas(11, 8, 3, 1, sharex=True, height_ratios=(3, 3, 2))
    shades = colors(lines)
    for name, frame in lines.items():
        coarse = _coarse(frame)
        time, style = coarse.index.to_numpy(), "-" if name == next(iter(lines)) else "--"
        serves, trains = (
            _chips(coarse, chips_per_unit, roles) / 1000
            for roles in (("serving",), ("training", "evaluation"))
        )
        curves = (serves, trains, 100 * coarse["slo_attainment"])
        for axes, curve in zip(panels, curves, strict=True):
            axes.plot(time, curve, color=shades[name], lw=1.3, ls=style, label=name)
    panels[0].set_title(title, loc="left")
    labels = ("chips that serve\n[thousand]", "chips lent to training\n[thousand]", ATTAINED)
    for axes, label in zip(panels, labels, strict=True):
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    legend_beside(panels[0])
    longest = max(lines.values(), key=len)
    _days(panels[-1], longest)
    return figure


def _coarse(frame: pd.DataFrame) -> pd.DataFrame:
    numbers = frame.set_index("time_utc").select_dtypes("number")
    return numbers.resample(f"{STEP_MINUTES}min").mean()


def _days(axes: Axes, frame: pd.DataFrame) -> None:
    first, last = frame["time_utc"].iloc[0], frame["time_utc"].iloc[-1]
    axes.set_xlim(first, last)
    short = last - first <= pd.Timedelta(days=2)
    apart = -((first - last) // pd.Timedelta(days=8))  # at most eight dates have room
    every_day: dates.DateLocator = dates.DayLocator(interval=apart)  # type: ignore[no-untyped-call]
    if short:
        every_day = dates.HourLocator(byhour=(0, 6, 12, 18))  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(every_day)
    style = dates.DateFormatter("%a %H:%M" if short else "%a %d %b")  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_formatter(style)
    axes.set_xlabel("time, UTC")


LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def loan_figure(loan: Loan) -> Figure:
    """Draw the chips that can be lent tonight at several confidences, and the backtest."""
    figure, (top, bottom) = canvas(10.5, 7, 2, 1, height_ratios=(3, 2))
    edges = loan.nights.edges
    hours = edges / 60.0
    each = loan.terms.chips_per_unit
    borne_out = surest(loan.errors.known)
    levels = sorted({*(level for level in LEVELS if level <= borne_out), loan.confidence})
    for level, shade in zip(levels, np.linspace(0.75, 0.15, len(levels)), strict=True):
        units = at_confidence(loan, level)
        chosen = level == loan.confidence
        remark = " (asked)" if chosen else ""
        top.step(
            hours,
            np.append(units, units[-1]) * each,
            where="post",
            color="#2f855a" if chosen else str(shade),
            lw=2.8 if chosen else 1.2,
            label=f"{100 * level:.4g} %{remark}" + ("" if units.any() else ": no chips"),
        )
    whole = loan.terms.units * each
    top.axhline(whole, color="black", lw=0.8, ls=":", label="the whole fleet")
    top.set_ylim(0, whole * 1.05)
    top.set_xlim(hours[0], hours[-1])
    top.set_xticks(hours, [loan.moment(int(edge))[-5:] for edge in edges], rotation=45)
    top.set_ylabel("chips that can be lent")
    for panel in (top, bottom):
        panel.yaxis.set_major_formatter("{x:,.0f}")
    top.set_xlabel(f"time from {loan.begin:%A %d %B %Y}, UTC")
    legend_beside(top, "confidence")
    top.set_title(
        f"Tonight {loan.unit_hours * loan.terms.chips_per_unit:,.0f} chip-hours can be lent with "
        f"{100 * loan.confidence:.4g} % confidence",
        loc="left",
    )
    frame = loan.frame()
    place = np.arange(len(frame))
    hindsight = frame["hindsight_unit_hours"] * each
    bottom.bar(place, hindsight, color="#e2e8f0", label="could have been lent")
    colours = np.where(frame["violated"], "#c53030", "#2f855a")
    bottom.bar(place, frame["lent_unit_hours"] * each, color=colours, width=0.55)
    # Empty bars that give the legend an entry for each colour.
    bottom.bar([0], [0], color="#2f855a", label="lent, and demand was met")
    bottom.bar([0], [0], color="#c53030", label="lent, and demand exceeded the rest")
    ticks = place[:: max(1, -(-len(place) // 10))]
    names = [f"{night:%d %b}" for night in frame["night"]]
    bottom.set_xticks(ticks, [names[tick] for tick in ticks])
    bottom.set_ylabel("chip-hours lent")
    bottom.set_xlabel("nights of the history, each answered from the nights before it")
    if not frame["lent_unit_hours"].any():
        bottom.set_title("on these nights the rule lends nothing", loc="left", fontsize=9)
    legend_beside(bottom)
    return figure


def lead_figure(leads: pd.DataFrame) -> Figure:
    """Draw the chips that can be lent over the lead time of the answer, one line a confidence."""
    figure, axes = canvas(9, 5)
    levels = sorted(leads["confidence"].unique())
    for level, shade in zip(levels, np.linspace(0.35, 1.0, len(levels)), strict=True):
        line = leads[leads["confidence"] == level]
        place = np.arange(len(line))
        colour = (0.18, 0.52, 0.35, float(shade))
        chips = line["chips"]
        axes.plot(place, chips, color=colour, marker="o", lw=2)
        axes.lines[-1].set_label(f"{100 * level:.4g} %" + ("" if chips.any() else ": no chips"))
    hours = leads["lead_hours"].unique()
    axes.set_xticks(np.arange(len(hours)), [f"{hour} h" for hour in hours])
    axes.margins(0.08)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    legend_beside(axes, "confidence")
    axes.set_xlabel("time from the answer to the beginning of the night")
    axes.set_ylabel("chips lent on an average night")
    axes.set_title(
        f"Chips that can be lent, the earlier the answer: mean of {leads['nights'].iloc[0]} nights",
        loc="left",
    )
    return figure
