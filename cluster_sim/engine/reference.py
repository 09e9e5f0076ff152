"""The definition of the rules of time in SimPy: a process for every resource that ops hold.

A run is the state of every op, and what its start and end set off. Faults are resources that slow
down, die and revive under the ops in flight (rule 8).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import simpy
from simpy.core import StopSimulation

from cluster_sim.engine.faults import Faults
from cluster_sim.engine.times import (
    DOOMED,
    FAILED,
    NEVER,
    UNKNOWN_PS,
    Attempts,
    HorizonError,
    Times,
    settle,
)
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, IntArray, Schedule

ENDS, FAULTS, READINESS, STARTS = 1, 2, 3, 4
"""Phases of one instant, in their order; events of ``env.timeout`` are in the first.

The starts on resource r are in phase ``STARTS + r``, so resources come in number order. With R
resources, ops that hold none start in ``STARTS + R``, rates are solved in ``STARTS + R + 1``, and
a run that is to stop at the instant does so in ``STARTS + R + 2``.
"""


class Picoseconds(simpy.Environment):
    """SimPy's environment with a clock in whole picoseconds."""

    @property
    def now(self) -> int:
        """The present instant [ps]."""
        return self._now  # type: ignore[return-value]


class Phase(simpy.Event):
    """An event in a chosen phase of a chosen instant."""

    def plan(self, phase: int, delay: int, callback: Callable[[Any], None] | None = None) -> None:
        """Schedule the event in a phase of the instant ``delay`` from now [ps]."""
        self._ok, self._value = True, None
        if callback is not None:
            self.callbacks.append(callback)
        self.env.schedule(self, phase, delay)  # type: ignore[arg-type]


def scaled(duration_ps: int, factor: Fraction) -> int:
    """Multiply a duration by a fraction, rounded up [ps] (rule 8)."""
    return -(-duration_ps * factor.numerator // factor.denominator)


NO_OP = -1
NO_TURN = HORIZON_PS + 1  # time of the next turn of a slot for which no op is queued [ps]
LOST = "lost"
"""Cause of an interrupt when the op in flight is lost; any other cause is its new end [ps]."""

NOMINAL = Fraction(1)  # speed of a resource without faults


class Slot:
    """One slot of a resource, which takes ops at its *turn* and holds each to its end."""

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

    def __init__(self, run: Run, number: int, name: str, slots: int):
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
        slot = max(self.idle, key=lambda slot: slot.when) if len(self.idle) > 1 else self.idle[0]
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


MICROBYTES = 10**6
"""Microbytes in a byte; the work that is left of a flow is an integer of microbytes."""
PER_MICROBYTE = 10**6  # rate [B/s] times duration [ps] that moves one microbyte


class Flow:
    """A flow in flight: its work left, its rate, and the event of its end."""

    def __init__(self, op: int, size_bytes: int, now: int, ended: simpy.Event):
        self.op = op
        self.left = size_bytes * MICROBYTES  # as of the instant ``since``
        self.since = now
        self.rate: int | None = None  # [B/s], None until it is solved for the first time
        self.ended = ended
        self.timer: Phase | None = None


class Sharing:
    """All flows in flight and their rates; those on slots of ``faulty`` have scaled caps."""

    def __init__(self, env: Picoseconds, schedule: Schedule, faulty: IntArray, solve_phase: int):
        self.env = env
        self.solve_phase = solve_phase
        self.demand = dict(_demands(schedule))
        self.size = {op: int(schedule.size_bytes[op]) for op in self.demand}
        self.capacity = dict(enumerate(schedule.resources.capacity.tolist()))
        self.speed: dict[int, Fraction] = {}  # of resources that a fault has changed
        slots = {op: int(schedule.resource[op]) for op in self.demand}
        self.slot = {op: slot for op, slot in slots.items() if slot in faulty}
        self.in_flight: dict[int, Flow] = {}
        self.flows_on: dict[int, set[int]] = defaultdict(set)  # those in flight, by resource
        self.touched: set[int] = set()  # resources on which something changed at this instant

    def path(self, op: int) -> list[int]:
        """Return the shared resources that a flow crosses; none for any other op."""
        return [resource for resource, _ in self.demand[op].weights] if op in self.demand else []

    def enter(self, op: int) -> simpy.Event:
        """Start a flow; returns the event of its end."""
        flow = Flow(op, self.size[op], self.env.now, simpy.Event(self.env))
        self.in_flight[op] = flow
        for resource in self.path(op):
            self.flows_on[resource].add(op)
        self._touch(self.path(op))
        return flow.ended

    def remove(self, op: int) -> None:
        """Remove a flow that is done or lost."""
        self.in_flight.pop(op).timer = None  # its planned event, if any, finds it has no timer
        for resource in self.path(op):
            self.flows_on[resource].discard(op)
        self._touch(self.path(op))

    def set_speed(self, resource: int, speed: Fraction) -> None:
        """Scale the capacity of a resource, and the caps of the flows that hold a slot of it."""
        if not self.demand:
            return
        self.speed[resource] = speed
        holders = [op for op in self.in_flight if self.slot.get(op) == resource]
        self._touch([resource, *(crossed for op in holders for crossed in self.path(op))])

    def _touch(self, resources: Iterable[int]) -> None:
        """Note that flows on these resources changed; rates are solved once, after all starts."""
        if not self.touched:
            Phase(self.env).plan(self.solve_phase, 0, lambda _: self._solve())
        self.touched.update(resources)

    def _solve(self) -> None:
        """Solve the rates in the components where something changed."""
        flows, resources = self._component()
        self.touched.clear()
        capacity = {number: self._scaled(self.capacity[number], number) for number in resources}
        rates = max_min_rates({op: self._demand(op) for op in flows}, capacity)
        for op, rate in rates.items():
            if rate != self.in_flight[op].rate:
                self._change_rate(self.in_flight[op], rate)

    def _component(self) -> tuple[list[int], set[int]]:
        """Return the flows and resources connected with the touched resources through flows."""
        flows: set[int] = set()
        resources, todo = set(self.touched), list(self.touched)
        while todo:
            for op in self.flows_on[todo.pop()] - flows:
                flows.add(op)
                further = set(self.path(op)) - resources
                resources |= further
                todo += further
        return sorted(flows), resources

    def _demand(self, op: int) -> Demand:
        """Return the demand of a flow, its cap scaled by the speed of the slot that it holds."""
        nominal = self.demand[op]
        if op not in self.slot:
            return nominal
        return Demand(self._scaled(nominal.cap, self.slot[op]), nominal.weights)

    def _scaled(self, rate: int, resource: int) -> int:
        speed = self.speed.get(resource)
        return rate if speed is None else rate * speed.numerator // speed.denominator

    def _change_rate(self, flow: Flow, rate: int) -> None:
        """Take the work moved so far off a flow, and plan its end at the new rate."""
        now = self.env.now
        flow.left -= (flow.rate or 0) * (now - flow.since) // PER_MICROBYTE
        flow.rate, flow.since, flow.timer = rate, now, None
        if rate:
            duration = -(-flow.left * PER_MICROBYTE // rate)
            if now + duration <= HORIZON_PS:
                flow.timer = Phase(self.env)
                flow.timer.plan(ENDS, duration, lambda timer: self._end(flow, timer))

    def _end(self, flow: Flow, timer: simpy.Event) -> None:
        if flow.timer is timer:
            self.remove(flow.op)
            flow.ended.succeed()

    @property
    def moving(self) -> list[int]:
        """Flows in flight that have a rate."""
        return [op for op, flow in self.in_flight.items() if flow.rate]


def _demands(schedule: Schedule) -> Iterable[tuple[int, Demand]]:
    flows = schedule.flows
    shares = list(zip(flows.resource.tolist(), flows.weight.tolist(), strict=True))
    ptr, caps = flows.ptr.tolist(), flows.cap_bytes_per_s.tolist()
    for row, op in enumerate(flows.op.tolist()):
        yield op, Demand(caps[row], tuple(shares[ptr[row] : ptr[row + 1]]))


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
        """End an op that holds no slot, unless a fault took its start back."""
        # It has no process that the fault could interrupt, so its event of the end comes anyway.
        if self.start[op] >= 0:
            self.finish(op)

    def count_start_edges(self, op: int, extra_ps: int) -> None:
        """Count the edges from the start of an op, whose lags grow as much as its duration did."""
        for edge in range(self.ptr[op], self.ptr[op + 1]):
            # An op that was lost and restarts does not count an edge again that had elapsed before.
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


@dataclass(frozen=True)
class Demand:
    """The rate cap of a flow, and the resources that it crosses."""

    cap: int
    weights: tuple[tuple[int, int], ...]  # each resource, and B/s of it for 1 B/s of the flow


def max_min_rates(demands: Mapping[int, Demand], capacity: Mapping[int, int]) -> dict[int, int]:
    """Share the capacities of resources among flows, max-min fair in whole bytes a second (rule 7).

    The level of all flows rises together. A resource is full at the level that its spare capacity,
    divided by the weights of the flows that still rise on it, allows, rounded down; a flow is full
    at its own cap. Whatever is full at the lowest of these levels stays there, and the rest rises
    on. ``capacity``: rate that each resource divides [B/s].

    One flow crosses two resources, and each of these has another flow to itself:

    >>> paths = {0: ((0, 1), (1, 1)), 1: ((0, 1),), 2: ((1, 1),)}
    >>> max_min_rates({flow: Demand(99, path) for flow, path in paths.items()}, {0: 100, 1: 60})
    {0: 30, 1: 70, 2: 30}
    """
    rates: dict[int, int] = {}
    spare, weight = dict(capacity), dict.fromkeys(capacity, 0)
    flows_on: dict[int, list[int]] = defaultdict(list)
    for flow, demand in demands.items():
        for resource, taken in demand.weights:
            weight[resource] += taken
            flows_on[resource].append(flow)
    while len(rates) < len(demands):
        # The lowest level at which a resource or a flow is full.
        rising = [flow for flow in demands if flow not in rates]
        full_at = {
            resource: spare[resource] // weight[resource]
            for resource in flows_on
            if weight[resource]
        }
        level = min([*full_at.values(), *(demands[flow].cap for flow in rising)])
        # All flows that are full there, by their caps or on a full resource, keep this rate.
        full = {flow for flow in rising if demands[flow].cap == level}
        for resource, resource_level in full_at.items():
            if resource_level == level:
                full.update(flow for flow in flows_on[resource] if flow not in rates)
        for flow in full:
            rates[flow] = level
            for resource, taken in demands[flow].weights:
                spare[resource] -= taken * level
                weight[resource] -= taken
    return {flow: rates[flow] for flow in demands}


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
        return sorted(held | self.run.sharing.flows_on[number])

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


__all__ = ["Run", "simulate"]


def simulate(
    schedule: Schedule, faults: Faults, until_ps: int | None = None, until_ops: Iterable[int] = ()
) -> Times:
    """Run a schedule in SimPy; see :func:`cluster_sim.engine.simulate`."""
    run = Run(schedule, np.unique(faults.resource), until_ops)
    disturbance = Disturbance(run, faults)
    if until_ps is not None:
        run.stop_after(until_ps)
    run.env.run()
    return _outcome(run, disturbance)


def _outcome(run: Run, disturbance: Disturbance) -> Times:
    """Collect the times of the ops from the objects of a run that is over."""
    moving = run.sharing.moving
    if moving and run.stopped_ps is None:  # an end past the horizon is never planned
        raise HorizonError.of(min(moving))
    lost = np.zeros(len(run.kind), np.uint8)
    lost[list(disturbance.lost)] = list(disturbance.lost.values())
    end, op, start = np.array(sorted(disturbance.attempts), np.int64).reshape(-1, 3).T
    ready_ps, start_ps, end_ps = (
        np.array(column, np.int64) for column in (run.ready, run.start, run.end)
    )
    dead = [number for number, server in enumerate(run.servers) if not server.speed]
    return settle(
        Times(
            ready_ps=ready_ps,
            start_ps=start_ps,
            end_ps=end_ps,
            status=lost,
            attempts=Attempts(op.astype(np.int32), start, end),
            dead=np.array(dead, np.int32),
            stopped_ps=run.stopped_ps,
        ),
        np.array(run.pending, np.int64),
        now=HORIZON_PS if run.stopped_ps is None else run.stopped_ps,
        on_its_way=bool(moving or disturbance.remaining),
    )
