"""The critical path: the chain of ops and waits that gave a run its length."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from cluster_sim.analysis.intervals import stable_order
from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import Trace
from topologies.arguments import checked
from topologies.arrays import BoolArray, IntArray

BLOCK_OPS = 2**20
"""Ops whose edges are examined at once, to bound the memory of the arrays in between."""

BEGIN, EDGE, START_EDGE, RESOURCE, REVIVAL = "begin", "edge", "start-edge", "resource", "revival"


@checked()
def critical_path(trace: Trace) -> pd.DataFrame:
    """Walk back from the op that ended last, from cause to cause, to the beginning of the run.

    An op that started when it was ready waited for the edge that made it ready; an op that started
    later waited for the op that left its resource at that instant. Of several such ops the walk
    takes the one with the smallest number.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.

    Returns
    -------
    DataFrame
        One row for each op of the path in order of time, index ``op``. The columns of
        :meth:`Trace.frame`, and ``after``: the op that this one waited for, -1 for none;
        ``because``: ``begin``, ``edge``, ``start-edge``, ``resource``, or ``revival`` of a dead
        resource; ``lag_ps``: from the end of that op (its start, for a start-edge) to the start of
        this one [ps]; ``on_path_ps``: from the start of this op to the event that the next op
        waited for [ps], and the same in seconds as ``on_path_s``; ``share`` of the run. The sum of
        ``lag_ps`` and ``on_path_ps`` over all rows is the length of the run exactly.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> ring = cs.cluster("ring:4", bandwidth="100GB/s", latency="1us")
    >>> trace = cs.simulate(cs.collective("all-gather", ring, size_bytes="4MiB", algorithm="ring"))
    >>> path = critical_path(trace)
    >>> path["because"].tolist()
    ['begin', 'edge', 'edge', 'edge']
    >>> int((path["lag_ps"] + path["on_path_ps"]).sum()) == trace.total_ps
    True
    """
    if not trace.total_ps:
        return _table(trace, [], [], [])
    enabler, by_start = _enabling_edges(trace)
    holders = _Holders(trace)
    op = int(np.argmax(trace.times.end_ps))
    ops, because, after = [op], [], []
    while True:
        reason, cause = _cause(trace, op, enabler, by_start, holders)
        because.append(reason)
        after.append(cause)
        if cause < 0:
            break
        op = cause
        ops.append(op)
    return _table(trace, ops[::-1], because[::-1], after[::-1])


def _cause(
    trace: Trace, op: int, enabler: IntArray, by_start: BoolArray, holders: _Holders
) -> tuple[str, int]:
    """Return the reason why an op started when it did, and the op that it waited for or -1."""
    times = trace.times
    if times.start_ps[op] > times.ready_ps[op]:
        resource, start_ps = int(trace.schedule.resource[op]), int(times.start_ps[op])
        previous = holders.ended_at(resource, start_ps, op)
        return (RESOURCE, previous) if previous >= 0 else (REVIVAL, -1)
    if enabler[op] < 0:
        return BEGIN, -1
    return (START_EDGE if by_start[op] else EDGE), int(enabler[op])


def _enabling_edges(trace: Trace) -> tuple[IntArray, BoolArray]:
    """Return the smallest op whose edge made each op ready, or -1, and whether by its start."""
    schedule, times = trace.schedule, trace.times
    edges = schedule.edges
    enabler = np.full(len(schedule), -1, np.int64)
    by_start = np.zeros(len(schedule), np.bool_)
    for low, high in _blocks_backwards(schedule):
        block = slice(int(edges.ptr[low]), int(edges.ptr[high]))
        source = np.repeat(np.arange(low, high), np.diff(edges.ptr[low : high + 1]))
        starts = None if edges.from_start is None else edges.from_start[block]
        since = times.end_ps[source]
        if starts is not None:
            since = np.where(starts, times.start_ps[source], since)
        target = edges.dst[block]
        tight = (since >= 0) & (since + edges.lag_ps[block] == times.ready_ps[target])
        # Later assignments win, so going backwards leaves the smallest source.
        rows = np.flatnonzero(tight)[::-1]
        enabler[target[rows]] = source[rows]
        by_start[target[rows]] = False if starts is None else starts[rows]
    return enabler, by_start


def _blocks_backwards(schedule: Schedule) -> Iterator[tuple[int, int]]:
    for high in range(len(schedule), 0, -BLOCK_OPS):
        yield max(0, high - BLOCK_OPS), high


class _Holders:
    """Ops by the resource that they held and by their end; sorted for a resource when needed."""

    def __init__(self, trace: Trace):
        self._trace = trace
        held = trace.schedule.resource
        ops = np.flatnonzero(held >= 0)
        self._ops = ops[stable_order(held[ops])]
        self._bounds = np.searchsorted(
            held[self._ops], np.arange(len(trace.schedule.resources) + 1)
        )
        self._by_end: dict[int, IntArray] = {}

    def ended_at(self, resource: int, instant_ps: int, other_than: int) -> int:
        """Return the smallest other op that ended on a resource at an instant, -1 for none."""
        end = self._trace.times.end_ps
        if resource not in self._by_end:
            ops = self._ops[self._bounds[resource] : self._bounds[resource + 1]]
            self._by_end[resource] = ops[np.argsort(end[ops], kind="stable")]
        by_end = self._by_end[resource]
        first, last = np.searchsorted(end[by_end], [instant_ps, instant_ps + 1])
        others = by_end[first:last]
        others = others[others != other_than]
        return int(others[0]) if len(others) else -1


def _table(trace: Trace, ops: list[int], because: list[str], after: list[int]) -> pd.DataFrame:
    times, path = trace.times, np.array(ops, np.int64)
    reason = np.array(because, "U10")
    start, end = times.start_ps[path], times.end_ps[path]
    by_start = reason == START_EDGE
    # The path leaves an op at its end, or at its start where a start-edge leads on.
    leave = end.copy()
    leave[:-1][by_start[1:]] = start[:-1][by_start[1:]]
    lag = start.copy()
    lag[1:] -= leave[:-1]
    table = trace.frame(ops=path).loc[path]
    table["after"] = np.array(after, np.int64)
    table["because"] = pd.Categorical(reason)
    table["lag_ps"], table["on_path_ps"] = lag, leave - start
    table["share"] = (lag + leave - start) / max(trace.total_ps, 1)
    table["on_path_s"] = (leave - start) / PS_PER_S
    return table
