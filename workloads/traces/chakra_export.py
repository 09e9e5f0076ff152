"""Writer of Chakra execution traces, so that other simulators run the same work.

Every rank has a file with its kernels and their durations, collectives with their size and process
group, and messages to other ranks. The members of the groups stand in ``comm_group.json`` beside
the files. ASTRA-sim reads the name of a group as a whole number, by ``std::stoi`` in
``Workload::initialize_comm_groups`` and ``extract_comm_group``, and takes 0 for the group of all
ranks; groups are therefore numbered from 1, and nodes have the name as ``pg_desc`` beside it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from topologies.errors import InputError
from topologies.files.writing import whole_files
from topologies.units import PS_PER_US
from workloads.traces import chakra_schema as schema
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    MEMORY,
    NOTHING,
    OPERATIONS,
    RECEIVE,
    SEND,
    UNKNOWN,
    Columns,
    Group,
    Node,
    Recording,
)
from workloads.training.iteration import Iteration
from workloads.training.layers.steps import HOST as HOST_STREAM
from workloads.training.program.program import Program

VERSION = "0.0.4"
TYPE = {
    NOTHING: schema.METADATA, COMPUTE: schema.COMPUTE, MEMORY: schema.MEMORY_LOAD,
    SEND: schema.SEND, RECEIVE: schema.RECEIVE, COLLECTIVE: schema.COLLECTIVE, HOST: schema.COMPUTE,
}  # fmt: skip


def write_chakra(recording: Recording, directory: str | Path, name: str = "trace") -> list[Path]:
    """Write one ``.et`` file for each rank, and return the files in order of rank."""
    # Durations are rounded to microseconds, the unit of the format. A lag becomes a compute node.
    # Raises InputError for a directory that cannot be written, or that holds traces already.
    folder = Path(directory)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file. Name a new directory.")
    if any(folder.glob("*.et")):
        raise InputError(f"{folder} holds traces already. Name a new directory.")
    before = defaultdict[int, list[tuple[int, int]]](list)
    rows = zip(
        recording.src.tolist(), recording.dst.tolist(), recording.lag_ps.tolist(), strict=True
    )
    for src, dst, lag in rows:
        before[dst].append((src, lag))
    names = _group_numbers(recording)
    members = {
        names[k]: list(group.ranks) for k, group in enumerate(recording.groups) if group.ranks
    }
    files = [f"{name}.{rank}.et" for rank in recording.ranks.tolist()]
    with whole_files(folder) as part:
        for file, rank in zip(files, recording.ranks.tolist(), strict=True):
            nodes = np.flatnonzero(recording.rank == rank).tolist()
            write_messages(part / file, _messages(recording, nodes, before, names))
        if members:
            (part / "comm_group.json").write_text(json.dumps(members))
    return [folder / file for file in files]


def _group_numbers(recording: Recording) -> list[str]:
    """Number of each group as text; empty for the group of all ranks that a trace leaves unnamed.

    Names that are such numbers already, as those of a trace for ASTRA-sim are, stay as they are.
    """
    stated = [group.name for group in recording.groups]
    named = [name for name in stated if name]
    numbered = all(name.isascii() and name.isdigit() and int(name) > 0 for name in named)
    if numbered and len(set(named)) == len(named):
        return stated
    return [
        str(place) if group.name or group.ranks else ""
        for place, group in enumerate(recording.groups, start=1)
    ]


def write_messages(path: Path, messages: Iterable[Any]) -> None:
    """Write messages, each behind its length."""
    with path.open("wb") as file:
        for message in messages:
            content = message.SerializeToString()
            file.write(_varint(len(content)) + content)


def _varint(value: int) -> bytes:
    """Bytes of a whole number in protobuf's variable-length encoding."""
    digits = bytearray()
    while value > 127:
        digits.append(value & 127 | 128)
        value >>= 7
    return bytes([*digits, value])


def _messages(
    recording: Recording,
    nodes: Sequence[int],
    before: dict[int, list[tuple[int, int]]],
    names: Sequence[str],
) -> Iterator[Any]:
    """Yield the messages of one rank's file; ``before`` has the dependencies of each node."""
    yield schema.messages()["GlobalMetadata"](version=VERSION)
    lags = len(recording)
    for node in nodes:
        dependencies = []
        for src, lag in before.get(node, ()):
            if lag < PS_PER_US // 2:
                dependencies.append(src + 1)
                continue
            lags += 1
            yield node_message(lags, "lag", schema.COMPUTE, lag, [src + 1], {"is_cpu_op": True})
            dependencies.append(lags)
        kind = int(recording.kind[node])
        facts = _facts(recording, node, names)
        label = recording.name.names[int(recording.name.code[node])]
        duration = int(recording.duration_ps[node])
        yield node_message(node + 1, label, TYPE[kind], duration, dependencies, facts)


def _facts(recording: Recording, node: int, names: Sequence[str]) -> dict[str, Any]:
    """Attributes of a node's message."""
    kind, size = int(recording.kind[node]), int(recording.size_bytes[node])
    facts: dict[str, Any] = {"is_cpu_op": kind == HOST}
    if kind == COLLECTIVE and recording.operation[node] != UNKNOWN:
        operation = OPERATIONS[int(recording.operation[node])]
        group = int(recording.group[node])
        if operation == "all-gather" and recording.facts.get("all_gather_size") != "of one rank":
            size //= max(1, len(recording.groups[group].ranks))
        facts["comm_type"] = schema.COLLECTIVES.index(operation)
        facts["comm_size"] = size
        if names[group]:
            facts["pg_name"] = names[group]
            facts["pg_desc"] = recording.groups[group].name
    elif kind in (SEND, RECEIVE):
        rank, peer = int(recording.rank[node]), int(recording.peer[node])
        ends = (rank, peer) if kind == SEND else (peer, rank)
        facts |= {"comm_size": size, "comm_src": ends[0], "comm_dst": ends[1]}
        facts["comm_tag"] = int(recording.tag[node])
    elif size or recording.flops[node]:
        facts |= {"tensor_size": size, "num_ops": int(recording.flops[node])}
    return facts


def node_message(
    number: int, name: str, kind: int, duration_ps: int, before: list[int], facts: dict[str, Any]
) -> Any:
    """Return the message of one node; ``before`` has the numbers of nodes that it waits for."""
    node = schema.messages()["Node"](
        id=number, name=name, type=kind, duration_micros=round(duration_ps / PS_PER_US)
    )
    node.data_deps.extend(before)
    for key, value in facts.items():
        field = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
        node.attr.add(name=key, **{field: value})
    return node


MOST_RANKS = 4096


def training_recording(step: Iteration) -> Recording:
    """Return the work of every rank of an unfolded step."""
    program = step.program
    if int(program.count.max()) > 1:
        raise InputError(
            "a folded step has one rank for many. Run it with --unfolded to write all of them."
        )
    if len(program) > MOST_RANKS:
        raise InputError(f"{len(program):,} ranks; at most {MOST_RANKS:,} are written.")
    columns = Columns()
    communications = _communications(program)
    for row in range(len(program)):
        _add_rank(columns, program, row, communications)
    facts: dict[str, str | int | float] = {
        "format": "cluster-sim",
        "world": len(program),
        "iterations": 1,
    }
    return columns.finish(dict.fromkeys(range(len(program)), step.cluster.name), facts)


Communications = dict[tuple[int, int], tuple[int, int]]
"""Exchange and group of each op that communicates, by its row and number."""


def _communications(program: Program) -> Communications:
    """Find the exchange and group of each op that communicates."""
    communications: Communications = {}
    for number, exchange in enumerate(program.exchanges):
        for stage, ops, places in program.roles(exchange):
            for group, members in enumerate(exchange.members.tolist()):
                for place in places.tolist():
                    row = members[place]
                    if program.stage[row] != stage:
                        continue
                    communications |= {(row, op): (number, group) for op in ops.tolist()}
    return communications


def _add_rank(columns: Columns, program: Program, row: int, communications: Communications) -> None:
    """Add the ops of one rank, in program order."""
    stream = program.streams[int(program.stage[row])]
    rows = []
    for op, number in enumerate(stream.ops.step.tolist()):
        step = program.steps[number]
        communication = communications.get((row, op))
        if communication is None:
            kind = HOST if step.stream == HOST_STREAM else COMPUTE
            work = Node(kind, step.name, op, duration_ps=int(program.step_ps[number]))
            rows.append(columns.add(row, 0, work))
            continue
        exchange, group = communication
        members = [int(rank) for rank in program.exchanges[exchange].members[group]]
        if step.collective == "send":
            kind = SEND if step.name.endswith(".send") else RECEIVE
            peer = next(member for member in members if member != row)
            message = Node(kind, step.name, op, size_bytes=step.size_bytes, peer=peer, tag=exchange)
            rows.append(columns.add(row, 0, message))
            continue
        name = f"{step.axis}.{exchange}.{group}"
        known_name = step.collective if step.collective in OPERATIONS else "unknown"
        operation = OPERATIONS.index(known_name)
        group_of_ranks = Group(name, tuple(sorted(members)))
        collective = Node(
            COLLECTIVE, step.name, op, size_bytes=step.size_bytes, operation=operation,
            group=group_of_ranks,
        )  # fmt: skip
        rows.append(columns.add(row, 0, collective))
    for src, dst in zip(stream.src.tolist(), stream.dst.tolist(), strict=True):
        columns.link(rows[src], rows[dst])
