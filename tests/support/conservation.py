"""Conservation laws that every trace keeps, whatever the engine; tests check them after runs."""

import numpy as np

from cluster_sim.analysis.stretches import Stretches, stretches
from cluster_sim.engine.times import DONE
from cluster_sim.schedule.table import FIXED, HORIZON_PS, JOIN, PS_PER_S

ROUNDING = 1 + 1e-9
"""Relative slack for quantities that are computed in floating point."""


def violations(trace, *, faults=False):
    """List the conservation laws that a trace breaks, one line each; empty when all hold.

    Under faults durations, free slots, the order of starts, rates and edges from starts need not
    keep the laws, and are not checked.
    """
    broken = [*_readiness(trace, faults), *_order(trace), *_slots(trace)]
    if faults:
        return broken
    return [*broken, *_durations(trace), *_idle_slots(trace), *_start_order(trace), *_rates(trace)]


def _first(bad, text):
    """Yield a line with the number of bad ops and the first of them, if there are any."""
    if bad.any():
        yield f"{np.count_nonzero(bad):,} ops, first op {int(np.argmax(bad))}: {text}"


def _readiness(trace, faults):
    """Check rule 2: an op is ready at the latest of its edges."""
    schedule, times = trace.schedule, trace.times
    edges, source = schedule.edges, schedule.edges.sources()
    since = times.end_ps[source]
    if edges.from_start is not None:
        since = np.where(edges.from_start, times.start_ps[source], since)
    expected = np.zeros(len(schedule), np.int64)
    np.maximum.at(expected, edges.dst, since + edges.lag_ps)
    was_ready = times.ready_ps >= 0
    unmet, excused = np.zeros((2, len(schedule)), np.bool_)
    if faults and edges.from_start is not None:  # a start may have been lost, or slow
        excused[edges.dst[edges.from_start]] = True
    unmet[edges.dst[since < 0]] = True
    yield from _first(was_ready & unmet & ~excused, "ready although an edge never elapsed")
    late = was_ready & ~unmet & ~excused & (times.ready_ps != expected)
    yield from _first(late, "not ready at the latest of its edges")


def _order(trace):
    times, kind = trace.times, trace.schedule.kind
    started, ended = times.start_ps >= 0, times.end_ps >= 0
    yield from _first(started & (times.start_ps < times.ready_ps), "starts before it is ready")
    yield from _first(ended & (times.end_ps < times.start_ps), "ends before it starts")
    yield from _first(ended != (times.status == DONE), "ended, or not, against its status")
    late_join = ended & (kind == JOIN) & (times.end_ps != times.ready_ps)
    yield from _first(late_join, "a join that does not end when ready")


def _durations(trace):
    """Check rule 5: fixed ops last their duration."""
    schedule, times = trace.schedule, trace.times
    fixed = (schedule.kind == FIXED) & (times.end_ps >= 0)
    lasted = times.end_ps - times.start_ps
    yield from _first(fixed & (lasted != schedule.duration_ps), "does not last its duration")


def _slots(trace):
    resource, instant, holders = _occupancy(trace, _holding(trace))
    over = holders > trace.schedule.resources.slots[resource]
    if over.any():
        k = int(np.argmax(over))
        name = trace.schedule.resources.names(resource[k : k + 1])[0]
        yield f"{name}: {holders[k]} ops hold it at {instant[k]} ps, more than its slots"


def _idle_slots(trace):
    """Check rule 3: no slot of a resource is free between an op's readiness and its start.

    The time with a free slot, summed from the start of the run, must be the same at both.
    """
    schedule, times = trace.schedule, trace.times
    ops = np.flatnonzero((schedule.resource >= 0) & (times.start_ps > times.ready_ps))
    if not len(ops):
        return
    resource, instant, holders = _occupancy(trace, _holding(trace))
    length = np.diff(instant, append=instant[-1:])
    length[np.flatnonzero(resource[1:] != resource[:-1])] = 0
    free = np.where(holders < schedule.resources.slots[resource], length, 0)
    at_ready, at_start = (
        _free_until((resource, instant), free, schedule.resource[ops], at[ops])
        for at in (times.ready_ps, times.start_ps)
    )
    idle = np.zeros(len(schedule), np.bool_)
    idle[ops] = at_start > at_ready
    yield from _first(idle, "waits although a slot of its resource is free")


def _start_order(trace):
    """Check rule 4: among ops of one resource and priority those ready first start first."""
    schedule, times = trace.schedule, trace.times
    ops = np.flatnonzero((schedule.resource >= 0) & (times.ready_ps >= 0))
    order = np.lexsort((ops, times.ready_ps[ops], schedule.priority[ops], schedule.resource[ops]))
    ops = ops[order]
    start = np.where(times.start_ps[ops] >= 0, times.start_ps[ops], HORIZON_PS)
    kinds = np.stack([schedule.resource[ops], schedule.priority[ops]])
    alike = (kinds[:, 1:] == kinds[:, :-1]).all(axis=0)
    overtaken = np.zeros(len(schedule), np.bool_)
    overtaken[ops[:-1]] = alike & (start[1:] < start[:-1])
    yield from _first(overtaken, "starts after one of its priority that was ready later")


def _rates(trace):
    """Check rule 7 as far as starts and ends show it: bytes moved against caps and capacities."""
    schedule, times, flows = trace.schedule, trace.times, trace.schedule.flows
    row = np.flatnonzero(times.end_ps[flows.op] >= 0)
    if not len(row):
        return
    share = np.flatnonzero(np.isin(np.repeat(np.arange(len(flows)), np.diff(flows.ptr)), row))
    flow = np.repeat(np.arange(len(flows)), np.diff(flows.ptr))[share]
    resource, weight = flows.resource[share], flows.weight[share]
    most = flows.cap_bytes_per_s.astype(np.float64)
    np.minimum.at(most, flow, schedule.resources.capacity[resource] / weight)
    op = flows.op[row]
    lasted = (times.end_ps - times.start_ps)[op]
    too_fast = np.zeros(len(schedule), np.bool_)
    too_fast[op] = schedule.size_bytes[op] * (PS_PER_S / most[row]) > lasted * ROUNDING
    yield from _first(too_fast, "is faster than its cap or its path")
    moved = schedule.size_bytes[flows.op[flow]] * weight
    carried = np.bincount(resource, moved, len(schedule.resources))
    span = (times.end_ps[op].max() - times.start_ps[op].min()) / PS_PER_S
    for number in np.flatnonzero(carried > schedule.resources.capacity * span * ROUNDING)[:1]:
        name = schedule.resources.names(np.array([number]))[0]
        yield f"{name}: carried {carried[number]:.0f} bytes, more than its capacity"


def _holding(trace):
    """Return the stretches of time for which ops held a slot."""
    ran = stretches(trace)
    holds = (trace.schedule.resource[ran.op] >= 0) & (ran.end_ps > ran.start_ps)
    return Stretches(ran.op[holds], ran.start_ps[holds], ran.end_ps[holds])


def _occupancy(trace, ran):
    """Return resource, instant [ps] and ops from then on of each change of a resource."""
    held = trace.schedule.resource[ran.op]
    resource = np.concatenate([held, held])
    instant = np.concatenate([ran.end_ps, ran.start_ps])
    change = np.repeat(np.array([-1, 1]), len(held))
    order = np.lexsort((change, instant, resource))  # ends go before starts (rule 5)
    return resource[order], instant[order], np.cumsum(change[order])


def _free_until(changes, free, queried, until):
    """Sum the time with a free slot on each of some resources up to an instant [ps].

    ``free`` is the time from each change, of a resource at an instant, to the next in which a slot
    is free.
    """
    resource, instant = changes
    free_before = np.concatenate([[0], np.cumsum(free)])
    first = np.searchsorted(resource, queried)
    # Changes are in order of resource and time, so (resource, rank of the time) finds the last.
    keys = np.concatenate([instant, until])
    _, rank = np.unique(keys, return_inverse=True)
    span = int(rank.max()) + 1
    places = resource.astype(np.int64) * span + rank[: len(instant)]
    wanted = queried.astype(np.int64) * span + rank[len(instant) :]
    k = np.searchsorted(places, wanted, side="right") - 1
    before_any = k < first
    k = np.maximum(k, first)
    since_change = np.where(free[k] > 0, until - instant[k], 0)
    # Before its first change a resource is free: a difference of two results still counts that
    # time, which is negative here because sums begin at the first change.
    early = np.where(before_any, until - instant[first], 0)
    return np.asarray(free_before[k] + np.where(before_any, early, since_change))
