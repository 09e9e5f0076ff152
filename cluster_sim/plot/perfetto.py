"""``timeline.json.gz``: a trace for https://ui.perfetto.dev, in the Chrome trace event format.

A process for each rank (or owner of a resource), a thread for each resource. Text is put together
column by column, so a million ops take seconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cluster_sim.files import whole_file
from cluster_sim.plot.perfetto_text import block, digits, joined, microseconds, quoted
from cluster_sim.schedule.table import FIXED, Codes
from cluster_sim.trace.trace import Picks, Trace
from topologies.arrays import IntArray, distinct

MOST_OPS = 1_000_000
"""Ops in one file; the page in the browser grows slow beyond that."""
NO_THREAD = 0


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
    events = _names(trace, rows) + _slices(trace, rows) + _lost(trace, rows)
    if arrows:
        events += _arrows(trace, rows)
    facts = {**trace.schedule.facts, "ops": len(trace), "shown": shown}
    end = json.dumps({"displayTimeUnit": "ns", "otherData": {k: str(v) for k, v in facts.items()}})
    # No name and no time in the header: the same trace gives the same bytes.
    with (
        whole_file(Path(path)) as part,
        part.open("wb") as raw,
        gzip.GzipFile("", "wb", 3, raw, mtime=0) as file,
    ):
        file.write(b'{"traceEvents":[\n' + events.removesuffix(b",\n") + b"\n],\n")
        file.write(end[1:].encode() + b"\n")


def fitting(trace: Trace, rows: IntArray, most_ops: int) -> tuple[IntArray, str]:
    """Rows with a length in time, cut to the limit, and a note on what was cut."""
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
    """Rank of each op, or, without that label, owner of its resource."""
    schedule = trace.schedule
    rank = schedule.labels.get("rank")
    if rank is not None and not isinstance(rank, Codes):
        return np.maximum(rank[rows], 0)
    thread = _thread(trace, rows)
    owner = np.concatenate([[0], schedule.resources.owner])
    return np.asarray(np.maximum(owner[thread], 0))


def _thread(trace: Trace, rows: IntArray) -> IntArray:
    """Resource number + 1 that an op is drawn on: its slot, else its first share, else 0."""
    schedule = trace.schedule
    thread = schedule.resource.astype(np.int64) + 1
    flows = schedule.flows
    if len(flows):
        bare = thread[flows.op] == NO_THREAD
        thread[flows.op[bare]] = flows.resource[flows.ptr[:-1][bare]] + 1
    return thread[rows]


def _names(trace: Trace, rows: IntArray) -> bytes:
    """Names of processes and threads, in the order of their numbers."""
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


def _slices(trace: Trace, rows: IntArray) -> bytes:
    """Ops: complete events where only one can run at a time, else begin and end pairs."""
    schedule, times = trace.schedule, trace.times
    slots = np.concatenate([[0], schedule.resources.slots])
    alone = (schedule.kind[rows] == FIXED) & (slots[_thread(trace, rows)] == 1)
    events = b""
    for picked, overlapping in ((rows[alone], False), (rows[~alone], True)):
        start, end = times.start_ps[picked], times.end_ps[picked]
        end = np.where(end < 0, times.stopped_ps or trace.total_ps, end)
        head, begun, number = _head(trace, picked), microseconds(start), digits(picked)
        args = joined(',"args":{', _args(trace, picked), "}},\n")
        if not overlapping:
            lasts = microseconds(end - start)
            events += block(head, ',"ph":"X","ts":', begun, ',"dur":', lasts, args)
            continue
        events += block(head, ',"ph":"b","id":', number, ',"ts":', begun, args)
        events += block(head, ',"ph":"e","id":', number, ',"ts":', microseconds(end), "},\n")
    return events


def _lost(trace: Trace, rows: IntArray) -> bytes:
    lost = trace.times.attempts
    shown = np.isin(lost.op, rows)
    op, start, end = lost.op[shown], lost.start_ps[shown], lost.end_ps[shown]
    place = _place(trace, op)
    return block(
        '{"name":"lost attempt","cat":"lost",', place, ',"ph":"X","ts":', microseconds(start),
        ',"dur":', microseconds(end - start), ',"args":{"op":', digits(op), "}},\n",
    )  # fmt: skip


def _arrows(trace: Trace, rows: IntArray) -> bytes:
    """Flow events from the end of one op to the start of another on a different thread."""
    edges, times = trace.schedule.edges, trace.times
    shown = np.zeros(len(trace), np.bool_)
    shown[rows] = True
    source, target = edges.sources(), edges.dst
    thread = _thread(trace, np.arange(len(trace)))
    picked = np.flatnonzero(shown[source] & shown[target] & (thread[source] != thread[target]))
    source, target = source[picked], target[picked]
    # An arrow starts inside its slice: the end itself is already outside.
    leaves = np.maximum(times.end_ps[source] - 1, times.start_ps[source])
    start, end = (
        '{"name":"edge","cat":"edge","ph":"s","id":',
        '{"name":"edge","cat":"edge","ph":"f",',
    )
    number, arrives = digits(picked), microseconds(times.start_ps[target])
    return block(
        start, number, ",", _place(trace, source), ',"ts":', microseconds(leaves), "},\n"
    ) + block(end, '"bp":"e","id":', number, ",", _place(trace, target), ',"ts":', arrives, "},\n")


def _head(trace: Trace, rows: IntArray) -> Any:
    """Start of an event: name, category, process and thread."""
    schedule = trace.schedule
    label = schedule.labels.get("what")
    if not isinstance(label, Codes):
        kind = np.concatenate([[0], schedule.resources.kind.astype(np.int64) + 1])
        label = Codes(
            kind[_thread(trace, np.arange(len(trace)))], ("op", *schedule.resources.kinds)
        )
    name = quoted(label[rows])
    return joined('{"name":', name, ',"cat":', name, ",", _place(trace, rows))


def _place(trace: Trace, rows: IntArray) -> Any:
    process, thread = digits(_process(trace, rows)), digits(_thread(trace, rows))
    return joined('"pid":', process, ',"tid":', thread)


def _args(trace: Trace, rows: IntArray) -> Any:
    """Details that the page shows of a slice: op, bytes, waiting time and the labels."""
    schedule, times = trace.schedule, trace.times
    waited = microseconds(times.start_ps[rows] - times.ready_ps[rows])
    size = digits(schedule.size_bytes[rows])
    parts: list[Any] = ['"op":', digits(rows), ',"size_bytes":', size, ',"waited_us":', waited]
    for key, label in schedule.labels.items():
        picked = label[rows]
        text = quoted(picked) if isinstance(picked, Codes) else digits(picked)
        parts += [f",{json.dumps(key)}:", text]
    return joined(*parts)
