"""``cluster-sim fleet``: the fleet that serves by day and trains by night."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from experiments.cli.fleet_options import (
    DemandInputs,
    FleetInputs,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
    Question,
)
from experiments.cli.inputs import CatalogueInputs
from experiments.cli.invocation import Invocation
from experiments.cli.output import print_table
from experiments.cli.progress import progress as shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from experiments.reports.run_directory import Run
    from workloads.fleet import FleetRun
    from workloads.fleet.scenario import Scenario

GROUPS = ("inference", "training", "moving", "idle", "broken")


def fleet(
    fleet: FleetInputs,
    demand: DemandInputs,
    policy: PolicyInputs,
    limits: LimitInputs,
    money: MoneyInputs,
    catalogue: CatalogueInputs,
    call: Invocation,
) -> None:
    """Run a fleet that serves by day and trains by night.

    Every chip-hour of the run is accounted for: inference, training, moving, idle or broken.
    """
    asked = Question(fleet, demand, policy, limits, money)
    scenario, result, times = _timed(asked, catalogue, call.seed)
    document = {**_document(asked, scenario, result, call), **times}
    for note in document["notes"]:
        sys.stderr.write(f"{note}\n")
    call.answer(
        lambda: document,
        lambda: _print(document),
        lambda run: _write(run, document, result, scenario),
    )


def _timed(
    asked: Question, catalogue: CatalogueInputs, seed: int
) -> tuple[Scenario, FleetRun, dict[str, float]]:
    from experiments.cli.fleet_inputs import run_under, scenario_of

    begun = time.perf_counter()
    scenario = scenario_of(asked, catalogue.read(), seed)
    built = time.perf_counter()
    result = run_under(scenario, asked.policy.policy, asked.policy, seed)
    ended = time.perf_counter()
    return scenario, result, {"build_s": built - begun, "simulate_s": ended - built}


def _document(
    asked: Question, scenario: Scenario, result: FleetRun, call: Invocation
) -> dict[str, Any]:
    from experiments.cli.fleet_inputs import notes, run_under
    from workloads.fleet import regret, summary

    own = summary(result, scenario.economics, scenario.prices)
    named = {"cluster": asked.fleet.cluster, "policy": asked.policy.policy}
    document = {**named, **own, "notes": notes(scenario, asked.policy.policy)}
    if asked.policy.compare:
        usual = replace(asked.policy, headroom=None)
        others = {
            name: summary(
                run_under(scenario, name, usual, call.seed), scenario.economics, scenario.prices
            )
            for name in shown(["oracle", "static"], "fleet, to compare", quiet=call.quiet)
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
