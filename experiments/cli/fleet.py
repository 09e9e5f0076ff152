"""``cluster-sim fleet``: the fleet that serves by day and trains by night."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster_sim.progress import progress as shown
from experiments.cli.inputs import CatalogueInputs
from experiments.cli.invocation import Invocation
from experiments.cli.output import print_table
from experiments.cli.sensitivity import SensitivityInputs
from workloads.fleet_options import (
    DemandInputs,
    FleetInputs,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
    Question,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from experiments.cli.fleet_sensitivity import FleetRanking
    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.fleet import FleetRun
    from workloads.fleet.scenario import Scenario

GROUPS = ("inference", "training", "moving", "idle", "broken")
COMPARED = (
    ("slo_attainment", "within the SLO", "{:.3%}"),
    ("slo_attainment_worst_15min", "worst 15 min", "{:.2%}"),
    ("training_share", "lent to training", "{:.2%}"),
    ("inference_share", "serving", "{:.2%}"),
    ("units_needed_peak", "units, busiest hour", "{:,.0f}"),
    ("shed_share", "tokens shed", "{:.3%}"),
    ("role_changes", "role changes", "{:,}"),
)
"""Columns of the table of scenarios: key of a row, title, format."""


def fleet(
    fleet: FleetInputs,
    demand: DemandInputs,
    policy: PolicyInputs,
    limits: LimitInputs,
    money: MoneyInputs,
    sure: SensitivityInputs,
    catalogue: CatalogueInputs,
    call: Invocation,
) -> None:
    """Run a fleet that serves by day and trains by night.

    Every chip-hour of the run is accounted for: inference, training, moving, idle or broken.
    """
    from experiments.cli.fleet_sensitivity import rank_fleet

    asked, numbers = Question(fleet, demand, policy, limits, money), catalogue.read()
    answer = _run_all(asked, numbers, call)
    ranking = rank_fleet(sure, asked, answer.main[1], numbers, call)
    document = _document(answer, call) | (ranking.document() if ranking else {})
    call.answer(
        lambda: document,
        lambda: _print(document, ranking),
        lambda run: _write(run, document, answer, ranking),
        notes=(document["scaling"], *document["notes"]),
    )


@dataclass(frozen=True, eq=False)
class _Answer:
    """Scenarios side by side with their runs, the base first."""

    asked: Question
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
        """The only what-if, or else the base: the scenario that is reported in full."""
        place = 1 if len(self.runs) == 2 else 0
        return (*self.scenarios[place], self.runs[place])


def _run_all(asked: Question, numbers: Catalogue, call: Invocation) -> _Answer:
    from workloads.fleet.from_options import run_under, scenario_from
    from workloads.fleet.scenario import what_ifs

    begun = time.perf_counter()
    base = scenario_from(asked, numbers, call.seed)
    scenarios = what_ifs(base, asked.demand.what_if)
    built = time.perf_counter()
    runs = [
        run_under(scenario, asked.policy.policy, asked.policy, call.seed)
        for _, scenario in shown(scenarios, "fleet", quiet=call.quiet)
    ]
    return _Answer(asked, scenarios, runs, built - begun, time.perf_counter() - built)


def _document(answer: _Answer, call: Invocation) -> dict[str, Any]:
    from workloads.fleet import summary
    from workloads.fleet.from_options import notes
    from workloads.fleet.setup.post_training_rates import post_training_document
    from workloads.fleet.setup.sureness import replicas_document

    name, scenario, run = answer.main
    results = summary(run, scenario.economics, scenario.prices)
    document = {
        "cluster": answer.asked.fleet.cluster,
        "policy": answer.asked.policy.policy,
        "scenario": name,
        "models": sorted({service.weights for service in scenario.services}),
        "replicas": replicas_document(scenario.services),
        **scenario.sizing.document(),
        **_sureness(scenario),
        **results,
        "scaling": answer.base.scaling,
        "notes": [
            *notes(answer.base, answer.asked),
            *_missed(scenario, run, results),
        ],
    }
    if phases := post_training_document(scenario.jobs):
        document["post_training"] = phases
    if answer.asked.policy.compare:
        document["regret"] = _regret(answer, results, call)
    if len(answer.scenarios) > 1:
        document["rows"] = [
            _row(label, each, summary(done, each.economics, each.prices))
            for (label, each), done in zip(answer.scenarios, answer.runs, strict=True)
        ]
    return {**document, "build_s": answer.build_s, "simulate_s": answer.simulate_s}


def _missed(scenario: Scenario, run: FleetRun, results: Mapping[str, Any]) -> list[str]:
    """Say when requests missed the SLO, and which option would have kept it."""
    from workloads.fleet.results.missed import missed_note

    attained, asked = results["slo_attainment"], scenario.serving.slo.share
    note = missed_note(run, scenario.lead_s, attained=attained, asked=asked)
    return [note] if note else []


def _sureness(scenario: Scenario) -> dict[str, Any]:
    """Interval of a unit's capacity, and of the units needed for the busiest hour."""
    from workloads.fleet.setup.sureness import capacity_interval

    capacity = scenario.sizing.unit_capacity_requests_per_s
    ends = capacity_interval(scenario.services, capacity)
    needed = scenario.sizing.units_needed_peak
    ends_of_need = {
        "units_needed_peak_low": needed * capacity / ends.high,
        "units_needed_peak_high": needed * capacity / ends.low,
    }
    return {"interval": {**ends.document(), **ends_of_need}}


def _regret(answer: _Answer, results: Mapping[str, Any], call: Invocation) -> dict[str, float]:
    from workloads.fleet import regret, summary
    from workloads.fleet.from_options import run_under
    from workloads.fleet.policies.registry import bound_of

    _, scenario, _ = answer.main
    usual = replace(answer.asked.policy, headroom=None)
    bound = bound_of(answer.asked.policy.policy)
    others = {
        name: summary(
            run_under(scenario, name, usual, call.seed), scenario.economics, scenario.prices
        )
        for name in shown([bound, "static"], "fleet, to compare", quiet=call.quiet)
    }
    return regret(results, others[bound], others["static"])


def _row(name: str, scenario: Scenario, results: Mapping[str, Any]) -> dict[str, Any]:
    """One scenario in a row: every number of its summary, and shares of the fleet."""
    hours, offered = results["chip_hours"], results["offered_tokens"]
    return {
        "scenario": name,
        **scenario.sizing.document(),
        **results,
        "training_share": results["training_chip_hours"] / hours,
        "inference_share": results["inference_chip_hours"] / hours,
        "shed_share": results["shed_tokens"] / offered if offered else 0.0,
    }


def _print(document: Mapping[str, Any], ranking: FleetRanking | None) -> None:
    hours = [
        [
            name,
            f"{document[f'{name}_chip_hours']:,.0f}",
            f"{document[f'{name}_chip_hours'] / document['chip_hours']:.2%}",
        ]
        for name in GROUPS
    ]
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    if document["scenario"] != "base":
        title += f", {document['scenario']}"
    print_table(title, ["", "chip-hours", "share"], hours)
    print_table("", ["", ""], [*_size_facts(document), *_service_facts(document)])
    print_table("", ["", ""], _money_facts(document))
    if "batch" in document:
        print_table("Batch tier", ["", ""], _batch_facts(document["batch"]))
    if "post_training" in document:
        _print_post_training(document["post_training"])
    if "rows" in document:
        titles = ["scenario", *(name for _, name, _ in COMPARED)]
        rows = [
            [row["scenario"], *(style.format(row[key]) for key, _, style in COMPARED)]
            for row in document["rows"]
        ]
        print_table("What-ifs side by side", titles, rows)
    if ranking is not None:
        ranking.show()


def _print_post_training(jobs: Sequence[Mapping[str, Any]]) -> None:
    """Print how post-training jobs divide their units, one row for each size."""
    different = {(job["units"], job["mode"]): job for job in jobs}
    rows = [
        [
            one["mode"],
            str(one["units"]),
            f"{one['rollout_units']} + {one['update_units']}",
            *(f"{one[name]:,.1f} s" for name in ("rollout_s", "update_s", "transfer_s", "step_s")),
            one["bound"],
        ]
        for one in different.values()
    ]
    titles = [
        "",
        "units",
        "rollouts + updates",
        "rollout",
        "update",
        "transfer",
        "step",
        "bound by",
    ]
    print_table("Post-training: a step in the steady state", titles, rows)


def _size_facts(document: Mapping[str, Any]) -> list[list[str]]:
    return [
        ["demand, busiest hour", f"{document['demand_peak_requests_per_s']:,.3g} requests/s"],
        ["the fleet serves at the SLO", f"{document['capacity_requests_per_s']:,.4g} requests/s"],
        ["", f"{document['capacity_tokens_per_s']:,.4g} tokens/s"],
        ["a unit serves at the SLO", f"{document['unit_capacity_requests_per_s']:,.4g} requests/s"],
        *([["", _replica_text(one)] for one in document["replicas"]] or [["", "as given"]]),
        *(
            ["lost while a prefix cache fills", f"{one['cold_cache_s']:,.0f} s after a change"]
            for one in document["replicas"]
            if "cold_cache_s" in one
        ),
        [
            "units for the busiest hour",
            f"{document['units_needed_peak']:,.1f} of {document['units']:,}",
        ],
        [
            "80 % interval of it",
            f"{document['interval']['units_needed_peak_low']:,.1f} to "
            f"{document['interval']['units_needed_peak_high']:,.1f}",
        ],
        ["factor on the demand", f"{document['demand_scale']:.6g}"],
    ]


def _replica_text(one: Mapping[str, Any]) -> str:
    chips = f"{one['replicas_per_unit']} x {one['chips']} chips"
    groups = one["expert_groups"]
    divided = f", ep {groups} for prompts" if groups > 1 else ""
    if "prefill_replicas" in one:
        divided += f", {one['prefill_replicas']} prefill to {one['decode_replicas']} decode"
    return f"{chips} with {one['model']}, {one['precision']}{divided}"


def _service_facts(document: Mapping[str, Any]) -> list[list[str]]:
    latency = document["reclaim_latency_s"]
    return [
        ["requests within the SLO", f"{document['slo_attainment']:.3%}"],
        ["worst 15 minutes", f"{document['slo_attainment_worst_15min']:.3%}"],
        ["tokens served", f"{document['served_tokens']:,}"],
        ["tokens shed", f"{document['shed_tokens']:,}"],
        ["tokens waiting at the end", f"{document['queued_tokens']:,}"],
        ["unit role changes", f"{document['role_changes']:,}"],
        ["moves between services of one model", f"{document['service_moves']:,}"],
        ["changes from one model to another", f"{document['weight_changes']:,}"],
        ["time to serve, p50 / p99", f"{_number(latency['p50'])} / {_number(latency['p99'])}"],
        *_failures(document["failures_by_domain"]),
    ]


def _money_facts(document: Mapping[str, Any]) -> list[list[str]]:
    facts = [
        ["training goodput", _number(document["training_goodput"], "{:.2%}")],
        ["training tokens", _number(document["training_tokens"], "{:,.4g}")],
        ["training steps", _number(document["training_steps"], "{:,.0f}")],
        ["energy", f"{document['energy_joules'] / 3.6e9:,.0f} MWh"],
        ["largest change in 15 min", f"{document['power_ramp_15min_w'] / 1e6:,.1f} MW"],
        ["electricity", _number(document["electricity_usd"], "{:,.0f} USD")],
        ["cost", _number(document["cost_usd"], "{:,.0f} USD")],
        ["per million tokens", _number(document["usd_per_million_tokens"], "{:.3f} USD")],
        ["sold at the price of a token", _number(document["revenue_usd"], "{:,.0f} USD")],
        ["jobs done by their deadline", _in_time(document)],
        ["per training step", _number(document["usd_per_training_step"], "{:,.2f} USD")],
    ]
    if "regret" in document:
        facts.append(["training won, of what foresight wins", _captured(document["regret"])])
    return facts


def _captured(regret: Mapping[str, float]) -> str:
    """Share of foresight's gain over a split that never changes, where there is one."""
    gain = regret["gain_over_static_chip_hours"]
    if gain < 0:
        return f"none; static trains {-gain:,.0f} chip-hours more"
    return f"{regret['captured']:.1%}"


def _batch_facts(batch: Mapping[str, Any]) -> list[list[str]]:
    waits = [None if value is None else value / 3600 for value in batch["wait_s"].values()]
    return [
        *(
            [f"tokens {name}", f"{batch[f'{key}_tokens']:,}"]
            for key, name in (
                ("arrived", "that arrived"),
                ("served", "served"),
                ("waiting", "waiting at the end"),
                ("late", "expired"),
            )
        ),
        ["deadline", f"{batch['deadline_s'] / 3600:,.3g} h"],
        ["wait, p50 / p99 / longest", " / ".join(_number(wait, "{:,.1f} h") for wait in waits)],
        ["chip-hours", f"{batch['chip_hours']:,.0f}"],
        ["sold at the price of a batch token", _number(batch["revenue_usd"], "{:,.0f} USD")],
    ]


def _failures(by_domain: Mapping[str, int]) -> list[list[str]]:
    if set(by_domain) <= {"server"}:
        return [["failures", f"{sum(by_domain.values()):,}"]]
    return [[f"failures, {name}", f"{count:,}"] for name, count in by_domain.items()]


def _in_time(document: Mapping[str, Any]) -> str:
    count = document["jobs_with_deadline"]
    return f"{document['jobs_in_time']} of {count}" if count else "–"


def _number(value: float | None, style: str = "{:,.0f} s") -> str:
    return "–" if value is None else style.format(value)


def _write(
    run: Run, document: Mapping[str, Any], answer: _Answer, ranking: FleetRanking | None
) -> None:
    from experiments.figures.fleet import power_figure, roles_figure, scenarios_figure
    from workloads.fleet import changes_frame, jobs_frame, timeline

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
    if ranking is not None:
        ranking.write(run)
    run.table("jobs", jobs_frame(result), title="Training jobs")
    run.table("changes", changes_frame(result), title="Role changes", parquet=True)
    run.table("timeline", frame, title="Every minute", parquet=True)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, dict)}
