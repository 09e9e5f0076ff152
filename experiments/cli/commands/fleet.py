"""``cluster-sim fleet``: a fleet that serves by day and trains by night."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cluster_sim.progress import Watch, one_piece
from experiments.cli.options.inputs import CatalogueInputs, Invocation, Ranking, SensitivityInputs
from experiments.cli.output.printing import amount, interval_frame, print_table
from experiments.reports.formatting import number
from topologies.errors import InputError
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
)

if TYPE_CHECKING:
    import pandas as pd

    from experiments.reports.run_directory import Run
    from topologies.catalogue.catalogue import Catalogue
    from workloads.fleet.expectation import Expectation
    from workloads.fleet.policies.view import Policy
    from workloads.fleet.scenario import Scenario
    from workloads.fleet.simulation import FleetRun

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


def print_fleet(document: Mapping[str, Any]) -> None:
    """Print the use of chip-hours, and the facts about requests, training and money."""
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


def _print_post_training(jobs: Sequence[Mapping[str, Any]]) -> None:
    times = ("rollout", "update", "transfer", "step")
    different = {(job["units"], job["mode"]): job for job in jobs}
    rows = [
        [
            note["mode"],
            str(note["units"]),
            f"{note['rollout_units']} + {note['update_units']}",
            *(f"{note[f'{name}_s']:,.1f} s" for name in times),
            note["bound"],
        ]
        for note in different.values()
    ]
    titles = ["", "units", "rollouts + updates", *times, "bound by"]
    print_table("Post-training: a step in the steady state", titles, rows)


def _size_facts(document: Mapping[str, Any]) -> list[list[str]]:
    peak, fleet, unit = (
        f"{number(document[f'{key}_requests_per_s'])} requests/s"
        for key in ("demand_peak", "capacity", "unit_capacity")
    )
    tokens, ends = f"{number(document['capacity_tokens_per_s'])} tokens/s", document["interval"]
    return [
        ["demand, busiest hour", peak],
        ["the fleet serves within the SLO", f"{fleet}, {tokens}"],
        ["a unit serves within the SLO", unit if document["replicas"] else f"{unit}, as given"],
        *[row for replica in document["replicas"] for row in _replica_facts(replica)],
        *(
            ["lost while a prefix cache fills", f"{replica['cold_cache_s']:,.0f} s after a change"]
            for replica in document["replicas"]
            if "cold_cache_s" in replica
        ),
        [
            "units for the busiest hour",
            f"{document['units_needed_peak']:,.1f} of {document['units']:,}",
        ],
        [
            "80 % interval of it",
            f"{ends['units_needed_peak_low']:,.1f} to {ends['units_needed_peak_high']:,.1f}",
        ],
        ["chip-hours that foresight could lend", f"{ends['lendable_share']:.1%}"],
        [
            "80 % interval of them, same demand",
            f"{ends['lendable_share_low']:.1%} to {ends['lendable_share_high']:.1%}",
        ],
        ["factor on the demand", f"{document['demand_scale']:.6g}"],
    ]


def _replica_facts(replica: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows that say what the replicas of a unit are and how they process prompts."""
    groups, pieces = replica["expert_groups"], replica["chunk_tokens"]
    divided = f", ep {groups} for prompts" if groups > 1 else ""
    prompts = f"in pieces of {pieces:,} tokens, beside decoding" if pieces else "whole"
    if "prefill_replicas" in replica:
        counts = f"{replica['prefill_replicas']} prefill to {replica['decode_replicas']} decode"
        prompts = f"whole, on replicas of their own, {counts}"
    elif not pieces:
        prompts += ", while decoding waits"
    chips = f"{replica['replicas_per_unit']} of {replica['chips']} chips"
    return [
        [f"replicas of {replica['model']}, {replica['precision']}", f"{chips}{divided}"],
        ["their prompts run", prompts],
    ]


def _service_facts(document: Mapping[str, Any]) -> list[list[str]]:
    latency, by_domain = document["reclaim_latency_s"], document["failures_by_domain"]
    failures = {f", {name}": count for name, count in by_domain.items()}
    if set(by_domain) <= {"server"}:
        failures = {"": sum(by_domain.values())}
    return [
        ["requests within the SLO", amount(document, "slo_attainment", text="{:.3%}".format)],
        ["worst 15 minutes", f"{document['slo_attainment_worst_15min']:.3%}"],
        ["tokens served, in and out", f"{document['served_tokens']:,}"],
        ["tokens shed", f"{document['shed_tokens']:,}"],
        ["tokens waiting at the end", f"{document['queued_tokens']:,}"],
        ["unit role changes", f"{document['role_changes']:,}"],
        *(
            [name, f"{document[key]:,}"]
            for key, name in (
                ("service_moves", "moves between services of one model"),
                ("weight_changes", "changes from one model to another"),
            )
            if len(document["slo_attainment_by_service"]) > 1
        ),
        [
            "time until a unit serves, p50 / p99",
            f"{_number(latency['p50'])} / {_number(latency['p99'])}",
        ],
        *([f"failures{name}", f"{count:,}"] for name, count in failures.items()),
    ]


def _money_facts(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of training, power and money; unknown values have no row."""
    regret = document.get("regret")
    count, carbon = document["jobs_with_deadline"], document["carbon_kg"]

    facts = [
        ["training goodput", amount(document, "training_goodput", text="{:.2%}".format)],
        ["training tokens", amount(document, "training_tokens")],
        ["training steps of 16 million tokens", amount(document, "training_steps")],
        ["training won, of what foresight wins", _captured(regret) if regret else ""],
        ["chip-hours more than static trains", _gain(regret) if regret else ""],
        ["jobs done by their deadline", f"{document['jobs_in_time']} of {count}" if count else ""],
        ["energy", amount(document, "energy_joules", "MWh", 3.6e9)],
        ["largest power of a minute", f"{_digits(document['power_peak_w'] / 1e6)} MW"],
        ["largest change in 15 min", f"{_digits(document['power_ramp_15min_w'] / 1e6)} MW"],
        ["electricity", amount(document, "electricity_usd", "USD")],
        ["price that training paid", _known(document["training_usd_per_mwh"], "{:,.2f} USD/MWh")],
        ["chips at their list price", amount(document, "cost_usd", "USD")],
        ["per million tokens in and out", amount(document, "usd_per_million_tokens", "USD")],
        ["per million tokens trained", amount(document, "usd_per_million_trained_tokens", "USD")],
        ["per training step", amount(document, "usd_per_training_step", "USD")],
        ["served tokens sold for", amount(document, "revenue_usd", "USD")],
        ["left of it after these costs", amount(document, "margin_usd", "USD")],
        ["carbon dioxide", _known(carbon and carbon / 1000, "{:,.1f} t")],
    ]
    return [row for row in facts if row[1]]


def _captured(regret: Mapping[str, float]) -> str:
    gain = regret["gain_over_static_chip_hours"]
    if gain < 0:
        return f"none; static trains {-gain:,.0f} chip-hours more"
    return f"{regret['captured']:.1%}"


def _gain(regret: Mapping[str, Any]) -> str:
    gain, ends = f"{regret['gain_over_static_chip_hours']:,.0f}", regret["gain_interval"]
    if ends is None:
        return gain
    return f"{gain}; 80 % interval {ends['low']:,.0f} to {ends['high']:,.0f}"


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
        ["served batch tokens sold for", _number(batch["revenue_usd"], "{:,.0f} USD")],
    ]


def _known(value: float | None, style: str) -> str:
    return "" if value is None else style.format(value)


def _number(value: float | None, style: str = "{:,.0f} s") -> str:
    return "–" if value is None else style.format(value)


def _digits(value: float) -> str:
    """Write a number with three significant digits, and all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def expectation_at(base: Scenario, catalogue: Catalogue) -> Expectation:
    """Return the expectation of a scenario under another catalogue."""
    from topologies.clusters.names import machine
    from workloads.fleet.expectation import at
    from workloads.fleet.scenario import costs_of

    cluster = machine(base.options.fleet.cluster, catalogue=catalogue)
    return at(base, cluster, costs_of(cluster, base.options.limits))


def rank_fleet(
    sure: SensitivityInputs, base: Scenario, catalogue: Catalogue, call: Invocation
) -> list[Ranking]:
    """Rank numbers by their effect on lending and on the cost; none without ``--sensitivity``."""
    from workloads.confidence.sensitivity import NotingCatalogue

    if not sure.sensitivity:
        return []
    expectations: dict[str, Expectation] = {}

    def answer(catalogue: Catalogue) -> Expectation:
        # A catalogue that records reads has to be read again for each of the two answers.
        if catalogue.digest not in expectations or isinstance(catalogue, NotingCatalogue):
            expectations[catalogue.digest] = expectation_at(base, catalogue)
        return expectations[catalogue.digest]

    def cost(catalogue: Catalogue) -> float:
        return answer(catalogue).usd_per_million_tokens or 0.0

    middle = answer(catalogue)
    if not middle.lendable_share > 0:
        raise InputError(
            f"--sensitivity of a fleet that lends nothing: its {base.cluster.domains:,} units are "
            "all needed. Use a larger --cluster, or a smaller --scale-to-peak."
        )
    price = middle.usd_per_million_tokens
    expected = {
        "expected_lendable_share": middle.lendable_share,
        "expected_usd_per_million_tokens": price,
    }
    what = f"the lendable share ({middle.lendable_share:.1%})"
    shares = sure.rank(lambda moved: answer(moved).lendable_share, catalogue, call, what)
    rankings = [replace(ranking, expected=expected) for ranking in shares]
    if price is not None:
        what = f"the price of served tokens ({price:.3f} USD a million)"
        costs = sure.rank(cost, catalogue, call, what)
        rankings += [replace(ranking, key="sensitivity_cost") for ranking in costs]
    return rankings


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
    question = FleetOptions(fleet, demand, policy, limits, money)
    catalogue = catalogue_inputs.read(fleet.cluster)
    answer = _run_all(question, catalogue, call)
    document = _document(answer, call)
    call.answer(
        document,
        print_fleet,
        lambda run, _: _write(run, document, answer),
        rankings=rank_fleet(sure, answer.main[1], catalogue, call),
        notes=(document["scaling"], *document["notes"]),
    )


@dataclass(frozen=True, eq=False)
class _Answer:
    """Scenarios with their runs, the base first."""

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
    from workloads.fleet.scenario import policy_of, run, scenario_from, what_ifs

    begun = time.perf_counter()
    with one_piece("capacity of a unit", call.watch):
        base = scenario_from(question, catalogue, call.seed)
    scenarios = what_ifs(base, question.demand.what_if)
    built, policy = time.perf_counter(), question.policy
    runs = [
        run(scenario, policy_of(policy.policy, scenario, policy), seed=call.seed)
        for _, scenario in call.watch(scenarios, "fleet")
    ]
    return _Answer(scenarios, runs, built - begun, time.perf_counter() - built)


def _document(answer: _Answer, call: Invocation) -> dict[str, Any]:
    from workloads.fleet.front import compared
    from workloads.fleet.results import summary
    from workloads.fleet.scenario import notes
    from workloads.fleet.setup.night_work import post_training_document
    from workloads.fleet.setup.serving import replicas_document

    name, scenario, run = answer.main
    options = answer.base.options
    results = summary(run, scenario.economics, scenario.prices)
    document = {
        "cluster": options.fleet.cluster,
        "policy": options.policy.policy,
        "scenario": name,
        "models": sorted({service.weights for service in scenario.services}),
        "replicas": replicas_document(scenario.services),
        **scenario.sizing.document(),
        "interval": {**_sureness(scenario), **_intervals(scenario, results, call.seed, call.watch)},
        **results,
        "scaling": answer.base.scaling,
        "notes": [*notes(answer.base, options), *_notes_of_run(scenario, run, results)],
    }
    if phases := post_training_document(scenario.jobs):
        document["post_training"] = phases
    if options.policy.compare:
        document["regret"] = compared(scenario, run, results, options.policy, call.seed, call.watch)
    if len(answer.scenarios) > 1:
        document["rows"] = [
            _row(label, each, summary(done, each.economics, each.prices))
            for (label, each), done in zip(answer.scenarios, answer.runs, strict=True)
        ]
    return {**document, "build_s": answer.build_s, "simulate_s": answer.simulate_s}


def _notes_of_run(scenario: Scenario, run: FleetRun, results: Mapping[str, Any]) -> list[str]:
    from workloads.fleet.results import missed_note, over_cap_note, power_w
    from workloads.serving import parse_slo

    wanted, cap_w = parse_slo(scenario.options.fleet.slo).share, scenario.options.policy.power_cap_w
    attained = results["slo_attainment"]
    notes = [missed_note(run, scenario.lead_s, attained=attained, wanted=wanted)]
    if cap_w is not None:
        notes.append(over_cap_note(power_w(run, scenario.economics), cap_w))
    return list(filter(None, notes))


def _sureness(scenario: Scenario) -> dict[str, Any]:
    """Return the interval of a unit's capacity, and what it makes of the need and of lending."""
    from workloads.fleet.expectation import lendable_share
    from workloads.fleet.setup.serving import capacity_interval

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
    return {**ends.document(), **follows}


def _intervals(
    scenario: Scenario, results: Mapping[str, Any], seed: int, watch: Watch
) -> dict[str, Any]:
    """Return the intervals of the results, without any if the options do without."""
    from workloads.fleet.intervals import fleet_intervals
    from workloads.fleet.scenario import policy_of

    settings = scenario.options.policy
    if not settings.intervals:
        return {}

    def policy(changed: Scenario) -> Policy:
        """Return the policy anew, for a scenario."""
        return policy_of(settings.policy, changed, settings)

    return fleet_intervals(scenario, results, policy, seed=seed, watch=watch)


def _row(name: str, scenario: Scenario, results: Mapping[str, Any]) -> dict[str, Any]:
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
    from workloads.fleet.results import changes_frame, jobs_frame, timeline

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

        rows = pd.DataFrame(document["rows"])
        rows = rows[[name for name in rows if not isinstance(rows[name][0], dict)]]
        run.table("what_ifs", rows, title="What-ifs side by side")
        lines = {
            label: timeline(done, each.economics)
            for (label, each), done in zip(answer.scenarios, answer.runs, strict=True)
        }
        figure = scenarios_figure(lines, chips_per_unit=chips, title=f"What-ifs: {title}")
        run.figure("what_ifs", figure, title="What-ifs")
    run.table("intervals", interval_frame(document), title="Intervals of the results")
    run.table("jobs", jobs_frame(result), title="Training jobs")
    run.table("changes", changes_frame(result), title="Role changes", parquet=True)
    run.table("timeline", frame, title="Every minute", parquet=True)
