"""Chakra execution traces, one ``.et`` file for each rank: their reader and their writer."""

from __future__ import annotations

import ast
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.proto import parse_length_prefixed, serialize_length_prefixed

from topologies.support.errors import InputError
from topologies.support.files.writing import whole_files
from topologies.support.units import PS_PER_US
from workloads.traces import chakra_schema as schema
from workloads.traces.lower import in_order
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    LARGEST,
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
    read_bounded,
)
from workloads.training.layers.steps import HOST as HOST_STREAM

if TYPE_CHECKING:
    from workloads.training.iteration import Iteration
    from workloads.training.program.program import Program

MOST_RANKS = 10**7
LONGEST_US = 2**61 // PS_PER_US
NUMBERED = re.compile(r"(?:^|[^0-9])(\d+)\.et(?:\.gz)?$")
DEVICE, HOST_LANE, NETWORK = 0, 1, 2  # lanes of a rank: its chip, its host, its network
KIND = {
    schema.METADATA: NOTHING, schema.MEMORY_LOAD: MEMORY, schema.MEMORY_STORE: MEMORY,
    schema.COMPUTE: COMPUTE, schema.SEND: SEND, schema.RECEIVE: RECEIVE,
    schema.COLLECTIVE: COLLECTIVE,
}  # fmt: skip
STANDS_FOR = {
    "reduce": "broadcast", "gather": "all-gather", "scatter": "all-gather",
    "reduce-scatter-block": "reduce-scatter", "barrier": "all-reduce",
}  # fmt: skip
"""Collectives that are timed as another one, which moves the same bytes over the busiest link."""


def read_chakra(paths: Sequence[Path]) -> Recording:
    """Read the traces of all ranks: one file, or one each with its number before ``.et``."""
    by_rank = _ranks(paths)
    groups = groups_beside(paths)
    columns, versions = Columns(), set()
    for rank, path in by_rank.items():
        versions.add(_read(columns, rank, path, read_bounded(path), groups))
    if not len(columns):
        raise InputError(f"{paths[0]} holds no nodes, only the format's version. Trace it again.")
    facts: dict[str, str | int | float] = {
        "format": "chakra",
        "version": ", ".join(sorted(versions)),
        "world": 0 if len(by_rank) == 1 else len(by_rank),
        "iterations": 1,
        # ASTRA-sim's Ring.cc (commit 518bd51) gathers comm_size bytes from every rank.
        "all_gather_size": "of one rank",
    }
    return columns.finish({rank: str(path) for rank, path in by_rank.items()}, facts)


def _ranks(paths: Sequence[Path]) -> dict[int, Path]:
    """File of each rank; a missing or repeated rank is refused."""
    if len(paths) == 1:
        number = NUMBERED.search(paths[0].name)
        rank = int(number[1]) if number else 0
        return {rank if rank < MOST_RANKS else 0: paths[0]}
    by_rank: dict[int, Path] = {}
    for path in paths:
        number = NUMBERED.search(path.name)
        if number is None:
            raise InputError(
                f"{path}: the name has no rank. Name the files trace.0.et, trace.1.et."
            )
        rank = int(number[1])
        if rank in by_rank:
            raise InputError(
                f"{path}: rank {rank} is also in {by_rank[rank]}. Give one job at a time."
            )
        by_rank[rank] = path
    missing = max(by_rank) + 1 - len(by_rank)
    if missing:
        first = islice((rank for rank in count() if rank not in by_rank), min(8, missing))
        shown = ", ".join(map(str, first)) + (" …" if missing > 8 else "")
        raise InputError(
            f"{paths[0].parent}: rank{'s' * (missing > 1)} {shown} of {max(by_rank) + 1} "
            f"missing; there {'is' if len(by_rank) == 1 else 'are'} {len(by_rank)} files. Give all."
        )
    return dict(sorted(by_rank.items()))


def _messages_of(content: bytes, path: Path) -> Iterator[Any]:
    """Yield the messages of a file, each behind its length: metadata, then nodes."""
    stream, of_kind = io.BytesIO(content), schema.messages()
    for number in count():
        try:
            message = parse_length_prefixed(of_kind["Node" if number else "GlobalMetadata"], stream)
        except (DecodeError, EOFError, ValueError):
            why = f"broken protobuf at message {number}. Copy the file again."
            why = why if number else "its first message is no Chakra metadata. Give an .et file."
            raise InputError(f"{path}: {why}") from None
        if message is None:
            return
        yield message


def _read(
    columns: Columns, rank: int, path: Path, content: bytes, groups: Mapping[str, tuple[int, ...]]
) -> str:
    """Add the nodes of a rank, and return the version of the schema."""
    messages = _messages_of(content, path)
    version = _version(next(messages))
    first, groups = len(columns), dict(groups)
    waits: dict[int, Sequence[int]] = {}
    # In files of older converters control dependencies are the operators around an operator,
    # many of them left out, and an operator may name itself.
    nested = "schema" in version
    for node in messages:
        if node.id >= LARGEST:
            raise InputError(f"{path}: node {node.id}; numbers of nodes are below 2^62.")
        if node.id in waits:
            raise InputError(f"{path}: node {node.id} is there twice. Number the nodes.")
        groups = {**groups_made(node), **groups} if node.type == schema.METADATA else groups
        _add(columns, rank, path, node, groups)
        needs = node.data_deps if nested else (*node.data_deps, *node.ctrl_deps)
        waits[node.id] = [each for each in needs if not nested or each != node.id]
    _link(columns, first, path, waits)
    return version


def _link(columns: Columns, first: int, path: Path, waits: Mapping[int, Sequence[int]]) -> None:
    """Add the dependencies of the nodes from row ``first`` on, sorted so that each follows them."""
    # ``waits`` has the numbers of the nodes that each node waits for.
    place = {number: row for row, number in enumerate(waits)}
    edges = [(number, needed) for number, needs in waits.items() for needed in needs]
    for number, needed in edges:
        if needed not in place:
            raise InputError(
                f"{path}: node {number} waits for node {needed}, which is unknown. "
                "Give the whole trace."
            )
    if any(place[needed] >= place[number] for number, needed in edges):
        order = in_order(waits)
        if len(order) == len(waits):  # else there is a cycle, which is refused by its nodes
            columns.reorder(first, [place[number] for number in order])
            place = {number: row for row, number in enumerate(order)}
    for number, needed in edges:
        columns.link(first + place[needed], first + place[number])


def _version(metadata: Any) -> str:
    if metadata.version:
        return str(metadata.version)
    stated = {attribute.name: _value(attribute) for attribute in metadata.attr}
    return f"before 0.0.4 (schema {stated['schema']})" if "schema" in stated else "before 0.0.4"


def _value(attribute: Any) -> Any:
    chosen = attribute.WhichOneof("value")
    if chosen is None:
        return None
    value = getattr(attribute, chosen)
    return list(value.values) if chosen.endswith("_list") else value


def _add(
    columns: Columns, rank: int, path: Path, node: Any, groups: Mapping[str, tuple[int, ...]]
) -> int:
    """Add one node to its lane, and return its row."""
    stated = {attribute.name: _value(attribute) for attribute in node.attr}
    where = f"{path}: node {node.id} ({node.name[:60]})"
    kind = KIND.get(node.type)
    if kind is None:
        raise InputError(f"{where} has the type {node.type}, which is unknown; give 1 to 7.")
    if node.duration_micros > LONGEST_US:
        raise InputError(
            f"{where} lasts {node.duration_micros} µs, a negative or impossible time; the most is "
            f"{LONGEST_US} µs. Trace it again."
        )
    duration_ps = int(node.duration_micros) * PS_PER_US
    attributes: dict[str, Any] = {"duration_ps": duration_ps}
    host = bool(stated.get("is_cpu_op"))
    lane = HOST_LANE if host else DEVICE
    if kind == COLLECTIVE and "comm_type" not in stated:
        kind = COMPUTE  # the host's call of a collective, which stands in a node of its own
    if kind == COMPUTE and host:
        kind = HOST
    if kind in (SEND, RECEIVE, COLLECTIVE):
        lane = NETWORK
        attributes["size_bytes"] = _whole(stated, "comm_size", where)
    if kind in (SEND, RECEIVE, COLLECTIVE) and _lacks(stated, kind, duration_ps, where):
        # It keeps its recorded time and waits for no other rank: its group is this rank alone.
        kind, attributes["group"] = COLLECTIVE, Group(f"rank {rank} alone", (rank,))
    elif kind == COLLECTIVE:
        attributes |= _collective(stated, where, groups)
    elif kind in (SEND, RECEIVE):
        attributes["peer"] = _whole(stated, _peer(kind), where)
        attributes["tag"] = _whole(stated, "comm_tag", where)
    else:
        attributes["size_bytes"] = _whole(stated, "tensor_size", where)
        attributes["flops"] = _whole(stated, "num_ops", where)
    return columns.add(rank, lane, Node(kind, node.name or "unnamed", int(node.id), **attributes))


def _peer(kind: int) -> str:
    """Name of the attribute with the other rank of a message."""
    return "comm_dst" if kind == SEND else "comm_src"


def _lacks(stated: Mapping[str, Any], kind: int, duration_ps: int, where: str) -> bool:
    """Return whether communication lacks an attribute that it is timed by, and keeps its time."""
    # PyTorch's traces do not say which rank a message goes to.
    if kind == COLLECTIVE:
        barrier = stated.get("comm_type") == schema.COLLECTIVES.index("barrier")
        needed = "comm_type" if barrier else "comm_size"
    else:
        needed = _peer(kind)
    if needed in stated:
        return False
    if not duration_ps:
        raise InputError(f"{where} has neither {needed} nor a duration. Add one of them.")
    return True


def _whole(stated: Mapping[str, Any], name: str, where: str) -> int:
    """Value of an attribute that must be a whole number; 0 if it is not stated."""
    value = stated.get(name, 0)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or not 0 <= value < 2**62:
        raise InputError(f"{where}: {name} is {str(value)[:40]}; it must be a whole number from 0.")
    return int(value)


def _collective(
    stated: Mapping[str, Any], where: str, groups: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Operation and group of a collective, as fields of a node."""
    number = _whole(stated, "comm_type", where)
    if number >= len(schema.COLLECTIVES):
        raise InputError(f"{where}: comm_type {number} is unknown; give one of 0 to 9.")
    involved = stated.get("involved_dim", True)
    if not all(involved if isinstance(involved, list) else [involved]):
        raise InputError(
            f"{where} involves some dimensions of a network that the trace does not describe "
            f"(involved_dim {str(involved)[:40]}). Name its ranks by pg_name and comm_group.json."
        )
    name = schema.COLLECTIVES[number]
    timed = STANDS_FOR.get(name, name)
    operation = OPERATIONS.index(timed) if timed in OPERATIONS else UNKNOWN
    group = str(stated.get("pg_name", "") or "")
    return {"operation": operation, "group": Group(group, groups.get(group, ()))}


# Process groups of Chakra traces, from a file beside them or from the node that lists them.

MADE = "process_group:init"
"""Part of the name of the node in which PyTorch lists its process groups."""
LONGEST_LIST = 2**22  # largest number of characters of a list of groups that is read
Groups = dict[str, tuple[int, ...]]


def groups_beside(paths: Sequence[Path]) -> Groups:
    """Return the members of process groups from JSON files beside the traces, as ASTRA-sim does."""
    groups: Groups = {}
    for folder in sorted({path.parent for path in paths}):
        for file in sorted(folder.glob("*.json"))[:8]:
            try:
                document = json.loads(read_bounded(file, 2**24))
            except (ValueError, RecursionError, InputError) as mistake:
                if "group" in file.name:
                    why = " ".join(str(mistake).split())[:80]
                    raise InputError(
                        f"{file} is no JSON of process groups ({why}). Correct it, or take it "
                        "out of the directory of the traces."
                    ) from None
                continue
            if isinstance(document, dict):
                groups |= _members(document.items())
            elif "group" in file.name:
                raise InputError(f"{file} is no object of process groups by name. Correct it.")
    return groups


def groups_made(node: Any) -> Groups:
    """Return the members of the process groups that a node lists, if it is PyTorch's list."""
    text = node.inputs.values
    if MADE not in node.name or not text or len(text) > LONGEST_LIST:
        return {}
    try:
        stated = ast.literal_eval(text)
        listed = json.loads(stated[0] if isinstance(stated, list | tuple) else stated)
    except (ValueError, SyntaxError, TypeError, IndexError, MemoryError, RecursionError):
        return {}
    entries = (
        [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    )
    return _members((entry.get("pg_name", ""), _stated_ranks(entry)) for entry in entries)


def _stated_ranks(group: Mapping[str, Any]) -> Any:
    """Ranks of a group, which PyTorch leaves out of the group of all ranks."""
    size = group.get("group_size", group.get("pg_size"))
    stated = group.get("ranks")
    if stated == [] and isinstance(size, int) and 0 < size <= 2**20:
        return list(range(size))
    return stated


def _members(named: Any) -> Groups:
    """Members by name of the groups whose list of ranks is sound."""
    return {
        str(name): tuple(ranks)
        for name, ranks in named
        if isinstance(ranks, list)
        and all(type(rank) is int and 0 <= rank < 2**31 for rank in ranks)
    }


# Writer, so that other simulators run the same work. Every rank has a file with its kernels and
# their durations, collectives with their size and process group, and messages to other ranks. The
# members of the groups stand in ``comm_group.json`` beside the files. ASTRA-sim reads the name of a
# group as a whole number, by ``std::stoi`` in ``Workload::initialize_comm_groups`` and
# ``extract_comm_group``, and takes 0 for the group of all ranks; groups are therefore numbered from
# 1, and nodes have the name as ``pg_desc`` beside it.

VERSION = "0.0.4"
TYPE = {kind: number for number, kind in reversed(KIND.items())} | {HOST: schema.COMPUTE}
"""Type of the message of a node of each kind."""


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
    """Number of each group as text; empty for an unnamed group of all ranks."""
    # Names that are such numbers already, as those of a trace for ASTRA-sim are, stay as they are.
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
            serialize_length_prefixed(message, file)  # type: ignore[arg-type]


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


MOST_WRITTEN = 4096  # largest number of ranks that are written


def training_recording(step: Iteration) -> Recording:
    """Return the work of every rank of an unfolded step."""
    program = step.program
    if int(program.count.max()) > 1:
        raise InputError(
            "a folded step has one rank for many. Run it with --unfolded to write all of them."
        )
    if len(program) > MOST_WRITTEN:
        raise InputError(f"{len(program):,} ranks; at most {MOST_WRITTEN:,} are written.")
    columns = Columns()
    communications = _communications(program)
    for row in range(len(program)):
        _add_rank(columns, program, row, communications)
    facts: dict[str, str | int | float] = {"format": "cluster-sim", "world": len(program)}
    facts["iterations"] = 1
    return columns.finish(dict.fromkeys(range(len(program)), step.joined.name), facts)


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
