"""Reading the PyTorch profiler's JSON (Kineto): kernels, NCCL calls, streams and launch gaps.

A replay must start each kernel for the reason for which it started: its stream was free, the host
had launched it, or a collective had ended. Host threads become chains of launches, spaced as
recorded; a call that waits for the chip lets its thread go on after the work that it waited for;
whatever delay is left over is kept as a lag behind the work that came before. With the recorded
times of all kernels the replay takes exactly the recorded time.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from topologies.units import PS_PER_S, PS_PER_US
from workloads.traces.bounded_files import read_bounded
from workloads.traces.kineto_communication import Communication, communications
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    LARGEST,
    MEMORY,
    Columns,
    Node,
    Recording,
)

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
DEVICE_EVENT = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"', re.IGNORECASE)
MOST_KERNELS = 900_000
"""Kernels and copies that are read, of all ranks together; each has a launch beside it."""
LAUNCHES = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")
WAITS = re.compile(r"(Device|Stream|Event)Synchronize|hipMemcpyWithStream|cudaMemcpy$|hipMemcpy$")
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
MOST_RANKS = 10**7
LATEST_US = {"ts": 10**18, "dur": 2**60 // PS_PER_US}
"""Largest time that is read of each field [µs]; clocks may count from 1970."""
Event = Mapping[str, Any]


@dataclass(frozen=True)
class Work:
    """A kernel, copy or fill on a chip's stream, and when the host launched it [ps]."""

    name: str
    kind: int
    stream: int
    start_ps: int
    duration_ps: int
    thread: int
    launched_ps: int
    launch: int
    communication: Communication | None

    @property
    def end_ps(self) -> int:
        """End of the work, as recorded."""
        return self.start_ps + self.duration_ps


def read_kineto(paths: Sequence[Path]) -> Recording:
    """Read profiles of one rank or several.

    Raises
    ------
    InputError
        Naming the file: no JSON, no accelerator activity, times that no clock shows, a rank twice.
    """
    _check_count(paths)
    columns, files = Columns(), dict[int, str]()
    recorded_ps, first_rank = 0, LARGEST
    iterations: list[int] = []
    first: dict[str, Any] = {}
    for path in paths:  # one at a time: a profile takes ten times its size as objects
        document = _document(path)
        rank = _rank(document, path, len(paths))
        if rank in files:
            raise InputError(
                f"{path}: rank {rank} is also in {files[rank]}. Give one job at a time."
            )
        files[rank] = str(path)
        span_ps, steps = _read(columns, rank, path, document)
        recorded_ps = max(recorded_ps, span_ps)
        iterations.append(steps)
        if rank < first_rank:
            first_rank = rank
            first = {key: value for key, value in document.items() if key != "traceEvents"}
    count = max(1, min(iterations))
    distributed = first.get("distributedInfo")
    world = distributed.get("world_size", 0) if isinstance(distributed, dict) else 0
    world = world if isinstance(world, int) and 0 <= world < LARGEST else 0
    facts: dict[str, str | int | float] = {
        "format": "kineto",
        "version": str(first.get("schemaVersion", "")),
        "world": world if len(paths) > 1 else 0,
        "stated_world": world,
        "chip": _device(first),
        "iterations": count,
        "recorded_s": recorded_ps / PS_PER_S / count,
    }
    return columns.finish(dict(sorted(files.items())), facts)


def _check_count(paths: Sequence[Path]) -> None:
    """Refuse more work than is read before any of it is parsed, one file at a time."""
    total = 0
    for path in paths:
        total += sum(1 for _ in DEVICE_EVENT.finditer(read_bounded(path)))
        if total > MOST_KERNELS:
            raise InputError(
                f"{path}: the profiles have more than {MOST_KERNELS:,} kernels and copies, the "
                "most that are read. Profile fewer iterations, or give fewer ranks."
            )


def _document(path: Path) -> dict[str, Any]:
    content = read_bounded(path)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as mistake:
        why = " ".join(str(mistake).split())[:80]
        raise InputError(f"{path} is not JSON ({why}). Export the profile again.") from None
    if isinstance(document, list):
        document = {"traceEvents": document}
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise InputError(f"{path} holds no traceEvents. Give the JSON of the PyTorch profiler.")
    return document


def _rank(document: Mapping[str, Any], path: Path, files: int) -> int:
    stated = document.get("distributedInfo")
    named = RANK.search(path.name)
    rank = stated.get("rank") if isinstance(stated, dict) else None
    if not isinstance(rank, int) or rank < 0:
        if named is None and files > 1:
            raise InputError(f"{path} does not say which rank it is. Name it as rank0.json.gz.")
        rank = int(named[1]) if named else 0
    if rank >= MOST_RANKS:
        raise InputError(f"{path}: its rank is {str(rank)[:40]}; ranks are below {MOST_RANKS:,}.")
    return rank


def _device(document: Mapping[str, Any]) -> str:
    devices = document.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    known = [one.get("name", "") for one in listed if isinstance(one, dict)]
    return str(known[0]) if known else ""


def _read(columns: Columns, rank: int, path: Path, document: Mapping[str, Any]) -> tuple[int, int]:
    """Add the work of one rank; returns the recorded span [ps] and the iterations in it."""
    events = [one for one in document["traceEvents"] if isinstance(one, dict)]
    complete = [event for event in events if event.get("ph") == "X"]
    device = [one for one in complete if str(one.get("cat", "")).lower() in DEVICE_KINDS]
    if not device:
        raise InputError(
            f"{path} has no accelerator activity, only that of the host. Profile with "
            "ProfilerActivity.CUDA (or the accelerator's) switched on."
        )
    calls = _launches(complete, path)
    talks = communications(complete, device, calls, document, path)
    works = sorted(
        (_work(one, calls, talks.get(number), path) for number, one in enumerate(device)),
        key=lambda work: (work.start_ps, work.launched_ps),
    )
    begin = min(min(work.start_ps for work in works), *(w.launched_ps for w in works))
    _chain(columns, rank, works, _waits(complete, path), begin)
    steps = {str(one["name"]) for one in complete if STEP.match(str(one.get("name", "")))}
    return max(work.end_ps for work in works) - begin, len(steps)


def _time_ps(event: Event, field: str, path: Path) -> int:
    value = event.get(field, 0)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = math.nan
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 <= value < LATEST_US[field]:
        raise InputError(
            f"{path}: {field} of {str(event.get('name'))[:60]!r} is {str(value)[:40]}; a time "
            "in µs from 0 on is needed. Export the profile again."
        )
    if isinstance(value, int):
        return int(value * PS_PER_US)
    whole = math.floor(value)
    return int(whole * PS_PER_US + round((value - whole) * PS_PER_US))


def _launches(complete: Sequence[Event], path: Path) -> dict[int, tuple[int, int, int]]:
    """Thread, start and end of the host's call, by correlation [ps]."""
    threads: dict[tuple[str, str], int] = {}
    calls = {}
    for event in complete:
        if str(event.get("cat", "")).lower() not in LAUNCHES:
            continue
        correlation = _args(event).get("correlation")
        if not isinstance(correlation, int):
            continue
        thread = threads.setdefault(_thread(event), len(threads))
        start = _time_ps(event, "ts", path)
        calls[correlation] = thread, start, start + _time_ps(event, "dur", path)
    return calls


def _waits(complete: Sequence[Event], path: Path) -> dict[int, list[tuple[int, int]]]:
    """Calls of each host thread that wait for the chip: start and end [ps]."""
    threads: dict[tuple[str, str], int] = {}
    waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in complete:
        if str(event.get("cat", "")).lower() not in LAUNCHES:
            continue
        thread = threads.setdefault(_thread(event), len(threads))
        if WAITS.search(str(event.get("name", ""))):
            start = _time_ps(event, "ts", path)
            waits[thread].append((start, start + _time_ps(event, "dur", path)))
    return waits


def _thread(event: Event) -> tuple[str, str]:
    return str(event.get("pid")), str(event.get("tid"))


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _work(
    event: Event, calls: Mapping[int, tuple[int, int, int]], talk: Communication | None, path: Path
) -> Work:
    start, category = _time_ps(event, "ts", path), str(event.get("cat", "")).lower()
    args = _args(event)
    stated = args.get("correlation")
    correlation = stated if isinstance(stated, int) else -1
    thread, launched, _ = calls.get(correlation, (-1, start, start))
    kind = COMPUTE if category == "kernel" else MEMORY
    stream = args.get("stream", event.get("tid", 0))
    return Work(
        name=str(event.get("name", "kernel"))[:200],
        kind=COLLECTIVE if talk else kind,
        stream=stream if isinstance(stream, int) else 0,
        start_ps=start,
        duration_ps=_time_ps(event, "dur", path),
        thread=thread,
        launched_ps=min(launched, start),
        launch=correlation,
        communication=talk,
    )


def _chain(
    columns: Columns,
    rank: int,
    works: Sequence[Work],
    waits: Mapping[int, Sequence[tuple[int, int]]],
    begin_ps: int,
) -> None:
    """Add host calls and work with the edges that give every start its reason."""
    streams = {stream: place for place, stream in enumerate(sorted({w.stream for w in works}))}
    start = columns.add(rank, 0, Node(HOST, "begin", 0))
    blocked = _blocked(works, waits)
    hosts = _host_calls(columns, rank, works, blocked, begin_ps, start)
    last: dict[int, tuple[int, Work]] = {}
    rows: list[int] = []
    talks: list[tuple[int, Work]] = []
    for number, work in enumerate(works):
        row = _add(columns, rank, streams[work.stream], work, number)
        rows.append(row)
        before = [(hosts.get(number, start), work.launched_ps if number in hosts else begin_ps)]
        if work.stream in last:
            source, earlier = last[work.stream]
            before.append((source, earlier.end_ps))
        before += [
            (source, talk.end_ps)
            for source, talk in talks[-1:]
            if talk.stream != work.stream and talk.end_ps <= work.start_ps
        ]
        _link(columns, row, work.start_ps, before)
        last[work.stream] = row, work
        if work.communication:
            talks.append((row, work))
    _resume(columns, works, rows, blocked, hosts)


def _link(columns: Columns, row: int, start_ps: int, before: Sequence[tuple[int, int]]) -> None:
    """Let work wait for all of these; the one that ended last keeps the delay that is left."""
    latest = max(end for _, end in before)
    for source, end in before:
        lag = max(0, start_ps - end) if end == latest else 0
        columns.link(source, row, lag)


def _host_calls(
    columns: Columns,
    rank: int,
    works: Sequence[Work],
    blocked: Mapping[int, Sequence[Blocked]],
    begin_ps: int,
    start: int,
) -> dict[int, int]:
    """Add one node a launch, each thread a chain spaced as recorded; row of each work's launch.

    Time for which a thread waited for the chip is left out of the spacing.
    """
    by_thread: dict[int, list[int]] = defaultdict(list)
    for number, work in enumerate(works):
        if work.thread >= 0:
            by_thread[work.thread].append(number)
    rows = {}
    for thread, numbers in by_thread.items():
        numbers.sort(key=lambda number: works[number].launched_ps)
        source, at = start, begin_ps
        spans = deque(blocked.get(thread, ()))
        for number in numbers:
            launched = max(at, works[number].launched_ps)
            waited = 0
            while spans and spans[0].over_ps <= launched:
                waited += max(0, spans[0].awaited_ps - max(at, spans.popleft().begun_ps))
            row = columns.add(rank, thread, Node(HOST, "launch", number))
            columns.link(source, row, max(0, launched - at - waited))
            rows[number], source, at = row, row, launched
    return rows


@dataclass(frozen=True)
class Blocked:
    """A call that waited for the chip: from, to, the work that it waited for, and its end [ps]."""

    begun_ps: int
    over_ps: int
    work: int
    awaited_ps: int


def _blocked(
    works: Sequence[Work], waits: Mapping[int, Sequence[tuple[int, int]]]
) -> dict[int, list[Blocked]]:
    """Calls of each thread that waited, with the last work that ended within them."""
    ends = sorted(range(len(works)), key=lambda number: works[number].end_ps)
    blocked: dict[int, list[Blocked]] = {}
    for thread, spans in waits.items():
        at, awaited = 0, -1
        for begun, over in sorted(spans):
            while at < len(ends) and works[ends[at]].end_ps <= over:
                awaited, at = ends[at], at + 1
            if awaited >= 0 and works[awaited].end_ps > begun:
                end = works[awaited].end_ps
                blocked.setdefault(thread, []).append(Blocked(begun, over, awaited, end))
    return blocked


def _resume(
    columns: Columns,
    works: Sequence[Work],
    rows: Sequence[int],
    blocked: Mapping[int, Sequence[Blocked]],
    hosts: Mapping[int, int],
) -> None:
    """Let the first launch after a waiting call follow the work that the call waited for."""
    launches: dict[int, list[int]] = defaultdict(list)
    for number in hosts:
        launches[works[number].thread].append(number)
    for thread, spans in blocked.items():
        queue = sorted(launches.get(thread, ()), key=lambda number: works[number].launched_ps)
        place = 0
        for span in spans:
            while place < len(queue) and works[queue[place]].launched_ps < span.over_ps:
                place += 1
            if place < len(queue):
                lag = works[queue[place]].launched_ps - span.awaited_ps
                columns.link(rows[span.work], hosts[queue[place]], max(0, lag))


def _add(columns: Columns, rank: int, lane: int, work: Work, number: int) -> int:
    known: dict[str, Any] = {"duration_ps": work.duration_ps}
    if work.communication:
        talk = work.communication
        known |= {"size_bytes": talk.size_bytes, "operation": talk.operation, "group": talk.group}
    return columns.add(rank, lane, Node(work.kind, work.name, number, **known))
