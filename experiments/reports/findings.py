"""Finding of a run in one sentence and a few numbers, from its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.figures.training import NAMES
from experiments.reports.certainty import ends_text, interval_at, value_at
from experiments.reports.formatting import heading, number, value_text
from topologies.support.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    import pandas as pd

Document = Mapping[str, Any]
FAULTS = (KeyError, ValueError, TypeError, ArithmeticError, IndexError, AttributeError)
"""Errors that results of unknown origin may cause; the page then does without a finding."""
LONGEST = 240

ANSWERS: Mapping[str, tuple[str, ...]] = {
    "train": ("iteration_s", "mfu", "tokens_per_s_per_chip", "memory_bytes.total",
              "usd_per_million_tokens", "energy_joules"),
    "plan": ("rows.0.iteration_s", "rows.0.mfu", "rows.0.memory_bytes.total",
             "usd_per_million_tokens"),
    "serve": ("ttft_s.p50", "ttft_s.p99", "tpot_s.p50", "tpot_s.p99", "tokens_per_s",
              "slo_attainment"),
    "run-job": ("goodput", "failures", "iteration_s", "tokens", "checkpoint_interval_s",
                "usd_per_million_tokens"),
    "fleet": ("slo_attainment", "training_chip_hours", "inference_chip_hours", "moving_chip_hours",
              "cost_usd", "energy_joules"),
    "lend": ("confidence", "lent_unit_hours", "reclaim_latency_s", "training_tokens", "usd"),
    "replay": ("iteration_s", "recorded_s", "ranks", "nodes", "compute"),
    "topology": ("chips", "diameter_hops", "mean_hops", "bisection_bytes_per_s",
                 "scale_up_bytes_per_s_per_chip", "hbm_bytes"),
}  # fmt: skip
"""First numbers on the page of a command, by their place in its results."""


OF_A_COLLECTIVE = ("time_s", "busbw_bytes_per_s", "lower_bound_s", "algorithm", "ranks")


class Answer(NamedTuple):
    """A number that stands first on a page."""

    name: str
    value: str
    interval: str = ""  # text of its interval, empty where the results give none


def finding(command: str, results: Document, table: pd.DataFrame | None) -> str:
    """Sentence with the finding of a run; empty if the results have none."""
    try:
        if command in SENTENCES:
            return SENTENCES[command](results)[:LONGEST]
        if command in TABLED and table is not None:
            return TABLED[command](table)[:LONGEST]
    except FAULTS:
        return ""
    return ""


def answers(command: str, results: Document, table: pd.DataFrame | None) -> list[Answer]:
    """Names, values and intervals of the numbers that stand first, those that the results have."""
    if command == "collective" and table is not None:
        try:
            row = _largest(table)
            shown = [Answer(heading(name), value_text(name, row[name])) for name in OF_A_COLLECTIVE]
        except FAULTS:
            return []
        # Of these numbers the time alone, which is the first, has an interval.
        interval = ends_text("time_s", row, value=row["time_s"])
        return [shown[0]._replace(interval=interval), *shown[1:]]
    first = []
    for place in ANSWERS.get(command, ()):
        value = value_at(results, place)
        if value is not None and not isinstance(value, Mapping | list):
            name = place.removeprefix("rows.0.")
            interval = ends_text(name, interval_at(command, results, place), value=value)
            first.append(Answer(heading(name), value_text(name, value), interval))
    return first


def _train(results: Document) -> str:
    parts, seconds = results["breakdown_s"], results["iteration_s"]
    largest = sorted(parts, key=lambda part: -parts[part])[:2]
    shares = ", ".join(f"{parts[part] / seconds:.0%} {NAMES[part]}" for part in largest)
    return (
        f"A step of {results['model']} on {_chips(results)} takes {format_seconds(seconds)}: "
        f"{shares}; MFU {results['mfu']:.0%}"
    )


def _plan(results: Document) -> str:
    first = results["rows"][0]
    degrees = ", ".join(
        f"{name} {first[name]:,}" for name in ("tp", "pp", "dp", "cp", "ep")
        if name in ("tp", "pp", "dp") or first.get(name, 1) > 1
    )  # fmt: skip
    others = results["rows"][1:]
    tied = sum(bool(row.get("tied")) for row in others)
    next_ = "the next" + f" {len(others)}" * (len(others) > 1)
    some = f"{tied} of {next_}" if tied < len(others) else next_
    ties = f"; {some} {'is' if tied == 1 else 'are'} as good within the error"
    return (
        f"{results['model']} trains fastest on {_chips(results)} with {degrees}: "
        f"{format_seconds(first['iteration_s'])} a step{ties if tied else ''}"
    )


def _serve(results: Document) -> str:
    if "deployments" in results:
        best, whole = results["deployments"][0], ""
        if demand := results.get("demand"):
            rate = number(demand["requests_per_s"])
            whole = f"; {demand['deployments']:,} of them serve {rate} requests/s"
        return (
            f"{results['model']} on {results['cluster']}: {results['options']} serves most for "
            f"each chip, {number(best['max_rate_per_s'])} requests/s on {_counted(best)}{whole}"
        )
    first, later = results["ttft_s"], results["tpot_s"]
    return (
        f"{results['model']} on {_chips(results)}: half of the requests see their first token "
        f"within {format_seconds(first['p50'])}, then one every {format_seconds(later['p50'])}; "
        f"{results['slo_attainment']:.1%} keep the limits"
    )


def _run_job(results: Document) -> str:
    return (
        f"{results['model']} on {_chips(results)} computes for {results['goodput']:.1%} of "
        f"{results['days']:,.4g} days, with {results['failures']:.1f} failures"
    )


def _fleet(results: Document) -> str:
    trains = results["training_chip_hours"] / results["chip_hours"]
    return (
        f"{results['cluster']} under the {results['policy']} policy trains {trains:.0%} of its "
        f"chip-hours and serves {results['slo_attainment']:.2%} of the requests in time"
    )


def _lend(results: Document) -> str:
    return (
        f"{number(results['lent_unit_hours'])} unit-hours can be lent tonight with "
        f"{100 * results['confidence']:.4g} % confidence"
    )


def _replay(results: Document) -> str:
    seconds, recorded = results["iteration_s"], results.get("recorded_s")
    sentence = (
        f"A {results['format']} trace of {_counted(results, 'rank')} takes "
        f"{format_seconds(seconds)} on {results['cluster']}"
    )
    if recorded:
        return f"{sentence}, {seconds / recorded:.2f} times as long as recorded"
    parts = results["breakdown_s"]
    largest = max(parts, key=lambda part: parts[part])
    return f"{sentence}, {parts[largest] / seconds:.0%} of it {largest.replace('_', ' ')}"


def _topology(results: Document) -> str:
    return (
        f"{results['cluster']}: {results['chips']:,} chips, "
        f"{format_rate(results['scale_up_bytes_per_s_per_chip'])} a chip within a domain"
    )


def _counted(results: Document, thing: str = "chip") -> str:
    count = results[f"{thing}s"]
    return f"{count:,} {thing}{'s' * (count != 1)}"


def _chips(results: Document) -> str:
    chips = results["chips"]
    return f"{results['cluster']} ({chips:,} chips)" if chips > 1 else str(results["cluster"])


def _largest(table: pd.DataFrame) -> pd.Series[Any]:
    """Row of the fastest algorithm at the largest size."""
    return table.sort_values(["size_bytes", "time_s"], ascending=[False, True]).iloc[0]


def _collective(table: pd.DataFrame) -> str:
    row = _largest(table)
    beside = table[(table["size_bytes"] == row["size_bytes"]) & table["time_s"].notna()]
    fastest = beside.groupby("cluster")["time_s"].min().drop(row["cluster"])
    others = "".join(f"; {format_seconds(time_s)} on {name}" for name, time_s in fastest.items())
    return (
        f"{row['collective']} of {format_bytes(int(row['size_bytes']))} on {row['cluster']} takes "
        f"{format_seconds(row['time_s'])} with {row['algorithm']}: "
        f"{format_rate(row['busbw_bytes_per_s'])} bus bandwidth{others}"
    )


def _sweep(table: pd.DataFrame) -> str:
    good = table[table["status"] == "ok"]
    sentence = f"{len(good):,} of {len(table):,} rows of this sweep are answered"
    times = [name for name in ("iteration_s", "time_s") if name in good]
    if not times or good.empty:
        return sentence
    varied = [
        name for name in table.columns[: table.columns.get_loc("status")]
        if len(table[name].unique()) > 1
    ]  # fmt: skip
    best = good.sort_values(times[0]).iloc[0]
    with_ = ", ".join(f"{name} {best[name]}" for name in varied)
    return f"{sentence}; the shortest takes {format_seconds(best[times[0]])} with {with_}"


def _validate(table: pd.DataFrame) -> str:
    rows, predicted = int(table["rows"].sum()), int(table["ok"].sum())
    counted = f"{predicted:,} of " * (predicted < rows) + f"{rows:,} published rows"
    if len(table) == 1:
        return f"{counted} are predicted, with a median error of " + (
            f"{float(table['median_abs_error'].iloc[0]):.1%}"
        )
    middle = float(table["median_abs_error"].median())
    return (
        f"{counted} in {len(table)} tables are predicted; the median error of half of the tables "
        f"is at most {middle:.1%}"
    )


SENTENCES: Mapping[str, Callable[[Document], str]] = {
    "train": _train,
    "plan": _plan,
    "serve": _serve,
    "run-job": _run_job,
    "fleet": _fleet,
    "lend": _lend,
    "replay": _replay,
    "topology": _topology,
}
TABLED: Mapping[str, Callable[[pd.DataFrame], str]] = {
    "collective": _collective,
    "sweep": _sweep,
    "validate": _validate,
}
