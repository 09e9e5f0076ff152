"""State of lending hour by hour as metrics, in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from experiments.hourly.record import minute_of
from experiments.hourly.state import State

PREFIX = "cluster_sim_lend_"
COUNTERS = {
    "answered": ("hours_answered_total", "Hours that were answered"),
    "held": ("hours_held_total", "Hours in which the last answer stayed"),
    "errors": ("errors_total", "Looks at the source that failed"),
    "duplicate_rows": ("duplicate_rows_total", "Rows that repeated an earlier one"),
    "late_rows": ("late_rows_total", "Rows older than the newest one"),
    "refused_rows": ("refused_rows_total", "Rows that were refused"),
    "promises": ("promises_judged_total", "Statements whose night is over"),
    "broken_promises": ("promises_broken_total", "Statements that demand exceeded"),
}
"""Metrics of counters, with their help."""
GAUGES = {
    "lend_units": ("units", "Units lent in this hour"),
    "lend_more_units": ("more_units", "Units lent in addition to the hour before"),
    "take_back_units": ("take_back_units", "Units lent in the hour before and no longer"),
    "need_units": ("need_units", "Units that the demand of the last hour needed"),
    "lent_unit_hours": ("unit_hours", "Unit-hours lent until the end of the night"),
    "filled_minutes": ("filled_minutes", "Minutes of the history that had no row"),
    "confidence": ("confidence", "Confidence of the statement"),
    "units": ("fleet_units", "Units of the fleet"),
}
"""Metrics of the last line that was answered, with their help."""


def exposition(state: State) -> str:
    """Return the metrics of a follower.

    >>> print(exposition(State("demand.csv", fault="gone")).splitlines()[2])
    cluster_sim_lend_hours_answered_total 0
    """
    line, newest = state.last, state.newest
    rows: list[tuple[str, str, str, Any]] = [
        *((name, "counter", text, state.counts[key]) for key, (name, text) in COUNTERS.items()),
        ("source_up", "gauge", "Whether the last look worked", int(not state.fault)),
        ("hour_timestamp_seconds", "gauge", "Hour of the last line", _seconds(state.hour)),
        ("newest_timestamp_seconds", "gauge", "End of the newest row", _seconds(newest)),
        *((name, "gauge", text, line.get(key)) for key, (name, text) in GAUGES.items()),
    ]
    if line:
        stated_s = _seconds(minute_of(line["hour"]))
        rows.append(("stated_timestamp_seconds", "gauge", "Hour of the statement", stated_s))
    stated = [row for row in rows if row[-1] is not None]
    lines = [
        text
        for name, kind, help_text, value in stated
        for text in metric(PREFIX + name, kind, help_text, [("", value)])
    ]
    ahead = [
        (f'{{from="{window["from"]}",to="{window["to"]}"}}', window["units"])
        for window in line.get("windows", ())
    ]
    lines += metric(PREFIX + "window_units", "gauge", "Units of each window tonight", ahead)
    return "\n".join(lines) + "\n"


def _seconds(minute: int | None) -> int | None:
    return None if minute is None else minute * 60


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of one metric; each sample has its labels, in braces, and its value."""
    values = [f"{name}{labels} {value!r}" for labels, value in samples]
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}", *values]
