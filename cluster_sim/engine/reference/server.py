"""One resource in SimPy: the ops that wait for it, and a process for each of its slots."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any, Protocol

import simpy

from cluster_sim.engine.reference.phases import STARTS, Phase, Picoseconds
from cluster_sim.schedule.table import FLOW, HORIZON_PS

NO_OP = -1
NO_TURN = HORIZON_PS + 1
"""Time of the next turn of a slot for which no op is queued [ps]."""
LOST = "lost"
"""Cause of an interrupt when the op in flight is lost; any other cause is its new end [ps]."""

NOMINAL = Fraction(1)
"""Speed of a resource without faults."""


class Ops(Protocol):
    """The part of a run that a server needs: columns that order ops, and their start and end."""

    env: Picoseconds
    kind: list[int]
    priority: list[int]

    def can_start(self, op: int) -> bool:
        """Return whether all resources that a flow crosses are alive."""

    def begin(self, op: int) -> simpy.Event:
        """Start an op; returns the event of its end."""

    def finish(self, op: int) -> None:
        """End an op."""


class Slot:
    """One slot of a resource: a process that takes ops from the queue and holds each to its end.

    An idle slot waits for its *turn*, the event at which it takes the next op.
    """

    def __init__(self, server: Server, name: str):
        self.server = server
        self.op = NO_OP
        self.when = NO_TURN  # instant of the next turn, while idle [ps]
        self.turn = Phase(server.run.env)
        generator = self.serve()
        generator.__name__ = name  # type: ignore[attr-defined]
        self.process = server.run.env.process(generator)

    def serve(self) -> Generator[simpy.Event, Any, None]:
        """Wait for a turn, take an op, hold it to its end, and begin again."""
        server, run = self.server, self.server.run
        while True:
            server.wait(self)
            try:
                yield self.turn
            except simpy.Interrupt:  # an op comes earlier, or the speed has changed: plan anew
                server.idle.remove(self)
                continue
            server.idle.remove(self)
            self.op = op = server.take()
            if op == NO_OP:  # another slot was faster, or what was queued cannot start
                continue
            try:
                yield run.begin(op)
            except simpy.Interrupt as fault:
                yield from self.go_on(fault.cause)
            if self.op == op:
                self.op = NO_OP
                run.finish(op)

    def go_on(self, cause: Any) -> Generator[simpy.Event, Any, None]:
        """Hold the op to its new end, which may change again, unless it is lost."""
        env = self.server.run.env
        while cause is not LOST:
            try:
                yield env.timeout(cause - env.now)
                return
            except simpy.Interrupt as fault:
                cause = fault.cause
        self.op = NO_OP


class Server:
    """A resource: its speed, and the queue from which its slots take ops."""

    def __init__(self, run: Ops, number: int, name: str, slots: int):
        self.run = run
        self.phase = STARTS + number
        self.speed = NOMINAL
        self.coming: list[tuple[int, int, int]] = []  # heap of (ready, priority, op), ready later
        self.waiting: list[tuple[int, int, int]] = []  # heap of (priority, ready, op), by rule 4
        self.idle: list[Slot] = []
        self.slots = [Slot(self, name) for _ in range(slots)]

    def expect(self, op: int, ready: int) -> None:
        """Queue an op that is ready at ``ready`` [ps], now or later, and wake a slot in time."""
        heappush(self.coming, (ready, self.run.priority[op], op))
        if not self.idle:
            return
        # The slot whose turn is latest: the others have their turns for ops that come before.
        slot = max(self.idle, key=_turn_ps) if len(self.idle) > 1 else self.idle[0]
        if slot.when == NO_TURN:
            slot.when = ready
            slot.turn.plan(self.phase, max(0, ready - self.run.env.now))
        elif slot.when > ready:
            slot.when = ready
            slot.process.interrupt()

    def wait(self, slot: Slot) -> None:
        """Make a slot idle, with its next turn when the next queued op is ready."""
        slot.turn = turn = Phase(self.run.env)
        slot.when = NO_TURN
        if (self.waiting or self.coming) and self.speed:
            now = self.run.env.now
            slot.when = now if self.waiting else max(now, self.coming[0][0])
            turn.plan(self.phase, slot.when - now)
        self.idle.append(slot)

    def take(self) -> int:
        """Take the op with the smallest (priority, ready time, number) that can start (rule 4)."""
        run, coming, waiting = self.run, self.coming, self.waiting
        now = run.env.now
        while coming and coming[0][0] <= now:
            ready, priority, op = heappop(coming)
            heappush(waiting, (priority, ready, op))
        while waiting and (self.speed is NOMINAL or self.speed):
            op = heappop(waiting)[2]
            if run.kind[op] != FLOW or run.can_start(op):
                return op
        return NO_OP

    def set_speed(self, speed: Fraction) -> None:
        """Change the speed; idle slots plan their turns anew, for a dead resource none."""
        self.speed = speed
        for slot in self.idle:
            slot.process.interrupt()


def _turn_ps(slot: Slot) -> int:
    return slot.when
