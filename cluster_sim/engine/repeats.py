"""Runs of schedules with repeats, in memory that does not grow with their number.

Routines run in place. Of rounds, a window is held: when all ops of its first rounds have ended, the
later ones move to the front and new ones are written behind, of which no op could have arrived.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from cluster_sim.engine import fast, simulate
from cluster_sim.engine.fast import empty_state, moving_flows, new_run
from cluster_sim.engine.fast.columns import ENDED, NO_OP, STOP, TROUBLE, Ops, empty_agenda
from cluster_sim.engine.fast.loop import Run, advance, arrive_first
from cluster_sim.engine.faults import Faults
from cluster_sim.engine.times import NEVER, HorizonError, Times
from cluster_sim.schedule.repeats import Rounds, Routines, calls_written_out, rounds_written_out
from cluster_sim.schedule.table import HORIZON_PS, JOIN, NO_RESOURCE, BoolArray, IntArray, Schedule

OPS_IN_WINDOW = 2**18
"""Ops that a window holds, if these are enough rounds. With fewer, moving on takes longer; the
columns of more are slower to reach in memory."""
FEWEST_ROUNDS = 12  # rounds that a window holds at least
LEAST_MOVES = 8  # part of all rounds, one in so many, above which a window would save little memory
NEVER_READY = 2**30
"""Count of pending edges of an op that must not arrive, more than can ever elapse."""
OP_COLUMNS = {"kind": JOIN, "resource": NO_RESOURCE, "duration": 0, "priority": 0}
"""Columns of ops that every schedule has, and their values for an op that does nothing."""


def simulate_rounds(rounds: Rounds, *, window: int | None = None) -> int:
    """Run a schedule in rounds and return the latest end of any op [ps]."""
    # ``window`` rounds are held at first, by default as many as fit in a processor's cache, and
    # twice as many when some ops are so far ahead that one may end before the round behind its own
    # is there. Where no window is long enough, the schedule is run written out.
    fitting = min(OPS_IN_WINDOW // rounds.ops, rounds.count // LEAST_MOVES)
    length = window or max(FEWEST_ROUNDS, fitting)
    while length < rounds.count:
        latest_ps = _Window(rounds, length).latest_end_ps()
        if latest_ps is not None:
            return latest_ps
        length *= 2
    times = simulate(rounds_written_out(rounds))
    if times.blocked.any():
        raise ValueError("some ops of the rounds never run")
    return times.total_ps


_Table = dict[str, npt.NDArray[Any]]
"""Tables by the name of a column: a row for each round, for the final ops, and for ops that never
run."""


class _Rows(NamedTuple):
    """Columns of ops and of edges. Edges lead to ops counted from the first op of their round."""

    ops: _Table
    edges: _Table


class _Window:
    """Consecutive rounds and their run; too short once an edge leads to the round behind."""

    def __init__(self, rounds: Rounds, length: int):
        ops, width = rounds.ops, rounds.edges
        self.rounds, self.length, self.first = rounds, length, 0
        self.rows, self.larger_rows, self.run = _columns(rounds, length)
        # Edges into each op from its own round, and from the one before, by row.
        within, across = rounds.waits()
        last = np.full((2, rounds.ops), NEVER_READY)
        last[0, : rounds.final_ops] = 0
        self.pending = np.concatenate([within, last]), np.concatenate([across, np.zeros_like(last)])
        number = np.arange(len(rounds.repeats))
        nothing = np.full(length, len(number) + 1)
        # The row in which the columns of each round stand; behind all rounds come the final ops.
        self.row = np.concatenate([np.repeat(number, rounds.repeats), [len(number)], nothing])
        self.shown = np.full(length, -1)  # row that is written at each place
        each = rounds.schedule.edges.ptr[:ops]
        self.run.ops.ptr[: length * ops] = (np.arange(length)[:, None] * width + each).ravel()
        self.run.ops.ptr[length * ops :] = length * width
        # The run stops when an op in the last quarter ends: by then most rounds before are over.
        self.run.ops.watched[np.arange(3 * length // 4, length) * ops] = True

    def latest_end_ps(self) -> int | None:
        """Run all rounds; returns the latest end of any op [ps], None for too short a window."""
        run, state, here = self.run, self.run.state, self.length * self.rounds.ops
        self._write_columns()
        state.pending[here:] = NEVER_READY
        arrive_first(run.ops, state, run.agenda, 0)
        state.pending[here:] = NEVER_READY  # without the edges that were counted just now
        now, latest_ps = 0, 0
        while True:
            now = advance(run, now, HORIZON_PS)
            ahead = self.first + self.length <= self.rounds.count
            if ahead and state.pending[here:].min() < NEVER_READY:
                return None
            if state.notes[TROUBLE] != NO_OP:
                raise self._past_horizon(int(state.notes[TROUBLE]))
            if not state.notes[STOP]:
                break
            state.notes[STOP] = 0
            latest_ps = max(latest_ps, self._move_on(now))
        moving = moving_flows(run)
        if len(moving):
            raise self._past_horizon(int(moving.min()))
        if state.notes[ENDED] != self.rounds.all_ops:
            raise ValueError("some ops of the rounds never run")
        return max(latest_ps, int(state.end.max()))

    def _past_horizon(self, op: int) -> HorizonError:
        """Return the error for an op of the window that would end, or be ready, too late."""
        return HorizonError.of(self.first * self.rounds.ops + op)

    def _move_on(self, now: int) -> int:
        """Drop the first rounds whose ops have all ended; returns their latest end [ps]."""
        state, here = self.run.state, self.length * self.rounds.ops
        over = (state.start[:here] != NEVER) & (state.end[:here] <= now)
        done = int(np.argmin(over)) // self.rounds.ops
        shift = done * self.rounds.ops
        if not done:
            return 0
        latest_ps = int(state.end[:shift].max())
        for column in (state.ready, state.start, state.end, state.pending):
            column[: here - shift] = column[shift:here]
        for column in (state.next, state.child):
            column[: here - shift] = _renumbered(column[shift:here], shift)
        # None of the ops in the agenda, in the queues and in flight was dropped.
        run = self.run
        np.subtract(run.queues.tail, shift, out=run.queues.tail)
        what = run.agenda.what[: run.agenda.vacant[1]]
        what += np.where(what < 0, shift, -shift)
        for first in (run.queues.head, run.queues.root, run.streams.op[: run.streams.vacant[1]]):
            first[:] = _renumbered(first, shift)
        self.first += done
        self._write_columns()
        self._write_state(self.length - done)
        return latest_ps

    def _write_columns(self) -> None:
        """Write the columns of the rounds at all places where another kind of round stood."""
        ops, edges = self.rounds.ops, self.rounds.edges
        wanted = self.row[self.first : self.first + self.length]
        for place in np.flatnonzero(wanted != self.shown):
            for rows, width in ((self.rows.ops, ops), (self.rows.edges, edges)):
                for name, values in rows.items():
                    column: IntArray = getattr(self.run.ops, name)
                    column[place * width : (place + 1) * width] = values[wanted[place]]
            self.run.ops.dst[place * edges : (place + 1) * edges] += place * ops
        self.shown = wanted
        self._write_sizes(wanted)

    def _write_sizes(self, wanted: IntArray) -> None:
        """Write the columns that depend on sizes of blocks, which are elsewhere in each round."""
        larger = self.rounds.larger
        if larger is None:
            return
        is_larger = larger.in_rounds(self.first, self.length)
        self._write_chosen(self.rows.ops, self.larger_rows.ops, is_larger, wanted)
        if self.larger_rows.edges:
            width = np.diff(self.rounds.schedule.edges.ptr[: self.rounds.ops + 1])
            of_edges = np.repeat(is_larger, width, axis=1)
            self._write_chosen(self.rows.edges, self.larger_rows.edges, of_edges, wanted)

    def _write_chosen(
        self, rows: _Table, larger_rows: _Table, is_larger: BoolArray, wanted: IntArray
    ) -> None:
        """Write the columns of larger rows, with their values where ``is_larger`` says so."""
        for name, values in larger_rows.items():
            column: IntArray = getattr(self.run.ops, name)
            chosen = np.where(is_larger, values[wanted], rows[name][wanted])
            column[: chosen.size] = chosen.ravel()

    def _write_state(self, place: int) -> None:
        """Reset the state of the rounds from a place on, which are new."""
        state, begin, here = self.run.state, place * self.rounds.ops, self.length * self.rounds.ops
        state.ready[begin:here] = 0
        state.start[begin:here] = NEVER
        state.end[begin:here] = NEVER
        within, across = self.pending
        new = np.arange(self.first + place, self.first + self.length)
        state.pending[begin:here] = (within[self.row[new]] + across[self.row[new - 1]]).ravel()


def _columns(rounds: Rounds, length: int) -> tuple[_Rows, _Rows, Run]:
    """Return rounds' columns, those other where blocks are larger, and a run with room."""
    run = new_run(rounds.of_both_sizes, Faults.none(), (), berths=length * rounds.ops)
    whole, room = run.ops, (length + 1) * rounds.ops
    rows, larger_rows = _rows(rounds, whole), _Rows({}, {})
    if rounds.larger is not None:
        larger = _rows(rounds, whole, len(rounds.schedule), len(rounds.schedule.edges))
        larger_rows = _Rows(*map(_differing, larger, rows))
    columns = {name: np.zeros(room, values.dtype) for name, values in rows.ops.items()}
    columns |= {
        name: np.zeros(length * rounds.edges, values.dtype) for name, values in rows.edges.items()
    }
    ops = Ops(
        **{**whole._asdict(), **columns}
        | {"ptr": np.empty(room + 1, np.int64), "watched": np.zeros(room, np.bool_)}
    )
    return (
        rows,
        larger_rows,
        run._replace(ops=ops, state=empty_state(room), agenda=empty_agenda(room)),
    )


def _rows(rounds: Rounds, whole: Ops, first_op: int = 0, first_edge: int = 0) -> _Rows:
    """Return the columns of each kind of round, which stand in ``whole`` from these places on."""
    count = len(rounds.repeats)

    def table(values: npt.NDArray[Any], width: int, of_none: int) -> npt.NDArray[Any]:
        rows = np.full((count + 2, width), of_none, values.dtype)
        rows.ravel()[: len(values)] = values
        return rows

    here = slice(first_op, first_op + len(rounds.schedule))
    flows = {"flow": 0, "size": 0} if len(whole.flow) else {}
    ops = {
        name: table(getattr(whole, name)[here], rounds.ops, of_none)
        for name, of_none in {**OP_COLUMNS, **flows}.items()
    }
    # Final ops and those that never run have edges too, which lead to an op that never runs.
    here = slice(first_edge, first_edge + len(rounds.schedule.edges))
    followers = rounds.followers().ravel().astype(np.int32)
    edges = {
        "dst": table(followers, rounds.edges, rounds.ops),
        "lag": table(whole.lag[here], rounds.edges, 0),
    }
    if len(whole.from_start):
        edges["from_start"] = table(whole.from_start[here], rounds.edges, False)
    return _Rows(ops, edges)


def _differing(table: _Table, other: _Table) -> _Table:
    return {name: rows for name, rows in table.items() if (rows != other[name]).any()}


def _renumbered(chain: IntArray, shift: int) -> IntArray:
    """Return the numbers of ops in a window that has moved on; those of dropped ops are NO_OP."""
    return np.where(chain >= shift, chain - shift, NO_OP)


def simulate_calls(
    schedule: Schedule, routines: Routines, *, engine: str = "fast", faults: Faults | None = None
) -> Times:
    """Run a schedule with routines, in place or written out; return times outside."""
    if engine == "fast" and not faults:
        return fast.simulate(schedule, Faults.none(), routines=routines)
    times = simulate(calls_written_out(schedule, routines), engine=engine, faults=faults)
    columns = ("ready_ps", "start_ps", "end_ps", "status")
    kept = {name: getattr(times, name)[: routines.outside] for name in columns}
    return replace(times, **kept)
