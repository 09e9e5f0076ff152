"""Lending that follows a source: looks at it, and a line for every hour that has come."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.hourly.metrics import exposition
from experiments.hourly.record import FURTHEST, HOUR, Record, moment
from experiments.hourly.sources import GrowingFile, Prometheus
from experiments.hourly.state import State, add_line, keep_record, keep_state, opened
from experiments.hourly.statement import HELD, Ask, line_of
from experiments.reports.run_record import plain
from topologies.errors import InputError
from topologies.files.writing import whole_file
from workloads.demand.trace import MINUTES_PER_DAY

USUAL_DAYS = 56.0
"""Days of history on which a statement rests, where none are stated."""
Show = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Follower:
    """A source, where what is known of it is kept, and the question that every hour asks.

    ``days``: history on which a statement rests [days]. ``show``: called with the line of each
    hour, after it has been kept. ``metrics``: file for Prometheus' collector of text files.
    """

    source: GrowingFile | Prometheus
    folder: Path
    ask: Ask
    show: Show
    days: float = USUAL_DAYS
    metrics: Path | None = None

    def look(self) -> int:
        """Open the state directory and :meth:`step` once."""
        with opened(self.folder, self.source.name) as (state, record):
            return self.step(state, record)

    def step(self, state: State, record: Record) -> int:
        """Take what the source has, and answer every hour that has come; return their number.

        Raises InputError, after all that could be answered was, if the source does not answer, or
        rows were refused, or the newest hour was held. The last answer stays.
        """
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
        """Answer the hours that have come; return their number, and what went wrong.

        What is known is written with the next hour or problem; until then a process that is killed
        would take the same rows again.
        """
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
        """Write the state, then the metrics."""
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
        """Look again and again until interrupted; a problem is told when it is new.

        A source that cannot be read at all at the beginning is refused.
        """
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
