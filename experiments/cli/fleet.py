"""``cluster-sim fleet``: the fleet that serves by day and trains by night."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.cli import fleet_options as opt
from experiments.cli.common import Json, Out, Overlay, Quiet, Seed, Variant, print_json, print_table
from experiments.cli.common import progress as shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from workloads.fleet import ChangeCosts, FleetRun
    from workloads.fleet.scenario import Scenario

HOW = ("json", "quiet", "out")
"""Options that change no result."""
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
    inputs = {name: value for name, value in locals().items() if name not in HOW}
    from experiments.run_directory import refuse_foreign

    if out:
        refuse_foreign(out)
    made, result, times = _timed(inputs)
    document = {**_document(made, result, inputs, quiet=quiet), **times}
    if out:
        _write(out, inputs, document, result, made)
    if json:
        print_json(document)
    else:
        _print(document)


def _timed(inputs: Mapping[str, Any]) -> tuple[Scenario, FleetRun, dict[str, float]]:
    begun = time.perf_counter()
    made = _scenario(inputs)
    built = time.perf_counter()
    result = _run(made, inputs["policy"], inputs)
    ended = time.perf_counter()
    return made, result, {"build_s": built - begun, "simulate_s": ended - built}


def _document(
    made: Scenario, result: FleetRun, inputs: Mapping[str, Any], *, quiet: bool
) -> dict[str, Any]:
    from workloads.fleet import regret, summary

    own = summary(result, made.economics)
    document = {"cluster": inputs["cluster"], "policy": inputs["policy"], **own}
    if inputs["compare"]:
        others = {
            name: summary(_run(made, name, {**inputs, "headroom": None}), made.economics)
            for name in shown(["oracle", "static"], "fleet, to compare", quiet=quiet)
        }
        document["regret"] = regret(own, others["oracle"], others["static"])
    return document


def _scenario(inputs: Mapping[str, Any]) -> Scenario:
    import numpy as np

    from topologies.catalogue import choose
    from topologies.errors import InputError
    from topologies.machines import cluster as named
    from workloads.fleet import Limits
    from workloads.fleet.scenario import demand_of, scenario
    from workloads.huggingface import model as read_model
    from workloads.serving import parse_slo

    if inputs["failures"] not in ("on", "off"):
        raise InputError(f"failures {inputs['failures']!r}; write on or off.")
    machine = named(
        inputs["cluster"], catalogue=choose(inputs["variant"] or (), inputs["catalogue"])
    )
    asked = demand_of(
        inputs["demand"] or ["azure-code"],
        service=inputs["service"],
        weights=inputs["weight"] or (),
        average_minutes=max(1, round(_seconds(inputs["average"]) / 60)),
        what_if=inputs["what_if"],
    )
    limits = Limits(
        floor=inputs["floor"],
        cap=inputs["cap"],
        block=inputs["block"],
        changes_per_minute=inputs["changes_per_minute"],
        min_lease_s=_seconds(inputs["lease"]),
        notice_s=_seconds(inputs["notice"]),
        reserve=inputs["reserve"],
    )
    return scenario(
        machine,
        asked,
        model=read_model(inputs["model"]),
        tp=inputs["tp"],
        slo=parse_slo(inputs["slo"]),
        chunk_tokens=inputs["chunk"],
        unit_rate_per_s=inputs["unit_rate"],
        peak_share=inputs["peak"],
        days=inputs["days"],
        start_day=inputs["start_day"],
        noise=_noise(inputs["noise"]),
        costs=_costs(inputs["change_time"]),
        source=inputs["weights"],
        limits=limits,
        failing=inputs["failures"] == "on",
        training=inputs["training"],
        carbon_g_per_kwh=inputs["carbon"],
        cache=inputs["cache"],
        rng=np.random.default_rng([inputs["seed"], 1]),
    )


def _run(made: Scenario, name: str, inputs: Mapping[str, Any]) -> FleetRun:
    from workloads.fleet.choose import policy_of
    from workloads.fleet.scenario import run

    chosen = policy_of(
        name,
        made,
        headroom=inputs["headroom"],
        hysteresis=inputs["hysteresis"],
        hold_s=None if inputs["hold"] is None else _seconds(inputs["hold"]),
        quantile=inputs["quantile"],
        night=_hours(inputs["night"]),
        night_share=inputs["night_share"],
        static_units=inputs["static_units"],
    )
    return run(made, chosen, seed=inputs["seed"])


def _seconds(text: str) -> float:
    from topologies.quantities import parse_seconds

    return float("inf") if text.strip() in ("inf", "never") else parse_seconds(text)


def _costs(change_time: str | None) -> ChangeCosts | None:
    from workloads.fleet import ChangeCosts

    return None if change_time is None else ChangeCosts.fixed(_seconds(change_time))


def _noise(text: str) -> float | str:
    from topologies.errors import InputError

    if text in ("none", "measured"):
        return 0.0 if text == "none" else text
    try:
        return float(text)
    except ValueError:
        raise InputError(f"noise {text!r}; write none, measured or a number such as 0.1.") from None


def _hours(text: str) -> tuple[float, float]:
    from topologies.errors import InputError

    try:
        first, last = (float(part) for part in text.split("-"))
    except ValueError:
        raise InputError(f"night {text!r}; write hours such as 22-6.") from None
    if not (0 <= first <= 24 and 0 <= last <= 24):
        raise InputError(f"night {text!r}; hours are 0 to 24.")
    return first, last


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


def _write(
    out: Path,
    inputs: Mapping[str, Any],
    document: Mapping[str, Any],
    result: FleetRun,
    made: Scenario,
) -> None:
    from experiments.fleet_figures import power_figure, roles_figure
    from experiments.run_directory import run_directory
    from workloads.fleet import changes_frame, jobs_frame, timeline

    frame: pd.DataFrame = timeline(result, made.economics)
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    chips = result.chips_per_unit
    with run_directory(out, command="fleet", inputs=inputs, seed=inputs["seed"]) as run:
        run.json("summary", document, title="Results")
        run.figure("roles", roles_figure(frame, chips_per_unit=chips, title=title), title="Roles")
        run.figure("power", power_figure(frame, title=title), title="Power")
        run.table("jobs", jobs_frame(result), title="Training jobs")
        run.table("changes", changes_frame(result), title="Role changes", parquet=True)
        run.table("timeline", frame, title="Every minute", parquet=True)
