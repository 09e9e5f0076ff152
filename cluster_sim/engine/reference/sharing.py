"""Flows in SimPy: what is left of each, and when it ends at its present rate (rule 7)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import simpy

from cluster_sim.engine.classes import share_tables
from cluster_sim.engine.rates import Paths, join, leave, solve, touch
from cluster_sim.engine.reference.phases import ENDS, STARTS, Phase
from cluster_sim.schedule.table import HORIZON_PS, IntArray, Schedule

if TYPE_CHECKING:
    from cluster_sim.engine.reference.run import Run

MICROBYTES = 10**6
"""In a byte."""
PER_MICROBYTE = 10**6
"""Rate [B/s] times duration [ps] that moves one microbyte."""


class Flow:
    """A flow in flight."""

    def __init__(self, op: int, number: int, size_bytes: int, now: int, ended: simpy.Event):
        self.op = op
        self.number = number  # its class
        self.left = size_bytes * MICROBYTES
        self.since = now  # when ``left`` was brought up to date
        self.rate = 0
        self.ended = ended
        self.timer: Phase | None = None


class Sharing:
    """All flows in flight, and the solver of their rates."""

    def __init__(self, run: Run, schedule: Schedule, faulty: IntArray):
        tables = share_tables(schedule, faulty)
        self.number, self.slot, self.paths, self.seats, self.filling = tables
        self.run = run
        self.row = {op: row for row, op in enumerate(schedule.flows.op.tolist())}
        self.size = schedule.size_bytes[schedule.flows.op].tolist()
        self.nominal_cap = self.paths.cap.copy()
        self.nominal_capacity = self.paths.capacity.copy()
        self.members: list[set[Flow]] = [set() for _ in self.slot]
        self.in_flight: dict[int, Flow] = {}
        self.fresh: list[Flow] = []
        self.solve_planned = False

    def path(self, op: int) -> list[int]:
        """Shared resources that a flow crosses; none for any other op."""
        if op not in self.row:
            return []
        number = int(self.number[self.row[op]])
        crossed: list[int] = self.paths.resource[_shares(self.paths, number)].tolist()
        return crossed

    def on(self, resource: int) -> set[int]:
        """Flows in flight that cross a resource."""
        return {op for op in self.in_flight if resource in self.path(op)}

    def enter(self, op: int) -> simpy.Event:
        """Start a flow; the event comes with its end."""
        row = self.row[op]
        number = int(self.number[row])
        ended = simpy.Event(self.run.env)
        stream = Flow(op, number, self.size[row], self.run.env.now, ended)
        self.in_flight[op] = stream
        self.members[number].add(stream)
        self.fresh.append(stream)
        join(self.paths, self.seats, self.filling, number)
        self._plan_solve()
        return ended

    def remove(self, op: int) -> None:
        """Take a flow out, done or lost."""
        stream = self.in_flight.pop(op)
        stream.timer = None
        self.members[stream.number].remove(stream)
        leave(self.paths, self.seats, self.filling, stream.number)
        self._plan_solve()

    def set_speed(self, resource: int, speed: Fraction) -> None:
        """Scale what a resource divides, and the caps of the flows that hold a slot of it."""
        if not self.row:
            return
        top, bottom = speed.numerator, speed.denominator
        self.paths.capacity[resource] = int(self.nominal_capacity[resource]) * top // bottom
        touched = [resource]
        for number in np.flatnonzero(self.slot == resource).tolist():
            self.paths.cap[number] = int(self.nominal_cap[number]) * top // bottom
            touched += self.paths.resource[_shares(self.paths, number)].tolist()
        for number in touched:
            touch(self.filling, number)
        self._plan_solve()

    def _plan_solve(self) -> None:
        if not self.solve_planned:
            self.solve_planned = True
            last = STARTS + len(self.run.servers) + 1
            Phase(self.run.env).plan(last, 0, lambda _: self._solve())

    def _solve(self) -> None:
        self.solve_planned = False
        changed = solve(self.paths, self.seats, self.filling)
        moved = {stream for stream in self.fresh if stream.op in self.in_flight}
        for number in self.filling.changed[:changed].tolist():
            moved |= self.members[number]
        self.fresh.clear()
        for stream in sorted(moved, key=lambda stream: stream.op):
            self._change_rate(stream, int(self.paths.rate[stream.number]))

    def _change_rate(self, stream: Flow, rate: int) -> None:
        now = self.run.env.now
        stream.left -= stream.rate * (now - stream.since) // PER_MICROBYTE
        stream.rate, stream.since, stream.timer = rate, now, None
        if rate:
            duration = -(-stream.left * PER_MICROBYTE // rate)
            if now + duration <= HORIZON_PS:
                stream.timer = Phase(self.run.env)
                stream.timer.plan(ENDS, duration, lambda timer: self._end(stream, timer))

    def _end(self, stream: Flow, timer: simpy.Event) -> None:
        if stream.timer is timer:
            self.remove(stream.op)
            stream.ended.succeed()

    @property
    def moving(self) -> list[int]:
        """Flows in flight that have a rate."""
        return [op for op, stream in self.in_flight.items() if stream.rate]


def _shares(paths: Paths, number: int) -> slice:
    return slice(paths.ptr[number], paths.ptr[number + 1])
