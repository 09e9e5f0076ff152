"""``cluster-sim lend``: how many chips can be lent tonight, and with which confidence."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments.cli.main import tell
from experiments.cli.options.inputs import Invocation, PricedInputs
from experiments.cli.output.printing import interval_frame, print_rows, print_table
from experiments.reports.certainty import facts
from experiments.reports.formatting import Column, option_name
from topologies.clusters.names import machine
from topologies.support.errors import InputError, printable
from topologies.support.options import setting
from topologies.support.units import parse_seconds
from workloads.options.fleet import (
    MOST_DAYS,
    FleetInputs,
    FleetOptions,
    HistoryInputs,
    LimitInputs,
    NightInputs,
)

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.demand.trace import Demand
    from workloads.fleet.lending.answer import Loan, Night
    from workloads.fleet.lending.front import LendResult
    from workloads.fleet.scenario import Scenario

HISTORY_ONLY = (
    "demand", "start_day", "weight", "average", "service", "noise", "batch_share", "batch_demand",
)  # fmt: skip
"""Options about a history that is read at once, which a source that grows has not."""


@dataclass(frozen=True)
class FollowInputs:
    """A demand that grows, and an answer every hour."""

    follow: str | None = setting(
        None,
        "Answer every hour from a demand that grows: a CSV file to which rows are added, or the "
        "address of a Prometheus server with --query",
        metavar="FILE.csv|URL",
        recorded=False,
    )
    query: str | None = setting(
        None, "PromQL for the requests per second of the last minute", recorded=False
    )
    prompt_query: str | None = setting(
        None, "PromQL for their prompt tokens per second", default="1618 a request", recorded=False
    )
    output_query: str | None = setting(
        None, "PromQL for their output tokens per second", default="110 a request", recorded=False
    )
    state: Path | None = setting(
        None,
        "Directory that keeps demand and statements through restarts",
        metavar="DIR",
        recorded=False,
    )
    once: bool = setting(
        False, "Answer the hours that have come and end, for a timer", recorded=False
    )
    poll: str = setting("1min", "Time between two looks at the source", plain="s", recorded=False)
    metrics: Path | None = setting(
        None,
        "Write metrics of the newest hour to this file, for Prometheus' collector of text files",
        metavar="FILE.prom",
        recorded=False,
    )

    def __post_init__(self) -> None:
        if self.follow is None:
            idle = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
            if idle:
                raise InputError(f"{option_name(idle[0])} is for --follow SOURCE; add it.")
        elif self.state is None:
            raise InputError("--follow needs --state DIR, which keeps what it knows.")
        elif self.once and self.poll != FollowInputs.poll:
            raise InputError(f"--poll {self.poll} changes nothing beside --once; leave it out.")


def lend(
    night: NightInputs,
    fleet: FleetInputs,
    demand: HistoryInputs,
    limits: LimitInputs,
    growing: FollowInputs,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Say how many units can be lent tonight, at a stated confidence.

    The demand is a history that ends now. The same method is tested on every night of the history.
    With --follow the demand grows, and every hour gets an answer.
    """
    from workloads.demand.trace import MINUTES_PER_DAY
    from workloads.fleet.lending.front import (
        LendResult,
        fastest_job,
        for_lending,
        lend_on,
        night_from,
    )
    from workloads.fleet.scenario import notes, scenario_from

    catalogue_inputs.check_one_way()
    question = night_from(night, fleet.slo)
    options = for_lending(FleetOptions(fleet, demand, limits=limits))
    if growing.follow is not None:
        _follow(growing, options, question, catalogue_inputs, call)
        return
    scenario = scenario_from(options, catalogue_inputs.watched(fleet.cluster), call.seed)
    loan = lend_on(scenario, question)
    result = LendResult(scenario, loan)
    remarks = [loan.note, loan.weekday_note, loan.short_note, *notes(scenario, options)]
    lent_to, reinforced = fastest_job(scenario), any(job.post_training for job in scenario.jobs)
    if fleet.post_training is not None and reinforced and lent_to and not lent_to.post_training:
        remarks.append(
            f"--post-training {fleet.post_training} changes nothing here: lent units count as "
            f"those of {lent_to.name}, which trains the most tokens a unit."
        )
    document = {
        "cluster": fleet.cluster,
        "history_days": scenario.demand.minutes / MINUTES_PER_DAY,
        **result.summary,
        "interval": {**result.interval.document(), **result.intervals},
        "scaling": scenario.scaling,
        "notes": [note for note in remarks if note],
    }
    call.answer(
        document,
        _print,
        lambda run, _: _write(run, document, result),
        notes=(document["scaling"], *document["notes"]),
    )


def _follow(
    growing: FollowInputs,
    options: FleetOptions,
    question: Night,
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Answer every hour that comes, once or until interrupted."""
    from experiments.hourly.demand import source_of
    from experiments.hourly.follow import USUAL_DAYS, Follower, of_this_night
    from workloads.fleet.lending.front import lend_on
    from workloads.fleet.scenario import check_question, read_models, scenario

    poll_s = parse_seconds(growing.poll, "--poll")
    if poll_s < 1:
        raise InputError(f"--poll {growing.poll} is under a second; write 1min.")
    usual = HistoryInputs()
    for name in HISTORY_ONLY:
        if getattr(options.demand, name) != getattr(usual, name):
            raise InputError(
                f"{option_name(name)} is for a history that is read at once; leave it out with "
                "--follow."
            )
    if call.out is not None:
        raise InputError("--out is for one answer; with --follow, --state keeps them all.")
    cluster = machine(options.fleet.cluster, catalogue=catalogue_inputs.read(options.fleet.cluster))
    check_question(options)
    models, days = read_models(options.fleet.model), options.demand.days
    every_day = replace(options, demand=replace(options.demand, days=math.inf))

    def ask(history: Demand) -> tuple[Loan, Scenario]:
        """Answer the question for a history that ends now."""
        built = scenario(cluster, history, every_day, models=models, seed=call.seed)
        return lend_on(built, of_this_night(question, history)), built

    follower = Follower(
        source_of(
            str(growing.follow),
            growing.query,
            (growing.prompt_query or "", growing.output_query or ""),
        ),
        Path(growing.state or ""),
        ask,
        lambda line: click.echo(
            json.dumps(line, allow_nan=False) if call.json else printable(_in_words(line))
        ),
        USUAL_DAYS if days is None or days > MOST_DAYS else days,
        growing.metrics,
    )
    if growing.once:
        follower.once()
    else:
        follower.forever(poll_s, lambda fault: tell(f"cluster-sim: {printable(fault)}\n"))


def _in_words(line: Mapping[str, Any]) -> str:
    """Return the line of an hour for people."""
    if line["status"] != "answered":
        return f"{line['hour']}  held: {line['why']}"
    back = [f"order {each['units']:,} back at {each['at'][-5:]}" for each in line["order_back"]]
    kept = [
        f"{'broken' if each['broken'] else 'kept'}: {each['stated_at']}, "
        f"{each['within_share']:.2%} of minutes"
        for each in line["promises"]
    ]
    lent = (
        f"{line['hour']}  lend {line['lend_units']:,} units (+{line['lend_more_units']:,} "
        f"−{line['take_back_units']:,}), {line['lent_unit_hours']:,.0f} unit-hours ahead"
    )
    return "; ".join([lent, *back, *kept])


LOANS = (
    Column("from", "from (UTC)"),
    Column("to", "until"),
    Column("units", "units"),
    Column("chips", "chips"),
    Column("reclaim_at", "order back at"),
)
LENT = (
    Column("lent_unit_hours", "unit-hours lent tonight", write="{:,.0f}".format),
    Column("training_tokens", "training tokens"),
    Column("training_goodput", "goodput of the loans", write="{:.1%}".format),
    Column("energy_joules", "energy of the loans"),
    Column("usd_per_million_trained_tokens", "USD per million tokens trained"),
    Column("usd", "worth at the list price"),
    Column("reclaim_latency_s", "time to reclaim a unit"),
    Column("reserve_units", "units kept back for repairs"),
)
TESTED = (
    Column("nights_borne_out", "nights that bear out the confidence"),
    Column("violated_borne_out", "  of them demand exceeded the answer"),
    Column("worst_night_missed_share", "worst night, demand beyond capacity"),
    Column("of_hindsight", "lent, of what hindsight lends", write="{:.1%}".format),
)
FLEET = (
    Column("unit_capacity_requests_per_s", "a unit serves within the SLO"),
    Column("units_needed_peak", "units for the busiest hour", write="{:,.1f}".format),
    Column("batch.unit_hours", "unit-hours of batch work of the last day", write="{:,.3g}".format),
    Column("batch.fits", "  fits", write=lambda fits: "yes" if fits else "no"),
    Column("batch.nights_too_short", "nights too short for it"),
)


def _print(document: Mapping[str, Any]) -> None:
    """Print the loans, and the facts about the answer below them."""
    level, tested = f"{document['confidence']:.4g}", document["backtest"]
    none = {"from": "–", "to": "–", "units": 0, "chips": 0, "reclaim_at": "–"}
    title = f"Loans that add up, at confidence {level}, of {document['units']:,} units"
    print_rows(title, LOANS, document["loans"] or [none])
    by_weekday = ", ".join(
        f"{row['weekday'][:2]} {row['violated']}/{row['nights']}" for row in tested["by_weekday"]
    )
    late_s, rest = document["reclaim_latency_s"], tested["holidays"]
    lent = {**document, "reclaim_latency_s": math.inf if late_s is None else late_s}
    which = "on holidays of the calendar" if rest["calendar"] else "on nights unlike their weekday"
    hindsight = tested["lent_unit_hours"] / (tested["hindsight_unit_hours"] or 1.0)
    nights = [
        ("nights of the history answered", f"{tested['nights']:,}"),
        ("of them demand exceeded the answer", f"{tested['violated']:,}"),
        ("  by weekday", by_weekday),
        (f"  {which}", f"{rest['violated']} of {rest['nights']}"),
        *facts(TESTED, {**tested, "of_hindsight": hindsight}),
    ]
    together = ", ".join(f"{each['units']:,}" for each in document["windows"])
    loans = ("all loans, window by window", f"{together} units")
    print_table("", ["", ""], [loans, *facts(LENT, lent), *nights, *facts(FLEET, document)])


def _write(run: Run, document: Mapping[str, Any], result: LendResult) -> None:
    from experiments.figures.fleet import lead_figure, loan_figure

    run.json("summary", document, title="Results")
    run.table("intervals", interval_frame(document, *LENT), title="Intervals of the results")
    run.figure("lend", loan_figure(result.loan), title="Units that can be lent")
    leads = result.lead_times()
    run.figure("lead_times", lead_figure(leads), title="Lendable chips by lead time and confidence")
    run.table("lead_times", leads, title="Lendable chips by lead time and confidence")
    run.table("backtest", result.frame(), title="Every night of the history")
