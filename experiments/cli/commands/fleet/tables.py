"""Tables that ``cluster-sim fleet`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from experiments.cli.output.printing import print_table
from experiments.reports.formatting import number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
    """Print the division of units in post-training jobs, one row for each size."""
    different = {(job["units"], job["mode"]): job for job in jobs}
    rows = [
        [
            note["mode"],
            str(note["units"]),
            f"{note['rollout_units']} + {note['update_units']}",
            *(f"{note[name]:,.1f} s" for name in ("rollout_s", "update_s", "transfer_s", "step_s")),
            note["bound"],
        ]
        for note in different.values()
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
    latency = document["reclaim_latency_s"]
    return [
        ["requests within the SLO", f"{document['slo_attainment']:.3%}"],
        ["worst 15 minutes", f"{document['slo_attainment_worst_15min']:.3%}"],
        ["tokens served", f"{document['served_tokens']:,}"],
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
        *_failures(document["failures_by_domain"]),
    ]


def _money_facts(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of training, power and money; unknown values have no row."""
    regret = document.get("regret")
    count = document["jobs_with_deadline"]
    facts = [
        ["training goodput", _known(document["training_goodput"], "{:.2%}")],
        ["training tokens", _known(document["training_tokens"], "{:,.0f}")],
        ["training steps of 16 million tokens", _known(document["training_steps"], "{:,.0f}")],
        ["training won, of what foresight wins", _captured(regret) if regret else ""],
        ["chip-hours more than static trains", _gain(regret) if regret else ""],
        ["jobs done by their deadline", f"{document['jobs_in_time']} of {count}" if count else ""],
        ["energy", f"{_digits(document['energy_joules'] / 3.6e9)} MWh"],
        ["largest power of a minute", f"{_digits(document['power_peak_w'] / 1e6)} MW"],
        ["largest change in 15 min", f"{_digits(document['power_ramp_15min_w'] / 1e6)} MW"],
        ["electricity", _known(document["electricity_usd"], "{:,.0f} USD")],
        ["price that training paid", _known(document["training_usd_per_mwh"], "{:,.2f} USD/MWh")],
        ["chips at their list price", _known(document["cost_usd"], "{:,.0f} USD")],
        ["per million tokens served", _known(document["usd_per_million_tokens"], "{:.3f} USD")],
        ["per training step", _known(document["usd_per_training_step"], "{:,.2f} USD")],
        ["served tokens sold for", _known(document["revenue_usd"], "{:,.0f} USD")],
        ["left of it after these costs", _known(document["margin_usd"], "{:,.0f} USD")],
        ["carbon dioxide", _known(_tonnes(document["carbon_kg"]), "{:,.1f} t")],
    ]
    return [row for row in facts if row[1]]


def _captured(regret: Mapping[str, float]) -> str:
    """Text of the share of foresight's gain over a split that never changes."""
    gain = regret["gain_over_static_chip_hours"]
    if gain < 0:
        return f"none; static trains {-gain:,.0f} chip-hours more"
    return f"{regret['captured']:.1%}"


def _gain(regret: Mapping[str, Any]) -> str:
    """Text of the chip-hours won over a split that never changes, and their interval."""
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


def _failures(by_domain: Mapping[str, int]) -> list[list[str]]:
    if set(by_domain) <= {"server"}:
        return [["failures", f"{sum(by_domain.values()):,}"]]
    return [[f"failures, {name}", f"{count:,}"] for name, count in by_domain.items()]


def _tonnes(mass_kg: float | None) -> float | None:
    return None if mass_kg is None else mass_kg / 1000


def _known(value: float | None, style: str) -> str:
    return "" if value is None else style.format(value)


def _number(value: float | None, style: str = "{:,.0f} s") -> str:
    return "–" if value is None else style.format(value)


def _digits(value: float) -> str:
    """Write a number with three significant digits, and all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
