"""The program of an iteration: one stream of ops a pipeline stage, and the exchanges of ranks.

A few tables hold the ops of a rank of each stage, and the ranks and duration of each communication.
``execution.lower`` tiles them over ranks to a Schedule; ``fold`` keeps one of each kind of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from topologies.arrays import BoolArray, IntArray, present
from workloads.training.layers.shapes import RankShapes
from workloads.training.layers.steps import CC_DP, ENGINE, LayerOp
from workloads.training.plan.placement import Placement, geometries
from workloads.training.program.group_costs import GroupCosts
from workloads.training.program.ops import Catalog, Ops, edges
from workloads.training.program.shared_memory import (
    Draws,
    contending,
    draws,
    memory_bytes_per_s,
    overlaps,
)
from workloads.training.program.stage import BuiltPasses, stage_ops
from workloads.training.program.transfers import RETURNING

WITHIN = ("tp", "cp", "etp", "ep", "dp", "edp")
"""Axes whose groups lie within one stage."""


@dataclass(frozen=True, eq=False)
class Stream:
    """Ops that every rank of one stage runs.

    Attributes
    ----------
    ops : Ops
    src, dst : int64 array (edges,)
        Op ``dst`` waits for op ``src``; in order of ``dst``.
    contends : bool array (ops,)
        Ops that may ask for more than the rank's memory gives.
    """

    ops: Ops
    src: IntArray
    dst: IntArray
    contends: BoolArray


@dataclass(frozen=True, eq=False)
class Exchange:
    """A communication of many groups of ranks: each call starts when all who must are ready.

    Attributes
    ----------
    axis : str
    members : int64 array (groups, members)
        Ranks, by their row in the program.
    role : int64 array (members,)
        Which of ``ops`` each member does.
    ops : tuple of int64 array (calls,)
        For each role, its op of every call, in the stream of its stage.
    kind : int64 array (groups,)
        Row of ``duration_ps`` of each group.
    duration_ps : int64 array (kinds, calls)
    draws : Draws
        Bytes that each call draws from the memory of a member, arrays (kinds, calls).
    """

    axis: str
    members: IntArray
    role: IntArray
    ops: tuple[IntArray, ...]
    kind: IntArray
    duration_ps: IntArray
    draws: Draws

    @property
    def calls(self) -> int:
        """Communications of each group."""
        return len(self.ops[0])


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
        for role, ops in enumerate(exchange.ops):
            places = np.flatnonzero(exchange.role == role)
            yield Role(int(self.stage[exchange.members[0, places[0]]]), ops, places)


def program(
    shapes: RankShapes,
    placement: Placement,
    iterations: int = 1,
    costs: GroupCosts | None = None,
) -> Program:
    """Return the program of one iteration, or of several in a row, on placed ranks.

    ``costs`` are those of calls that programs on the same cluster have in common.
    """
    plan, catalog = shapes.plan, Catalog()
    known_costs = costs or GroupCosts(placement.cluster)
    passes: BuiltPasses = {}
    all_ops = [stage_ops(shapes, stage, catalog, iterations, passes) for stage in range(plan.pp)]
    marks = _marks(catalog)
    streams = tuple(_stream(ops, marks) for ops in all_ops)
    memory = memory_bytes_per_s(shapes) if overlaps(plan) else 0
    per_token = shapes.model.experts.per_token if shapes.model.experts else 1
    exchanges = _Exchanges(placement, catalog, streams, memory, per_token, known_costs)
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


class _Marks(NamedTuple):
    """Properties of all different steps, arrays (steps,): stream, updates, gathered parameters."""

    stream: IntArray
    updates: BoolArray
    gathers: BoolArray


def _marks(catalog: Catalog) -> _Marks:
    updates = [step.what == "optimizer" for step in catalog.steps]
    gathers = [step.name.startswith("parameters.") for step in catalog.steps]
    return _Marks(
        catalog.column("stream"), np.array(updates, np.bool_), np.array(gathers, np.bool_)
    )


def _stream(ops: Ops, marks: _Marks) -> Stream:
    src, dst = edges(ops, marks.stream[ops.step])
    more_src, more_dst = _awaited(ops, marks)
    src, dst = np.concatenate([src, more_src]), np.concatenate([dst, more_dst])
    _, unique = np.unique(dst * len(ops) + src, return_index=True)
    return Stream(ops, src[unique], dst[unique], np.zeros(len(ops), np.bool_))


def _awaited(ops: Ops, marks: _Marks) -> tuple[IntArray, IntArray]:
    """Return ops that run in the background and are needed later: gathered parameters, gradients.

    An update waits for the last reduction before it, as the stream is in order; gathered parameters
    are needed by the next kernel of their layer, those outside of layers by the next of no layer.
    """
    stream = marks.stream[ops.step]
    replicas = np.flatnonzero(stream == CC_DP)
    updates = np.flatnonzero(marks.updates[ops.step])
    before = np.searchsorted(replicas, updates)
    late = before > 0
    gathered = np.flatnonzero(marks.gathers[ops.step])
    kernels = np.flatnonzero(stream == ENGINE)
    span = np.int64(len(ops))
    layer = ops.layer.astype(np.int64) + 1
    users = np.sort(layer[kernels] * span + kernels)
    at = np.searchsorted(users, layer[gathered] * span + gathered)
    user = users[np.minimum(at, len(users) - 1)]
    used = (at < len(users)) & (user // span == layer[gathered])
    src = [replicas[before[late] - 1], gathered[used]]
    return np.concatenate(src), np.concatenate([updates[late], user[used] % span])


class _Exchanges:
    """Finds which ranks meet in which op, axis by axis and stage by stage."""

    def __init__(
        self,
        placement: Placement,
        catalog: Catalog,
        streams: tuple[Stream, ...],
        memory_bytes_per_s: int,
        per_token: int,
        costs: GroupCosts,
    ):
        self.placement, self.per_token, self.costs = placement, per_token, costs
        self.steps = catalog.steps
        self.streams = streams
        self.memory_bytes_per_s = memory_bytes_per_s
        self._of_axis: dict[tuple[str, str], BoolArray] = {}

    def all(self) -> Iterator[Exchange]:
        """Every exchange that has a call."""
        stages = len(self.streams)
        for axis in WITHIN:
            if any(step.axis == axis for step in self.steps):
                groups = self.placement.groups(axis)
                stage = self.placement.stage[groups[:, 0]]
                for s in range(stages):
                    yield from self._within(axis, groups[stage == s], s)
        if stages > 1:
            yield from self._pipeline(stages)
        yield from self._whole(stages)

    def _pipeline(self, stages: int) -> Iterator[Exchange]:
        """Transfers between a stage and its neighbours; with several chunks they go round."""
        pipes, plan = self.placement.groups("pp"), self.placement.plan
        round_about = stages if plan.vpp > 1 and not plan.pipeline.turns else stages - 1
        for s in range(round_about):
            after = (s + 1) % stages
            yield from self._between("forward", pipes[:, [s, after]], (s, after))
            yield from self._between("backward", pipes[:, [after, s]], (after, s))
            yield from self._between("forward" + RETURNING, pipes[:, [after, s]], (after, s))
            yield from self._between("backward" + RETURNING, pipes[:, [s, after]], (s, after))
        yield from self._between("tie", pipes[:, [0, -1]], (0, stages - 1))

    def _whole(self, stages: int) -> Iterator[Exchange]:
        """Exchanges between ranks of all stages: a role for each stage."""
        ops = tuple(self._ops("norm", stage) for stage in range(stages))
        if len(ops[0]):
            groups = self.placement.groups("norm")
            yield self._exchange("norm", groups, self.placement.stage[groups[0]], ops, 0)

    def _within(self, axis: str, groups: IntArray, stage: int) -> Iterator[Exchange]:
        op = self._ops(axis, stage)
        if len(op):
            role = np.zeros(groups.shape[1], np.int64)
            yield self._exchange(axis, groups, role, (op,), stage)

    def _between(self, axis: str, pairs: IntArray, stages: tuple[int, int]) -> Iterator[Exchange]:
        away = "receive" if axis != "tie" else "tie"
        sent = self._ops(axis, stages[0], "send" if axis != "tie" else "tie")
        taken = self._ops(axis, stages[1], away)
        if len(sent):
            yield self._exchange(axis, pairs, np.arange(2), (sent, taken), stages[0])

    def _ops(self, axis: str, stage: int, ending: str = "") -> IntArray:
        """Ops of an axis in a stage; of the pipeline by microbatch.

        Of one microbatch a stage takes its chunks in the same order as its neighbours do.
        """
        ops = self.streams[stage].ops
        rows = np.flatnonzero(self._steps(axis, ending)[ops.step])
        by_microbatch = np.argsort(ops.microbatch[rows], kind="stable")
        return rows[by_microbatch] if axis.startswith(("forward", "backward")) else rows

    def _steps(self, axis: str, ending: str) -> BoolArray:
        """Return which steps are of an axis and have names that end so."""
        if (axis, ending) not in self._of_axis:
            belongs = [step.axis == axis and step.name.endswith(ending) for step in self.steps]
            self._of_axis[axis, ending] = np.array(belongs, np.bool_)
        return self._of_axis[axis, ending]

    def _exchange(
        self,
        axis: str,
        groups: IntArray,
        role: IntArray,
        ops: tuple[IntArray, ...],
        stage: int,
    ) -> Exchange:
        chips = self.placement.chip[groups]
        first, kind = geometries(self.placement.cluster, chips)
        step = self.streams[stage].ops.step[ops[0]]
        used, where = present(step)
        steps = [self.steps[number] for number in used.tolist()]
        plan, of_kinds = self.placement.plan, chips[first]
        time_ps = [self.costs.times_ps(model, steps, plan, self.per_token) for model in of_kinds]
        drawn_bytes = np.zeros((len(first), len(steps)), np.int64)
        if self.memory_bytes_per_s:
            drawn_bytes[:] = [self.costs.drawn_bytes(model, steps) for model in of_kinds]
        drawn, lasts = draws(drawn_bytes, np.array(time_ps), self.memory_bytes_per_s)
        of_calls = Draws(*(column[:, where] for column in drawn))
        return Exchange(axis, groups, role, ops, kind, lasts[:, where], of_calls)
