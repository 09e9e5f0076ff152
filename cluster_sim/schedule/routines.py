"""Routines: ops that stand in a schedule once and run each time that a join calls them.

A training step calls the same collective of the same ranks hundreds of times, one call after the
other. As a routine it is written once, so that the memory of a step grows with its groups of ranks
and not with their calls; :func:`written_out` gives the equivalent schedule of plain ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.table import Edges, Flows, IntArray, Schedule


@dataclass(frozen=True, eq=False)
class Routines:
    """Routines of a schedule, and the joins that call them.

    The ops of all routines come after the other ops of the schedule. The last op of a routine is a
    join that waits for the rest of the routine. A call begins when the calling join ends; the op
    after that join waits for its own edges and for the end of the call. Calls of one routine never
    overlap.
    """

    first: IntArray  # (routines + 1,): routine k has the ops first[k]:first[k + 1]; last, of all
    caller: IntArray  # (calls,): join that makes the call, one at most, and belongs to no routine
    routine: IntArray  # (calls,): number of the routine that is called

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def outside(self) -> int:
        """Number of ops that belong to no routine."""
        return int(self.first[0])

    @property
    def ops(self) -> int:
        """Number of ops that a run executes: those outside routines, and those of every call."""
        return self.outside + int(np.diff(self.first)[self.routine].sum())


def written_out(whole: Schedule, routines: Routines) -> Schedule:
    """Return the equivalent schedule without routines, where each call has ops of its own.

    The ops outside routines come first, then the calls of the first routine in their order, those
    of the second, and so on.

    >>> from cluster_sim.schedule.build import OpColumns, schedule
    >>> from cluster_sim.schedule.table import FIXED, JOIN, Resources
    >>> twice = schedule(
    ...     OpColumns(kind=[JOIN] * 4 + [FIXED, JOIN], resource=[-1] * 4 + [0, -1],
    ...               duration_ps=[0] * 4 + [5, 0]),
    ...     edges=Edges.from_pairs(6, [1, 4], [2, 5]), resources=Resources.table("link", [0], [1]))
    >>> routines = Routines(np.array([4, 6]), np.array([0, 2]), np.array([0, 0]))
    >>> written_out(twice, routines)
    Schedule(8 ops, 7 edges, 1 resources)
    """
    order = np.argsort(routines.routine, kind="stable")
    caller, routine = routines.caller[order], routines.routine[order]
    length = np.diff(routines.first)[routine]
    begin = routines.outside + np.cumsum(length) - length
    # shift[i] = number of op i minus that of the op it is a copy of, its origin.
    shift = np.concatenate([np.zeros(routines.outside, np.int64), np.repeat(
        begin - routines.first[routine], length)])  # fmt: skip
    origin = np.arange(len(shift)) - shift
    columns = ("kind", "resource", "duration_ps", "size_bytes", "priority")
    picked = {name: getattr(whole, name)[origin] for name in columns}
    calls = caller, begin, begin + length - 1
    return Schedule(
        **picked,
        edges=_edges(whole, origin, shift, calls),
        resources=whole.resources,
        flows=flows_of_copies(whole, origin),
    )


def _edges(
    whole: Schedule, origin: IntArray, shift: IntArray, calls: tuple[IntArray, IntArray, IntArray]
) -> Edges:
    """Edges of the written-out ops, which ``origin`` and ``shift`` map to the ops of ``whole``.

    The edges of each op are copied. A caller also leads to those ops of its call that wait for
    nothing else, and the last op of the call leads to the op after the caller.
    """
    edges = whole.edges
    copied = _rows(edges.ptr, origin)
    src = np.repeat(np.arange(len(origin)), np.diff(edges.ptr)[origin])
    waits = np.zeros(len(whole), np.bool_)
    waits[edges.dst] = True
    caller, begin, end = calls
    # Ops of calls come last; ``head`` counts from the first of them.
    call = np.repeat(np.arange(len(begin)), end - begin + 1)
    outside = len(origin) - len(call)
    head = np.flatnonzero(~waits[origin[outside:]])
    lag_ps = np.zeros(len(head) + len(caller), np.int64)
    return Edges.from_pairs(
        len(origin),
        np.concatenate([src, caller[call[head]], end]),
        np.concatenate([edges.dst[copied] + shift[src], head + outside, caller + 1]),
        np.concatenate([edges.lag_ps[copied], lag_ps]),
        np.concatenate([edges.start_mask()[copied], lag_ps > 0]),
    )


def flows_of_copies(whole: Schedule, origin: IntArray) -> Flows:
    """Return rate caps and shares of the flows among the ops that ``origin`` copies."""
    flows = whole.flows
    row = np.full(len(whole), -1)
    row[flows.op] = np.arange(len(flows))
    op = np.flatnonzero(row[origin] >= 0)
    row = row[origin[op]]
    shares = _rows(flows.ptr, row)
    return Flows(
        op.astype(np.int32),
        flows.cap_bytes_per_s[row],
        np.concatenate([[0], np.cumsum(np.diff(flows.ptr)[row])]).astype(np.int64),
        flows.resource[shares],
        flows.weight[shares],
    )


def _rows(ptr: IntArray, picked: IntArray) -> IntArray:
    """Return the rows ``ptr[k]:ptr[k + 1]`` of each k in ``picked``, one k after the other."""
    length = np.diff(ptr)[picked]
    begin = ptr[picked] - (np.cumsum(length) - length)
    return np.repeat(begin, length) + np.arange(int(length.sum()))
