"""Reader of GOAL, LogGOPSim's group operation assembly language, as text.

``rank R { … }`` holds lines ``label: calc NANOSECONDS``, ``label: send BYTESb to RANK tag T``,
``label: recv BYTESb from RANK tag T``, and ``label requires label`` (after its end) or
``irequires`` (after its start, read as after its end).
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from topologies.support.errors import InputError
from topologies.support.units import PS_PER_NS
from workloads.traces.recording import (
    COMPUTE,
    RECEIVE,
    SEND,
    Columns,
    Node,
    Recording,
    read_bounded,
)

LONGEST_NS = 2**61 // PS_PER_NS
RANKS = re.compile(r"num_ranks\s+(\d+)")
RANK = re.compile(r"rank\s+(\d+)\s*\{")
WORK = re.compile(r"(\w+):\s*calc\s+(\d+)(?:\s+(?:cpu|nic)\s+\d+)*")
TALK = re.compile(
    r"(\w+):\s*(send|recv)\s+(\d+)b\s+(?:to|from)\s+(\d+)(?:\s+tag\s+(\d+))?(?:\s+(?:cpu|nic)\s+\d+)*"
)
NUMBER = re.compile(r"\b\d{18,}")  # numbers of 18 digits and more, which no time, size or rank has
NEEDS = re.compile(r"(\w+)\s+i?requires\s+(\w+)")


def read_goal(paths: Sequence[Path]) -> Recording:
    """Read a GOAL schedule."""
    if len(paths) != 1:
        raise InputError(f"{paths[0]}: a GOAL file holds all ranks. Give one file.")
    path = paths[0]
    text = read_bounded(path).decode("utf-8-sig", "replace")
    columns, rank, ranks = Columns(), -1, 0
    rows: dict[str, int] = {}
    for number, raw in enumerate(io.StringIO(text), start=1):
        line = raw.split("//")[0].strip().rstrip(";")
        if not line:
            continue
        if NUMBER.search(line):
            raise InputError(
                f"{path}, line {number}: {line[:60]!r} has a number of over 17 digits. "
                "Correct the line."
            )
        if total := RANKS.fullmatch(line):
            ranks = int(total[1])
        elif (begun := RANK.fullmatch(line)) and rank < 0:
            rank, rows = int(begun[1]), {}
        elif line == "}":
            rank = -1
        elif rank < 0 or not _line(columns, rank, rows, line, number):
            raise InputError(f"{path}, line {number}: {line[:60]!r} is no GOAL. Correct the line.")
    if rank >= 0:
        raise InputError(f"{path} ends within rank {rank}, before its brace. Copy the file again.")
    if not len(columns):
        raise InputError(f"{path} holds no operations. Give a GOAL schedule.")
    recording = columns.finish({}, {"format": "goal", "world": ranks, "iterations": 1})
    last = int(recording.rank.max())
    if ranks and last >= ranks:
        raise InputError(f"{path}: rank {last} of num_ranks {ranks}. Correct num_ranks.")
    return replace(recording, files=dict.fromkeys(recording.ranks.tolist(), str(path)))


def _line(columns: Columns, rank: int, rows: dict[str, int], line: str, number: int) -> bool:
    """Add one line of a rank, and return whether it was understood."""
    if work := WORK.fullmatch(line):
        if int(work[2]) > LONGEST_NS:
            return False
        calculation = Node(COMPUTE, "calc", number, duration_ps=int(work[2]) * PS_PER_NS)
        rows[work[1]] = columns.add(rank, 0, calculation)
    elif talk := TALK.fullmatch(line):
        kind = SEND if talk[2] == "send" else RECEIVE
        size_bytes, peer, tag = int(talk[3]), int(talk[4]), int(talk[5] or 0)
        message = Node(kind, talk[2], number, size_bytes=size_bytes, peer=peer, tag=tag)
        rows[talk[1]] = columns.add(rank, 0, message)
    elif needs := NEEDS.fullmatch(line):
        if needs[1] not in rows or needs[2] not in rows:
            return False
        columns.link(rows[needs[2]], rows[needs[1]])
    else:
        return False
    return True
