"""``cluster-sim fleet``: a fleet that serves by day and trains by night."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from cluster_sim.progress import one_piece
from cluster_sim.progress import progress as shown
from experiments.cli.commands.fleet.tables import print_fleet
from experiments.cli.options.inputs import CatalogueInputs
from experiments.cli.options.invocation import Invocation
from experiments.cli.options.sensitivity import SensitivityInputs
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.fleet.scenario import Scenario
    from workloads.fleet.simulation import FleetRun


def fleet(
    fleet: FleetInputs,
    demand: DemandInputs,
    policy: PolicyInputs,
    limits: LimitInputs,
    money: MoneyInputs,
    sure: SensitivityInputs,
    catalogue_inputs: CatalogueInputs,
    call: Invocation,
) -> None:
    """Run a fleet that serves by day and trains by night.

    Every chip-hour of the run is accounted for: inference, training, moving, idle or broken.
    """
    from experiments.cli.commands.fleet.sensitivity import rank_fleet

    question, catalogue = (
        FleetOptions(fleet, demand, policy, limits, money),
        catalogue_inputs.read(fleet.cluster),
    )
    answer = _run_all(question, catalogue, call)
    document = _document(answer, call)
    call.answer(
        lambda: document,
        lambda: print_fleet(document),
        lambda run: _write(run, document, answer),
        rankings=rank_fleet(sure, question, answer.main[1], catalogue, call),
        notes=(document["scaling"], *document["notes"]),
    )


@dataclass(frozen=True, eq=False)
class _Answer:
    """Scenarios with their runs, the base first."""

    question: FleetOptions
    scenarios: list[tuple[str, Scenario]]
    runs: list[FleetRun]
    build_s: float
    simulate_s: float

    @property
    def base(self) -> Scenario:
        """The scenario before any what-if."""
        return self.scenarios[0][1]

    @property
    def main(self) -> tuple[str, Scenario, FleetRun]:
        """The scenario that is reported in full: the only what-if, or else the base."""
        place = 1 if len(self.runs) == 2 else 0
        return (*self.scenarios[place], self.runs[place])


def _run_all(question: FleetOptions, catalogue: Catalogue, call: Invocation) -> _Answer:
    """Build and run the base scenario and all what-ifs."""
    from workloads.fleet.from_options import scenario_from
    from workloads.fleet.scenario import policy_of, run, what_ifs

    begun = time.perf_counter()
    with one_piece("capacity of a unit", partial(shown, quiet=call.quiet)):
        base = scenario_from(question, catalogue, call.seed)
    scenarios = what_ifs(base, question.demand.what_if)
    built, policy = time.perf_counter(), question.policy
    runs = [
        run(scenario, policy_of(policy.policy, scenario, policy), seed=call.seed)
        for _, scenario in shown(scenarios, "fleet", quiet=call.quiet)
    ]
    return _Answer(question, scenarios, runs, built - begun, time.perf_counter() - built)


def _document(answer: _Answer, call: Invocation) -> dict[str, Any]:
    """Return the results by their keys in the command line's JSON."""
    from workloads.fleet.from_options import notes
    from workloads.fleet.front import compared
    from workloads.fleet.results.summary import summary
    from workloads.fleet.setup.night_work import post_training_document
    from workloads.fleet.setup.sureness import replicas_document

    name, scenario, run = answer.main
    results = summary(run, scenario.economics, scenario.prices)
    document = {
        "cluster": answer.question.fleet.cluster,
        "policy": answer.question.policy.policy,
        "scenario": name,
        "models": sorted({service.weights for service in scenario.services}),
        "replicas": replicas_document(scenario.services),
        **scenario.sizing.document(),
        **_sureness(scenario),
        **results,
        "scaling": answer.base.scaling,
        "notes": [
            *notes(answer.base, answer.question),
            *_missed(scenario, run, results),
            *_over_cap(answer.question.policy.power_cap, scenario, run),
        ],
    }
    if phases := post_training_document(scenario.jobs):
        document["post_training"] = phases
    if answer.question.policy.compare:
        watch = partial(shown, quiet=call.quiet)
        settings = answer.question.policy
        document["regret"] = compared(scenario, run, results, settings, call.seed, watch)
    if len(answer.scenarios) > 1:
        document["rows"] = [
            _row(label, each, summary(done, each.economics, each.prices))
            for (label, each), done in zip(answer.scenarios, answer.runs, strict=True)
        ]
    return {**document, "build_s": answer.build_s, "simulate_s": answer.simulate_s}


def _missed(scenario: Scenario, run: FleetRun, results: Mapping[str, Any]) -> list[str]:
    """Remark on when requests missed the SLO, with the option that would meet it."""
    from workloads.fleet.results.remarks import missed_note

    attained, wanted = results["slo_attainment"], scenario.serving.slo.share
    note = missed_note(run, scenario.lead_s, attained=attained, wanted=wanted)
    return [note] if note else []


def _over_cap(cap_mw: float | None, scenario: Scenario, run: FleetRun) -> list[str]:
    """Remark on minutes in which the site drew more than its cap."""
    from workloads.fleet.results.remarks import over_cap_note
    from workloads.fleet.results.timeline import power_w

    if cap_mw is None:
        return []
    note = over_cap_note(power_w(run, scenario.economics), cap_mw * 1e6)
    return [note] if note else []


def _sureness(scenario: Scenario) -> dict[str, Any]:
    """Return the interval of a unit's capacity, and what it makes of the need and of lending."""
    from workloads.fleet.expectation import lendable_share
    from workloads.fleet.setup.sureness import capacity_interval

    capacity = scenario.sizing.unit_capacity_requests_per_s
    ends = capacity_interval(scenario.services, capacity)
    needed = scenario.sizing.units_needed_peak
    follows = {
        "units_needed_peak_low": needed * capacity / ends.high,
        "units_needed_peak_high": needed * capacity / ends.low,
        "lendable_share": lendable_share(scenario),
        "lendable_share_low": lendable_share(scenario, ends.low / capacity),
        "lendable_share_high": lendable_share(scenario, ends.high / capacity),
    }
    return {"interval": {**ends.document(), **follows}}


def _row(name: str, scenario: Scenario, results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a scenario: every number of its summary, and shares of the fleet."""
    hours, offered = results["chip_hours"], results["offered_tokens"]
    return {
        "scenario": name,
        **scenario.sizing.document(),
        **results,
        "training_share": results["training_chip_hours"] / hours,
        "inference_share": results["inference_chip_hours"] / hours,
        "shed_share": results["shed_tokens"] / offered if offered else 0.0,
    }


def _write(run: Run, document: Mapping[str, Any], answer: _Answer) -> None:
    from experiments.figures.fleet import power_figure, roles_figure, scenarios_figure
    from workloads.fleet.results.summary import changes_frame, jobs_frame
    from workloads.fleet.results.timeline import timeline

    name, scenario, result = answer.main
    frame: pd.DataFrame = timeline(result, scenario.economics)
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    if name != "base":
        title += f", {name}"
    chips = result.chips_per_unit
    run.json("summary", document, title="Results")
    run.figure("roles", roles_figure(frame, chips_per_unit=chips, title=title), title="Roles")
    run.figure("power", power_figure(frame, title=title), title="Power")
    if "rows" in document:
        import pandas as pd

        rows = pd.DataFrame([_flat(row) for row in document["rows"]])
        run.table("what_ifs", rows, title="What-ifs side by side")
        lines = {
            label: timeline(done, each.economics)
            for (label, each), done in zip(answer.scenarios, answer.runs, strict=True)
        }
        figure = scenarios_figure(lines, chips_per_unit=chips, title=f"What-ifs: {title}")
        run.figure("what_ifs", figure, title="What-ifs")
    run.table("jobs", jobs_frame(result), title="Training jobs")
    run.table("changes", changes_frame(result), title="Role changes", parquet=True)
    run.table("timeline", frame, title="Every minute", parquet=True)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, dict)}
