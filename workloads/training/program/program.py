"""The program of an iteration: the ops of a rank of each stage, and the exchanges between ranks.

A program is small: it holds one stream of ops for each pipeline stage, and the members and times of
each exchange. ``fold`` keeps one of each class of equal ranks, and ``execution.lower`` repeats the
streams for all ranks as a Schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray
from topologies.routing.scale_out import period
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import STREAM_KINDS, LayerOp
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
from workloads.training.program.shared_parts import SharedParts, digest
from workloads.training.program.stage import (
    StageParts,
    Stream,
    beside,
    marks_of,
    stage_ops,
    stage_parts,
    stream_of,
)

NUMBERS_OF_AN_OP = 8
"""Numbers that a stream has for each of its ops: four columns, and the ends of about two edges."""


class Role(NamedTuple):
    """Role that some members of an exchange have in common."""

    stage: int  # stage of these members
    ops: IntArray  # (calls,): op of each call, in the stream of that stage
    places: IntArray  # columns of ``Exchange.members`` that have the role


@dataclass(frozen=True, eq=False)
class Program:
    """An iteration, or several in a row, before its streams are repeated for all ranks."""

    steps: tuple[LayerOp, ...]  # the different steps of all stages; ops refer to them by number
    step_ps: IntArray  # (steps,): time of each step's kernel [ps]
    streams: tuple[Stream, ...]  # ops of a rank of each stage
    # stage, rank, domain, chip, core, count: (rows,): rows, each for a rank or a class of equal
    # ranks: its stage, its (first) rank, that rank's domain counted anew wherever the switches
    # above repeat, its chip and place on the chip, and the number of ranks of the class
    stage: IntArray
    rank: IntArray
    domain: IntArray
    chip: IntArray
    core: IntArray
    count: IntArray
    exchanges: tuple[Exchange, ...]
    # Bytes that each step's kernel reads and writes in its rank's memory, arrays (steps,)
    draws: Draws
    # Rate that a rank's memory gives its kernels and collectives together [B/s]; 0 where contention
    # for it is not simulated
    memory_bytes_per_s: int
    facts: tuple[tuple[str, str | int], ...]  # names of model and cluster, for the trace

    def __len__(self) -> int:
        return len(self.stage)

    def roles(self, exchange: Exchange) -> Iterator[Role]:
        """Yield the roles of an exchange, in the order of ``exchange.ops``."""
        for ops, places in zip(exchange.ops, exchange.places, strict=True):
            yield Role(int(self.stage[exchange.members[0, places[0]]]), ops, places)


def program(
    shapes: RankShapes,
    placement: Placement,
    iterations: int = 1,
    shared: SharedParts | None = None,
) -> Program:
    """Return the program of one iteration, or of several in a row, on placed ranks."""
    plan, catalog = shapes.plan, Catalog()
    shared = shared or SharedParts()
    streams = _streams(shapes, catalog, iterations, shared)
    memory = memory_bytes_per_s(shapes) if overlaps(plan) else 0
    per_token = shapes.model.experts.per_token if shapes.model.experts else 1
    placed = shared.placed(placement)
    exchanges = Exchanges(
        placed, plan, catalog, streams, memory, per_token, shared.costs(placement.cluster)
    )
    kernel_ps, size_bytes = catalog.column("duration_ps"), catalog.column("size_bytes")
    drawn, step_ps = draws(size_bytes, kernel_ps, memory)
    ranks, cluster = np.arange(plan.ranks), placement.cluster
    built = Program(
        steps=tuple(catalog.steps),
        step_ps=step_ps,
        streams=streams,
        stage=placement.stage,
        rank=ranks,
        domain=placement.chip % period(cluster) // cluster.chips_per_domain,
        chip=placement.chip,
        core=ranks % plan.ranks_per_chip,
        count=np.ones(plan.ranks, np.int64),
        exchanges=tuple(exchanges.all()),
        draws=drawn,
        memory_bytes_per_s=memory,
        facts=(("model", shapes.model.name), ("cluster", cluster.name)),
    )
    return sharing(built, memory) if memory else built


def _streams(
    shapes: RankShapes, catalog: Catalog, iterations: int, shared: SharedParts
) -> tuple[Stream, ...]:
    """Streams of all stages, whose steps are added to a catalog."""
    plan, built = shapes.plan, shared.passes(shapes)
    parts = [stage_parts(shapes, stage, catalog, built) for stage in range(plan.pp)]
    marks = marks_of(catalog)

    alike = (plan.pipeline.pairs_passes, plan.microbatches, beside(plan), iterations, *marks)

    def stream(of_stage: StageParts) -> Stream:
        """Ops of a stage, shared with equal ones."""
        origin = digest((alike, of_stage.contents(), *of_stage.order.passes))

        def make() -> Stream:
            return stream_of(stage_ops(of_stage, plan, marks.stream, iterations), marks, origin)

        size = NUMBERS_OF_AN_OP * iterations * of_stage.ops
        return shared.structures.once(make, size, "stream", origin)

    return tuple(stream(of_stage) for of_stage in parts)


def sharing(program: Program, memory_bytes_per_s: int) -> Program:
    """Return the program with ops marked that contend for a memory of this rate [B/s]."""
    stream_of, rates = _stream_of(program), _rates_bytes_per_s(program)
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


def fits_in_memory_rate(program: Program) -> bool:
    """Return whether the memory of every rank serves its contending ops at their full rates."""
    # A stream runs one op at a time. So ops are never slowed if the highest rates of all streams
    # together do not exceed the memory's, and the run has the times that it has without contention.
    stream_of = _stream_of(program)
    for stream, rates in zip(program.streams, _rates_bytes_per_s(program), strict=True):
        highest = np.zeros(len(STREAM_KINDS), np.int64)
        on_stream = stream_of[stream.ops.step[stream.contends]]
        np.maximum.at(highest, on_stream, rates[stream.contends])
        if highest.sum() > program.memory_bytes_per_s:
            return False
    return True


def _stream_of(program: Program) -> IntArray:
    """Stream of each step, int64 (steps,)."""
    return np.array([step.stream for step in program.steps])


def _rates_bytes_per_s(program: Program) -> list[IntArray]:
    """Highest rate at which each op of each stage reads and writes memory [B/s]."""
    rates = [program.draws.rate_bytes_per_s[stream.ops.step] for stream in program.streams]
    for exchange in program.exchanges:
        most = exchange.draws.rate_bytes_per_s.max(axis=0)
        for role in program.roles(exchange):
            rates[role.stage][role.ops] = most
    return rates
