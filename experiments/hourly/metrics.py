"""State of lending hour by hour as metrics, in the text format that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    lines: list[str] = []
    for key, (name, text) in COUNTERS.items():
        lines += metric(PREFIX + name, "counter", text, [("", state.counts[key])])
    up = [("", int(not state.fault))]
    lines += metric(PREFIX + "source_up", "gauge", "Whether the last look worked", up)
    for name, text, minute in (
        ("hour_timestamp_seconds", "Hour of the last line", state.hour),
        ("newest_timestamp_seconds", "End of the newest row", state.newest),
    ):
        if minute is not None:
            lines += metric(PREFIX + name, "gauge", text, [("", minute * 60)])
    if state.last:
        lines += _of_last(state.last)
    return "\n".join(lines) + "\n"


def _of_last(line: Mapping[str, Any]) -> list[str]:
    """Return the metrics of the last line that was answered."""
    lines: list[str] = []
    for key, (name, text) in GAUGES.items():
        lines += metric(PREFIX + name, "gauge", text, [("", line[key])])
    stated = [("", minute_of(line["hour"]) * 60)]
    lines += metric(PREFIX + "stated_timestamp_seconds", "gauge", "Hour of the statement", stated)
    ahead = [
        (f'{{from="{window["from"]}",to="{window["to"]}"}}', window["units"])
        for window in line["windows"]
    ]
    return lines + metric(PREFIX + "window_units", "gauge", "Units of each window tonight", ahead)


def metric(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of one metric; each sample has its labels, in braces, and its value."""
    values = [f"{name}{labels} {value!r}" for labels, value in samples]
    return [f"# HELP {name} {text}.", f"# TYPE {name} {kind}", *values]
