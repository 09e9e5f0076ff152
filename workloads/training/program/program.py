"""The program of an iteration: the ops of a rank of each stage, and the exchanges between ranks.

A program is small: it holds one stream of ops for each pipeline stage, and the members and times of
each exchange. ``fold`` keeps one of each class of equal ranks, and ``execution.lower`` repeats the
streams for all ranks as a Schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import BoolArray, IntArray, present
from workloads.training.layers.layer import as_tried
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import STREAM_KINDS, LayerOp
from workloads.training.plan.placement import Placement
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import (
    GroupCosts,
    Groups,
    JoinedCosts,
    PlacedGroups,
    SharedParts,
)
from workloads.training.program.ops import Catalog
from workloads.training.program.shared_memory import (
    Draws,
    contending,
    draws,
    memory_bytes_per_s,
    overlaps,
)
from workloads.training.program.stage import RETURNING, Stream, streams

# Exchanges: the ranks that communicate with each other, their ops, and the time of every call.

WITHIN = ("tp", "cp", "etp", "ep", "dp", "edp")  # axes whose groups lie within one stage
TRANSFERS = ("forward", "backward")
"""Beginnings of the names of axes between stages, on which one rank sends and another receives."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """Communication within each of many groups of ranks."""

    # All groups make the same series of calls. A call of a group starts when all of its members are
    # ready for it.

    axis: str  # axis of the plan along which the groups lie, or of a transfer between stages
    members: IntArray  # (groups, members): ranks of each group, by their row in the program
    # (members,): role of each member, an index into ``ops``. Only members on different stages, or a
    # sender and a receiver, differ in their roles.
    role: IntArray
    # (calls,): for each role, its op of every call, in the stream of its stage
    ops: tuple[IntArray, ...]
    kind: IntArray  # (groups,): row of ``duration_ps`` of each group
    duration_ps: IntArray  # (kinds, calls): time of each call [ps]
    # Bytes that each call reads and writes in the memory of a member, arrays (kinds, calls)
    draws: Draws

    @property
    def calls(self) -> int:
        """Number of calls of each group."""
        return len(self.ops[0])

    @cached_property
    def places(self) -> tuple[IntArray, ...]:
        """Columns of ``members`` that have each role."""
        return tuple(np.flatnonzero(self.role == role) for role in range(len(self.ops)))


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Builder of the exchanges of a program, axis by axis and stage by stage."""

    # The costs of calls are computed once for all stages that make the same calls on groups whole
    # periods apart.

    placed: PlacedGroups
    plan: ParallelPlan
    steps: Sequence[LayerOp]
    streams: tuple[Stream, ...]
    # (stages,): rate of a rank's memory; 0 where contention is not simulated [B/s]
    memory_bytes_per_s: IntArray
    per_token: int  # experts of a token
    costs: GroupCosts | JoinedCosts
    _worked_out: dict[tuple[object, ...], tuple[Draws, IntArray]] = field(default_factory=dict)

    def all(self) -> Iterator[Exchange]:
        """Yield every exchange that has a call."""
        stages = len(self.streams)
        for axis in WITHIN:
            if (axis, "") in self._calls:
                for stage, groups in enumerate(self.placed.within(axis)):
                    op = self._ops(axis, stage)
                    if len(op):
                        alike = np.zeros(groups.ranks.shape[1], np.int64)
                        yield self._exchange(axis, groups, alike, (op,), stage)
        if stages > 1:
            yield from self._pipeline(stages)
        # The gradients' norm is summed among ranks of all stages, with a role for each stage.
        ops = tuple(self._ops("norm", stage) for stage in range(stages))
        if len(ops[0]):
            groups = self.placed.norm
            role = self.placed.placement.stage[groups.ranks[0]]
            yield self._exchange("norm", groups, role, ops, 0)

    def _pipeline(self, stages: int) -> Iterator[Exchange]:
        """Transfers between neighbouring stages, and the sum of a tied embedding's gradients."""
        # With several chunks a stage, the last stage sends to the first, unless the schedule turns.
        round_trip = self.plan.vpp > 1 and not self.plan.pipeline.turns
        ahead, back = self.placed.ahead, self.placed.back
        for s in range(stages if round_trip else stages - 1):
            after = (s + 1) % stages
            yield from self._between("forward", ahead[s], (s, after))
            yield from self._between("backward", back[s], (after, s))
            yield from self._between("forward" + RETURNING, back[s], (after, s))
            yield from self._between("backward" + RETURNING, ahead[s], (s, after))
        yield from self._between("tie", self.placed.ends, (0, stages - 1))

    def _between(self, axis: str, pairs: Groups, stages: tuple[int, int]) -> Iterator[Exchange]:
        """Exchange of pairs of ranks on two stages: a sender and a receiver, or equals of a tie."""
        sends, receives = ("", "") if axis == "tie" else ("send", "receive")
        sent = self._ops(axis, stages[0], sends)
        if len(sent):
            ops = sent, self._ops(axis, stages[1], receives)
            yield self._exchange(axis, pairs, np.arange(2), ops, stages[0])

    def _ops(self, axis: str, stage: int, part: str = "") -> IntArray:
        """Ops of an axis in a stage, int64 (calls,)."""
        # Transfers are sorted by microbatch, so that the calls of sender and receiver match: two
        # stages take their microbatches in different orders, but the chunks of one in the same.
        number = self._calls.get((axis, part))
        rows = self._rows[stage][0 if number is None else number]
        if number is None:
            return rows[:0]
        if not part:
            return rows
        return rows[np.argsort(self.streams[stage].ops.microbatch[rows], kind="stable")]

    @cached_property
    def _numbers(self) -> IntArray:
        """Number of each step among ``_calls``, int8 (steps,); 0 for a kernel."""
        return np.array([self._calls[_axis_and_part(step)] for step in self.steps], np.int8)

    @cached_property
    def _calls(self) -> dict[tuple[str, str], int]:
        """Numbers of the axes of steps, with sends and receives apart; kernels have number 0."""
        parts = dict.fromkeys([("", ""), *(_axis_and_part(step) for step in self.steps)])
        return {part: number for number, part in enumerate(parts)}

    @cached_property
    def _rows(self) -> list[list[IntArray]]:
        """Ops of each stage for every number of ``_calls``, in program order."""
        rows: list[list[IntArray]] = []
        for stream in self.streams:
            number = self._numbers[stream.ops.step]
            order = np.argsort(number, kind="stable")
            ends = np.cumsum(np.bincount(number, minlength=len(self._calls))).tolist()
            rows.append([order[low:high] for low, high in pairwise([0, *ends])])
        return rows

    def _exchange(
        self, axis: str, groups: Groups, role: IntArray, ops: tuple[IntArray, ...], stage: int
    ) -> Exchange:
        used, where = present(self.streams[stage].ops.step[ops[0]])
        drawn, lasts = self._costs(groups.chips, used, int(self.memory_bytes_per_s[stage]))
        of_calls = Draws(*(column[:, where] for column in drawn))
        return Exchange(axis, groups.ranks, role, ops, groups.kind, lasts[:, where], of_calls)

    def _costs(self, groups: IntArray, used: IntArray, memory: int) -> tuple[Draws, IntArray]:
        """Memory traffic and times [ps] of steps on groups of chips, arrays (groups, steps)."""
        # ``groups`` (groups, members): chips of each group. ``used`` (steps,): numbers of the
        # steps. ``memory``: rate of a rank's memory [B/s].
        key = memory, used.tobytes(), *(self.costs.place_key(chips) for chips in groups)
        if key not in self._worked_out:
            steps = [self.steps[number] for number in used.tolist()]
            time_ps = [
                self.costs.times_ps(chips, steps, self.plan, self.per_token) for chips in groups
            ]
            drawn_bytes = np.zeros((len(groups), len(steps)), np.int64)
            if memory:
                drawn_bytes[:] = [self.costs.drawn_bytes(chips, steps) for chips in groups]
            self._worked_out[key] = draws(drawn_bytes, np.array(time_ps), memory)
        return self._worked_out[key]


def _axis_and_part(step: LayerOp) -> tuple[str, str]:
    """Axis of a step and, for a transfer between stages, ``send`` or ``receive``."""
    return step.axis, step.name.rpartition(".")[2] if step.axis.startswith(TRANSFERS) else ""


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
    # Rate that the memory of a rank of each stage, or of all, gives its kernels and collectives
    # together [B/s]; 0 where contention for it is not simulated
    memory_bytes_per_s: int | IntArray
    facts: tuple[tuple[str, str | int], ...]  # names of model and cluster, for the trace

    def __len__(self) -> int:
        return len(self.stage)

    @cached_property
    def stream_of(self) -> IntArray:
        """Stream of each step, int64 (steps,)."""
        return np.array([step.stream for step in self.steps])

    @cached_property
    def communicates(self) -> tuple[BoolArray, ...]:
        """Marks of the ops of each stage that are communication, bool (ops,) each."""
        marks = tuple(np.zeros(len(stream.ops), np.bool_) for stream in self.streams)
        for exchange in self.exchanges:
            for role in self.roles(exchange):
                marks[role.stage][role.ops] = True
        return marks

    def steps_of(self, exchange: Exchange) -> IntArray:
        """Return the step of each call of an exchange, which is that of its first member."""
        stage = self.stage[exchange.members[0, 0]]
        steps: IntArray = self.streams[stage].ops.step[exchange.ops[exchange.role[0]]]
        return steps

    def roles(self, exchange: Exchange) -> Iterator[Role]:
        """Yield the roles of an exchange, in the order of ``exchange.ops``."""
        for ops, places in zip(exchange.ops, exchange.places, strict=True):
            yield Role(int(self.stage[exchange.members[0, places[0]]]), ops, places)


def program(
    shapes: RankShapes,
    placement: Placement,
    iterations: int = 1,
    shared: SharedParts | None = None,
    later: Sequence[RankShapes] = (),
) -> Program:
    """Return the program of one iteration, or of several in a row, on placed ranks."""
    # ``later``: shapes on each of the later ones of several joined clusters.
    plan, catalog = shapes.plan, Catalog()
    shared = shared or SharedParts()
    joined, kinds = placement.joined, (shapes, *later)
    of_stages = joined.of_stages if joined else np.zeros(plan.pp, np.int64)
    per_token = shapes.model.experts.per_token if shapes.model.experts else 1
    placed, costs = shared.placed(placement), shared.costs(joined or placement.cluster)

    def slowest_s(stage: int, step: LayerOp) -> float:
        """Time of a step within a stage in its slowest group [s]."""
        groups = placed.within(step.axis)[stage].chips
        return max(costs.times_ps(each, [step], plan, per_token)[0] for each in groups) / PS_PER_S

    firsts = np.unique(of_stages, return_index=True)[1].tolist()
    tried = [
        as_tried(each, partial(slowest_s, stage)) for each, stage in zip(kinds, firsts, strict=True)
    ]
    of_ranks = streams([tried[kind] for kind in of_stages], catalog, iterations, shared)
    rates = np.array([memory_bytes_per_s(each) if overlaps(plan) else 0 for each in kinds])
    memory = rates[of_stages]
    exchanges = Exchanges(placed, plan, catalog.steps, of_ranks, memory, per_token, costs)
    kernel_ps, size_bytes = catalog.column("duration_ps"), catalog.column("size_bytes")
    of_steps = np.zeros(len(kernel_ps), np.int64)
    for stream, rate in zip(of_ranks, memory, strict=True):
        of_steps[stream.ops.step] = rate
    drawn, step_ps = draws(size_bytes, kernel_ps, of_steps)
    ranks = np.arange(plan.ranks)
    built = Program(
        steps=tuple(catalog.steps),
        step_ps=step_ps,
        streams=of_ranks,
        stage=placement.stage,
        rank=ranks,
        domain=placement.domain,
        chip=placement.chip,
        core=ranks % plan.ranks_per_chip,
        count=np.ones(plan.ranks, np.int64),
        exchanges=tuple(exchanges.all()),
        draws=drawn,
        memory_bytes_per_s=memory if joined else int(rates[0]),
        facts=(("model", shapes.model.name), ("cluster", (joined or placement.cluster).name)),
    )
    return sharing(built, memory) if rates.any() else built


def sharing(program: Program, memory_bytes_per_s: int | IntArray) -> Program:
    """Return the program with ops marked that contend for memories of these rates [B/s]."""
    rates, most = _rates_bytes_per_s(program), of_each_stage(program, memory_bytes_per_s)
    streams = [
        replace(
            stream,
            contends=contending(
                program.stream_of[stream.ops.step], stream.src, stream.dst, rate, int(greatest)
            ),
        )
        for stream, rate, greatest in zip(program.streams, rates, most, strict=True)
    ]
    return replace(program, streams=tuple(streams), memory_bytes_per_s=memory_bytes_per_s)


def of_each_stage(program: Program, rates: int | IntArray) -> IntArray:
    """Return a rate for each stage, (stages,), from one of each or of all."""
    return np.broadcast_to(np.asarray(rates, np.int64), len(program.streams))


def fits_in_memory_rate(program: Program) -> bool:
    """Return whether the memory of every rank serves its contending ops at their full rates."""
    # A stream runs one op at a time. So ops are never slowed if the highest rates of all streams
    # together do not exceed the memory's, and the run has the times that it has without contention.
    most = of_each_stage(program, program.memory_bytes_per_s)
    for stream, rates, limit in zip(
        program.streams, _rates_bytes_per_s(program), most, strict=True
    ):
        highest = np.zeros(len(STREAM_KINDS), np.int64)
        on_stream = program.stream_of[stream.ops.step[stream.contends]]
        np.maximum.at(highest, on_stream, rates[stream.contends])
        if highest.sum() > limit:
            return False
    return True


def _rates_bytes_per_s(program: Program) -> list[IntArray]:
    """Highest rate at which each op of each stage reads and writes memory [B/s]."""
    rates = [program.draws.rate_bytes_per_s[stream.ops.step] for stream in program.streams]
    for exchange in program.exchanges:
        most = exchange.draws.rate_bytes_per_s.max(axis=0)
        for role in program.roles(exchange):
            rates[role.stage][role.ops] = most
    return rates
