"""Lending that follows a source: a line for every hour, and what became of yesterday's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.hourly.demand import (
    FURTHEST,
    HOUR,
    GrowingFile,
    Prometheus,
    Record,
    minute_of,
    moment,
)
from experiments.hourly.state import State, add_line, exposition, keep_record, keep_state, opened
from experiments.reports.run_record import plain
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from topologies.support.files.writing import whole_file
from workloads.demand.trace import MINUTES_PER_DAY, Demand
from workloads.demand.what_if import minute_of_day
from workloads.fleet.lending.answer import Loan, Night
from workloads.fleet.lending.front import LendResult
from workloads.fleet.scenario import Scenario
from workloads.fleet.state.services import units_needed

Ask = Callable[[Demand], tuple[Loan, Scenario]]
"""Function that answers the night question for a history that ends now."""
ANSWERED, HELD = "answered", "held"
COPIED = (
    "windows", "loans", "confidence", "confidence_from_history", "slo_share", "history_nights",
    "units", "reserve_units", "lent_unit_hours", "reclaim_latency_s", "training_tokens", "usd",
)  # fmt: skip
"""Parts of a loan's summary that the line of an hour has."""


def of_this_night(question: Night, history: Demand) -> Night:
    """Return the question for the rest of a night that has begun; else the question as it is.

    A night from 22:00 to 06:00 that is asked about at 23:00 would be that of tomorrow.

    >>> from workloads.demand import constant
    >>> night, until = Night("06:00", begin="22:00"), {"start": "2024-05-10T12:00"}
    >>> [of_this_night(night, constant(1.0, minutes=60 * hours, **until)).begin
    ...  for hours in (9, 10, 17, 18)]
    ['22:00', '', '', '22:00']
    """
    if not question.begin:
        return question
    begin = minute_of_day(question.begin)
    length = (minute_of_day(question.until) - begin) % MINUTES_PER_DAY or MINUTES_PER_DAY
    since = (minute_of(history.start) + history.minutes - begin) % MINUTES_PER_DAY
    return replace(question, begin="") if since < length else question


def line_of(hour: int, record: Record, state: State, days: float, ask: Ask) -> dict[str, Any]:
    """Return the line of an hour, or why it is held, and note its statement in the state."""
    try:
        demand, filled = record.until(hour, days)
        loan, scenario = ask(demand)
    except InputError as mistake:
        state.counts[HELD] += 1
        stands = state.last.get("hour")
        return {"hour": moment(hour), "status": HELD, "why": str(mistake), "stands": stands}
    need = units_needed(scenario.demand, scenario.services).sum(axis=0)
    result = LendResult(scenario, loan)
    state.counts[ANSWERED] += 1
    line = {
        "hour": moment(hour),
        "status": ANSWERED,
        **_orders(hour, loan, state),
        "need_units": float(need[-HOUR:].mean()),
        "filled_minutes": filled,
        **{key: value for key, value in loan.summary().items() if key in COPIED},
        "interval": {**result.interval.document(), **result.intervals},
        "promises": promises_kept(hour, state, need),
    }
    terms = loan.terms
    # What has to be known to judge the statement when its night is over
    state.statements[moment(hour)] = {
        "begin": minute_of(loan.moment(0)) - hour,
        "edges": loan.nights.edges.tolist(),
        "kept_units": np.clip(loan.tested.coming, terms.fewest_units, terms.most_units).tolist(),
        "most_units": terms.most_units,
        "slo_share": loan.question.share,
    }
    state.last = line
    return line


def _orders(hour: int, loan: Loan, state: State) -> dict[str, Any]:
    """Units lent in the coming hour, what changes now, and what to order back in it."""
    lend = _lent_at(hour, loan.summary()["windows"])
    before = _lent_at(hour - HOUR, state.last.get("windows", ()))
    ordered = [
        {"at": each["reclaim_at"], "units": each["units"]}
        for each in loan.summary()["loans"]
        if hour <= minute_of(each["reclaim_at"]) < hour + HOUR
    ]
    return {
        "lend_units": lend,
        "lend_more_units": max(0, lend - before),
        "take_back_units": max(0, before - lend),
        "order_back": ordered,
    }


def _lent_at(minute: int, windows: Sequence[Mapping[str, Any]]) -> int:
    """Units that windows lend at a minute; none outside of them."""
    lent = (
        int(window["units"])
        for window in windows
        if minute_of(window["from"]) <= minute < minute_of(window["to"])
    )
    return next(lent, 0)


def promises_kept(hour: int, state: State, need: FloatArray) -> list[dict[str, Any]]:
    """Compare statements of a day ago, or older, with what their nights needed; each once.

    As in the backtest, demand that the whole fleet could not serve breaks no promise, and a promise
    is broken where fewer minutes than the share of the SLO stayed within the kept units.

    ``need`` (minutes,): units that each minute of the history needed; it ends at ``hour``.

    >>> from experiments.hourly.demand import minute_of
    >>> night = {"begin": 0, "edges": [0, 60, 120], "kept_units": [5.0, 3.0]}
    >>> stated = {"2024-05-09T13:00": {**night, "most_units": 9.0, "slo_share": 0.9}}
    >>> state, need = State("x", statements=stated), np.full(1440, 4.0)
    >>> promises_kept(minute_of("2024-05-10T13:00"), state, need)[0]["within_share"]
    0.5
    """
    judged = []
    for stated_at, stated in list(state.statements.items()):
        begin = minute_of(stated_at) + stated["begin"]
        over_at = max(minute_of(stated_at) + MINUTES_PER_DAY, begin + stated["edges"][-1])
        if over_at > hour:
            continue
        del state.statements[stated_at]
        first = len(need) - (hour - begin)
        if first >= 0:  # else the history no longer goes back so far
            night = need[first : first + stated["edges"][-1]]
            judged.append({"stated_at": stated_at, **_judged(stated, night)})
    state.counts["promises"] += len(judged)
    state.counts["broken_promises"] += sum(each["broken"] for each in judged)
    return judged


def _judged(stated: Mapping[str, Any], need: FloatArray) -> dict[str, Any]:
    needed = np.minimum(need, stated["most_units"])
    over = needed - np.repeat(stated["kept_units"], np.diff(stated["edges"]))
    within = float((over <= 1e-9).mean())
    return {
        "within_share": within,
        "slo_share": stated["slo_share"],
        "broken": within < stated["slo_share"],
        "missed_share": float(np.maximum(over, 0.0).sum() / max(needed.sum(), 1e-12)),
        "most_short_units": float(max(over.max(), 0.0)),
    }


USUAL_DAYS = 56.0  # days of history on which a statement rests, where none are stated
Show = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Follower:
    """A source, where what is known of it is kept, and the question that every hour asks."""

    source: GrowingFile | Prometheus
    folder: Path
    ask: Ask
    show: Show  # called with the line of each hour, after it has been kept
    days: float = USUAL_DAYS  # history on which a statement rests [days]
    metrics: Path | None = None  # file for Prometheus' collector of text files

    def look(self) -> int:
        """Open the state directory and :meth:`step` once."""
        with opened(self.folder, self.source.name) as (state, record):
            return self.step(state, record)

    def step(self, state: State, record: Record) -> int:
        """Take what the source has and answer every hour due, then raise what was wrong."""
        before = state.fault
        try:
            hours, problem = self._answered(state, record)
        except InputError as mistake:
            if state.hour is None:
                raise
            hours, problem = 0, _with_answer(str(mistake), state)
        state.fault = problem
        state.counts["errors"] += bool(problem)
        if hours or problem != before:
            keep_record(self.folder, record)
            self._keep(state)
        if problem:
            raise InputError(problem)
        return hours

    def _answered(self, state: State, record: Record) -> tuple[int, str]:
        """Answer the hours that have come; return their number, and what went wrong."""
        # What is known is written with the next hour or problem; a process that is killed until
        # then takes the same rows again.
        batch = self.source.fetch(record, state.cursor, self.days)
        taken = record.take(batch.rows, self.source.name)
        hours, held = _due(state.hour, record.end if batch.now is None else batch.now), ""
        for name in ("duplicate", "late", "refused"):
            state.counts[f"{name}_rows"] += getattr(taken, name)
        state.period, state.newest, state.cursor = record.period, record.end, batch.cursor
        if hours:
            record.forget(hours[0] - round((self.days + 2) * MINUTES_PER_DAY))
            keep_record(self.folder, record)
        for hour in hours:
            line = plain(line_of(hour, record, state, self.days, self.ask))
            held = f"{line['hour']}: {line['why']}" if line["status"] == HELD else ""
            add_line(self.folder, state, line)
            state.hour = hour
            self._keep(state)
            self.show(line)
        problem = taken.reason or held
        return len(hours), _with_answer(problem, state) if problem else ""

    def _keep(self, state: State) -> None:
        keep_state(self.folder, state)
        if self.metrics is not None:
            with whole_file(self.metrics) as part:
                part.write_text(exposition(state))

    def once(self) -> None:
        """Look once, as a timer does every hour; refuse a look after which no hour was answered."""
        if not self.look():
            raise InputError(
                f"{self.source.name} has no whole hour that is not answered yet; the last answer "
                "stays."
            )

    def forever(self, every_s: float, tell: Callable[[str], None]) -> None:
        """Look again until interrupted; tell new problems, and end with one at the start."""
        last_told = ""
        with opened(self.folder, self.source.name) as (state, record):
            while True:
                try:
                    self.step(state, record)
                    last_told = ""
                except InputError as mistake:
                    if state.hour is None:
                        raise
                    if str(mistake) != last_told:
                        tell(last_told := str(mistake))
                time.sleep(every_s)


def _due(last: int | None, now: int | None) -> list[int]:
    """Hours that have come since the last one; at the beginning the newest alone."""
    if now is None:
        return []
    newest = now // HOUR * HOUR
    if last is None:
        return [newest]
    if newest - last > FURTHEST:
        raise InputError(
            f"time jumps from {moment(last)} to {moment(newest)}, by more than 31 days; correct "
            "the clock, or start with a new --state."
        )
    return list(range(last + HOUR, newest + 1, HOUR))


def _with_answer(problem: str, state: State) -> str:
    """Add to a problem which answer stays."""
    stands = state.last.get("hour")
    stays = f" The answer of {stands} stays." if stands else ""
    return problem.rstrip(".") + "." + stays
