"""``timeline.json.gz``: a trace for https://ui.perfetto.dev, in the Chrome trace event format.

Each rank (or owner of resources) is a process, each resource a thread. The text is written column
by column, so a million ops take seconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from cluster_sim.plot.byte_columns import Column, constant, decimals, picked, rows_of
from cluster_sim.schedule.table import FIXED, Codes
from cluster_sim.trace.trace import Picks, Trace
from topologies.arguments import checked
from topologies.arrays import IntArray, distinct
from topologies.files.writing import write_gzip

MOST_OPS = 1_000_000
"""Most ops in a file; with more the page in the browser grows slow."""
Text: TypeAlias = bytes | memoryview

NO_THREAD = 0
"""Thread of ops without a resource."""
SEPARATOR = b",\n"
"""Text after each event but the last."""
MICROSECOND_PLACES = 6
"""Decimal places with which picoseconds are exact in microseconds."""


@checked()
def write_timeline(
    trace: Trace,
    path: str | Path,
    *,
    ranks: int | Sequence[int] | IntArray | None = None,
    resources: Picks | None = None,
    arrows: bool = False,
    most_ops: int = MOST_OPS,
) -> None:
    """Write ops as a gzipped Chrome trace; the file appears whole or not at all.

    Times are in microseconds with six decimals, which is exact. Ops on a resource with one slot
    are slices of its thread; ops that may overlap (several slots, shared rates) are async slices.
    Attempts lost to faults are slices in the category ``lost``. Joins take no time and are left
    out.

    Parameters
    ----------
    trace : Trace
        Trace of a run.
    path : path
        File that is written, such as ``timeline.json.gz``.
    ranks, resources : optional
        Ranks and resources that are written, as in :meth:`Trace.frame`; by default all of them.
    arrows : bool
        Draw edges between ops of different resources.
    most_ops : int
        Largest number of ops; a longer trace is cut to the lowest ranks that fit whole, and
        ``otherData`` in the file says so.

    Raises
    ------
    InputError
        When a rank or resource is unknown.

    Examples
    --------
    >>> import tempfile
    >>> import cluster_sim as cs
    >>> ring = cs.Group(cs.cluster("ring:4", bandwidth="100GB/s", latency="1us"), range(4))
    >>> trace = cs.simulate(cs.collective("all-gather", ring, size_bytes="4MiB", algorithm="ring"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_timeline(trace, f"{folder}/timeline.json.gz")
    """
    rows, shown = fitting(trace, trace.rows(ranks, resources), most_ops)
    blocks = [_names(trace, rows), *_slices(trace, rows), _lost(trace, rows)]
    if arrows:
        blocks += _arrows(trace, rows)
    facts = {**trace.schedule.facts, "ops": len(trace), "shown": shown}
    end = json.dumps({"displayTimeUnit": "ns", "otherData": {k: str(v) for k, v in facts.items()}})
    *events, last = [memoryview(block) for block in blocks if len(block)] or [memoryview(b"")]
    head, rest = b'{"traceEvents":[\n', b"\n],\n" + end[1:].encode() + b"\n"
    write_gzip(Path(path), [head, *events, last[: -len(SEPARATOR)], rest])


def fitting(trace: Trace, rows: IntArray, most_ops: int) -> tuple[IntArray, str]:
    """Return the ops that take time, at most ``most_ops`` of them, and a note on what was cut."""
    ran = trace.times.start_ps[rows] >= 0
    lasts = (trace.times.end_ps[rows] > trace.times.start_ps[rows]) | (trace.times.end_ps[rows] < 0)
    rows = rows[ran & lasts]
    if len(rows) <= most_ops:
        return rows, f"{len(rows):,} ops that take time"
    process = _process(trace, rows)
    counts = np.bincount(process).cumsum()
    whole = int(np.searchsorted(counts, most_ops, side="right"))
    if whole:
        kept = rows[process < whole]
        return kept, f"{len(kept):,} ops of ranks below {whole}, of {len(rows):,}"
    order = np.argsort(trace.times.start_ps[rows], kind="stable")[:most_ops]
    return np.sort(rows[order]), f"the first {most_ops:,} ops of {len(rows):,}"


def _process(trace: Trace, rows: IntArray) -> IntArray:
    """Return the rank of each op or, without that label, the owner of its resource."""
    schedule = trace.schedule
    rank = schedule.labels.get("rank")
    if rank is not None and not isinstance(rank, Codes):
        return np.maximum(rank[rows], 0)
    thread = _thread(trace, rows)
    owner = np.concatenate([[0], schedule.resources.owner])
    return np.asarray(np.maximum(owner[thread], 0))


def _thread(trace: Trace, rows: IntArray) -> IntArray:
    """Return 1 + the resource that each op is drawn on: its slot, else its first share; else 0."""
    schedule = trace.schedule
    thread = schedule.resource.astype(np.int64) + 1
    flows = schedule.flows
    if len(flows):
        bare = thread[flows.op] == NO_THREAD
        thread[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]] + 1
    return thread[rows]


def _names(trace: Trace, rows: IntArray) -> bytes:
    """Return the events that name processes and threads, in the order of their numbers."""
    threads = len(trace.schedule.resources) + 1
    both = distinct(_process(trace, rows).astype(np.int64) * threads + _thread(trace, rows))
    pairs = np.stack(np.divmod(both, threads))
    word = "rank" if "rank" in trace.schedule.labels else "chip"
    held = pairs[1][pairs[1] > NO_THREAD] - 1
    named = dict(zip((held + 1).tolist(), trace.schedule.resources.names(held), strict=True))
    lines = [
        line
        for process in np.unique(pairs[0]).tolist()
        for line in (
            _meta("process_name", process, 0, {"name": f"{word} {process}"}),
            _meta("process_sort_index", process, 0, {"sort_index": process}),
        )
    ]
    for process, thread in pairs.T.tolist():
        name = {"name": named.get(thread, "no resource")}
        lines.append(_meta("thread_name", process, thread, name))
        lines.append(_meta("thread_sort_index", process, thread, {"sort_index": thread}))
    return "".join(line + ",\n" for line in lines).encode()


def _meta(name: str, process: int, thread: int, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": process, "tid": thread, "args": arguments})


def _slices(trace: Trace, rows: IntArray) -> Iterator[Text]:
    """Yield the events of ops: complete slices where only one runs at a time, else two events."""
    schedule, times = trace.schedule, trace.times
    slots = np.concatenate([[0], schedule.resources.slots])
    alone = (schedule.kind[rows] == FIXED) & (slots[_thread(trace, rows)] == 1)
    for some, overlapping in ((rows[alone], False), (rows[~alone], True)):
        start, end = times.start_ps[some], times.end_ps[some]
        end = np.where(end < 0, times.stopped_ps or trace.total_ps, end)
        head, begun, number = _head(trace, some), _microseconds(start), decimals(some)
        args = (',"args":{', *_args(trace, some), "}},\n")
        if not overlapping:
            lasts = _microseconds(end - start)
            yield _text(*head, ',"ph":"X","ts":', begun, ',"dur":', lasts, *args)
            continue
        yield _text(*head, ',"ph":"b","id":', number, ',"ts":', begun, *args)
        yield _text(*head, ',"ph":"e","id":', number, ',"ts":', _microseconds(end), "},\n")


def _lost(trace: Trace, rows: IntArray) -> Text:
    lost = trace.times.attempts
    shown = np.isin(lost.op, rows)
    op, start, end = lost.op[shown], lost.start_ps[shown], lost.end_ps[shown]
    return _text(
        '{"name":"lost attempt","cat":"lost",', *_place(trace, op),
        ',"ph":"X","ts":', _microseconds(start), ',"dur":', _microseconds(end - start),
        ',"args":{"op":', decimals(op), "}},\n",
    )  # fmt: skip


def _arrows(trace: Trace, rows: IntArray) -> Iterator[Text]:
    """Yield flow events, from the end of an op to the start of another on a different thread."""
    edges, times = trace.schedule.edges, trace.times
    shown = np.zeros(len(trace), np.bool_)
    shown[rows] = True
    source, target = edges.sources(), edges.dst
    thread = _thread(trace, np.arange(len(trace)))
    across = np.flatnonzero(shown[source] & shown[target] & (thread[source] != thread[target]))
    source, target = source[across], target[across]
    # An arrow must start inside its slice, which ends before its end.
    leaves = np.maximum(times.end_ps[source] - 1, times.start_ps[source])
    start, end = (
        '{"name":"edge","cat":"edge","ph":"s","id":',
        '{"name":"edge","cat":"edge","ph":"f","bp":"e","id":',
    )
    number, arrives = decimals(across), _microseconds(times.start_ps[target])
    left = _microseconds(leaves)
    yield _text(start, number, ",", *_place(trace, source), ',"ts":', left, "},\n")
    yield _text(end, number, ",", *_place(trace, target), ',"ts":', arrives, "},\n")


def _head(trace: Trace, rows: IntArray) -> tuple[Column | str, ...]:
    """Return the beginning of each event: name, category, process and thread."""
    schedule = trace.schedule
    label = schedule.labels.get("what")
    if not isinstance(label, Codes):
        kind = np.concatenate([[0], schedule.resources.kind.astype(np.int64) + 1])
        label = Codes(
            kind[_thread(trace, np.arange(len(trace)))], ("op", *schedule.resources.kinds)
        )
    name = _quoted(label[rows])
    return '{"name":', name, ',"cat":', name, ",", *_place(trace, rows)


def _place(trace: Trace, rows: IntArray) -> tuple[Column | str, ...]:
    process, thread = decimals(_process(trace, rows)), decimals(_thread(trace, rows))
    return '"pid":', process, ',"tid":', thread


def _args(trace: Trace, rows: IntArray) -> list[Column | str]:
    """Return the details that the page shows of a slice: op, bytes, waiting time and labels."""
    schedule, times = trace.schedule, trace.times
    waited = _microseconds(times.start_ps[rows] - times.ready_ps[rows])
    size = decimals(schedule.size_bytes[rows])
    parts: list[Column | str] = [
        '"op":', decimals(rows), ',"size_bytes":', size, ',"waited_us":', waited
    ]  # fmt: skip
    for key, label in schedule.labels.items():
        values = label[rows]
        shown = _quoted(values) if isinstance(values, Codes) else decimals(values)
        parts += [f",{json.dumps(key)}:", shown]
    return parts


def _text(*parts: Column | str) -> Text:
    """Return the text of all records, whose parts are columns and constant texts."""
    return rows_of([constant(p.encode()) if isinstance(p, str) else p for p in parts])


def _microseconds(ps: IntArray) -> Column:
    """Return picoseconds as microseconds with six decimals, which is exact."""
    return decimals(ps, MICROSECOND_PLACES)


def _quoted(names: Codes) -> Column:
    """Return names as JSON strings."""
    return picked([json.dumps(name).encode() for name in names.names], names.code)
