"""The definition of the rules of time: a SimPy process for every resource that ops hold.

SimPy orders what happens at one time by priority. The phases of one instant (rule 5) are such
priorities, so an end is always before a start of the same time, whichever was planned first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import Any

import numpy as np
import simpy

from cluster_sim.engine.times import (
    DONE,
    NEVER,
    READY,
    RUNNING,
    WAITING,
    Attempts,
    HorizonError,
    Times,
)
from cluster_sim.schedule import HORIZON_PS, JOIN, NO_RESOURCE, Schedule

IN_END, IN_FAULTS, IN_READINESS, IN_STARTS = 1, 2, 3, 4
"""Phases of one instant as SimPy priorities; ``env.timeout`` is in the first. The starts of
resource r have priority ``IN_STARTS + r``, so resources come in number order."""


class Phase(simpy.Event):
    """An event in a chosen phase of a chosen instant."""

    def plan(self, phase: int, delay: int, callback: Callable[[Any], None] | None = None) -> None:
        """Let it happen in ``delay`` from now [ps]."""
        self._ok, self._value = True, None
        if callback is not None:
            self.callbacks.append(callback)
        self.env.schedule(self, phase, delay)  # type: ignore[arg-type]


class Turn(Phase):
    """What an idle process waits for: the starts of the next instant with an op for it."""

    when: int = HORIZON_PS + 1


class Server:
    """One resource: the ops that wait for it, and a process for each of its slots."""

    def __init__(self, run: Run, number: int, name: str, slots: int):
        self.run = run
        self.phase = IN_STARTS + number
        self.coming: list[tuple[int, int, int]] = []  # (ready, priority, op), ready ahead
        self.waiting: list[tuple[int, int, int]] = []  # (priority, ready, op): rule 4
        self.idle: list[Turn] = []
        self.processes: list[simpy.Process] = []
        for _ in range(slots):
            generator = self.serve()
            generator.__name__ = name
            self.processes.append(run.env.process(generator))

    def expect(self, op: int, ready: int) -> None:
        """Queue an op whose edges will all have elapsed at ``ready``, now or later."""
        heappush(self.coming, (ready, self.run.priority[op], op))
        if not self.idle:
            return
        turn = max(self.idle, key=lambda turn: turn.when)
        if turn.when > HORIZON_PS:
            turn.when = ready
            turn.plan(self.phase, ready - self.run.env.now)
        elif turn.when > ready:
            turn.when = ready
            turn.process.interrupt()

    def turn(self) -> Turn:
        """Wait for the next starts in which this resource may have an op."""
        now = self.run.env.now
        turn = Turn(self.run.env)
        turn.process = self.run.env.active_process
        if self.waiting or self.coming:
            turn.when = now if self.waiting else max(now, self.coming[0][0])
            turn.plan(self.phase, turn.when - now)
        self.idle.append(turn)
        return turn

    def take(self) -> int:
        """Pick the smallest (priority, ready time, op) of the ops that are ready."""
        now, coming, waiting = self.run.env.now, self.coming, self.waiting
        while coming and coming[0][0] <= now:
            ready, priority, op = heappop(coming)
            heappush(waiting, (priority, ready, op))
        return heappop(waiting)[2] if waiting else NO_RESOURCE

    def serve(self) -> Generator[simpy.Event, Any, None]:
        """Wait, pick, hold, release the successors: the life of one slot."""
        run = self.run
        while True:
            turn = self.turn()
            try:
                yield turn
            except simpy.Interrupt:
                self.idle.remove(turn)
                continue
            self.idle.remove(turn)
            op = self.take()
            if op >= 0:
                run.begin(op)
                yield run.env.timeout(run.duration[op])
                run.finish(op)


class Run:
    """One run of a schedule: the environment, the servers, and the state of every op."""

    def __init__(self, schedule: Schedule):
        ops, edges = len(schedule), schedule.edges
        self.env = simpy.Environment()
        self.kind = schedule.kind.tolist()
        self.resource = schedule.resource.tolist()
        self.duration = schedule.duration_ps.tolist()
        self.priority = schedule.priority.tolist()
        self.ptr, self.dst = edges.ptr.tolist(), edges.dst.tolist()
        self.lag = edges.lag_ps.tolist()
        self.from_start = None if edges.from_start is None else edges.from_start.tolist()
        self.pending = np.bincount(edges.dst, minlength=ops).tolist()
        self.ready, self.start, self.end = [0] * ops, [NEVER] * ops, [NEVER] * ops
        names, slots = schedule.resources.names(), schedule.resources.slots.tolist()
        self.servers = [
            Server(self, *row) for row in zip(range(len(names)), names, slots, strict=True)
        ]
        for op in [op for op, count in enumerate(self.pending) if count == 0]:
            self.arrive(op)

    @property
    def processes(self) -> list[simpy.Process]:
        """Every slot's process, named as its resource is printed."""
        return [process for server in self.servers for process in server.processes]

    def begin(self, op: int) -> None:
        """Start an op; edges from its start count from now."""
        now = self.env.now
        if self.duration[op] > HORIZON_PS - now:
            raise HorizonError(
                f"op {op} starts at {now} ps and lasts {self.duration[op]} ps: the run would pass "
                f"2**62 ps. Use coarser units or fewer iterations."
            )
        self.start[op] = now
        if self.from_start is not None:
            self.release(op, True)

    def finish(self, op: int) -> None:
        """End an op; edges from its end count from now."""
        self.end[op] = self.env.now
        self.release(op, False)

    def release(self, op: int, from_start: bool) -> None:
        """Let the edges that leave an op's start, or its end, begin to elapse."""
        now, stack = self.env.now, [op]
        while stack:
            op = stack.pop()
            for edge in range(self.ptr[op], self.ptr[op + 1]):
                if self.from_start is not None and self.from_start[edge] != from_start:
                    continue
                dst, elapsed = self.dst[edge], now + self.lag[edge]
                if elapsed > self.ready[dst]:
                    self.ready[dst] = elapsed
                self.pending[dst] -= 1
                if not self.pending[dst]:
                    self.arrive(dst)

    def arrive(self, op: int) -> None:
        """All edges of an op are known to have elapsed at its ready time, now or later."""
        ready = self.ready[op]
        if self.resource[op] >= 0:
            self.servers[self.resource[op]].expect(op, ready)
        else:
            phase = IN_READINESS if self.kind[op] == JOIN else IN_STARTS
            Phase(self.env).plan(phase, ready - self.env.now, lambda _: self.pass_by(op))

    def pass_by(self, op: int) -> None:
        """Run an op that holds nothing: a join, or a fixed op without a resource."""
        self.begin(op)
        if self.kind[op] == JOIN:
            self.finish(op)
        else:
            Phase(self.env).plan(IN_END, self.duration[op], lambda _: self.finish(op))


def simulate(schedule: Schedule) -> Times:
    """Run a schedule of fixed ops and joins in SimPy."""
    run = Run(schedule)
    run.env.run()
    ready, start, end = (np.array(column, np.int64) for column in (run.ready, run.start, run.end))
    pending = np.array(run.pending, np.int64)
    ready[pending > 0] = NEVER
    status = np.select([end >= 0, start >= 0, pending == 0], [DONE, RUNNING, READY], WAITING)
    return Times(ready, start, end, status.astype(np.uint8), Attempts.none(), np.empty(0, np.int32))
