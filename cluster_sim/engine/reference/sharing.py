"""Flows in SimPy: the work that is left of each, and its end at the present rate (rule 7)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction

import simpy

from cluster_sim.engine.reference.max_min import Demand, max_min_rates
from cluster_sim.engine.reference.phases import ENDS, Phase, Picoseconds
from cluster_sim.schedule.table import HORIZON_PS, IntArray, Schedule

MICROBYTES = 10**6
"""Microbytes in a byte; the work that is left of a flow is an integer of microbytes."""
PER_MICROBYTE = 10**6
"""Rate [B/s] times duration [ps] that moves one microbyte."""


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
    """All flows in flight, and their rates.

    Parameters
    ----------
    env : Picoseconds
    schedule : Schedule
    faulty : int array
        Resources whose speed may change: a flow that holds a slot of one has its cap scaled.
    solve_phase : int
        Phase of an instant in which the rates are solved.
    """

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

    def flows_across(self, resource: int) -> set[int]:
        """Return the flows in flight that cross a resource."""
        return set(self.flows_on[resource])

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
