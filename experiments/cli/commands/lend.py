"""``cluster-sim lend``: how many chips can be lent tonight, and with which confidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.cli.options.inputs import CatalogueInputs
from experiments.cli.options.invocation import Invocation
from experiments.cli.output.printing import print_table
from workloads.options.fleet import (
    FleetInputs,
    FleetOptions,
    HistoryInputs,
    LimitInputs,
    NightInputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from experiments.reports.run_directory import Run
    from workloads.fleet.lending.answer import Loan
    from workloads.fleet.scenario import Scenario


def lend(
    night: NightInputs,
    fleet: FleetInputs,
    demand: HistoryInputs,
    limits: LimitInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Say how many units can be lent tonight, at a stated confidence.

    The demand is a history that ends now. The same method is tested on every night of the history.
    """
    from workloads.demand.trace import MINUTES_PER_DAY
    from workloads.fleet.from_options import notes, scenario_from
    from workloads.fleet.lending.front import for_lending, night_from
    from workloads.fleet.lending.on_cluster import lend_on

    question = night_from(night, fleet.slo)
    options = for_lending(FleetOptions(fleet, demand, limits=limits))
    scenario = scenario_from(options, catalogue_inputs.read(fleet.cluster), call.seed)
    loan = lend_on(scenario, question)
    remarks = (loan.note, loan.short_note, *notes(scenario, options))
    document = {
        "cluster": fleet.cluster,
        **scenario.sizing.document(),
        "history_days": scenario.demand.minutes / MINUTES_PER_DAY,
        **loan.summary(),
        **_sureness(loan, scenario),
        "scaling": scenario.scaling,
        "notes": [note for note in remarks if note],
    }
    call.answer(
        lambda: document,
        lambda: _print(document),
        lambda run: _write(run, loan, scenario),
        notes=(document["scaling"], *document["notes"]),
    )


def _sureness(loan: Loan, scenario: Scenario) -> dict[str, Any]:
    """Return the interval of the lent unit-hours, from that of a unit's capacity."""
    from workloads.fleet.lending.on_cluster import lent_interval

    return {"interval": lent_interval(loan, scenario).document()}


def _print(document: Mapping[str, Any]) -> None:
    """Print the loans, and the facts about the answer below them."""
    from experiments.reports.formatting import number

    level = f"{document['confidence']:.4g}"
    rows = [
        [loan["from"], loan["to"], f"{loan['units']:,}", f"{loan['chips']:,}", loan["reclaim_at"]]
        for loan in document["loans"]
    ]
    print_table(
        f"Units that can be lent at confidence {level}, of {document['units']:,}",
        ["from (UTC)", "until", "units", "chips", "order back at"],
        rows or [["–", "–", "0", "0", "–"]],
    )
    tested = document["backtest"]
    usd = document["usd"]
    hindsight = tested["hindsight_unit_hours"] or 1.0
    facts = [
        ["lent tonight", f"{document['lent_unit_hours']:,.0f} unit-hours"],
        ["80 % interval, by a unit's capacity", _ends(document["interval"])],
        ["training tokens", number(document["training_tokens"])],
        ["worth at the list price", "–" if usd is None else f"{usd:,.0f} USD"],
        ["time to reclaim a unit", _reclaim_text(document["reclaim_latency_s"])],
        ["kept back for repairs", f"{document['reserve_units']:,} units"],
        ["nights of the history answered", f"{tested['nights']:,}"],
        ["of them demand exceeded the answer", f"{tested['violated']:,}"],
        ["worst night, demand beyond capacity", f"{tested['worst_night_missed_share']:.2%}"],
        ["lent, of what hindsight lends", f"{tested['lent_unit_hours'] / hindsight:.1%}"],
        [
            "a unit serves within the SLO",
            f"{number(document['unit_capacity_requests_per_s'])} requests/s",
        ],
        ["units for the busiest hour", f"{document['units_needed_peak']:,.1f}"],
    ]
    if "batch" in document:
        batch = document["batch"]
        fits = "fits" if batch["fits"] else "does not fit"
        facts += [
            ["batch work of the last day", f"{batch['unit_hours']:,.3g} unit-hours, {fits}"],
            ["nights too short for it", f"{batch['nights_too_short']:,} of {tested['nights']:,}"],
        ]
    print_table("", ["", ""], facts)


def _reclaim_text(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:,.0f} s"


def _ends(ends: Mapping[str, float]) -> str:
    return f"{ends['low']:,.0f} to {ends['high']:,.0f} unit-hours"


def _write(run: Run, loan: Loan, scenario: Scenario) -> None:
    from experiments.figures.lending import lead_figure, loan_figure
    from workloads.fleet.lending.on_cluster import lead_times_on

    run.json("summary", loan.summary(), title="Results")
    run.figure("lend", loan_figure(loan), title="Units that can be lent")
    leads = lead_times_on(scenario, loan)
    run.figure("lead_times", lead_figure(leads), title="Lendable chips by lead time and confidence")
    run.table("lead_times", leads, title="Lendable chips by lead time and confidence")
    run.table("backtest", loan.frame(), title="Every night of the history")
