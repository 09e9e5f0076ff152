"""One run of a schedule in SimPy: the state of every op, and what its start and end set off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import simpy
from simpy.core import StopSimulation

from cluster_sim.engine.reference.phases import READINESS, STARTS, Phase, Picoseconds, scaled
from cluster_sim.engine.reference.server import NOMINAL, Server
from cluster_sim.engine.reference.sharing import Sharing
from cluster_sim.engine.times import NEVER, UNKNOWN_PS, HorizonError
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, IntArray, Schedule

NO_RESOURCES = np.empty(0, np.int32)


class Run:
    """The environment, a server for each resource, and the columns of ops as lists."""

    def __init__(
        self, schedule: Schedule, faulty: IntArray = NO_RESOURCES, until_ops: Iterable[int] = ()
    ):
        ops, edges, resources = len(schedule), schedule.edges, schedule.resources
        self.env = Picoseconds()
        self.kind = schedule.kind.tolist()
        self.resource = schedule.resource.tolist()
        self.duration = schedule.duration_ps.tolist()
        self.priority = schedule.priority.tolist()
        self.ptr, self.dst = edges.ptr.tolist(), edges.dst.tolist()
        self.lag = edges.lag_ps.tolist()
        self.from_start: list[bool] = []  # empty when there are no edges from a start
        if edges.from_start is not None:
            self.from_start = edges.from_start.tolist()
        self.pending = np.bincount(edges.dst, minlength=ops).tolist()
        self.ready, self.start, self.end = [0] * ops, [NEVER] * ops, [NEVER] * ops
        users = np.bincount(schedule.resource[schedule.resource >= 0], minlength=len(resources))
        slots = np.minimum(resources.slots, np.maximum(1, users))  # the rest would never be held
        rows = zip(resources.names(), slots.tolist(), strict=True)
        self.servers = [Server(self, number, *row) for number, row in enumerate(rows)]
        self.sharing = Sharing(self.env, schedule, faulty, STARTS + len(self.servers) + 1)
        self.parked: dict[int, list[int]] = defaultdict(list)  # flows that wait, by dead resource
        self.arrivals: dict[int, Phase] = {}  # events at which ops that hold no slot begin, by op
        self.counted: dict[int, int] = {}  # instant at which an edge from a start elapses, by edge
        self.until_ops = frozenset(until_ops)
        self.stopped_ps: int | None = None
        for op in [op for op, count in enumerate(self.pending) if not count]:
            self.arrive(op)

    @property
    def processes(self) -> list[simpy.Process]:
        """The processes of all slots, each with the printed name of its resource."""
        return [slot.process for server in self.servers for slot in server.slots]

    def arrive(self, op: int) -> None:
        """Queue an op, once all its edges are counted, for the instant at which it is ready."""
        number = self.resource[op]
        if number >= 0:
            self.servers[number].expect(op, self.ready[op])
        else:
            phase = READINESS if self.kind[op] == JOIN else STARTS + len(self.servers)
            self.arrivals[op] = arrival = Phase(self.env)
            delay = max(0, self.ready[op] - self.env.now)
            arrival.plan(phase, delay, lambda event: self.run_without_slot(op, event))

    def run_without_slot(self, op: int, arrival: simpy.Event) -> None:
        """Run a join, or another op that holds no slot."""
        if self.arrivals.get(op) is not arrival:  # cancelled by a fault; SimPy keeps the event
            return
        del self.arrivals[op]
        if self.kind[op] == JOIN:
            self.start[op] = self.env.now
            self.finish(op)
        elif self.can_start(op):
            self.begin(op).callbacks.append(lambda _: self.finish_unless_lost(op))

    def can_start(self, op: int) -> bool:
        """Return whether all resources that a flow crosses are alive; else park the flow."""
        for number in self.sharing.path(op):
            if not self.servers[number].speed:
                self.parked[number].append(op)
                return False
        return True

    def begin(self, op: int) -> simpy.Event:
        """Start an op that is not a join; returns the event of its end."""
        now = self.env.now
        self.start[op] = now
        if self.kind[op] == FLOW:
            self.end[op] = UNKNOWN_PS
            return self.sharing.enter(op)
        duration = self.duration[op]
        number = self.resource[op]
        if number >= 0 and self.servers[number].speed is not NOMINAL:
            duration = scaled(duration, 1 / self.servers[number].speed)
        self.end[op] = end = now + duration
        if end > HORIZON_PS:
            raise HorizonError.of(op)
        if self.from_start:
            self.count_start_edges(op, extra_ps=duration - self.duration[op])
        return self.env.timeout(duration)

    def finish(self, op: int) -> None:
        """End an op and count the edges from its end."""
        now = self.env.now
        self.end[op] = now
        if op in self.until_ops:
            self.stop_after(now)
        from_start = self.from_start
        for edge in range(self.ptr[op], self.ptr[op + 1]):
            if not from_start or not from_start[edge]:
                self.count(self.dst[edge], now + self.lag[edge])

    def finish_unless_lost(self, op: int) -> None:
        """End an op that holds no slot, unless a fault took its start back.

        It has no process that the fault could interrupt, so its event of the end comes anyway.
        """
        if self.start[op] >= 0:
            self.finish(op)

    def count_start_edges(self, op: int, extra_ps: int) -> None:
        """Count the edges from the start of an op, whose lags grow as much as its duration did.

        An op that was lost and restarts does not count an edge again that had elapsed before.
        """
        for edge in range(self.ptr[op], self.ptr[op + 1]):
            if self.from_start[edge] and edge not in self.counted:
                self.counted[edge] = elapses_ps = self.env.now + self.lag[edge] + extra_ps
                self.count(self.dst[edge], elapses_ps)

    def count(self, op: int, elapses_ps: int) -> None:
        """Count an edge into an op that elapses at an instant; the last makes the op arrive."""
        if elapses_ps > self.ready[op]:
            self.ready[op] = elapses_ps
            if elapses_ps > HORIZON_PS:
                raise HorizonError.of(op)
        self.pending[op] -= 1
        if not self.pending[op]:
            self.arrive(op)

    def stop_after(self, instant_ps: int) -> None:
        """Stop once everything that happens at an instant has happened."""
        last = STARTS + len(self.servers) + 2
        Phase(self.env).plan(last, instant_ps - self.env.now, self._stop)

    def _stop(self, event: Any) -> None:
        self.stopped_ps = self.env.now
        raise StopSimulation(None)
