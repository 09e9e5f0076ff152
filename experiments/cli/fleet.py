"""``cluster-sim fleet``: the fleet that serves by day and trains by night."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from experiments.cli import fleet_options as opt
from experiments.cli.answer import request
from experiments.cli.common import Json, Out, Overlay, Quiet, Seed, Variant, print_table
from experiments.cli.progress import progress as shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from experiments.reports.run_directory import Run
    from workloads.fleet import FleetRun
    from workloads.fleet.scenario import Scenario

GROUPS = ("inference", "training", "moving", "idle", "broken")


def fleet(
    cluster: opt.Cluster = "rainier",
    demand: opt.Demand = None,
    policy: opt.Policy = "forecast",
    days: opt.Days = None,
    start_day: opt.StartDay = 0.0,
    training: opt.Training = None,
    failures: opt.Failures = "on",
    model: opt.Model = "llama-3.1-405b",
    tp: opt.Tp = None,
    slo: opt.Slo = "ttft=6s,tpot=175ms",
    chunk: opt.Chunk = 512,
    unit_rate: opt.UnitRate = None,
    service: opt.Service = None,
    weight: opt.Weight = None,
    average: opt.Average = "1min",
    noise: opt.Noise = "none",
    what_if: opt.WhatIf = "",
    peak: opt.Peak = 1.0,
    headroom: opt.Headroom = None,
    hysteresis: opt.Hysteresis = None,
    hold: opt.Hold = None,
    quantile: opt.Quantile = 0.999,
    night: opt.Night = "0-8",
    night_share: opt.NightShare = 0.5,
    static_units: opt.StaticUnits = None,
    change_time: opt.ChangeTime = None,
    weights: opt.Weights = "nvme",
    floor: opt.Floor = 0,
    cap: opt.Cap = 0,
    block: opt.Block = 1,
    changes_per_minute: opt.ChangesPerMinute = 0,
    lease: opt.Lease = "0s",
    notice: opt.Notice = "inf",
    reserve: opt.Reserve = 0,
    price: opt.Price = None,
    price_cap: opt.PriceCap = None,
    carbon: opt.Carbon = 0.0,
    cache: opt.Cache = None,
    compare: opt.Compare = True,
    variant: Variant = None,
    catalogue: Overlay = None,
    seed: Seed = 0,
    json: Json = False,
    out: Out = None,
    quiet: Quiet = False,
) -> None:
    """Run a fleet through a demand and account for every chip-hour."""
    asked = request("fleet", locals())
    inputs = asked.given
    made, result, times = _timed(inputs)
    document = {**_document(made, result, inputs, quiet=quiet), **times}
    for note in document["notes"]:
        sys.stderr.write(f"{note}\n")
    asked.answer(
        lambda: document,
        lambda: _print(document),
        lambda run: _write(run, document, result, made),
    )


def _timed(inputs: Mapping[str, Any]) -> tuple[Scenario, FleetRun, dict[str, float]]:
    from experiments.cli.fleet_inputs import run_under, scenario_of

    begun = time.perf_counter()
    made = scenario_of(inputs)
    built = time.perf_counter()
    result = run_under(made, inputs["policy"], inputs)
    ended = time.perf_counter()
    return made, result, {"build_s": built - begun, "simulate_s": ended - built}


def _document(
    made: Scenario, result: FleetRun, inputs: Mapping[str, Any], *, quiet: bool
) -> dict[str, Any]:
    from experiments.cli.fleet_inputs import notes, run_under
    from workloads.fleet import regret, summary

    own = summary(result, made.economics, made.prices)
    asked = {"cluster": inputs["cluster"], "policy": inputs["policy"]}
    document = {**asked, **own, "notes": notes(made, inputs)}
    if inputs["compare"]:
        others = {
            name: summary(
                run_under(made, name, {**inputs, "headroom": None}), made.economics, made.prices
            )
            for name in shown(["oracle", "static"], "fleet, to compare", quiet=quiet)
        }
        document["regret"] = regret(own, others["oracle"], others["static"])
    return document


def _print(document: Mapping[str, Any]) -> None:
    hours = [
        [
            name,
            f"{document[f'{name}_chip_hours']:,.0f}",
            f"{document[f'{name}_chip_hours'] / document['chip_hours']:.2%}",
        ]
        for name in GROUPS
    ]
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    print_table(title, ["", "chip-hours", "share"], hours)
    latency = document["reclaim_latency_s"]
    facts = [
        ["requests within the SLO", f"{document['slo_attainment']:.3%}"],
        ["worst 15 minutes", f"{document['slo_attainment_worst_15min']:.3%}"],
        ["tokens served", f"{document['served_tokens']:,}"],
        ["tokens shed", f"{document['shed_tokens']:,}"],
        ["tokens waiting at the end", f"{document['queued_tokens']:,}"],
        ["training goodput", _number(document["training_goodput"], "{:.2%}")],
        ["training steps", _number(document["training_steps"], "{:,.0f}")],
        ["unit role changes", f"{document['role_changes']:,}"],
        ["time to serve, p50 / p99", f"{_number(latency['p50'])} / {_number(latency['p99'])}"],
        ["failures", f"{document['failures']:,}"],
        ["energy", f"{document['energy_joules'] / 3.6e9:,.0f} MWh"],
        ["largest change in 15 min", f"{document['power_ramp_15min_w'] / 1e6:,.1f} MW"],
        ["electricity", _number(document["electricity_usd"], "{:,.0f} USD")],
        ["cost", _number(document["cost_usd"], "{:,.0f} USD")],
        ["per million tokens", _number(document["usd_per_million_tokens"], "{:.3f} USD")],
        ["per training step", _number(document["usd_per_training_step"], "{:,.2f} USD")],
    ]
    if "regret" in document:
        captured = document["regret"]["captured"]
        facts.append(["training won, of what foresight wins", f"{captured:.1%}"])
    print_table("", ["", ""], facts)


def _number(value: float | None, style: str = "{:,.0f} s") -> str:
    return "–" if value is None else style.format(value)


def _write(run: Run, document: Mapping[str, Any], result: FleetRun, made: Scenario) -> None:
    from experiments.figures.fleet import power_figure, roles_figure
    from workloads.fleet import changes_frame, jobs_frame, timeline

    frame: pd.DataFrame = timeline(result, made.economics)
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    chips = result.chips_per_unit
    run.json("summary", document, title="Results")
    run.figure("roles", roles_figure(frame, chips_per_unit=chips, title=title), title="Roles")
    run.figure("power", power_figure(frame, title=title), title="Power")
    run.table("jobs", jobs_frame(result), title="Training jobs")
    run.table("changes", changes_frame(result), title="Role changes", parquet=True)
    run.table("timeline", frame, title="Every minute", parquet=True)
