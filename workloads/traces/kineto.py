"""Reader of the PyTorch profiler's JSON (Kineto): kernels, NCCL calls, streams and launches."""

from __future__ import annotations

import math
import re
import sys
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.support.errors import InputError
from topologies.support.units import PS_PER_S, PS_PER_US
from workloads.traces.json_stream import read_events
from workloads.traces.kineto_communication import (
    CALLS,
    KERNEL,
    Event,
    HostCall,
    Thread,
    Work,
    add_launches,
    args_of,
    blocked_calls,
    communications,
    host_calls,
    job_of,
    resume_threads,
)
from workloads.traces.recording import (
    COMPUTE,
    HOST,
    LARGEST,
    MEMORY,
    NOTHING,
    Columns,
    Node,
    Recording,
)

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
OF_AN_EVENT = ("ph", "cat", "pid", "tid", "ts", "dur", "args")
OF_A_LAUNCH = ("correlation", "stream")
"""Fields of events, and arguments of launches and of what they launch, that are read."""
MOST_KERNELS = 900_000
"""Largest number of kernels and copies of all ranks; each has a launch besides."""
STEP = re.compile(r"ProfilerStep#(\d+)")
STATES = re.compile(rf"record_param_comms$|nccl:|{STEP.pattern}")
"""Names of events of the host that state communication or steps."""
RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
MOST_RANKS = 10**7
LATEST_US = {"ts": 10**18, "dur": 2**60 // PS_PER_US}
"""Bound of the times in each field [µs]; clocks may count from 1970."""


def read_kineto(paths: Sequence[Path]) -> Recording:
    """Read profiles of one rank or several."""
    columns, files, counted = Columns(), dict[int, str](), [0]
    recorded_ps, first_rank = 0, LARGEST
    iterations: list[int] = []
    first: dict[str, Any] = {}
    for path in paths:
        document = _document(path, counted)
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
    world = job_of(first).get("world_size", 0)
    world = world if isinstance(world, int) and 0 <= world < LARGEST else 0
    devices = first.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    names = [entry.get("name", "") for entry in listed if isinstance(entry, dict)]
    facts: dict[str, str | int | float] = {
        "format": "kineto",
        "version": str(first.get("schemaVersion", "")),
        "world": world if len(paths) > 1 else 0,
        "stated_world": world,
        "chip": str(names[0]) if names else "",
        "iterations": count,
        "recorded_s": recorded_ps / PS_PER_S / count,
    }
    return columns.finish(dict(sorted(files.items())), facts)


def _document(path: Path, counted: list[int]) -> dict[str, Any]:
    """Object of a profile's JSON, of whose events those are kept that a replay needs."""

    def keep(event: dict[str, Any]) -> dict[str, Any] | None:
        """Return what is read of an event; None for one of no use, as most are."""
        if event.get("ph") != "X":
            return None
        category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
        if category in DEVICE_KINDS:
            counted[0] += 1
            if counted[0] > MOST_KERNELS:
                raise InputError(
                    f"{path}: the profiles have more than {MOST_KERNELS:,} kernels and copies, the "
                    "most that are read. Profile fewer iterations, or give fewer ranks."
                )
        elif category not in CALLS and not STATES.match(name):
            return None
        kept = {key: event[key] for key in OF_AN_EVENT if key in event}
        if category in CALLS or (category in DEVICE_KINDS and not KERNEL.search(name)):
            args = args_of(event)
            kept["args"] = {key: args[key] for key in OF_A_LAUNCH if key in args}
        if "name" in event:
            kept["name"] = sys.intern(name)  # of a kernel it may have a thousand letters
        return kept

    document = read_events(path, keep)
    if not isinstance(document.get("traceEvents"), list):
        raise InputError(f"{path} holds no traceEvents. Give the JSON of the PyTorch profiler.")
    return document


def _rank(document: Mapping[str, Any], path: Path, files: int) -> int:
    """Rank that a profile is of, from its content or its name."""
    rank, named = job_of(document).get("rank"), RANK.search(path.name)
    if not isinstance(rank, int) or rank < 0:
        if named is None and files > 1:
            raise InputError(f"{path} does not say which rank it is. Name it as rank0.json.gz.")
        rank = int(named[1]) if named else 0
    if rank >= MOST_RANKS:
        raise InputError(f"{path}: its rank is {str(rank)[:40]}; ranks are below {MOST_RANKS:,}.")
    return rank


def _read(columns: Columns, rank: int, path: Path, document: Mapping[str, Any]) -> tuple[int, int]:
    """Add the work of one rank, and return its recorded time [ps] and number of iterations."""
    complete: list[Event] = document["traceEvents"]
    device = [event for event in complete if str(event.get("cat", "")).lower() in DEVICE_KINDS]
    if not device:
        raise InputError(
            f"{path} has no accelerator activity, only that of the host. Profile with "
            "ProfilerActivity.CUDA (or the accelerator's) switched on."
        )
    launches, waits = host_calls(complete, lambda event, field: _time_ps(event, field, path))
    communications_at = communications(complete, device, launches, document, path)
    works = sorted(
        (
            _work(event, launches, communications_at.get(place, ()), path)
            for place, event in enumerate(device)
        ),
        key=lambda work: (work.start_ps, work.launched_ps),
    )
    begin = min(min(work.start_ps for work in works), *(w.launched_ps for w in works))
    # Launches and works, with the dependencies that explain every start.
    streams = {stream: place for place, stream in enumerate(sorted({w.stream for w in works}))}
    start = columns.add(rank, 0, Node(HOST, "begin", 0))
    blocked = blocked_calls(works, waits)
    launched = add_launches(columns, rank, works, blocked, begin, start)
    last_on: dict[int, tuple[int, Work]] = {}
    rows: list[int] = []
    communicated: tuple[int, Work] | None = None
    inputs = _inputs(works)
    for number, work in enumerate(works):
        launched_ps = work.launched_ps if number in launched else begin
        before = [(launched.get(number, start), launched_ps)]
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
    resume_threads(columns, works, rows, blocked, launched)
    steps = {str(event["name"]) for event in complete if STEP.match(str(event.get("name", "")))}
    return max(work.end_ps for work in works) - begin, len(steps)


def _time_ps(event: Event, field: str, path: Path) -> int:
    """Time of an event's field in picoseconds; an impossible one is refused."""
    value = event.get(field, 0 if field == "dur" else None)
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
    # In two parts, as picoseconds since 1970 exceed the precision of a float.
    whole = math.floor(value)
    return int(whole * PS_PER_US + round((value - whole) * PS_PER_US))


def _work(
    event: Event, launches: Mapping[int, HostCall], communications: tuple[Node, ...], path: Path
) -> Work:
    """Work that an event of the device describes."""
    start, category = _time_ps(event, "ts", path), str(event.get("cat", "")).lower()
    args = args_of(event)
    correlation = args.get("correlation")
    launch = launches.get(correlation) if isinstance(correlation, int) else None
    stream = args.get("stream", event.get("tid", 0))
    return Work(
        name=str(event.get("name", "kernel"))[:200],
        kind=COMPUTE if category == "kernel" else MEMORY,
        stream=stream if isinstance(stream, int) else 0,
        start_ps=start,
        duration_ps=_time_ps(event, "dur", path),
        thread=None if launch is None else launch.thread,
        launched_ps=start if launch is None else min(launch.start_ps, start),
        communications=communications,
    )


# Dependencies between the kernels, copies and host calls of a PyTorch profile.
# A replay must start each kernel for the reason for which it started: its stream was free, the host
# had launched it, or a collective had ended; communication also waits for the work that its thread
# launched before it. Host threads become chains of launches, spaced as recorded. A call that waits
# for the chip lets its thread go on after the work that it waited for. A delay that none of these
# explains is kept as a lag behind the work that came before. With the recorded times of all kernels
# the replay takes exactly the recorded time.


def _inputs(works: Sequence[Work]) -> dict[int, int]:
    """Number of the work that each communication waits for, by the communication's number."""
    # NCCL lets its stream wait for the stream of its caller, hence for the work that the same
    # thread launched last. Work that was still running when the communication started is not it.
    # In a profile without launches, work counts as launched when it starts.
    launched: dict[Thread | None, list[tuple[int, int]]] = defaultdict(list)
    for number, work in enumerate(works):
        if not work.communications:
            launched[work.thread].append((work.launched_ps, number))
    for places in launched.values():
        places.sort()
    inputs = {}
    for number, work in enumerate(works):
        places = launched.get(work.thread, []) if work.communications else []
        before = bisect_left(places, (work.launched_ps, -1))
        if before and works[places[before - 1][1]].end_ps <= work.start_ps:
            inputs[number] = places[before - 1][1]
    return inputs


def _link(columns: Columns, row: int, start_ps: int, before: Sequence[tuple[int, int]]) -> None:
    """Let work depend on several rows, each given with its end [ps]."""
    # The dependency on the row that ended last has the delay until the work's start as its lag.
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
    """Add work with its dependencies, and return the row that ends when all of it has ended."""
    # A kernel that carries several communications becomes several nodes and one that joins them.
    if not work.communications:
        row = columns.add(rank, lane, Node(work.kind, work.name, number, work.duration_ps))
        _link(columns, row, work.start_ps, before)
        return row
    rows = []
    shares = _shares(work)
    for part, duration_ps in zip(work.communications, shares, strict=True):
        node = part._replace(name=work.name, number=number, duration_ps=duration_ps)
        rows.append(columns.add(rank, lane, node))
        _link(columns, rows[-1], work.start_ps, before)
    if len(rows) == 1:
        return rows[0]
    end = columns.add(rank, lane, Node(NOTHING, work.name, number))
    for row in rows:
        columns.link(row, end)
    return end


def _shares(work: Work) -> list[int]:
    """Share of a kernel's time that each of its communications has [ps]."""
    # The communications of each kind follow one another and together take all of the time, each in
    # proportion to its size.
    totals, passed = Counter[int](), Counter[int]()
    for part in work.communications:
        totals[part.kind] += max(1, part.size_bytes)
    shares = []
    for part in work.communications:
        before, total = work.duration_ps * passed[part.kind], totals[part.kind]
        passed[part.kind] += max(1, part.size_bytes)
        # As differences of rounded ends, so that the shares sum to the whole time.
        shares.append(work.duration_ps * passed[part.kind] // total - before // total)
    return shares
