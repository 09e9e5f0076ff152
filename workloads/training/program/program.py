"""The program of an iteration: one stream of ops a pipeline stage, and the exchanges of ranks.

A few tables hold the ops of a rank of each stage, and the ranks and duration of each communication.
``execution.lower`` tiles them over ranks to a Schedule; ``fold`` keeps one of each kind of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import LayerOp
from workloads.training.plan.placement import Placement
from workloads.training.program.exchanges import Exchange, Exchanges
from workloads.training.program.ops import Catalog
from workloads.training.program.shared_memory import (
    Draws,
    contending,
    draws,
    memory_bytes_per_s,
    overlaps,
)
from workloads.training.program.shared_parts import SharedParts
from workloads.training.program.stage import stage_ops
from workloads.training.program.streams import Stream, marks_of, stream_of


class Role(NamedTuple):
    """Part that some members of an exchange have alike.

    Attributes
    ----------
    stage : int
        Stage of all of them.
    ops : int64 array (calls,)
        Op of each call, in the stream of that stage.
    places : int64 array
        Columns of ``Exchange.members``.
    """

    stage: int
    ops: IntArray
    places: IntArray


@dataclass(frozen=True, eq=False)
class Program:
    """An iteration before it is tiled over ranks.

    Attributes
    ----------
    steps : tuple of LayerOp
    step_ps : int64 array (steps,)
        Time of each step's kernel [ps].
    streams : tuple of Stream
        One a stage.
    stage, rank, chip, core, count : int64 array (rows,)
        For each row of ranks its stage, number, chip, place on the chip, and how many equal ranks
        it stands for.
    exchanges : tuple of Exchange
    draws : Draws
        Bytes that each step's kernel draws from the memory of its rank, arrays (steps,).
    memory_bytes_per_s : int
        Rate at which a rank's kernels and collectives can draw [B/s]; 0 where that is left out.
    facts : tuple of (str, value)
    """

    steps: tuple[LayerOp, ...]
    step_ps: IntArray
    streams: tuple[Stream, ...]
    stage: IntArray
    rank: IntArray
    chip: IntArray
    core: IntArray
    count: IntArray
    exchanges: tuple[Exchange, ...]
    draws: Draws
    memory_bytes_per_s: int
    facts: tuple[tuple[str, str | int], ...]

    def __len__(self) -> int:
        return len(self.stage)

    def roles(self, exchange: Exchange) -> Iterator[Role]:
        """The roles of an exchange, in their order."""
        for ops, places in zip(exchange.ops, exchange.places, strict=True):
            yield Role(int(self.stage[exchange.members[0, places[0]]]), ops, places)


def program(
    shapes: RankShapes,
    placement: Placement,
    iterations: int = 1,
    shared: SharedParts | None = None,
) -> Program:
    """Return the program of one iteration, or of several in a row, on placed ranks.

    ``shared`` are parts that programs on the same cluster have in common.
    """
    plan, catalog = shapes.plan, Catalog()
    shared = shared or SharedParts(placement.cluster)
    passes = shared.passes(shapes)
    all_ops = [stage_ops(shapes, stage, catalog, iterations, passes) for stage in range(plan.pp)]
    marks = marks_of(catalog)
    streams = tuple(stream_of(ops, marks) for ops in all_ops)
    memory = memory_bytes_per_s(shapes) if overlaps(plan) else 0
    per_token = shapes.model.experts.per_token if shapes.model.experts else 1
    exchanges = Exchanges(placement, catalog, streams, memory, per_token, shared.costs)
    kernel_ps, size_bytes = catalog.column("duration_ps"), catalog.column("size_bytes")
    drawn, step_ps = draws(size_bytes, kernel_ps, memory)
    ranks = np.arange(plan.ranks)
    built = Program(
        steps=tuple(catalog.steps),
        step_ps=step_ps,
        streams=streams,
        stage=placement.stage,
        rank=ranks,
        chip=placement.chip,
        core=ranks % plan.ranks_per_chip,
        count=np.ones(plan.ranks, np.int64),
        exchanges=tuple(exchanges.all()),
        draws=drawn,
        memory_bytes_per_s=memory,
        facts=(("model", shapes.model.name), ("cluster", placement.cluster.name)),
    )
    return sharing(built, memory) if memory else built


def sharing(program: Program, memory_bytes_per_s: int) -> Program:
    """Return the program on memories of this rate, with what contends for them marked."""
    stream_of = np.array([step.stream for step in program.steps])
    rates = [program.draws.rate_bytes_per_s[stream.ops.step] for stream in program.streams]
    for exchange in program.exchanges:
        most = exchange.draws.rate_bytes_per_s.max(axis=0)
        for role in program.roles(exchange):
            rates[role.stage][role.ops] = most
    streams = [
        replace(
            stream,
            contends=contending(
                stream_of[stream.ops.step], stream.src, stream.dst, rate, memory_bytes_per_s
            ),
        )
        for stream, rate in zip(program.streams, rates, strict=True)
    ]
    return replace(program, streams=tuple(streams), memory_bytes_per_s=memory_bytes_per_s)
