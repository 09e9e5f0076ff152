"""Figures of the night question: lendable chips by time and confidence, and the backtest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from workloads.fleet.lending.answer import at_confidence
from workloads.fleet.lending.backtest import surest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from workloads.fleet.lending.answer import Loan

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)


def loan_figure(loan: Loan) -> Figure:
    """Draw the chips that can be lent tonight at several confidences, and the backtest."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 7), layout="constrained")
    top, bottom = figure.subplots(2, 1, height_ratios=(3, 2))
    edges = loan.nights.edges
    hours = edges / 60.0
    thousands = loan.terms.chips_per_unit / 1000.0
    borne_out = surest(loan.history_nights)
    levels = sorted({*(level for level in LEVELS if level <= borne_out), loan.confidence})
    for level, shade in zip(levels, np.linspace(0.75, 0.15, len(levels)), strict=True):
        units = at_confidence(loan, level)
        chosen = level == loan.confidence
        remark = " (asked)" if chosen else ""
        top.step(
            hours,
            np.append(units, units[-1]) * thousands,
            where="post",
            color="#2f855a" if chosen else str(shade),
            lw=2.8 if chosen else 1.2,
            label=f"{100 * level:.4g} %{remark}" + ("" if units.any() else ": no chips"),
        )
    whole = loan.terms.units * thousands
    top.axhline(whole, color="black", lw=0.8, ls=":", label="the whole fleet")
    top.set_ylim(0, whole * 1.05)
    top.set_xlim(hours[0], hours[-1])
    top.set_xticks(hours, [loan.moment(int(edge))[-5:] for edge in edges], rotation=45)
    top.set_ylabel("chips that can be lent [thousand]")
    top.set_xlabel(f"time from {loan.begin:%A %d %B %Y}, UTC")
    top.legend(title="confidence", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    top.set_title(
        f"Tonight {loan.unit_hours * loan.terms.chips_per_unit:,.0f} chip-hours can be lent with "
        f"{100 * loan.confidence:.4g} % confidence",
        loc="left",
    )
    frame = loan.frame()
    place = np.arange(len(frame))
    hindsight = frame["hindsight_unit_hours"] * thousands
    bottom.bar(place, hindsight, color="#e2e8f0", label="could have been lent")
    colours = np.where(frame["violated"], "#c53030", "#2f855a")
    bottom.bar(place, frame["lent_unit_hours"] * thousands, color=colours, width=0.55)
    # Empty bars that give the legend an entry for each colour.
    bottom.bar([0], [0], color="#2f855a", label="lent, and demand was met")
    bottom.bar([0], [0], color="#c53030", label="lent, and demand exceeded the rest")
    ticks = place[:: max(1, len(place) // 10)]
    names = [f"{night:%d %b}" for night in frame["night"]]
    bottom.set_xticks(ticks, [names[tick] for tick in ticks])
    bottom.set_ylabel("chip-hours lent\n[thousand]")
    bottom.set_xlabel("nights of the history, each answered from the nights before it")
    if not frame["lent_unit_hours"].any():
        bottom.set_title("on these nights the rule lends nothing", loc="left", fontsize=9)
    bottom.legend(frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def lead_figure(leads: pd.DataFrame) -> Figure:
    """Draw the chips that can be lent over the lead time of the answer, one line a confidence."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    levels = sorted(leads["confidence"].unique())
    for level, shade in zip(levels, np.linspace(0.35, 1.0, len(levels)), strict=True):
        line = leads[leads["confidence"] == level]
        place = np.arange(len(line))
        colour = (0.18, 0.52, 0.35, float(shade))
        chips = line["chips"] / 1000.0
        axes.plot(place, chips, color=colour, marker="o", lw=2)
        axes.lines[-1].set_label(f"{100 * level:.4g} %" + ("" if chips.any() else ": no chips"))
    hours = leads["lead_hours"].unique()
    axes.set_xticks(np.arange(len(hours)), [f"{hour} h" for hour in hours])
    axes.set_ylim(0, None)
    axes.margins(x=0.08)
    axes.legend(title="confidence", frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set_xlabel("time from the answer to the beginning of the night")
    axes.set_ylabel("chips lent on an average night [thousand]")
    axes.set_title(
        f"Lendable chips by lead time and confidence, mean of {leads['nights'].iloc[0]} nights",
        loc="left",
    )
    return figure
