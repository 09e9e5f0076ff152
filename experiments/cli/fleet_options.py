"""Options of ``cluster-sim fleet``, one name each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

MOST_DAYS = 36_525.0
MOST = 1e9
"""Keeps infinity out of options that are finite numbers."""

Cluster = Annotated[
    str, typer.Option("--cluster", help="CLUSTER; its scale-up domains change role.")
]
Demand = Annotated[
    list[str] | None,
    typer.Option("--demand", metavar="FILE.csv|NAME", help="May be given several times."),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy", help="static, clock, threshold, forecast, oracle, or FILE.py with policy()."
    ),
]
Days = Annotated[
    float | None,
    typer.Option("--days", min=0, max=MOST_DAYS, help="Length; up to a week if left out."),
]
StartDay = Annotated[
    float,
    typer.Option(
        "--start-day", min=0, max=MOST_DAYS, help="Earlier days are history that policies know."
    ),
]
Training = Annotated[
    Path | None, typer.Option("--training", metavar="FILE.csv", help="Training jobs.")
]
Failures = Annotated[str, typer.Option("--failures", help="on or off.")]
Model = Annotated[str, typer.Option("--model", help="Served and trained.")]
Tp = Annotated[int | None, typer.Option("--tp", min=1, help="Chips of a replica.")]
Slo = Annotated[str, typer.Option("--slo", help="As ttft=6s,tpot=175ms.")]
Chunk = Annotated[int, typer.Option("--chunk", min=0, help="Prefill piece [tokens]; 0: whole.")]
UnitRate = Annotated[
    float | None,
    typer.Option("--unit-rate", help="Requests/s of a unit, instead of a model's capacity."),
]
Service = Annotated[
    str | None, typer.Option("--service", help="Keep one service of a demand file.")
]
Weight = Annotated[
    list[float] | None,
    typer.Option("--weight", min=0, max=MOST, help="Share of each demand, in order."),
]
Average = Annotated[
    str, typer.Option("--average", help="Spread demand evenly over periods, as 1h.")
]
Noise = Annotated[str, typer.Option("--noise", help="none, measured, or a relative spread as 0.1.")]
WhatIf = Annotated[str, typer.Option("--what-if", help="plus-30, spike, failover or monday.")]
Peak = Annotated[
    float, typer.Option("--peak", help="Share of the fleet that the busiest hour needs.")
]
Headroom = Annotated[
    float | None,
    typer.Option("--headroom", min=0, max=MOST, help="Serve with so much more than needed."),
]
Hysteresis = Annotated[
    float | None,
    typer.Option("--hysteresis", min=0, max=MOST, help="Of threshold; 0 follows the load."),
]
Hold = Annotated[
    str | None, typer.Option("--hold", help="Of threshold: give up what was idle so long.")
]
Quantile = Annotated[float, typer.Option("--quantile", min=0, max=1, help="Of forecast errors.")]
Night = Annotated[str, typer.Option("--night", help="Hours of clock, UTC.")]
NightShare = Annotated[
    float,
    typer.Option("--night-share", min=0, max=1, help="Of the day's units, kept by clock at night."),
]
StaticUnits = Annotated[
    float | None,
    typer.Option("--static-units", min=0, max=MOST, help="Units that serve under static."),
]
ChangeTime = Annotated[
    str | None, typer.Option("--change-time", help="Of every role change, as 5min, 0s or inf.")
]
Weights = Annotated[
    str, typer.Option("--weights", help="Weights come from store, nvme, host or peer.")
]
Floor = Annotated[int, typer.Option("--floor", min=0, help="Fewest serving units.")]
Cap = Annotated[int, typer.Option("--cap", min=0, help="Most serving units; 0: all.")]
Block = Annotated[int, typer.Option("--block", min=1, help="Units that change at once.")]
ChangesPerMinute = Annotated[
    int,
    typer.Option("--changes-per-minute", min=0, help="Of the control plane; 0: any number."),
]
Lease = Annotated[str, typer.Option("--lease", help="Least time that units stay lent.")]
Notice = Annotated[
    str, typer.Option("--notice", help="That training gets; inf waits for a checkpoint.")
]
Reserve = Annotated[int, typer.Option("--reserve", min=0, help="Spare units that are not lent.")]
Price = Annotated[
    Path | None,
    typer.Option("--price", metavar="FILE.csv", help="Electricity: hour or time, usd_per_mwh."),
]
PriceCap = Annotated[
    float | None,
    typer.Option("--price-cap", max=MOST, help="Train only at or under so much [USD/MWh]."),
]
Carbon = Annotated[
    float,
    typer.Option("--carbon", min=0, max=MOST, help="Of the grid [g/kWh]; 0: not given."),
]
Cache = Annotated[
    Path | None, typer.Option("--cache", metavar="DIR", help="Keep capacity tables there.")
]
Compare = Annotated[
    bool, typer.Option("--compare/--no-compare", help="Run oracle and static as well.")
]
