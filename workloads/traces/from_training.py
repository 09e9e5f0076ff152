"""Recording of a simulated training step, for export to other simulators."""

from __future__ import annotations

from topologies.errors import InputError
from workloads.traces.recording import (
    COLLECTIVE,
    COMPUTE,
    HOST,
    OPERATIONS,
    RECEIVE,
    SEND,
    Columns,
    Group,
    Node,
    Recording,
)
from workloads.training.iteration import Iteration
from workloads.training.layers.steps import HOST as HOST_STREAM
from workloads.training.program.program import Program

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
