"""Reader of the PyTorch profiler's JSON (Kineto): kernels, NCCL calls, streams and launches."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from topologies.units import PS_PER_S, PS_PER_US
from workloads.traces.bounded_files import read_bounded
from workloads.traces.kineto_chain import Work, add_works
from workloads.traces.kineto_communication import Communication, communications
from workloads.traces.kineto_hosts import Event, HostCall, host_calls
from workloads.traces.recording import COMPUTE, LARGEST, MEMORY, Columns, Recording

DEVICE_KINDS = ("kernel", "gpu_memcpy", "gpu_memset")
DEVICE_EVENT = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"', re.IGNORECASE)
MOST_KERNELS = 900_000
"""Largest number of kernels and copies of all ranks; each has a launch besides."""
STEP = re.compile(r"ProfilerStep#(\d+)")
RANK = re.compile(r"rank[-_]?(\d+)", re.IGNORECASE)
MOST_RANKS = 10**7
LATEST_US = {"ts": 10**18, "dur": 2**60 // PS_PER_US}
"""Bound of the times in each field [µs]; clocks may count from 1970."""


def read_kineto(paths: Sequence[Path]) -> Recording:
    """Read profiles of one rank or several."""
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
    """Refuse more kernels than are read, before any file is parsed."""
    total = 0
    for path in paths:
        total += sum(1 for _ in DEVICE_EVENT.finditer(read_bounded(path)))
        if total > MOST_KERNELS:
            raise InputError(
                f"{path}: the profiles have more than {MOST_KERNELS:,} kernels and copies, the "
                "most that are read. Profile fewer iterations, or give fewer ranks."
            )


def _document(path: Path) -> dict[str, Any]:
    """Object of a profile's JSON, which has a list of events."""
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
    """Rank that a profile is of, from its content or its name."""
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
    """Name of the accelerator that a profile states; empty if it states none."""
    devices = document.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    names = [entry.get("name", "") for entry in listed if isinstance(entry, dict)]
    return str(names[0]) if names else ""


def _read(columns: Columns, rank: int, path: Path, document: Mapping[str, Any]) -> tuple[int, int]:
    """Add the work of one rank, and return its recorded time [ps] and number of iterations."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    complete = [event for event in events if event.get("ph") == "X"]
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
    add_works(columns, rank, works, waits, begin)
    steps = {str(event["name"]) for event in complete if STEP.match(str(event.get("name", "")))}
    return max(work.end_ps for work in works) - begin, len(steps)


def _time_ps(event: Event, field: str, path: Path) -> int:
    """Time of an event's field in picoseconds; an impossible one is refused."""
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
    # In two parts, as picoseconds since 1970 exceed the precision of a float.
    whole = math.floor(value)
    return int(whole * PS_PER_US + round((value - whole) * PS_PER_US))


def _args(event: Event) -> Mapping[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _work(
    event: Event,
    launches: Mapping[int, HostCall],
    communications: tuple[Communication, ...],
    path: Path,
) -> Work:
    """Work that an event of the device describes."""
    start, category = _time_ps(event, "ts", path), str(event.get("cat", "")).lower()
    args = _args(event)
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
