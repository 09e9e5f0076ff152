"""Why ops never ran: a simulation never ends quietly with work left over."""

from __future__ import annotations

import numpy as np

from cluster_sim.engine import Times
from cluster_sim.schedule import IntArray, Schedule
from topologies.errors import InputError

LONGEST_CHAIN = 6
"""Ops named in one explanation; the rest of a longer chain is only counted."""


class BlockedWork(InputError):  # noqa: N818 - a state of the work, as the field says it
    """Ops are left that can never run; the message says how many, and why the first one."""


def explain(made: Schedule, times: Times) -> str:
    """One line on the ops that never ended and what the first of them waits for; else nothing.

    The first is the op where waiting begins: one of a cycle of edges, or one that a dead or
    starved resource holds back.

    Returns
    -------
    str
        Such as ``3 of 8,064 ops never ran. First: op 411 waits for op 398, which waits for
        op 411.``
    """
    never = np.flatnonzero(times.end_ps < 0)
    if not len(never):
        return ""
    chain = waiting_chain(made, times)
    text = f"{len(never):,} of {len(made):,} ops never ran. First: op {chain[0]}"
    for op in chain[1 : LONGEST_CHAIN + 1]:
        text += f"{' waits' if text.endswith(f'First: op {chain[0]}') else ', which waits'}"
        text += f" for op {op}"
    if len(chain) > LONGEST_CHAIN + 1:
        return f"{text}, and so on through {len(chain) - 1:,} ops back to op {chain[-1]}."
    return f"{text}{'' if len(chain) > 1 else _held_back(made, times, chain[0])}."


def waiting_chain(made: Schedule, times: Times) -> list[int]:
    """Ops that wait for one another in a circle, first = last; or the one op at the root."""
    first_cause = _one_cause_each(made, times)
    op = int(np.argmax(times.end_ps < 0))
    seen: dict[int, int] = {}
    while op not in seen:
        seen[op] = len(seen)
        cause = int(first_cause[op])
        if cause < 0:
            return [op]
        op = cause
    return [*list(seen)[seen[op] :], op]


def _one_cause_each(made: Schedule, times: Times) -> IntArray:
    """For each op one unfinished op that it waits for, -1 where there is none."""
    never = times.end_ps < 0
    waiting = never[made.edges.dst]
    edge = np.flatnonzero(waiting)
    source = np.searchsorted(made.edges.ptr, edge, side="right") - 1
    left = never[source]
    if made.edges.from_start is not None:
        left &= ~made.edges.from_start[edge] | (times.start_ps[source] < 0)
    cause = np.full(len(made), -1, np.int64)
    cause[made.edges.dst[edge[left]]] = source[left]
    return cause


def _held_back(made: Schedule, times: Times, op: int) -> str:
    if times.ready_ps[op] < 0:
        return " was given up after what it waited for had failed"
    held = made.resource[op]
    name = made.resources.names(np.array([held]))[0] if held >= 0 else "its shares"
    if times.start_ps[op] < 0:
        return f" was ready, but {name} never became free for it: it is dead, or held for ever"
    return f" started, but {name} never let it end: dead, or no rate left for it"
