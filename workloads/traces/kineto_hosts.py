"""Host threads in a PyTorch profile: chains of launches, and calls that wait for the chip."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workloads.traces.recording import HOST, Columns, Node

CALLS = ("cuda_runtime", "cuda_driver", "hip_runtime", "runtime")
"""Categories of calls with which the host drives a chip."""
WAITS = re.compile(r"(Device|Stream|Event)Synchronize|hipMemcpyWithStream|cudaMemcpy$|hipMemcpy$")
"""Names of calls that return only after the chip has finished its work."""
Event = Mapping[str, Any]
Thread = tuple[str, str]  # process and thread of a call


@dataclass(frozen=True)
class HostCall:
    """A call of a host thread that drives the chip, from its start to its end [ps]."""

    thread: Thread
    start_ps: int
    end_ps: int


class LaunchedWork(Protocol):
    """Work of the chip with its launch by a host thread."""

    @property
    def thread(self) -> Thread | None:
        """Thread that launched the work; None if the profile has no launch."""

    @property
    def launched_ps(self) -> int:
        """Time at which the work was launched [ps]."""

    @property
    def end_ps(self) -> int:
        """End of the work [ps]."""


def thread_of(event: Event) -> Thread:
    """Return the process and thread of an event."""
    return str(event.get("pid")), str(event.get("tid"))


def host_calls(
    complete: Sequence[Event], time_ps: Callable[[Event, str], int]
) -> tuple[dict[int, HostCall], dict[Thread, list[HostCall]]]:
    """Return launches by their correlation, and each thread's calls that wait for the chip.

    ``time_ps``: function that returns an event's ``ts`` or ``dur`` [ps].
    """
    launches: dict[int, HostCall] = {}
    waits: dict[Thread, list[HostCall]] = defaultdict(list)
    for event in complete:
        if str(event.get("cat", "")).lower() not in CALLS:
            continue
        args = event.get("args")
        correlation = args.get("correlation") if isinstance(args, dict) else None
        waiting = WAITS.search(str(event.get("name", "")))
        if not waiting and not isinstance(correlation, int):
            continue
        start = time_ps(event, "ts")
        call = HostCall(thread_of(event), start, start + time_ps(event, "dur"))
        if isinstance(correlation, int):
            launches[correlation] = call
        if waiting:
            waits[call.thread].append(call)
    return launches, waits


def add_launches(
    columns: Columns,
    rank: int,
    works: Sequence[LaunchedWork],
    blocked: Mapping[Thread, Sequence[Blocked]],
    begin_ps: int,
    start: int,
) -> dict[int, int]:
    """Add a node for each launch, and return the row of each work's launch.

    The launches of a thread form a chain with the recorded time between them. The time for which
    the thread waited for the chip is left out, as it may be another one on another cluster.
    """
    by_thread: dict[Thread, list[int]] = defaultdict(list)
    for number, work in enumerate(works):
        if work.thread is not None:
            by_thread[work.thread].append(number)
    rows = {}
    for lane, (thread, numbers) in enumerate(sorted(by_thread.items())):
        numbers.sort(key=lambda number: works[number].launched_ps)
        source, at = start, begin_ps
        spans = deque(blocked.get(thread, ()))
        for number in numbers:
            launched = max(at, works[number].launched_ps)
            waited = 0
            while spans and spans[0].over_ps <= launched:
                waited += max(0, spans[0].awaited_ps - max(at, spans.popleft().begun_ps))
            row = columns.add(rank, lane, Node(HOST, "launch", number))
            columns.link(source, row, max(0, launched - at - waited))
            rows[number], source, at = row, row, launched
    return rows


@dataclass(frozen=True)
class Blocked:
    """A host call that waited for the chip."""

    # begun_ps, over_ps: start and end of the call [ps]
    begun_ps: int
    over_ps: int
    work: int  # number of the work that the call waited for
    awaited_ps: int  # end of that work [ps]


def blocked_calls(
    works: Sequence[LaunchedWork], waits: Mapping[Thread, Sequence[HostCall]]
) -> dict[Thread, list[Blocked]]:
    """Return each thread's calls that waited, with the last work that ended during the call."""
    ends = sorted(range(len(works)), key=lambda number: works[number].end_ps)
    blocked: dict[Thread, list[Blocked]] = {}
    for thread, calls in waits.items():
        at, awaited = 0, -1
        for call in sorted(calls, key=lambda call: (call.start_ps, call.end_ps)):
            while at < len(ends) and works[ends[at]].end_ps <= call.end_ps:
                awaited, at = ends[at], at + 1
            if awaited >= 0 and works[awaited].end_ps > call.start_ps:
                end = works[awaited].end_ps
                waited = Blocked(call.start_ps, call.end_ps, awaited, end)
                blocked.setdefault(thread, []).append(waited)
    return blocked


def resume_threads(
    columns: Columns,
    works: Sequence[LaunchedWork],
    rows: Sequence[int],
    blocked: Mapping[Thread, Sequence[Blocked]],
    launch_rows: Mapping[int, int],
) -> None:
    """Let the first launch after a call that waited depend on the work that the call waited for."""
    launches: dict[Thread | None, list[int]] = defaultdict(list)
    for number in launch_rows:
        launches[works[number].thread].append(number)
    for thread, spans in blocked.items():
        queue = sorted(launches.get(thread, ()), key=lambda number: works[number].launched_ps)
        place = 0
        for span in spans:
            while place < len(queue) and works[queue[place]].launched_ps < span.over_ps:
                place += 1
            if place < len(queue):
                lag = works[queue[place]].launched_ps - span.awaited_ps
                columns.link(rows[span.work], launch_rows[queue[place]], max(0, lag))
