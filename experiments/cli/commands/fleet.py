"""``cluster-sim fleet``: a fleet that serves by day and trains by night."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cluster_sim.progress import one_piece
from experiments.cli.options.inputs import Invocation, PricedInputs, Ranking, SensitivityInputs
from experiments.cli.output.printing import interval_frame, print_rows, print_table, print_text
from experiments.reports.certainty import facts
from experiments.reports.formatting import Column, number
from topologies.catalogue.catalogue import Catalogue
from topologies.support.errors import InputError
from workloads.options.fleet import (
    DemandInputs,
    FleetInputs,
    FleetOptions,
    LimitInputs,
    MoneyInputs,
    PolicyInputs,
)

if TYPE_CHECKING:
    from experiments.reports.run_directory import Run
    from workloads.fleet.expectation import Expectation
    from workloads.fleet.front import FleetResult
    from workloads.fleet.scenario import Scenario

GROUPS = ("inference", "training", "moving", "idle", "broken")
PARTS = {"training": "evaluation", "broken": "maintenance"}
"""Role of a group that a reader would not look for there: evaluation trains no tokens."""


def _counted(count: int) -> str:
    """Write a number that is not worth a row where it is zero."""
    return f"{count:,}" if count else ""


def _megawatts(watts: float) -> str:
    """Write a power with three significant digits, and all digits before the point."""
    value = watts / 1e6
    return f"{value:,.0f} MW" if abs(value) >= 100 else f"{value:.3g} MW"


def _or_dash(pattern: str) -> Callable[[float | None], str]:
    """Return a function that writes a number, or a dash for none."""
    return lambda value: "–" if value is None else pattern.format(value)


SIZE = (
    Column("demand_peak_requests_per_s", "demand, busiest hour"),
    Column("capacity_requests_per_s", "the fleet serves within the SLO"),
    Column("capacity_tokens_per_s", "", write=lambda rate: f"{number(rate)} tokens/s"),
    Column("unit_capacity_requests_per_s", "a unit serves within the SLO"),
)
NEED = (
    Column("units_needed_peak", "units for the busiest hour", write="{:,.1f}".format),
    Column("interval.units_needed_peak_low", "  80 % interval from", write="{:,.1f}".format),
    Column("interval.units_needed_peak_high", "  to", write="{:,.1f}".format),
    Column("interval.lendable_share", "chip-hours that the oracle would lend"),
    Column("interval.lendable_share_low", "  80 % interval, same demand, from"),
    Column("interval.lendable_share_high", "  to"),
    Column("demand_scale", "factor on the demand", write="{:.6g}".format),
)
SERVICE = (
    Column("slo_attainment", "requests within the SLO", write="{:.3%}".format),
    Column("slo_attainment_worst_15min", "  in the worst 15 minutes", write="{:.3%}".format),
    Column("slo_attainment_worst_15min_from", "    which began at, UTC"),
    Column("served_tokens", "tokens served, in and out"),
    Column("shed_tokens", "tokens shed"),
    Column("queued_tokens", "tokens waiting at the end"),
    Column("role_changes", "unit role changes"),
    Column("service_moves", "moves between services of one model", write=_counted),
    Column("weight_changes", "changes from one model to another", write=_counted),
    Column("reclaim_latency_s.p50", "time until a unit serves, median"),
    Column("reclaim_latency_s.p99", "  99 % within"),
    Column("failures", "failures"),
    Column("maintained_units", "units out for maintenance", write=_counted),
    Column("holes.share", "chip-hours lost in partly used units", write="{:.2%}".format),
    Column("holes.cost_usd", "  at their list price"),
)
MONEY = (
    Column("training_goodput", "training goodput", write="{:.2%}".format),
    Column("training_tokens", "training tokens"),
    Column("training_steps", "training steps of 16 million tokens"),
    Column("won", "training gained, of the oracle's gain", write="{:.1%}".format),
    Column("regret.gain_over_static_chip_hours", "chip-hours of training beyond static's",
           write="{:,.0f}".format),
    Column("jobs_with_deadline", "jobs with a deadline", write=_counted),
    Column("in_time", "  done by it"),
    Column("energy_joules", "energy"),
    Column("power_peak_w", "largest power of a minute", write=_megawatts),
    Column("over_cap_minutes", "  minutes above the cap", write="{:,}".format),
    Column("over_cap_w", "  most above it", write=_megawatts),
    Column("power_ramp_15min_w", "largest change in 15 min", write=_megawatts),
    Column("electricity_usd", "electricity"),
    Column("training_usd_per_mwh", "price that training paid, USD/MWh"),
    Column("cost_usd", "chips at their list price"),
    Column("reserved_usd", "  of it reserved, in advance"),
    Column("usd_per_million_tokens", "USD per million tokens in and out"),
    Column("usd_per_million_trained_tokens", "USD per million tokens trained"),
    Column("usd_per_million_trained_tokens_without_evaluation", "  without evaluation",
           write="{:.4g}".format),
    Column("usd_per_training_step", "USD per training step"),
    Column("revenue_usd", "served tokens sold for"),
    Column("margin_usd", "left of it after these costs"),
    Column("carbon_kg", "carbon dioxide"),
)  # fmt: skip
BATCH = (
    Column("arrived_tokens", "tokens that arrived"),
    Column("served_tokens", "tokens served"),
    Column("waiting_tokens", "tokens waiting at the end"),
    Column("late_tokens", "tokens expired"),
    Column("deadline_s", "deadline"),
    Column("wait_s.p50", "wait, median"),
    Column("wait_s.p99", "  99 % within"),
    Column("wait_s.max", "  longest"),
    Column("chip_hours", "chip-hours", write="{:,.0f}".format),
    Column("revenue_usd", "served batch tokens sold for"),
)
STEPS = (
    Column("mode", ""),
    Column("units", "units"),
    Column("rollout_units", "rollouts"),
    Column("update_units", "updates"),
    *(Column(f"{name}_s", name) for name in ("rollout", "update", "transfer", "step")),
    Column("bound", "bound by"),
)
KINDS = (
    Column("kind", "kind of units"),
    Column("units", "units"),
    Column("serves", "serves", write=lambda place: f"{place}." if place else "never"),
    Column("unit_capacity_requests_per_s", "requests/s a unit", write=_or_dash("{:,.4g}")),
    Column("inference_share", "inference", write="{:.1%}".format),
    Column("training_share", "training", write="{:.1%}".format),
    Column("served_tokens", "tokens served"),
    Column("training_tokens", "tokens trained"),
    Column("usd_per_million_tokens", "USD per M served", write=_or_dash("{:.3f}")),
    Column("usd_per_million_trained_tokens", "USD per M trained", write=_or_dash("{:.3f}")),
)
REGIONS = (
    Column("region", "region"),
    Column("offered_requests", "requests"),
    Column("slo_attainment", "within the SLO", write="{:.3%}".format),
    Column("served_elsewhere_share", "served elsewhere", write="{:.1%}".format),
    Column("chips", "chips"),
    Column("inference_share", "inference", write="{:.1%}".format),
    Column("training_share", "training", write="{:.1%}".format),
    Column("training_tokens", "tokens trained"),
)
COMPARED = (
    Column("scenario", "scenario"),
    Column("slo_attainment", "within the SLO", write="{:.3%}".format),
    Column("slo_attainment_worst_15min", "worst 15 min", write="{:.2%}".format),
    Column("training_share", "lent to training", write="{:.2%}".format),
    Column("inference_share", "serving", write="{:.2%}".format),
    Column("units_needed_peak", "units, busiest hour", write="{:,.0f}".format),
    Column("shed_share", "tokens shed", write="{:.3%}".format),
    Column("role_changes", "role changes"),
    Column("training_tokens", "tokens trained"),
    Column("usd_per_million_tokens", "USD per M served"),
    Column("usd_per_million_trained_tokens", "USD per M trained"),
)


def print_fleet(document: Mapping[str, Any]) -> None:
    """Print the use of chip-hours, and the facts about requests, training and money."""
    whole, by_group = document["chip_hours"], [document[f"{name}_chip_hours"] for name in GROUPS]
    roles, hours = document["chip_hours_by_role"], list[list[str]]()
    for name, spent in zip(GROUPS, by_group, strict=True):
        part = PARTS.get(name, "")
        several = [(name, spent), (f"  of it {part}", roles.get(part, 0.0))]
        hours += [
            [label, f"{time:,.0f}", f"{time / whole:.2%}"]
            for label, time in (several if several[1][1] else several[:1])
        ]
    print_table(_title(document), ["", "chip-hours", "share"], hours)
    if "kinds" in document:
        print_rows("Kinds of units, in the order in which they serve", KINDS, document["kinds"])
        print_text(f"Units below are counted as {document['kinds'][0]['kind']}.")
    if "regions" in document:
        print_rows("Regions: their users' requests, and their chips", REGIONS, document["regions"])
    sizes = facts(SIZE, document, "fleet") + _replica_facts(document["replicas"])
    by_domain = document["failures_by_domain"]
    failures = by_domain if set(by_domain) - {"server"} else {}
    service = facts(SERVICE, document) + [(f"  {name}", f"{n:,}") for name, n in failures.items()]
    print_table("", ["", ""], [*sizes, *facts(NEED, document), *service])
    regret = document.get("regret", {})
    gains = regret.get("gain_over_static_chip_hours", 0.0) >= 0
    kept = {
        "won": regret.get("captured") if gains else None,
        "in_time": document["jobs_in_time"] if document["jobs_with_deadline"] else None,
    }
    print_table("", ["", ""], facts(MONEY, {**document, **kept}))
    if "batch" in document:
        print_table("Batch tier", ["", ""], facts(BATCH, document["batch"]))
    if "post_training" in document:
        different = {(job["units"], job["mode"]): job for job in document["post_training"]}
        print_rows("Post-training: a step in the steady state", STEPS, list(different.values()))
    if "rows" in document:
        print_rows("What-ifs side by side", COMPARED, document["rows"])


def _title(document: Mapping[str, Any]) -> str:
    title = f"{document['chips']:,} chips of {document['cluster']}, {document['policy']} policy"
    return title if document["scenario"] == "base" else f"{title}, {document['scenario']}"


def _replica_facts(replicas: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return the rows that say what the replicas of a unit are and how they process prompts."""
    if not replicas:
        return [("  as given", "by --unit-rate")]
    rows = []
    for replica in replicas:
        groups, pieces = replica["expert_groups"], replica["chunk_tokens"]
        divided = f", ep {groups} for prompts" if groups > 1 else ""
        prompts = f"in pieces of {pieces:,} tokens, beside decoding" if pieces else "whole"
        if "prefill_replicas" in replica:
            counts = f"{replica['prefill_replicas']} prefill to {replica['decode_replicas']} decode"
            prompts = f"whole, on replicas of their own, {counts}"
        elif not pieces:
            prompts += ", while decoding waits"
        several = "s" * (replica["chips"] != 1)
        chips = f"{replica['replicas_per_unit']} of {replica['chips']} chip{several}"
        on = f", {replica['kind']}" if "kind" in replica else ""
        name = f"replicas of {replica['model']}, {replica['precision']}{on}"
        rows.append((name, f"{chips}{divided}"))
        rows.append(("their prompts run", prompts))
    cold = Column("cold_cache_s", "lost while a prefix cache fills after a change")
    return rows + [row for replica in replicas for row in facts([cold], replica)]


def rank_fleet(
    sure: SensitivityInputs, base: Scenario, catalogue: Catalogue, call: Invocation
) -> list[Ranking]:
    """Rank numbers by their effect on lending and on the cost; none without ``--sensitivity``."""
    from workloads.confidence.sensitivity import NotingCatalogue
    from workloads.fleet.expectation import at

    if not sure.sensitivity:
        return []
    expectations: dict[str, Expectation] = {}

    def answer(catalogue: Catalogue) -> Expectation:
        # A catalogue that records reads has to be read again for each of the two answers.
        if catalogue.digest not in expectations or isinstance(catalogue, NotingCatalogue):
            expectations[catalogue.digest] = at(base, catalogue)
        return expectations[catalogue.digest]

    def cost(catalogue: Catalogue) -> float:
        return answer(catalogue).usd_per_million_tokens or 0.0

    middle = answer(catalogue)
    if not middle.lendable_share > 0:
        raise InputError(
            f"--sensitivity of a fleet that lends nothing: its {base.units:,.0f} units are "
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
    catalogue_inputs: PricedInputs,
    call: Invocation,
) -> None:
    """Run a fleet that serves by day and trains by night.

    Every chip-hour of the run is accounted for: inference, training, moving, idle or broken.
    """
    question = FleetOptions(fleet, demand, policy, limits, money)
    catalogue_inputs.check_one_way()
    if money.price is not None and catalogue_inputs.price_basis == "owned":
        raise InputError(
            f"--price-basis owned includes electricity, and --price {money.price} adds it again; "
            "leave one of them out."
        )
    if policy.kind:
        source = click.get_current_context().get_parameter_source("cluster")
        if source is not ParameterSource.DEFAULT:
            raise InputError(
                f"--cluster {fleet.cluster} beside --kind, which states the whole fleet; leave one "
                "of them out."
            )
        catalogue, prices = catalogue_inputs.read_side_by_side(question.clusters)
    else:
        catalogue, prices = catalogue_inputs.watched(fleet.cluster), ""
    answer = _run_all(question, catalogue, call)
    document = _document(answer)
    document["notes"] += [prices] if prices else []
    call.answer(
        document,
        print_fleet,
        lambda run, _: _write(run, document, answer),
        rankings=rank_fleet(sure, answer.main[1].scenario, catalogue, call),
        notes=(document["scaling"], *_usual_slo(fleet), *document["notes"]),
    )


def _usual_slo(fleet: FleetInputs) -> Iterator[str]:
    """Name the limits of requests that count where nobody states them."""
    from workloads.serving.served import parse_slo

    if fleet.slo == FleetInputs.slo and fleet.unit_rate is None:
        share = parse_slo(fleet.slo).share
        yield f"SLO not stated: {fleet.slo} for {share:.0%} of the requests; --slo sets another."


@dataclass(frozen=True, eq=False)
class _Answer:
    """Runs of scenarios by their names, the base first."""

    runs: Mapping[str, FleetResult]
    build_s: float
    simulate_s: float

    @property
    def base(self) -> Scenario:
        """The scenario before any what-if."""
        return next(iter(self.runs.values())).scenario

    @property
    def main(self) -> tuple[str, FleetResult]:
        """The run that is reported in full: that of the only what-if, or else of the base."""
        changed = len(self.runs) == 2 and len(self.base.options.demand.what_if) == 1
        return list(self.runs.items())[1 if changed else 0]


def _run_all(question: FleetOptions, catalogue: Catalogue, call: Invocation) -> _Answer:
    from workloads.fleet.front import FleetResult
    from workloads.fleet.scenario import policy_of, run, scenario_from, side_by_side

    begun = time.perf_counter()
    with one_piece("capacity of a unit", call.watch):
        base = scenario_from(question, catalogue, call.seed)
    scenarios = side_by_side(base)
    built, policy = time.perf_counter(), question.policy.policy
    runs = {}
    for name, scenario in call.watch(scenarios, "fleet"):
        done = run(scenario, policy_of(policy, scenario), seed=call.seed)
        runs[name] = FleetResult(scenario, done, call.seed, watch=call.watch)
    return _Answer(runs, built - begun, time.perf_counter() - built)


def _document(answer: _Answer) -> dict[str, Any]:
    from workloads.fleet.scenario import notes
    from workloads.fleet.setup.night_work import post_training_document
    from workloads.fleet.setup.serving import replicas_document

    name, result = answer.main
    scenario, options = result.scenario, answer.base.options
    intervals = result.intervals if options.policy.intervals else {}
    document = {
        "cluster": " and ".join(options.policy.kind or options.clusters),
        "policy": options.policy.policy,
        "scenario": name,
        "models": sorted({service.weights for service in scenario.services}),
        "replicas": [
            {**({"kind": kind.name} if len(scenario.kinds) > 1 else {}), **row}
            for kind in scenario.kinds
            for row in replicas_document(kind.services)
        ],
        **scenario.sizing.document(),
        "interval": {**_sureness(scenario), **intervals},
        **result.summary,
        "scaling": answer.base.scaling,
        "notes": [*notes(answer.base, options), *_notes_of_run(result)],
    }
    for row in document.get("kinds", ()):
        _complete(row, scenario)
    for row in (*document.get("kinds", ()), *document.get("regions", ())):
        row |= {f"{name}_share": row[f"{name}_chip_hours"] / row["chip_hours"] for name in GROUPS}
    if phases := post_training_document(scenario.jobs):
        document["post_training"] = phases
    if options.policy.compare:
        document["regret"] = result.regret
    if len(answer.runs) > 1:
        document["rows"] = [_row(label, each) for label, each in answer.runs.items()]
    return {**document, "build_s": answer.build_s, "simulate_s": answer.simulate_s}


def _complete(row: dict[str, Any], scenario: Scenario) -> None:
    """Add to the account of a kind its place in serving and its rate."""
    from workloads.fleet.setup.demand import sizing

    place = [kind.name for kind in scenario.kinds].index(row["kind"])
    kind, demand = scenario.kinds[place], scenario.horizon.demand
    size = sizing(demand, kind.services, kind.fleet.units)
    row["serves"] = place + 1 if kind.serves else 0
    row["unit_capacity_requests_per_s"] = size.unit_capacity_requests_per_s


def _notes_of_run(result: FleetResult) -> list[str]:
    from workloads.fleet.missed import idle_draw_note, missed_note, over_cap_note, power_note
    from workloads.serving import parse_slo

    scenario, run = result.scenario, result.run
    wanted = parse_slo(scenario.options.fleet.slo).share
    attained, policy = result.summary["slo_attainment"], scenario.options.policy.policy
    notes = [missed_note(run, scenario.lead_s, attained=attained, wanted=wanted, policy=policy)]
    notes += [power_note(result.summary), over_cap_note(result.summary)]
    notes += [idle_draw_note(run, result.summary)]
    if (share := result.summary["holes"]["share"]) >= WORTH_NAMING:
        notes.append(
            f"{share:.0%} of the chip-hours are lost in units that are used in part. Smaller "
            "units, fewer models, or replicas that fill a unit lose less."
        )
    if never := sum(len(kind.due_ms) for kind in run.kinds):
        notes.append(
            f"{never:,} maintenance windows never began, as the one before had not ended; begin "
            "them later, or take more units at a time."
        )
    return list(filter(None, notes))


def _sureness(scenario: Scenario) -> dict[str, Any]:
    """Return the interval of a unit's capacity, and what it makes of the need and of lending."""
    from workloads.fleet.expectation import lendable_share
    from workloads.fleet.setup.serving import capacity_interval

    capacity = scenario.sizing.unit_capacity_requests_per_s
    ends = capacity_interval(scenario.services, capacity)
    needed = scenario.sizing.units_needed_peak
    return {
        **ends.document(),
        "units_needed_peak_low": needed * capacity / ends.high,
        "units_needed_peak_high": needed * capacity / ends.low,
        "lendable_share": lendable_share(scenario),
        "lendable_share_low": lendable_share(scenario, ends.low / capacity),
        "lendable_share_high": lendable_share(scenario, ends.high / capacity),
    }


def _row(name: str, result: FleetResult) -> dict[str, Any]:
    results = result.summary
    hours, offered = results["chip_hours"], results["offered_tokens"]
    return {
        "scenario": name,
        **result.scenario.sizing.document(),
        **results,
        "training_share": results["training_chip_hours"] / hours,
        "inference_share": results["inference_chip_hours"] / hours,
        "shed_share": results["shed_tokens"] / offered if offered else 0.0,
    }


WORTH_NAMING = 0.05  # share of the chip-hours in holes from which a note names it
NESTED = ["chip_hours_by_role", "reservations"]


def _write(run: Run, document: Mapping[str, Any], answer: _Answer) -> None:
    import pandas as pd

    from experiments.figures.fleet import power_figure, roles_figure, scenarios_figure
    from workloads.fleet.results import changes_frame, jobs_frame

    _, result = answer.main
    frame, title = result.frame(), _title(document)
    chips = {kind.name: kind.chips_per_unit for kind in result.run.kinds}
    run.json("summary", document, title="Results")
    run.figure("roles", roles_figure(frame, chips_per_unit=chips, title=title), title="Roles")
    for name, title_of in (("kinds", "Kinds of units"), ("regions", "Regions")):
        if name in document:
            rows = pd.DataFrame(document[name]).drop(columns=NESTED, errors="ignore")
            run.table(name, rows, title=title_of)
    run.figure("power", power_figure(frame, title=title), title="Power")
    if "rows" in document:
        rows = pd.DataFrame(document["rows"])
        rows = rows[[name for name in rows if not isinstance(rows[name][0], dict | list)]]
        run.table("what_ifs", rows, title="What-ifs side by side")
        lines = {label: each.frame() for label, each in answer.runs.items()}
        figure = scenarios_figure(lines, chips_per_unit=chips, title=f"What-ifs: {title}")
        run.figure("what_ifs", figure, title="What-ifs")
    if len(intervals := interval_frame(document, *SERVICE, *MONEY)):
        run.table("intervals", intervals, title="Intervals of the results")
    run.table("jobs", jobs_frame(result.run), title="Training jobs")
    run.table("changes", changes_frame(result.run), title="Role changes", parquet=True)
    run.table("timeline", frame, title="Every minute", parquet=True)
