"""Reasons why ops never ran: a simulation never ends quietly with work left over."""

from __future__ import annotations

import numpy as np

from cluster_sim.engine.times import READY, RUNNING, Times
from cluster_sim.schedule.table import Schedule
from topologies.arrays import IntArray
from topologies.errors import InputError

LONGEST_CHAIN = 6
"""Ops named in one explanation; a longer chain is cut short."""


class BlockedWork(InputError):  # noqa: N818 - a state of the work, not a fault of the program
    """Error for ops that can never run; the message says how many, and why the first one."""


def explain(schedule: Schedule, times: Times) -> str:
    """Say in one line how many ops are blocked, and what the first of them waits for.

    The first is the op at which the waiting begins: it is on a cycle of edges, or held back by a
    dead or starved resource. Returns a line such as ``3 of 8,064 ops never ran. First: op 411 waits
    for op 398, which waits for op 411.``; empty where no op is blocked.
    """
    blocked = times.blocked
    if not blocked.any():
        return ""
    chain = waiting_chain(schedule, times)
    waits = f"op {chain[0]}"
    if len(chain) == 1:
        waits += _reason_at_resource(schedule, times, chain[0])
    else:
        named = chain[1:] if len(chain) <= LONGEST_CHAIN else [*chain[1:LONGEST_CHAIN], chain[-1]]
        waits += " waits for " + ", which waits for ".join(f"op {op}" for op in named)
    if len(chain) > LONGEST_CHAIN:
        head, last = waits.rsplit(", which waits for ", 1)
        waits = f"{head}, and so on through {len(chain) - 1:,} ops until one waits for {last}"
    return f"{np.count_nonzero(blocked):,} of {len(schedule):,} ops never ran. First: {waits}."


def waiting_chain(schedule: Schedule, times: Times) -> list[int]:
    """Return a cycle of ops that wait for one another, first = last; else the op at the root.

    From a blocked op the walk goes to an op that it waits for, from there on in the same way. It
    ends at an op that waits for no other, or meets an op again, which closes a cycle.
    """
    cause = _unfinished_predecessor(schedule, times)
    op = int(np.argmax(times.blocked))
    position: dict[int, int] = {}
    while op not in position:
        position[op] = len(position)
        if cause[op] < 0:
            return [op]
        op = int(cause[op])
    return [*list(position)[position[op] :], op]


def _unfinished_predecessor(schedule: Schedule, times: Times) -> IntArray:
    """Return for each op a predecessor whose edge to it has not elapsed, -1 for none."""
    edges, blocked = schedule.edges, times.blocked
    edge = np.flatnonzero(blocked[edges.dst] & (times.ready_ps[edges.dst] < 0))
    source = np.searchsorted(edges.ptr, edge, side="right") - 1
    unfinished = times.end_ps[source] < 0
    if edges.from_start is not None:
        unfinished &= ~edges.from_start[edge] | (times.start_ps[source] < 0)
    predecessor = np.full(len(schedule), -1, np.int64)
    predecessor[edges.dst[edge[unfinished]]] = source[unfinished]
    return predecessor


def _reason_at_resource(schedule: Schedule, times: Times, op: int) -> str:
    """Say why an op whose edges have all elapsed did not run: the state of its resources."""
    needed = [schedule.resource[op]] if schedule.resource[op] >= 0 else []
    flow = np.flatnonzero(schedule.flows.op == op)
    if len(flow):
        needed += schedule.flows.resource[
            schedule.flows.ptr[flow[0]] : schedule.flows.ptr[flow[0] + 1]
        ].tolist()
    dead = [number for number in needed if number in times.dead]
    names = " and ".join(schedule.resources.names(np.array(dead or needed[:1], np.int64)))
    if dead:
        state = "is dead. Make it" if len(dead) == 1 else "are dead. Make them"
        return f" waits for {names}, which {state} slow=P/Q, or use an algorithm that goes round"
    if times.status[op] == RUNNING:
        return f" has no rate left on {names}"
    if times.status[op] == READY:
        return f" waits for {names}, which is never free again"
    return " waits for something outside the schedule"
