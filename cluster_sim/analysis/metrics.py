"""Small labelled tables of a trace: use of resources, bytes, categories of time, critical path.

Every function takes a :class:`~cluster_sim.trace.trace.Trace` and gives a DataFrame whose columns
carry their units. Times are exact integer picoseconds; seconds and ratios are derived from them.
The critical path is the chain of ops and waits that gave a run its length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from cluster_sim.analysis.stretches import (
    Order,
    category_times,
    end_of_run_ps,
    idle_gaps,
    stable_order,
    stretches,
)
from cluster_sim.engine.times import DONE
from cluster_sim.schedule.table import NO_RESOURCE, PS_PER_S
from cluster_sim.trace.trace import Trace, categorical
from topologies.support.arguments import checked
from topologies.support.arrays import BoolArray, IntArray

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
    for high in range(len(schedule), 0, -BLOCK_OPS):
        low = max(0, high - BLOCK_OPS)
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


@checked()
def time_by_category(
    trace: Trace, order: Order, *, by: str = "rank", what: str = "what", rest: str = "idle"
) -> pd.DataFrame:
    """Divide each rank's time among categories, to the first of a list that is active.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.
    order : list of str, or mapping of str to list of str
        Names of the label ``what``, those that take precedence first; or categories, each with
        its names. Ops with other names are left out.
    by, what : str
        Labels of the schedule: that whose values have rows, and that which gives the category.
    rest : str
        Name of the time in which no category of the list is active.

    Returns
    -------
    DataFrame
        Index ``by``. One column ``<category>_ps`` each, ``<rest>_ps`` and ``total_ps`` [ps]. The
        parts of every row sum to the length of the run exactly.

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> step = cs.train("gpt2", "trn2.48xlarge", tp=4)
    >>> table = time_by_category(step.trace, ["compute", "tp"])
    >>> parts = table[["compute_ps", "tp_ps", "idle_ps"]]
    >>> bool((parts.sum(axis=1) == table["total_ps"]).all())
    True
    """
    times, total = category_times(trace, order, by=by, what=what), end_of_run_ps(trace)
    columns = {f"{name}_ps": times.exposed_ps[:, k] for k, name in enumerate(times.names)}
    columns[f"{rest}_ps"] = total - times.exposed_ps.sum(axis=1)
    columns["total_ps"] = np.full(len(times.groups), total)
    return pd.DataFrame(columns, index=pd.Index(times.groups, name=by))


@checked()
def overlap(trace: Trace, order: Order, *, by: str = "rank", what: str = "what") -> pd.DataFrame:
    """Divide the time of each category into exposed time and time hidden behind earlier ones.

    Parameters
    ----------
    trace, order, by, what
        As in :func:`time_by_category`.

    Returns
    -------
    DataFrame
        Index (``by``, ``category``). ``active_ps``: time in which the category was active;
        ``exposed_ps``: the part of it in which no category before it in the list was;
        ``overlapped_ps``: the rest [ps].

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> step = cs.train("gpt2", "trn2.48xlarge", tp=4)
    >>> int(overlap(step.trace, ["compute", "tp"]).loc[(0, "compute"), "overlapped_ps"])
    0
    """
    times = category_times(trace, order, by=by, what=what)
    index = pd.MultiIndex.from_product([times.groups, times.names], names=[by, "category"])
    active, exposed = times.active_ps.ravel(), times.exposed_ps.ravel()
    parts = {"active_ps": active, "exposed_ps": exposed, "overlapped_ps": active - exposed}
    return pd.DataFrame(parts, index=index)


@checked()
def waits(trace: Trace, *, by: str = "rank") -> pd.DataFrame:
    """List the gaps in which a rank had no op running, and the op whose start ended each gap.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.
    by : str
        Label of the schedule whose values count as ranks.

    Returns
    -------
    DataFrame
        One row for each gap, in order of ``by`` and time: the column ``by``; ``op``, the first to
        start after the gap, -1 at the end of the run; ``start_ps``, ``end_ps`` and their
        difference ``wait_ps`` [ps].

    Raises
    ------
    InputError
        When the schedule has no such label.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> trace = cs.simulate(cs.collective("all-reduce", "trn2.48xlarge", size_bytes="1MiB"))
    >>> bool((waits(trace)["wait_ps"] > 0).all())
    True
    """
    idle, op, values = idle_gaps(trace, by=by)
    columns = {
        by: np.asarray(values)[idle.group],
        "op": op,
        "start_ps": idle.start_ps,
        "end_ps": idle.end_ps,
        "wait_ps": idle.end_ps - idle.start_ps,
    }
    return pd.DataFrame(columns)


__all__ = ["critical_path", "overlap", "resource_use", "summary", "time_by_category", "waits"]


@checked()
def resource_use(trace: Trace) -> pd.DataFrame:
    """Busy time, utilisation and bytes of every resource, links among them.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.

    Returns
    -------
    DataFrame
        One row for each resource, indexed by its name ``resource``: ``kind``; ``owner`` and
        ``peer``, the numbers of its nodes (``peer`` is -1 except for links); ``ops`` that held it;
        ``busy_s`` [s] and the exact ``busy_ps`` [ps]; ``utilisation`` (0 to 1), which is busy time
        / (slots · run) or, for a resource that is only shared, work / (capacity · run); ``bytes``
        of the ops that ended [B]; ``mean_bytes_per_s``, which is bytes / run [B/s]. The run lasts
        until its latest end, or until it was stopped.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> ring = cs.Group(cs.cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    >>> trace = cs.simulate(cs.collective("all-gather", ring, size_bytes="4MiB", algorithm="ring"))
    >>> use = resource_use(trace)
    >>> use[use["kind"] == "link"]["bytes"].tolist()
    [3145728, 0, 3145728, 0, 3145728, 0, 3145728, 0]
    """
    table, run_ps = trace.schedule.resources, end_of_run_ps(trace)
    busy, ops = _busy_ps(trace)
    moved = _resource_bytes(trace)
    # Utilisation compares time in slots, or the work of a resource that is only shared, with the
    # most that was possible in the run.
    shared_only = (table.slots == 0) & (table.capacity > 0)
    done = np.where(shared_only, moved * float(PS_PER_S), busy)
    possible = np.where(shared_only, table.capacity, table.slots) * float(run_ps)
    use = np.divide(done, possible, out=np.zeros(len(table)), where=possible > 0)
    return pd.DataFrame(
        {
            "kind": categorical(table.kind, table.kinds),
            "owner": table.owner,
            "peer": table.peer,
            "ops": ops,
            "busy_s": busy / PS_PER_S,
            "utilisation": use,
            "bytes": moved,
            "mean_bytes_per_s": moved / (run_ps / PS_PER_S) if run_ps else 0.0,
            "busy_ps": busy,
        },
        index=pd.Index(table.names(), name="resource"),
    )


@checked()
def summary(trace: Trace) -> pd.DataFrame:
    """Summarise the run in a few numbers.

    Parameters
    ----------
    trace : Trace
        Trace of a run, such as :func:`cluster_sim.simulate` returns.

    Returns
    -------
    DataFrame
        Columns ``metric``, ``value`` and ``unit``: the length of the run, numbers of ops, edges
        and resources and, for each kind of resource, its utilisation and bytes.

    Examples
    --------
    >>> import cluster_sim as cs
    >>> ring = cs.Group(cs.cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    >>> trace = cs.simulate(cs.collective("all-gather", ring, size_bytes="4MiB", algorithm="ring"))
    >>> int(summary(trace).set_index("metric")["value"]["ops that ended"])
    16
    """
    times, kinds = trace.times, resource_use(trace).groupby("kind", observed=True)
    rows: list[tuple[str, Any, str]] = [
        ("run", trace.total_s, "s"),
        ("ops", len(trace), ""),
        ("ops that ended", int((times.status == DONE).sum()), ""),
        ("attempts lost to faults", len(times.attempts), ""),
        ("edges", len(trace.schedule.edges), ""),
        ("resources", len(trace.schedule.resources), ""),
    ]
    for kind, used in kinds:
        rows.append((f"mean utilisation, {kind}", used["utilisation"].mean(), ""))
        rows.append((f"max utilisation, {kind}", used["utilisation"].max(), ""))
        rows.append((f"bytes, {kind}", int(used["bytes"].sum()), "B"))
    return pd.DataFrame(rows, columns=["metric", "value", "unit"])


def _busy_ps(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the busy time [ps] and the number of ops that held each resource."""
    schedule, ran = trace.schedule, stretches(trace)
    held = schedule.resource[ran.op]
    holds = held != NO_RESOURCE
    busy = np.zeros(len(schedule.resources), np.int64)
    np.add.at(busy, held[holds], (ran.end_ps - ran.start_ps)[holds])
    ops = np.bincount(schedule.resource[schedule.resource >= 0], minlength=len(schedule.resources))
    return busy, ops


def _resource_bytes(trace: Trace) -> IntArray:
    """Sum the bytes of ops that ended on the resources that they held or crossed, (resources,)."""
    schedule = trace.schedule
    ended = trace.times.status == DONE
    moved = np.zeros(len(schedule.resources), np.int64)
    held = np.flatnonzero(ended & (schedule.resource >= 0))
    np.add.at(moved, schedule.resource[held], schedule.size_bytes[held])
    flows = schedule.flows
    flow = np.repeat(np.arange(len(flows)), np.diff(flows.ptr))
    done = ended[flows.op[flow]]
    work = schedule.size_bytes[flows.op[flow]] * flows.weight
    np.add.at(moved, flows.resource[done], work[done])
    return moved


def __dir__() -> list[str]:
    """List the tables alone, for completion in notebooks."""
    return sorted(__all__)
