"""``timeline.pftrace.gz``: a trace for https://ui.perfetto.dev, in its own protocol buffers.

A track for every chip with one for each of its engines, CC-Cores and ways in and out below it;
every link stands once, below all links. Slices have the name of the kernel or message and the
category that the trace gives it; arrows lead from where a message leaves to where it is waited
for; counters tell how many links are busy and what they carry, how fast the memory of each chip is
read, and whatever the caller adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster_sim.files import write_gzip
from cluster_sim.plot.byte_columns import Column, constant, rows_of
from cluster_sim.plot.perfetto import fitting
from cluster_sim.plot.perfetto_counters import Counter, counters, drawn_on
from cluster_sim.plot.protobuf_columns import fixed64, message, varint, within
from cluster_sim.schedule.table import Codes
from cluster_sim.trace.trace import Picks, Trace
from topologies.arrays import IntArray
from topologies.units import PS_PER_NS

MOST_SLICES = 1_000_000
PACKET, SEQUENCE = 1, 1
BEGIN, END, COUNTER = 1, 2, 4
DOUBLE_VALUE = 44
"""Field of a counter's value."""
LINKS, COUNTERS, CHIPS, RESOURCES = 1, 2, 1_000, 10_000_000
"""Numbers of the tracks: of all links, of counters, of chips and of resources from there on."""
OP, BYTES, WAITED, START = 1, 2, 3, 4
NOTES = {OP: "op", BYTES: "size_bytes", WAITED: "waited_ns", START: "start_ps"}
"""Annotations of a slice, by their number."""
MOST_NAMES = 100_000
"""Different names of messages; with more only their categories are told apart."""
LINK_KINDS = ("link", "port", "uplink", "downlink")


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices to be drawn, in the order of tracks and times.

    Attributes
    ----------
    op, track : int array (slices,)
        Number of the op, and of the track it is drawn on.
    start_ps, end_ps : int array (slices,)
    """

    op: IntArray
    track: IntArray
    start_ps: IntArray
    end_ps: IntArray


def write_perfetto(
    trace: Trace,
    path: str | Path,
    *,
    ranks: int | Sequence[int] | IntArray | None = None,
    resources: Picks | None = None,
    arrows: bool = True,
    most_slices: int = MOST_SLICES,
    more: Sequence[Counter] = (),
) -> None:
    """Write ops as a gzipped Perfetto trace; the file appears whole or not at all.

    Perfetto counts in nanoseconds; the exact start is an annotation, ``start_ps``.

    Parameters
    ----------
    trace : Trace
    path : path
        Such as ``timeline.pftrace.gz``.
    ranks, resources : optional
        Only these, as in :meth:`Trace.frame`.
    arrows : bool
        Draw what leads from one track to another.
    most_slices : int
        More are cut to the lowest ranks that fit whole.
    more : sequence of Counter
        Counters beside those of links and memories, such as the memory in use.

    Raises
    ------
    InputError
        When a rank or resource is unknown.
    """
    rows, _ = fitting(trace, trace.rows(ranks, resources), most_slices)
    drawn = slices(trace, rows)
    counted = [*counters(trace, rows), *more]
    write_gzip(
        Path(path),
        [
            _head(trace, drawn, [counter.chip for counter in counted if counter.chip >= 0]),
            _packets(trace, drawn, arrows=arrows),
            *(part for counter in enumerate(counted) for part in _counter(*counter)),
        ],
    )


def slices(trace: Trace, rows: IntArray) -> Slices:
    """Return the slices of these ops; what overlaps on a resource lies on tracks of its own."""
    resource = drawn_on(trace)
    start, end = trace.times.start_ps[rows], trace.times.end_ps[rows]
    end = np.where(end < 0, trace.times.stopped_ps or trace.total_ps, end)
    order = np.lexsort((end, start, resource[rows]))
    op, start, end = rows[order], start[order], end[order]
    lane = _lanes(resource[op], start, end)
    track = RESOURCES + (resource[op] + 1) * LANES + lane
    order = np.lexsort((start, track))
    return Slices(op[order], track[order], start[order], end[order])


LANES = 64
"""Tracks that one resource may have."""


def _lanes(resource: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Lowest free track of each slice; slices are in order of resource and start."""
    lane = np.zeros(len(start), np.int64)
    same = resource[1:] == resource[:-1]
    if not (same & (start[1:] < end[:-1])).any():
        return lane
    free: list[int] = []
    before = -2
    for k, (slice_place, begun, over) in enumerate(
        zip(resource.tolist(), start.tolist(), end.tolist(), strict=True)
    ):
        if slice_place != before:
            free, before = [], slice_place
        place = next((p for p, until in enumerate(free) if until <= begun), len(free))
        if place == len(free):
            free.append(over)
        free[place] = over
        lane[k] = min(place, LANES - 1)
    return lane


def _packet(*parts: tuple[int, int | bytes | str]) -> bytes:
    return message((PACKET, message(*parts, (10, SEQUENCE))))


def _head(trace: Trace, drawn: Slices, counted: Sequence[int]) -> bytes:
    """Names of tracks, those of counted chips too, of slices, categories and annotations."""
    schedule = trace.schedule
    name, category = _names(trace), _categories(trace)
    interned = b"".join(
        [
            *(
                message((1, message((1, k + 1), (2, text))))
                for k, text in enumerate(category.names)
            ),
            *(message((2, message((1, k + 1), (2, text)))) for k, text in enumerate(name.names)),
            *(message((3, message((1, k), (2, note)))) for k, note in NOTES.items()),
        ]
    )
    packets = [_packet((12, interned), (13, 1))]
    tracks = np.unique(drawn.track)
    number = (tracks - RESOURCES) // LANES - 1
    held = number[number >= 0]
    printed = dict(zip(held.tolist(), schedule.resources.names(held), strict=True))
    parents = {CHIPS + chip: f"chip {chip}" for chip in counted}
    for track, resource in zip(tracks.tolist(), number.tolist(), strict=True):
        parent, title = LINKS, "links"
        if resource >= 0:
            kind = schedule.resources.kinds[int(schedule.resources.kind[resource])]
            owner = int(schedule.resources.owner[resource])
            if kind not in LINK_KINDS:
                parent, title = CHIPS + max(0, owner), f"chip {owner}"
        parents[parent] = title
        label = printed.get(resource, "no resource")
        packets.append(_track(track, label, parent, order=track))
    first = [_track(parent, title, 0, order=parent) for parent, title in sorted(parents.items())]
    return b"".join([packets[0], *first, *packets[1:]])


def _track(number: int, name: str, parent: int, *, order: int, unit: str = "") -> bytes:
    parts: list[tuple[int, int | bytes | str]] = [(1, number), (2, name)]
    if parent:
        parts.append((5, parent))
    if unit:
        parts.append((8, message((6, unit))))
    return _packet((60, message(*parts, (11, 3), (12, order % 2**31))))


def _names(trace: Trace) -> Codes:
    """Name of every op: of its kernel, of its message with both ends, else its category."""
    labels, category = trace.schedule.labels, _categories(trace)
    label = labels.get("name")
    if isinstance(label, Codes):
        return label
    ends = [labels.get("rank"), labels.get("peer")]
    if any(end is None or isinstance(end, Codes) for end in ends):
        return category
    table = np.stack([category.code, *(np.asarray(end) for end in ends)]).astype(np.int64)
    low = table.min(axis=1, keepdims=True)
    size = table.max(axis=1, keepdims=True) - low + 1
    number = np.ravel_multi_index(tuple(table - low), tuple(size.reshape(-1).tolist()))
    numbers, first, code = np.unique(number, return_index=True, return_inverse=True)
    if len(numbers) > MOST_NAMES:
        return category
    names = [
        f"{category.names[kind]} {rank}" + (f" → {peer}" if peer >= 0 else "")
        for kind, rank, peer in table[:, first].T.tolist()
    ]
    return Codes(code.reshape(-1), tuple(names))


def _categories(trace: Trace) -> Codes:
    """Category of every op: the label ``what``, else the kind of its resource."""
    schedule = trace.schedule
    label = schedule.labels.get("what")
    if isinstance(label, Codes):
        return label
    kind = np.concatenate([schedule.resources.kind.astype(np.int64) + 1, [0]])
    return Codes(kind[schedule.resource], ("op", *schedule.resources.kinds))


def _packets(trace: Trace, drawn: Slices, *, arrows: bool) -> bytes | memoryview:
    """Begin and end of every slice, one after the other."""
    schedule, count = trace.schedule, len(drawn.op)
    if not count:
        return b""
    begin = [
        *_event(drawn, BEGIN),
        varint(3, _categories(trace).code[drawn.op].astype(np.int64) + 1),
        varint(10, _names(trace).code[drawn.op].astype(np.int64) + 1),
        *_note(OP, drawn.op),
        *_note(BYTES, schedule.size_bytes[drawn.op]),
        *_note(WAITED, np.maximum(0, _waited(trace, drawn)) // PS_PER_NS),
        *_note(START, drawn.start_ps),
        *(_arrows(trace, drawn) if arrows else []),
    ]
    pairs = ((begin, drawn.start_ps), (_event(drawn, END), drawn.end_ps))
    columns = [column for event, at in pairs for column in _timed(event, at // PS_PER_NS)]
    return rows_of(columns)


def _event(drawn: Slices, kind: int) -> list[Column]:
    return [constant(message((9, kind))), varint(11, drawn.track)]


def _timed(event: Sequence[Column], at_ns: IntArray) -> list[Column]:
    """Packets of these events at these times."""
    flags = constant(message((10, SEQUENCE), (13, 2)))
    return within(PACKET, [varint(8, at_ns), flags, *within(11, event)])


def _note(number: int, values: IntArray) -> list[Column]:
    return within(4, [constant(message((1, number))), varint(3, np.maximum(0, values))])


def _waited(trace: Trace, drawn: Slices) -> IntArray:
    return np.asarray(trace.times.start_ps[drawn.op] - trace.times.ready_ps[drawn.op])


def _arrows(trace: Trace, drawn: Slices) -> list[Column]:
    """Places where a slice sends one arrow, and where it receives one: edges between tracks."""
    schedule, count = trace.schedule, len(drawn.op)
    place = np.full(len(trace) + 1, -1, np.int64)
    place[drawn.op] = np.arange(count)
    edges = _across_joins(trace, schedule.edges.sources(), schedule.edges.dst)
    # A slice sends one arrow and takes one up; that of a message comes first.
    source, target = np.concatenate([_messages(trace), edges], axis=1)
    leaves, arrives = place[source], place[target]
    shown = (leaves >= 0) & (arrives >= 0)
    shown[shown] = drawn.track[leaves[shown]] != drawn.track[arrives[shown]]
    leaves, arrives = leaves[shown], arrives[shown]
    _, first = np.unique(leaves, return_index=True)
    leaves, arrives = leaves[first], arrives[first]
    _, first = np.unique(arrives, return_index=True)
    leaves, arrives = leaves[first], arrives[first]
    out, into = np.zeros(count, np.int64), np.zeros(count, np.int64)
    out[leaves] = into[arrives] = np.arange(1, len(leaves) + 1)
    return [fixed64(47, out, out > 0), fixed64(48, into, into > 0)]


def _messages(trace: Trace) -> tuple[IntArray, IntArray]:
    """Ops that send a message and those that receive it, where both follow one join."""
    schedule = trace.schedule
    source, target = schedule.edges.sources(), schedule.edges.dst.astype(np.int64)
    kinds = [*schedule.resources.kinds, "none"]
    kind = np.concatenate([schedule.resources.kind, [len(kinds) - 1]])[schedule.resource[target]]
    joins = trace.times.end_ps[source] <= trace.times.start_ps[source]
    ends = []
    for name in ("send", "receive"):
        at = joins & (kind == (kinds.index(name) if name in kinds else -1))
        join, first, count = np.unique(source[at], return_index=True, return_counts=True)
        ends.append((join[count == 1], target[at][first[count == 1]]))
    (sent, sender), (taken, receiver) = ends
    _, mine, theirs = np.intersect1d(sent, taken, return_indices=True)
    return sender[mine], receiver[theirs]


def _across_joins(trace: Trace, source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """Edges, with each pair that leads through one join replaced by one edge."""
    joins = trace.times.end_ps <= trace.times.start_ps
    first = np.full(len(trace), -1, np.int64)
    into = joins[target]
    first[target[into]] = source[into]
    whole = np.where(joins[source], first[source], source)
    has_source = whole >= 0
    return whole[has_source], target[has_source].astype(np.int64)


def _counter(place: int, counter: Counter) -> tuple[bytes, bytes | memoryview]:
    """A counter's track, and its values."""
    track, points = COUNTERS + place, len(counter.value)
    bits = np.ascontiguousarray(counter.value, np.float64).view(np.int64)
    event = [
        constant(message((9, COUNTER))),
        varint(11, np.array([track])),
        fixed64(DOUBLE_VALUE, bits, np.ones(points, np.bool_)),
    ]
    rows = rows_of(_timed(event, counter.at_ps // PS_PER_NS)) if points else b""
    parent = CHIPS + counter.chip if counter.chip >= 0 else 0
    return _track(track, counter.name, parent, order=place, unit=counter.unit), rows
