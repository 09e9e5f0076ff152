"""Ratios of answers for several clusters, and which of them are beyond the error of predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.reports.certainty import interval_at, value_at
from workloads.confidence.ratio import ratio_ends

Rows = Sequence[Mapping[str, Any]]
PRICE = {"usd_per_million_tokens": "the price of a million tokens"}
COMPARED: Mapping[str, Mapping[str, str]] = {
    "train": {"tokens_per_s": "the tokens a second", **PRICE},
    "serve": {
        "ttft_s.p50": "the median time to first token",
        "tpot_s.p50": "the median time per output token",
        **PRICE,
    },
}
"""Numbers of a command's answers that are compared, by their place in them, in words."""


def ratios(command: str, rows: Rows) -> list[dict[str, Any]]:
    """Return the ratios of each cluster's numbers to those of the first, with their intervals."""
    entries = []
    first, *others = rows
    for row in others:
        for place, words in COMPARED[command].items():
            mine, base = (_ends(command, one, place) for one in (row, first))
            if mine is None or base is None:
                continue
            low, ratio, high = ratio_ends(mine, base)
            named = {"cluster": row["cluster"], "of": first["cluster"], "number": words}
            differs = not low <= 1 <= high
            entries.append({**named, "ratio": ratio, "low": low, "high": high, "differs": differs})
    return entries


def _ends(command: str, row: Mapping[str, Any], place: str) -> tuple[float, float, float] | None:
    """Return the interval of a number around it; None where a document has none of them."""
    value, ends = value_at(row, place), interval_at(command, row, place)
    if not value or not isinstance(ends, Mapping) or not ends["low"] > 0:
        return None
    return float(ends["low"]), float(value), float(ends["high"])


def ratio_sentences(entries: Rows) -> list[str]:
    """Return a sentence on the ratios of each cluster, and one on those beyond their intervals."""
    sentences = []
    for cluster in dict.fromkeys(entry["cluster"] for entry in entries):
        mine = [entry for entry in entries if entry["cluster"] == cluster]
        numbers = ", ".join(
            f"{entry['ratio']:.3g} times {entry['number']} (80 %: {entry['low']:.3g} – "
            f"{entry['high']:.3g})"
            for entry in mine
        )
        sure = " and ".join(entry["number"] for entry in mine if entry["differs"])
        beyond = f"Beyond the error of two predictions: {sure}." if sure else NONE
        sentences.append(f"{cluster} has {numbers} of {mine[0]['of']}. {beyond}")
    return sentences


NONE = "No difference is beyond the error of two predictions."
