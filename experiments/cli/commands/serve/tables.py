"""Tables that ``cluster-sim serve`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from experiments.cli.output.printing import print_table
from topologies.units import format_memory, format_rate, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping


def print_serving(document: Mapping[str, Any]) -> None:
    """Print latencies, rates and the KV cache of a replica."""
    rows = [
        [
            name,
            *(
                "–" if document[key][level] is None else format_seconds(document[key][level])
                for level in ("p50", "p90", "p99", "mean")
            ),
        ]
        for name, key in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"))
    ]
    if "deployments" in document:
        print_deployments(document)
    title = f"{document['model']} on {chips_of(document)}"
    print_table(title, ["", "p50", "p90", "p99", "mean"], rows)
    facts = [
        *_highest_rate(document),
        ["requests", f"{document['requests']:,}"],
        ["output tokens/s", _with_interval(document, "tokens_per_s", ",.1f")],
        ["requests/s within the SLO", f"{document['request_goodput_per_s']:.4g}"],
        ["requests within the SLO", f"{document['slo_attainment']:.2%}"],
        ["mean decode batch", f"{document['batch_mean']:.2f}"],
        ["KV cache, peak", format_memory(int(document["kv_peak_bytes"]))],
        ["KV cache, room", format_memory(int(document["kv_budget_bytes"]))],
        *_ways_to_serve_faster(document),
    ]
    print_table("", ["", ""], facts)
    click.echo(
        "TTFT: time to first token; TPOT: mean time of a request's later tokens; ITL: each gap "
        "between two tokens."
    )
    click.echo(_sentence_of_intervals(document))
    click.echo(
        f"Prompts are processed {document['prompts']}; at most {document['slots']:,} requests "
        "decode at once."
    )


def print_deployments(document: Mapping[str, Any]) -> None:
    """Print the best deployments that a search found, and how many there are."""
    best = document["deployments"]
    most = best[0]["max_rate_per_s_per_chip"]
    rows = [
        [
            each["options"],
            f"{each['chips']:,}",
            f"{each['max_rate_per_s']:,.4g}",
            f"{each['max_rate_per_s_per_chip']:,.4g}",
            f"{each['max_rate_per_s_per_chip'] / most:.1%}",
        ]
        for each in best
    ]
    title = (
        f"{document['model']} on {document['cluster']}: the most requests for each chip, of "
        f"{document['candidates']} deployments"
    )
    columns = ["options", "chips", "requests/s", "for each chip", "of the best"]
    print_table(title, columns, rows)
    click.echo("Below is the first, at its highest rate.\n")


def _highest_rate(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows with the highest rate within the SLO, and what binds; none for a stated rate."""
    if "max_rate_per_s" not in document:
        return []
    return [
        [
            "highest rate within the SLO, requests/s",
            _with_interval(document, "max_rate_per_s", ",.4g"),
        ],
        ["  what binds", document["binds"]],
    ]


def _with_interval(document: Mapping[str, Any], name: str, style: str) -> str:
    """Text of a number and its interval, which is left out if it is a point."""
    ends = document[f"{name}_interval"]
    low, value, high = (format(n, style) for n in (ends["low"], document[name], ends["high"]))
    return value if low == high == value else f"{value} (80 %: {low} – {high})"


def _sentence_of_intervals(document: Mapping[str, Any]) -> str:
    """Sentence with the intervals of the medians."""
    named = (("TTFTs", "interval"), ("TPOTs", "tpot_interval"))
    spans = [
        f"{name} between {format_seconds(ends['low'])} and {format_seconds(ends['high'])}"
        for name, key in named
        if (ends := document.get(key))
    ]
    return f"80 % of measured medians would lie within these: {'; '.join(spans)}."


def _ways_to_serve_faster(document: Mapping[str, Any]) -> list[list[str]]:
    """Rows about the prefix cache, speculation, pools and the price, as far as they apply."""
    facts = []
    if "prefix_hit_share" in document:
        facts.append(["prompt tokens in the prefix cache", f"{document['prefix_hit_share']:.1%}"])
    if "speculation" in document:
        expected = document["speculation"]["expected_tokens_per_pass"]
        facts.append(["tokens of a pass, expected", f"{expected:.2f}"])
    if "prefill_replicas" in document:
        moved, rate = document["kv_transfer_s"]["p50"], document["kv_transfer_bytes_per_s"]
        facts += [
            [f"{kind} replicas", f"{document[f'{kind}_replicas']:,}, "
             f"{document[f'{kind}_utilisation']:.0%} busy"] for kind in ("prefill", "decode")
        ]  # fmt: skip
        facts.append(["KV transfer, median", f"{format_seconds(moved)} at {format_rate(rate)}"])
    if document["usd_per_million_tokens"] is not None:
        price = _with_interval(document, "usd_per_million_tokens", ",.3g")
        facts.append(["price, USD a million output tokens", price])
    return facts


def chips_of(document: Mapping[str, Any]) -> str:
    """Text of the chips of a replica and their cluster."""
    count = document["chips"]
    return f"{count:,} chip{'s' * (count != 1)} of {document['cluster']}"
