"""Communication in a PyTorch profile: size and members of each NCCL kernel's collectives."""

from __future__ import annotations

import json
import re
import zlib
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from topologies.support.errors import InputError
from topologies.support.units import PS_PER_US
from workloads.traces.recording import (
    COLLECTIVE,
    HOST,
    OPERATIONS,
    RECEIVE,
    SEND,
    Columns,
    Group,
    Node,
)

KERNEL = re.compile(r"nccl|rccl|msccl", re.IGNORECASE)
KERNEL_NAME = re.compile(r"(?:nccl|rccl)\w*?kernel_(\w+)", re.IGNORECASE)
MESSAGE = re.compile(r"(send|recv)\b(?:\s*\d+\s*(?:->|<-)\s*(\d+))?", re.IGNORECASE)
"""Name of a message in a profile: ``send``, or ``send 0->1`` with ranks of its group."""
ELEMENT_BYTES = {
    "float": 4, "float32": 4, "int": 4, "half": 2, "float16": 2, "bfloat16": 2, "c10::bfloat16": 2,
    "c10::half": 2, "double": 8, "long": 8, "long int": 8, "int64": 8, "byte": 1, "char": 1,
    "bool": 1, "signed char": 1, "unsigned char": 1, "int8": 1, "uint8": 1, "short": 2,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
MOST_RANKS = 2**20  # largest group; a larger number in a profile is not taken for a number of ranks
LATEST_US = 10**18  # latest time that is read [µs]
ROUNDED_US = 1
"""Time by which a profile in whole microseconds may end a call before a launch within it [µs]."""
NAMES = (
    ("allreduce", "all-reduce"), ("reducescatter", "reduce-scatter"), ("allgather", "all-gather"),
    ("alltoall", "all-to-all"), ("broadcast", "broadcast"), ("gather", "all-gather"),
    ("scatter", "all-gather"), ("barrier", "all-reduce"), ("reduce", "broadcast"),
)  # fmt: skip
"""Beginnings of names without separators, and the collective that is timed for each."""
Facts = Mapping[str, Any]  # arguments that the profiler recorded beside a call or a kernel


RECORDED = Node(COLLECTIVE, "", 0)  # communication that cannot be timed and keeps its time


@dataclass(frozen=True)
class StatedCall:
    """A call of the host that states a communication, from its start to its end [µs]."""

    start_us: float
    end_us: float
    facts: Facts


def communications(
    complete: Sequence[Mapping[str, Any]],
    device: Sequence[Mapping[str, Any]],
    launches: Mapping[int, HostCall],
    document: Mapping[str, Any],
    path: Path,
) -> dict[int, tuple[Node, ...]]:
    """Return the communications of each NCCL kernel, by its place in ``device``."""
    # They are nodes of a recording without the name, number and duration of their kernel.
    # Sizes stand beside the kernel (PyTorch 2.2 and later) or in the call that launched it. A
    # kernel that ends a group of calls (``batch_isend_irecv``) carries all of them. A kernel
    # without any of this keeps its recorded time.
    groups, size = _groups(document), job_of(document).get("world_size")
    world = size if isinstance(size, int) and 0 < size <= MOST_RANKS else 0
    kernels = {
        place: event
        for place, event in enumerate(device)
        if str(event.get("cat", "")).lower() == "kernel" and KERNEL.search(str(event.get("name")))
    }
    # A kernel carries out the call that launched it, or else all calls on its thread since the last
    # launch, as NCCL launches a group of calls at the end of the group.
    stated = _stated_calls(complete)
    launched: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for place, event in kernels.items():
        correlation = args_of(event).get("correlation")
        launch = launches.get(correlation) if isinstance(correlation, int) else None
        if launch is not None:
            launched[launch.thread].append((launch.start_ps / PS_PER_US, place))
    called: dict[int, list[Facts]] = {}
    for thread, places in launched.items():
        of_thread = stated.get(thread, ())
        starts = [call.start_us for call in of_thread]
        passed = 0
        for at, place in sorted(places):
            reached = bisect_right(starts, at)
            if reached and at <= of_thread[reached - 1].end_us + ROUNDED_US:
                passed = reached - 1
            called[place] = [call.facts for call in of_thread[passed:reached]]
            passed = reached
    communications_at = {}
    for place, event in kernels.items():
        facts, calls, name = args_of(event), called.get(place, []), str(event["name"])
        if _is_named(facts):
            calls = [{**(calls[0] if len(calls) == 1 else {}), **facts}]
        parts = [_communication(call, name, groups, world, path) for call in calls or [facts]]
        communications_at[place] = _joined(parts)
    return communications_at


def args_of(event: Event) -> dict[str, Any]:
    """Return the arguments that the profiler recorded beside an event; empty for none."""
    args = event.get("args")
    return dict(args) if isinstance(args, dict) else {}


def _is_named(facts: Facts) -> bool:
    name = str(facts.get("Collective name", ""))
    return bool(MESSAGE.match(name) or _operation(name))


def job_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a profile says of the job that its rank is of; empty for nothing."""
    stated = document.get("distributedInfo")
    return stated if isinstance(stated, dict) else {}


def _groups(document: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Ranks of the process groups that the profile lists, by name."""
    listed, groups = job_of(document).get("pg_config"), {}
    for entry in listed if isinstance(listed, list) else []:
        ranks = _ranks(entry.get("ranks")) if isinstance(entry, dict) else ()
        if ranks:
            groups[str(entry.get("pg_name", ""))] = ranks
    return groups


def _ranks(listed: Any) -> tuple[int, ...]:
    """Ranks of a list, or of its text; empty if the profiler cut the text short."""
    if isinstance(listed, str):
        try:
            listed = json.loads(listed)
        except (ValueError, RecursionError):
            return ()
    sound = isinstance(listed, list) and all(isinstance(rank, int) for rank in listed)
    return tuple(listed) if sound else ()


def _stated_calls(complete: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[StatedCall]]:
    """Calls of each host thread that state communication, sorted by their start."""
    # A call within another one adds its facts to the outer call's.
    calls: dict[tuple[str, str], list[StatedCall]] = defaultdict(list)
    for event in complete:
        name = str(event.get("name", ""))
        if name != "record_param_comms" and not name.startswith("nccl:"):
            continue
        args = args_of(event)
        if name.startswith("nccl:"):
            args.setdefault("Collective name", name.removeprefix("nccl:"))
        start, duration = event.get("ts"), event.get("dur", 0)
        if not isinstance(start, int | float) or not isinstance(duration, int | float):
            continue
        if _is_named(args) and max(abs(start), abs(duration)) < LATEST_US:
            call = StatedCall(float(start), float(start) + float(duration), args)
            calls[thread_of(event)].append(call)
    return {thread: _outermost(listed) for thread, listed in calls.items()}


def _outermost(calls: Sequence[StatedCall]) -> list[StatedCall]:
    """Calls that no other call contains, with the facts of the calls inside them."""
    outer: list[StatedCall] = []
    for call in sorted(calls, key=lambda call: (call.start_us, -call.end_us)):
        if outer and call.end_us <= outer[-1].end_us:
            outer[-1] = replace(outer[-1], facts={**call.facts, **outer[-1].facts})
        else:
            outer.append(call)
    return outer


def _joined(parts: Sequence[Node]) -> tuple[Node, ...]:
    """Communications of one kernel, with equal collectives of several sizes joined to one."""
    sizes: dict[Node, int] = {}
    messages = []
    for part in parts:
        if part.kind == COLLECTIVE:
            sizeless = part._replace(size_bytes=0)
            sizes[sizeless] = sizes.get(sizeless, 0) + part.size_bytes
        else:
            messages.append(part)
    return (*(sizeless._replace(size_bytes=size) for sizeless, size in sizes.items()), *messages)


def _communication(
    facts: Facts, kernel: str, groups: Mapping[str, tuple[int, ...]], world: int, path: Path
) -> Node:
    """Communication that facts state; one that cannot be timed keeps its recorded time."""
    name = str(facts.get("Collective name", ""))
    if message := MESSAGE.match(name):
        return _message(facts, message, _group(facts, groups, world, ""))
    named = KERNEL_NAME.search(kernel)
    operation = _operation(name) or _operation(named[1] if named else "")
    if operation is None:
        return RECORDED
    group = _group(facts, groups, world, operation)
    size = _size_bytes(facts, operation, len(group.ranks))
    if size is None or len(group.ranks) < 2:
        return RECORDED._replace(size_bytes=size or 0, group=group)
    if max(group.ranks) >= 2**31 or min(group.ranks) < 0:
        raise InputError(f"{path}: process group {group.name} has rank {max(group.ranks)}.")
    number = OPERATIONS.index(operation)
    return RECORDED._replace(size_bytes=size, operation=number, group=group)


def _message(facts: Facts, named: re.Match[str], group: Group) -> Node:
    """Message to or from another rank; it keeps its recorded time if the rank is unknown."""
    sends = named[1].lower() == "send"
    size = _size_bytes(facts, None, 0)
    peer = facts.get("Dst Rank" if sends else "Src Rank")
    if not isinstance(peer, int):  # before PyTorch 2.2: the place in the group
        place = facts.get("Rank", named[2])
        place = int(place) if str(place).isdecimal() and len(str(place)) < 10 else -1
        peer = group.ranks[place] if 0 <= place < len(group.ranks) else -1
    if size is None or not 0 <= peer < 2**31:
        return RECORDED
    tag = zlib.crc32(group.name.encode()) if group.name else 0
    return Node(SEND if sends else RECEIVE, "", 0, size_bytes=size, peer=peer, tag=tag)


def _operation(name: str) -> str | None:
    """Collective that a name begins with; None if it begins with none."""
    letters = re.sub(r"[^a-z0-9]", "", name.lower())
    return next((operation for start, operation in NAMES if letters.startswith(start)), None)


def _size_bytes(facts: Facts, operation: str | None, ranks: int) -> int | None:
    """Size as nccl-tests count it, the larger of input and output [B]; None if not stated."""
    # Older calls state the shape of their input only. The output of an all-gather has one such
    # input from each rank.
    counts = [facts.get("In msg nelems"), facts.get("Out msg nelems")]
    stated = [count for count in counts if isinstance(count, int) and 0 <= count < 2**48]
    width = ELEMENT_BYTES.get(str(facts.get("dtype", "")).lower())
    if stated and width:
        return max(stated) * width
    dims, types = facts.get("Input Dims"), facts.get("Input type")
    if not (isinstance(dims, list) and dims and isinstance(types, list) and types):
        return None
    width, shape = ELEMENT_BYTES.get(str(types[0]).lower()), dims[0]
    if not (width and isinstance(shape, list) and shape):
        return None
    count = max(1, ranks) if operation == "all-gather" else 1
    for length in shape:
        if not isinstance(length, int):
            return None
        count *= max(0, length)
    return count * width if count < 2**48 else None


def _group(
    facts: Facts, groups: Mapping[str, tuple[int, ...]], world: int, operation: str
) -> Group:
    """Group of a call: its list of ranks, a group of its name or of its size, or all ranks."""
    # Calls without a stated group may belong to several groups, so those of each operation are
    # taken for a group of their own.
    name = str(facts.get("Process Group Name", ""))
    size = facts.get("Group size")
    sized = isinstance(size, int)
    listed = _ranks(facts.get("Process Group Ranks"))
    if listed and len(listed) == (size if sized else len(listed)):
        return Group(name, listed)
    if name in groups and (not sized or len(groups[name]) == size):
        return Group(name, groups[name])
    if isinstance(size, int) and 1 < size <= MOST_RANKS:
        first, stride = facts.get("Global rank start"), facts.get("Global rank stride")
        first = first if isinstance(first, int) else 0
        stride = max(1, stride) if isinstance(stride, int) else 1
        return Group(name, tuple(first + stride * place for place in range(size)))
    return Group(name or operation, tuple(range(world)))


# Host threads in a PyTorch profile: chains of launches, and calls that wait for the chip.

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
    communications: tuple[Node, ...]  # collectives and messages that it carries, if any

    @property
    def end_ps(self) -> int:
        """Recorded end of the work [ps]."""
        return self.start_ps + self.duration_ps


def thread_of(event: Event) -> Thread:
    """Return the process and thread of an event."""
    return str(event.get("pid")), str(event.get("tid"))


def host_calls(
    complete: Sequence[Event], time_ps: Callable[[Event, str], int]
) -> tuple[dict[int, HostCall], dict[Thread, list[HostCall]]]:
    """Return launches by their correlation, and each thread's calls that wait for the chip."""
    # ``time_ps``: function that returns an event's ``ts`` or ``dur`` [ps].
    launches: dict[int, HostCall] = {}
    waits: dict[Thread, list[HostCall]] = defaultdict(list)
    for event in complete:
        if str(event.get("cat", "")).lower() not in CALLS:
            continue
        correlation = args_of(event).get("correlation")
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
    works: Sequence[Work],
    blocked: Mapping[Thread, Sequence[Blocked]],
    begin_ps: int,
    start: int,
) -> dict[int, int]:
    """Add a node for each launch, and return the row of each work's launch."""
    # The launches of a thread form a chain with the recorded time between them. The time for which
    # the thread waited for the chip is left out, as it may be another one on another cluster.
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
    works: Sequence[Work], waits: Mapping[Thread, Sequence[HostCall]]
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
    works: Sequence[Work],
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
