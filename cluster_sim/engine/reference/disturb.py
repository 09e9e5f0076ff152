"""Faults in SimPy: resources that slow down, die and revive under the ops in flight (rule 8)."""

from __future__ import annotations

from collections.abc import Generator
from fractions import Fraction
from heapq import heapify

import simpy

from cluster_sim.engine.faults import Faults
from cluster_sim.engine.reference.run import FAULTS, LOST, Phase, Run, Server, scaled
from cluster_sim.engine.times import DOOMED, FAILED, NEVER, HorizonError
from cluster_sim.schedule.table import HORIZON_PS

FOREVER = 2**30  # pending edges of a doomed op, more than a schedule can count: it is never ready


class Disturbance:
    """The process that lets the faults of a run happen, and a record of the ops that they lose."""

    def __init__(self, run: Run, faults: Faults):
        self.run = run
        self.faults = faults
        self.remaining = len(faults)
        self.attempts: list[tuple[int, int, int]] = []  # (end, op, start) of runs that were lost
        self.lost: dict[int, int] = {}  # FAILED or DOOMED, by op
        if len(faults):
            run.env.process(self.happen())

    def happen(self) -> Generator[simpy.Event, None, None]:
        """Wait for the instant of each fault and change the speed of its resource."""
        rows = self.faults
        columns = (rows.time_ps, rows.resource, rows.numerator, rows.denominator, rows.fails)
        for time, number, top, bottom, fails in zip(*(c.tolist() for c in columns), strict=True):
            instant = Phase(self.run.env)
            instant.plan(FAULTS, time - self.run.env.now)
            yield instant
            self.remaining -= 1
            self.change_speed(self.run.servers[number], number, Fraction(top, bottom), fails)

    def change_speed(self, server: Server, number: int, speed: Fraction, fails: bool) -> None:
        """Change the speed of a resource, and with it the ops in flight there."""
        old_speed = server.speed
        if speed == old_speed:
            return
        if not speed:
            self.lose_all(self.ops_in_flight(server, number), fails)
        elif old_speed:
            self.rescale(server, old_speed / speed)
        server.set_speed(speed)
        self.run.sharing.set_speed(number, speed)
        for op in self.run.parked.pop(number, []) if speed else []:
            if op not in self.lost:
                self.run.arrive(op)

    def ops_in_flight(self, server: Server, number: int) -> list[int]:
        """Return the ops in flight that hold a slot of a resource, or are flows across it."""
        held = {slot.op for slot in server.slots if slot.op >= 0}
        return sorted(held | self.run.sharing.flows_across(number))

    def rescale(self, server: Server, factor: Fraction) -> None:
        """Multiply the remaining time of the fixed ops in flight on a resource by a factor."""
        run = self.run
        for slot in server.slots:
            if slot.op >= 0 and slot.op not in run.sharing.in_flight:
                remaining = run.end[slot.op] - run.env.now
                end = run.env.now + scaled(remaining, factor)
                if end > HORIZON_PS:
                    raise HorizonError.of(slot.op)
                run.end[slot.op] = end
                slot.process.interrupt(end)

    def lose_all(self, ops: list[int], fails: bool) -> None:
        """Lose ops in flight; they fail together, or are ready again."""
        # All of them first: what one of them dooms must not include another that failed itself.
        for op in ops:
            self.lose(op)
            if fails:
                self.lost[op] = FAILED
        for op in ops:
            if fails:
                self.doom_behind(op)
            else:
                self.run.arrive(op)

    def lose(self, op: int) -> None:
        """Take an op in flight off its resources; its edges that have not elapsed are uncounted."""
        run = self.run
        self.attempts.append((run.env.now, op, run.start[op]))
        for edge in range(run.ptr[op], run.ptr[op + 1]):
            if run.counted.get(edge, NEVER) >= run.env.now:
                del run.counted[edge]
                run.pending[run.dst[edge]] += 1
                self.cancel_arrival(run.dst[edge])
        run.start[op] = run.end[op] = NEVER
        if op in run.sharing.in_flight:
            run.sharing.remove(op)
        for slot in run.servers[run.resource[op]].slots if run.resource[op] >= 0 else []:
            if slot.op == op:
                slot.process.interrupt(LOST)

    def cancel_arrival(self, op: int) -> None:
        """Remove an op that waits to be ready, or for a slot, from all queues."""
        self.run.arrivals.pop(op, None)
        if self.run.resource[op] >= 0:
            server = self.run.servers[self.run.resource[op]]
            for queue in (server.coming, server.waiting):
                queue[:] = [row for row in queue if row[2] != op]
                heapify(queue)

    def doom_behind(self, op: int) -> None:
        """Mark all ops that depend on a failed op as doomed, and lose those in flight."""
        run = self.run
        reached = [op]
        while reached:
            op = reached.pop()
            for follower in run.dst[run.ptr[op] : run.ptr[op + 1]]:
                ended = run.start[follower] >= 0 and run.end[follower] <= run.env.now
                if ended or follower in self.lost:
                    continue
                self.lost[follower] = DOOMED
                if run.start[follower] >= 0:
                    self.lose(follower)
                self.cancel_arrival(follower)
                run.pending[follower] = FOREVER
                reached.append(follower)
