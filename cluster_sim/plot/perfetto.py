"""``timeline.pftrace.gz``: a trace for https://ui.perfetto.dev, in its own protocol buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import Codes
from cluster_sim.trace.trace import Picks, Trace
from topologies.support.arguments import checked
from topologies.support.arrays import BoolArray, FloatArray, IntArray
from topologies.support.files.writing import write_gzip
from topologies.support.units import PS_PER_NS, PS_PER_S

Bytes = npt.NDArray[np.uint8]

ROWS_AT_ONCE = 2**16  # slices whose records are in memory at the same time

# Records of protocol buffers are written column by column, a million in tenths of a second. A
# number may have empty groups of bits above its highest, which readers drop: Perfetto pads the
# lengths of its own messages so (perfetto, include/perfetto/protozero/proto_utils.h, function
# WriteRedundantVarInt). Here all numbers of a column are as wide as its largest, so records are the
# rows of a matrix of bytes, and a matrix of one row is the same in every record.


def constant(content: bytes) -> Bytes:
    """Return a column with the same bytes in every record."""
    return np.frombuffer(content, np.uint8)[None]


def joined(columns: Sequence[Bytes]) -> Bytes:
    """Return records with all columns in their order."""
    rows = max(len(column) for column in columns)
    spread = [np.broadcast_to(column, (rows, column.shape[1])) for column in columns]
    return np.concatenate(spread, axis=1)


VARINT, FIXED64, LENGTH = 0, 1, 2  # wire types of the format
UNKNOWN = 2047  # number of a field that no message has, so that readers skip it


def tag(number: int, wire: int) -> bytes:
    """Return the key of a field, from its number and wire type.

    >>> tag(60, LENGTH).hex()
    'e203'
    """
    return plain_varint(number << 3 | wire)


def plain_varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])


def message(*parts: tuple[int, int | bytes | str]) -> bytes:
    """Return a message of fields, each a number, a text or a message.

    >>> message((1, 150), (2, "ab")).hex()
    '08960112026162'
    """
    content = bytearray()
    for number, value in parts:
        if isinstance(value, int):
            content += tag(number, VARINT) + plain_varint(value)
        else:
            text = value.encode() if isinstance(value, str) else value
            content += tag(number, LENGTH) + plain_varint(len(text)) + text
    return bytes(content)


def varint(number: int, values: IntArray) -> Bytes:
    """Return a column with a field of unsigned numbers: groups of seven bits, the lowest first."""
    numbers = np.asarray(values, np.int64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    groups = (numbers[:, None] >> 7 * np.arange(width)) & 127
    groups[:, :-1] |= 128
    return joined([constant(tag(number, VARINT)), groups.astype(np.uint8)])


def fixed64(number: int, values: IntArray, present: BoolArray) -> Bytes:
    """Return a column with a field of eight bytes, ``number`` 16 or more, where it is present."""
    keys = [constant(tag(each, FIXED64)) for each in (number, UNKNOWN)]
    eight = np.ascontiguousarray(values, "<u8").view(np.uint8).reshape(len(values), 8)
    return joined([np.where(present[:, None], *keys), eight])


def within(number: int, columns: Sequence[Bytes]) -> Bytes:
    """Return columns as a field that is a message."""
    content = joined(columns)
    return joined([constant(tag(number, LENGTH) + plain_varint(content.shape[1])), content])


MOST_POINTS = 2_000
"""Most values of a counter; of more, means over this many equal stretches of time are written."""
MOST_CHIPS = 64  # most chips whose memories are counted, those with the lowest numbers
CARRIERS = ("link", "port", "uplink", "downlink", "send", "receive")
"""Kinds of resources that are counted as links."""


@dataclass(frozen=True, eq=False)
class Counter:
    """A value that changes over time."""

    name: str
    unit: str
    at_ps: IntArray  # ascending instants from each of which a value holds until the next
    value: FloatArray
    chip: int = -1  # below whose track it is drawn; -1 for the whole machine


def counters(trace: Trace, rows: IntArray) -> list[Counter]:
    """Return the counters of these ops, each op at its mean rate from its start to its end."""
    ran = (trace.times.start_ps[rows] >= 0) & (
        trace.times.end_ps[rows] > trace.times.start_ps[rows]
    )
    rows = rows[ran]
    return [*_link_counters(trace, rows), *_memory_counters(trace, rows)]


def _link_counters(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Count the links that are held, and the bytes a second on all of them."""
    is_link = np.concatenate([_is_one_of(trace, CARRIERS), [False]])
    carries = rows[is_link[trace.schedule.resource[rows]]]
    if len(carries):
        spans = trace.times.start_ps[carries], trace.times.end_ps[carries]
        yield counter("links busy", "links", *spans, np.ones(len(carries)))
        yield counter("links, load", "B/s", *spans, _rate(trace, carries))


def _memory_counters(trace: Trace, rows: IntArray) -> Iterator[Counter]:
    """Count the bytes a second in the memory of each chip, those of flows and of kernels."""
    owner, flows = trace.schedule.resources.owner, trace.schedule.flows
    resource = trace.schedule.resource
    reads = np.concatenate([_is_one_of(trace, ("engine",)), [False]])[resource]
    chip = np.concatenate([owner, [-1]])[resource]
    if len(flows):
        share = np.flatnonzero(_is_one_of(trace, ("hbm",))[flows.resource])
        op = flows.op[np.searchsorted(flows.ptr, share, side="right") - 1]
        reads[op], chip[op] = True, owner[flows.resource[share]]
    reads &= trace.schedule.size_bytes > 0
    shown = rows[reads[rows]]
    for number in np.unique(chip[shown])[:MOST_CHIPS].tolist():
        of_chip = shown[chip[shown] == number]
        spans = trace.times.start_ps[of_chip], trace.times.end_ps[of_chip]
        yield counter("memory rate", "B/s", *spans, _rate(trace, of_chip), chip=number)


def _is_one_of(trace: Trace, kinds: tuple[str, ...]) -> BoolArray:
    resources = trace.schedule.resources
    named = np.array([kind in kinds for kind in resources.kinds], np.bool_)
    return np.asarray(named[resources.kind])


def _rate(trace: Trace, op: IntArray) -> FloatArray:
    lasts = trace.times.end_ps[op] - trace.times.start_ps[op]
    return np.asarray(trace.schedule.size_bytes[op] * (PS_PER_S / lasts))


def counter(
    name: str, unit: str, start_ps: IntArray, end_ps: IntArray, by: FloatArray, *, chip: int = -1
) -> Counter:
    """Return a counter of the sum over all spans that have begun and not ended."""
    at, where = np.unique(np.concatenate([start_ps, end_ps]), return_inverse=True)
    change = np.bincount(where, np.concatenate([by, -by]), minlength=len(at))
    value = np.maximum(0.0, np.cumsum(change))
    value[-1:] = 0.0  # all spans are over, but for rounding
    if len(at) > MOST_POINTS:
        # Means over stretches, which stand for too many values, have the same integral over time.
        total = np.concatenate([[0.0], np.cumsum(value[:-1] * np.diff(at))])
        edges = np.linspace(at[0], at[-1], MOST_POINTS).astype(np.int64)
        between = np.diff(np.interp(edges, at, total)) / np.diff(edges)
        at, value = edges, np.append(between, 0.0)
    return Counter(name, unit, at, value, chip)


# Numbers of fields and values below are those of perfetto/protos/perfetto/trace.
MOST_OPS = 1_000_000  # most ops in a file; with more the page in the browser grows slow
PACKET, SEQUENCE = 1, 1
"""Field of a packet in the trace; the one sequence that all packets belong to."""
BEGIN, END, COUNTER = 1, 2, 4  # types of track events
DOUBLE_VALUE = 44  # field of a counter's value
LINKS, COUNTERS, CUT, CHIPS, RESOURCES = 1, 2, 999, 1_000, 10_000_000
"""Track of all links; first of the tracks of counters; track named after what was cut; first of the
tracks of chips and of resources."""
LOST = "lost"  # name and category of attempts that a fault ended
OP, BYTES, WAITED, START = 1, 2, 3, 4
NOTES = {OP: "op", BYTES: "size_bytes", WAITED: "waited_ns", START: "start_ps"}
"""Names of the annotations of a slice, by their number."""
MOST_NAMES = 100_000
"""Most different names of messages; with more, a message has the name of its category."""
LINK_KINDS = ("link", "port", "uplink", "downlink")
"""Kinds of resources whose tracks are below that of all links."""


@dataclass(frozen=True, eq=False)
class Slices:
    """Slices to be drawn, in the order of tracks and times."""

    op: IntArray
    track: IntArray
    start_ps: IntArray
    end_ps: IntArray
    is_lost: BoolArray  # an attempt that a fault ended


@checked()
def write_timeline(
    trace: Trace,
    path: str | Path,
    *,
    ranks: int | Sequence[int] | IntArray | None = None,
    resources: Picks | None = None,
    arrows: bool = True,
    most_ops: int = MOST_OPS,
    more: Sequence[Counter] = (),
) -> None:
    """Write ops as a gzipped Perfetto trace; the file appears whole or not at all.

    Perfetto counts in nanoseconds; the exact start is an annotation, ``start_ps``. Attempts lost to
    faults are slices in the category ``lost``. Joins take no time and are left out.

    Parameters
    ----------
    trace : Trace
    path : path
        File that is written, such as ``timeline.pftrace.gz``.
    ranks, resources : optional
        Ranks and resources that are written, as in :meth:`Trace.frame`; by default all.
    arrows : bool
        Draw edges that lead from one track to another.
    most_ops : int
        Largest number of ops; a longer trace is cut to the lowest ranks that fit whole, and a track
        of the file says so.
    more : sequence of Counter
        Further counters, such as the memory in use.

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
    ...     write_timeline(trace, f"{folder}/timeline.pftrace.gz")
    """
    rows, cut = _fitting(trace, trace.rows(ranks, resources), most_ops)
    drawn = _slices(trace, rows)
    counted = [*counters(trace, rows), *more]
    write_gzip(
        Path(path),
        [
            _head(trace, drawn, [counter.chip for counter in counted if counter.chip >= 0]),
            _track(CUT, cut, 0, order=0) if cut else b"",
            *_packets(trace, drawn, arrows=arrows),
            *(part for counter in enumerate(counted) for part in _counter(*counter)),
        ],
    )


def _fitting(trace: Trace, rows: IntArray, most_ops: int) -> tuple[IntArray, str]:
    """Return the ops that take time, at most ``most_ops`` of them, and a note if some were cut."""
    ran = trace.times.start_ps[rows] >= 0
    lasts = (trace.times.end_ps[rows] > trace.times.start_ps[rows]) | (trace.times.end_ps[rows] < 0)
    rows = rows[ran & lasts]
    if len(rows) <= most_ops:
        return rows, ""
    # The rank of each op or, without that label, the owner of its resource.
    rank = trace.schedule.labels.get("rank")
    if rank is None or isinstance(rank, Codes):
        rank = np.append(trace.schedule.resources.owner, 0)[trace.schedule.crossed]
    process = np.maximum(rank, 0)[rows]
    counts = np.bincount(process).cumsum()
    whole = int(np.searchsorted(counts, most_ops, side="right"))
    if whole:
        kept = rows[process < whole]
        return kept, f"{len(kept):,} ops of ranks below {whole}, of {len(rows):,}"
    order = np.argsort(trace.times.start_ps[rows], kind="stable")[:most_ops]
    return np.sort(rows[order]), f"the first {most_ops:,} ops of {len(rows):,}"


def _slices(trace: Trace, rows: IntArray) -> Slices:
    """Return the slices of these ops; ops that overlap on a resource are on different tracks."""
    resource, lost = trace.schedule.crossed, trace.times.attempts
    shown = np.isin(lost.op, rows)
    start = np.concatenate([trace.times.start_ps[rows], lost.start_ps[shown]])
    end = np.concatenate([trace.times.end_ps[rows], lost.end_ps[shown]])
    end = np.where(end < 0, trace.times.stopped_ps or trace.total_ps, end)
    op, is_lost = np.concatenate([rows, lost.op[shown]]), np.arange(len(start)) >= len(rows)
    order = np.lexsort((end, start, resource[op]))
    op, start, end, is_lost = op[order], start[order], end[order], is_lost[order]
    track = RESOURCES + (resource[op] + 1) * LANES + _lanes(resource[op], start, end)
    order = np.lexsort((start, track))
    return Slices(op[order], track[order], start[order], end[order], is_lost[order])


LANES = 64  # most tracks of a resource


def _lanes(resource: IntArray, start: IntArray, end: IntArray) -> IntArray:
    """Return the lowest free lane of each slice; slices are in order of resource and start."""
    lane = np.zeros(len(start), np.int64)
    same = resource[1:] == resource[:-1]
    if not (same & (start[1:] < end[:-1])).any():  # nothing overlaps, as on most resources
        return lane
    busy_until: list[int] = []  # of each lane of the present resource
    present = -2
    for k, (number, begin, over) in enumerate(
        zip(resource.tolist(), start.tolist(), end.tolist(), strict=True)
    ):
        if number != present:
            busy_until, present = [], number
        place = next((p for p, until in enumerate(busy_until) if until <= begin), len(busy_until))
        if place == len(busy_until):
            busy_until.append(over)
        busy_until[place] = over
        lane[k] = min(place, LANES - 1)
    return lane


def _packet(*parts: tuple[int, int | bytes | str]) -> bytes:
    return message((PACKET, message(*parts, (10, SEQUENCE))))


def _head(trace: Trace, drawn: Slices, counted: Sequence[int]) -> bytes:
    """Return the packets that name tracks, also of ``counted`` chips, and interned texts."""
    schedule = trace.schedule
    more = [LOST] if drawn.is_lost.any() else []
    names, categories = ([*codes.names, *more] for codes in (_names(trace), _categories(trace)))
    interned = b"".join(
        [
            *(message((1, message((1, k + 1), (2, text)))) for k, text in enumerate(categories)),
            *(message((2, message((1, k + 1), (2, text)))) for k, text in enumerate(names)),
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
    """Return the name of every op: of its kernel, its message with both ranks, or its category."""
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
    """Return the category of every op: the label ``what``, else the kind of its resource."""
    schedule = trace.schedule
    label = schedule.labels.get("what")
    if isinstance(label, Codes):
        return label
    kind = np.concatenate([schedule.resources.kind.astype(np.int64) + 1, [0]])
    return Codes(kind[schedule.resource], ("op", *schedule.resources.kinds))


def _packets(trace: Trace, drawn: Slices, *, arrows: bool) -> Iterator[bytes]:
    """Yield the packets of the beginning and the end of every slice, some slices at a time."""
    categories, names = _categories(trace), _names(trace)
    leaves, arrives = _arrows(trace, drawn) if arrows else (np.zeros(len(drawn.op), np.int64),) * 2
    for low in range(0, len(drawn.op), ROWS_AT_ONCE):
        these = slice(low, low + ROWS_AT_ONCE)
        some = Slices(*(column[these] for column in vars(drawn).values()))
        waited_ps = some.start_ps - trace.times.ready_ps[some.op]
        begin = [
            *_event(some, BEGIN),
            varint(3, _interned(categories, some)),
            varint(10, _interned(names, some)),
            _note(OP, some.op),
            _note(BYTES, trace.schedule.size_bytes[some.op]),
            _note(WAITED, np.maximum(0, waited_ps) // PS_PER_NS),
            _note(START, some.start_ps),
            *(
                fixed64(number, flow[these], flow[these] > 0)
                for number, flow in ((47, leaves), (48, arrives))
            ),
        ]
        pairs = ((begin, some.start_ps), (_event(some, END), some.end_ps))
        yield joined([_timed(event, at // PS_PER_NS) for event, at in pairs]).tobytes()


def _interned(codes: Codes, drawn: Slices) -> IntArray:
    """Return the number of each slice's text among the interned ones, the last of which is lost."""
    return np.where(drawn.is_lost, len(codes.names), codes.code[drawn.op].astype(np.int64)) + 1


def _event(drawn: Slices, kind: int) -> list[Bytes]:
    return [constant(message((9, kind))), varint(11, drawn.track)]


def _timed(event: Sequence[Bytes], at_ns: IntArray) -> Bytes:
    """Return packets of these events at these times."""
    flags = constant(message((10, SEQUENCE), (13, 2)))
    return within(PACKET, [varint(8, at_ns), flags, within(11, event)])


def _note(number: int, values: IntArray) -> Bytes:
    return within(4, [constant(message((1, number))), varint(3, np.maximum(0, values))])


def _arrows(trace: Trace, drawn: Slices) -> tuple[IntArray, IntArray]:
    """Return the arrow that each slice sends, and the one that it receives; 0 for none."""
    schedule, count = trace.schedule, len(drawn.op)
    place = np.full(len(trace) + 1, -1, np.int64)
    whole = np.flatnonzero(~drawn.is_lost)
    place[drawn.op[whole]] = whole
    edges = _across_joins(trace, schedule.edges.sources(), schedule.edges.dst)
    # A slice can send one arrow and receive one; those of messages take precedence.
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
    return out, into


def _messages(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return the ops that send a message, and those that receive it, where both follow a join."""
    schedule = trace.schedule
    source, target = schedule.edges.sources(), schedule.edges.dst.astype(np.int64)
    kinds = [*schedule.resources.kinds, "none"]
    kind = np.concatenate([schedule.resources.kind, [len(kinds) - 1]])[schedule.resource[target]]
    joins = trace.times.end_ps[source] <= trace.times.start_ps[source]
    ends = []
    for name in ("send", "receive"):
        rows = joins & (kind == (kinds.index(name) if name in kinds else -1))
        join, first, count = np.unique(source[rows], return_index=True, return_counts=True)
        ends.append((join[count == 1], target[rows][first[count == 1]]))
    (send_join, sender), (receive_join, receiver) = ends
    _, of_sender, of_receiver = np.intersect1d(send_join, receive_join, return_indices=True)
    return sender[of_sender], receiver[of_receiver]


def _across_joins(trace: Trace, source: IntArray, target: IntArray) -> tuple[IntArray, IntArray]:
    """Return the edges, with two that lead into a join and out of it replaced by one edge."""
    joins = trace.times.end_ps <= trace.times.start_ps
    first = np.full(len(trace), -1, np.int64)
    into = joins[target]
    first[target[into]] = source[into]
    whole = np.where(joins[source], first[source], source)
    has_source = whole >= 0
    return whole[has_source], target[has_source].astype(np.int64)


def _counter(place: int, counter: Counter) -> tuple[bytes, bytes]:
    """Return the packet of a counter's track, and the packets of its values."""
    track, points = COUNTERS + place, len(counter.value)
    bits = np.ascontiguousarray(counter.value, np.float64).view(np.int64)
    event = [
        constant(message((9, COUNTER))),
        varint(11, np.array([track])),
        fixed64(DOUBLE_VALUE, bits, np.ones(points, np.bool_)),
    ]
    rows = _timed(event, counter.at_ps // PS_PER_NS).tobytes() if points else b""
    parent = CHIPS + counter.chip if counter.chip >= 0 else 0
    return _track(track, counter.name, parent, order=place, unit=counter.unit), rows
