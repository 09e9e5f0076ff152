"""Layout of a schedule: where the ops of each rank and the joins of each group stand.

Ops are numbered rank by rank. Behind them stand the joins, two for each call of each group: the
first when all members are ready for the call, the second when it is done. A group of one row, whose
ranks are all equal after folding, waits for nobody and has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray
from workloads.training.program.exchanges import Exchange
from workloads.training.program.program import Program

OWN = 0  # column of ``Layout.offset`` that holds a rank's first op; exchange e has column e + 1


@dataclass(frozen=True, eq=False)
class Layout:
    """Places of the ops of each row of a program, and of the joins of each group."""

    ops: int  # ops of all ranks
    total: int  # ops and joins
    # (rows, 1 + exchanges): first op of a rank, and first join of its group in each exchange
    offset: IntArray

    def joins(self, program: Program, number: int, column: IntArray) -> IntArray:
        """Return the part of a column that belongs to the joins of an exchange, (groups, joins)."""
        exchange = program.exchanges[number]
        shape = len(exchange.members), joins_of_group(exchange)
        first = int(self.offset[exchange.members[0, 0], number + 1])
        return column[first : first + shape[0] * shape[1]].reshape(shape)


def lay_out(program: Program) -> Layout:
    """Return the places of the ops of all rows and of the joins of all groups."""
    length = np.array([len(stream.ops) for stream in program.streams])[program.stage]
    base = np.cumsum(length) - length
    offset = np.full((len(program), 1 + len(program.exchanges)), -1, np.int64)
    offset[:, OWN] = base
    ops = at = int(length.sum())
    for number, exchange in enumerate(program.exchanges, start=1):
        groups, joins = len(exchange.members), joins_of_group(exchange)
        offset[exchange.members, number] = at + joins * np.arange(groups)[:, None]
        at += joins * groups
    return Layout(ops, at, offset)


def joins_of_group(exchange: Exchange) -> int:
    """Return the number of joins of each group of an exchange."""
    alone = exchange.members.shape[1] == 1
    return 0 if alone else 2 * exchange.calls


def calls_of_stages(program: Program) -> list[tuple[IntArray, IntArray]]:
    """Return the exchange and the call of each op of each stage; -1 for an op that meets no other.

    An op of a group of one row meets no other.
    """
    lengths = [len(stream.ops) for stream in program.streams]
    calls: list[tuple[IntArray, IntArray]] = [
        (np.full(ops, -1, np.int64), np.zeros(ops, np.int64)) for ops in lengths
    ]
    for number, shared in enumerate(program.exchanges):
        if not joins_of_group(shared):
            continue
        for role in program.roles(shared):
            exchange, call = calls[role.stage]
            exchange[role.ops] = number
            call[role.ops] = np.arange(shared.calls)
    return calls


def by_step(program: Program, column: IntArray) -> list[IntArray]:
    """Return a column of the program's steps for the ops of each stage."""
    return [column[stream.ops.step] for stream in program.streams]


def tile(
    program: Program,
    layout: Layout,
    column: IntArray,
    of_stage: list[IntArray],
    more: IntArray | None = None,
) -> None:
    """Write into a column, for every row, the values that all ranks of its stage share.

    ``column`` (ops and joins,): column that is written. ``of_stage`` (ops of the stage,): values
    for each stage. ``more`` (rows,): number that is added to the values of each row.
    """
    # Consecutive rows of one stage are written at once, as indices of all ops would take longer to
    # compute, and more memory, than the column itself.
    bounds = np.flatnonzero(np.diff(program.stage, prepend=-1, append=-1))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        values = of_stage[program.stage[low]]
        begin = int(layout.offset[low, OWN])
        part = column[begin : begin + (high - low) * len(values)].reshape(high - low, len(values))
        part[:] = values
        if more is not None:
            part += more[low:high, None].astype(column.dtype)
