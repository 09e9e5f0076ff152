"""Dependencies between the kernels, copies and host calls of a PyTorch profile.

A replay must start each kernel for the reason for which it started: its stream was free, the host
had launched it, or a collective had ended; communication also waits for the work that its thread
launched before it. Host threads become chains of launches, spaced as recorded. A call that waits
for the chip lets its thread go on after the work that it waited for. A delay that none of these
explains is kept as a lag behind the work that came before. With the recorded times of all kernels
the replay takes exactly the recorded time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workloads.traces.kineto_communication import Communication
from workloads.traces.kineto_hosts import (
    HostCall,
    Thread,
    add_launches,
    blocked_calls,
    resume_threads,
)
from workloads.traces.recording import HOST, NOTHING, Columns, Node


@dataclass(frozen=True)
class Work:
    """A kernel, copy or fill on a stream of a chip, with its launch."""

    name: str
    kind: int  # ``COMPUTE`` or ``MEMORY``
    stream: int
    # start_ps, duration_ps: recorded start and duration [ps]
    start_ps: int
    duration_ps: int
    thread: Thread | None  # host thread that launched it; None if the profile has no launch.
    launched_ps: int  # recorded time of the launch [ps]
    # Collectives and messages that it carries; empty for other work
    communications: tuple[Communication, ...]

    @property
    def end_ps(self) -> int:
        """Recorded end of the work [ps]."""
        return self.start_ps + self.duration_ps


def add_works(
    columns: Columns,
    rank: int,
    works: Sequence[Work],
    waits: Mapping[Thread, Sequence[HostCall]],
    begin_ps: int,
) -> None:
    """Add the launches and the work of one rank, with the dependencies that explain every start.

    ``begin_ps``: first time of the profile [ps].
    """
    streams = {stream: place for place, stream in enumerate(sorted({w.stream for w in works}))}
    start = columns.add(rank, 0, Node(HOST, "begin", 0))
    blocked = blocked_calls(works, waits)
    launches = add_launches(columns, rank, works, blocked, begin_ps, start)
    last_on: dict[int, tuple[int, Work]] = {}
    rows: list[int] = []
    communicated: tuple[int, Work] | None = None
    inputs = _inputs(works)
    for number, work in enumerate(works):
        launched_ps = work.launched_ps if number in launches else begin_ps
        before = [(launches.get(number, start), launched_ps)]
        if work.stream in last_on:
            source, earlier = last_on[work.stream]
            before.append((source, earlier.end_ps))
        if communicated is not None:
            source, earlier = communicated
            if earlier.stream != work.stream and earlier.end_ps <= work.start_ps:
                before.append((source, earlier.end_ps))
        if number in inputs:
            before.append((rows[inputs[number]], works[inputs[number]].end_ps))
        row = _add(columns, rank, streams[work.stream], work, number, before)
        rows.append(row)
        last_on[work.stream] = row, work
        if work.communications:
            communicated = row, work
    resume_threads(columns, works, rows, blocked, launches)


def _inputs(works: Sequence[Work]) -> dict[int, int]:
    """Number of the work that each communication waits for, by the communication's number.

    NCCL lets its stream wait for the stream of its caller, hence for the work that the same thread
    launched last. Work that was still running when the communication started is not it.
    """
    launched: dict[Thread | None, list[tuple[int, int]]] = defaultdict(list)
    for number, work in enumerate(works):
        if not work.communications:
            launched[work.thread].append((work.launched_ps, number))
    for places in launched.values():
        places.sort()
    inputs = {}
    for number, work in enumerate(works):
        places = launched.get(work.thread, []) if work.communications and work.thread else []
        before = bisect_left(places, (work.launched_ps, -1))
        if before and works[places[before - 1][1]].end_ps <= work.start_ps:
            inputs[number] = places[before - 1][1]
    return inputs


def _link(columns: Columns, row: int, start_ps: int, before: Sequence[tuple[int, int]]) -> None:
    """Let work depend on several rows, each given with its end [ps].

    The dependency on the row that ended last has the delay until the work's start as its lag.
    """
    latest = max(end for _, end in before)
    for source, end in before:
        lag = max(0, start_ps - end) if end == latest else 0
        columns.link(source, row, lag)


def _add(
    columns: Columns,
    rank: int,
    lane: int,
    work: Work,
    number: int,
    before: Sequence[tuple[int, int]],
) -> int:
    """Add work with its dependencies, and return the row that ends when all of it has ended.

    A kernel that carries several communications becomes several nodes and one that joins them.
    """
    if not work.communications:
        row = columns.add(rank, lane, Node(work.kind, work.name, number, work.duration_ps))
        _link(columns, row, work.start_ps, before)
        return row
    rows = []
    shares = _shares(work)
    for part, duration_ps in zip(work.communications, shares, strict=True):
        node = Node(
            part.kind, work.name, number, duration_ps,
            size_bytes=part.size_bytes, operation=part.operation, group=part.group,
            peer=part.peer, tag=part.tag,
        )  # fmt: skip
        rows.append(columns.add(rank, lane, node))
        _link(columns, rows[-1], work.start_ps, before)
    if len(rows) == 1:
        return rows[0]
    end = columns.add(rank, lane, Node(NOTHING, work.name, number))
    for row in rows:
        columns.link(row, end)
    return end


def _shares(work: Work) -> list[int]:
    """Share of a kernel's time that each of its communications has [ps].

    The communications of each kind follow one another and together take all of the time, each in
    proportion to its size.
    """
    parts = work.communications
    totals: dict[int, int] = {}
    passed: dict[int, int] = {}
    for part in parts:
        totals[part.kind] = totals.get(part.kind, 0) + max(1, part.size_bytes)
    shares = []
    for part in parts:
        total, earlier = totals[part.kind], passed.get(part.kind, 0)
        passed[part.kind] = earlier + max(1, part.size_bytes)
        # As differences of rounded ends, so that the shares sum to the whole time.
        ends = [work.duration_ps * size // total for size in (earlier, passed[part.kind])]
        shares.append(ends[1] - ends[0])
    return shares
