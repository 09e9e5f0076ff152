"""The program of an iteration: the ops of a rank of each stage, and the exchanges between ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from cluster_sim.schedule.table import PS_PER_S
from topologies.catalogue.catalogue import chip_family
from topologies.support.arrays import BoolArray, IntArray, present
from workloads.training.layers.steps import CC, CC_DP, ENGINE, STREAM_KINDS, LayerOp, RankShapes
from workloads.training.plan.placement import Placement, server_share
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.groups import Groups, JoinedCosts, PlacedGroups, SharedParts
from workloads.training.program.ops import Catalog
from workloads.training.program.stage import RETURNING, Stream, as_tried, streams

# Memory bandwidth that ops of a rank use, and the ops that may contend for it.
#
# Each op reads and writes memory at a mean rate when it is alone. Where the rates of a kernel and
# of the collectives beside it may together exceed the rate of their rank's share of the memory,
# these ops are simulated as flows on that memory, which slow each other max-min fairly. Every other
# op keeps its time.

LEAST_BYTES_PER_S = 10**9
"""Mean rate below which an op's memory traffic is ignored [B/s]. It is a thousandth of any memory's
rate, and at lower rates the rounding to whole bytes a second would change an op's time by more than
one part in 10⁹."""


class Draws(NamedTuple):
    """Memory traffic of ops, as arrays of one shape; 0 for an op whose traffic is ignored."""

    size_bytes: IntArray  # bytes that an op reads and writes in all [B]
    rate_bytes_per_s: IntArray  # mean rate of the op when it is alone [B/s]


def overlaps(plan: ParallelPlan) -> bool:
    """Return whether a plan runs communication beside compute, so that they share memory."""
    return plan.overlap != "none" or plan.cp > 1


def memory_bytes_per_s(shapes: RankShapes) -> int:
    """Rate that a rank's share of a chip's memory gives kernels and collectives [B/s]."""
    # It is the share of the stated bandwidth that kernels or collectives reach alone, whichever is
    # more. It is 0 for a chip whose catalogue does not say what collectives reach.
    chip, parts = shapes.chip, shapes.catalogue
    if not parts.has(chip, "hbm_in_collectives"):
        return 0
    kernels = parts.value(chip_family(chip, parts).kernels, "elementwise_efficiency")
    share = max(kernels, parts.value(chip, "hbm_in_collectives"))
    return int(share * parts.value(chip, "hbm_bandwidth")) // shapes.plan.ranks_per_chip


def draws(
    size_bytes: IntArray, duration_ps: IntArray, most_bytes_per_s: int | IntArray
) -> tuple[Draws, IntArray]:
    """Return the memory traffic of ops, and their times with rates in whole bytes a second."""
    # ``size_bytes``: bytes that each op reads and writes [B]. ``duration_ps``: time of each op
    # alone [ps]. ``most_bytes_per_s``: rate of the memory, which no op exceeds [B/s].
    most = np.broadcast_to(most_bytes_per_s, duration_ps.shape)
    columns = [
        _draw(int(size), int(lasts), int(rate))
        for size, lasts, rate in zip(size_bytes.flat, duration_ps.flat, most.flat, strict=True)
    ]
    size, rate, lasts = np.array(columns, np.int64).reshape(-1, 3).T
    shape = duration_ps.shape
    return Draws(size.reshape(shape), rate.reshape(shape)), lasts.reshape(shape)


def _draw(size: int, lasts: int, most: int) -> tuple[int, int, int]:
    """Size [B], rate [B/s] and time [ps] of an op that lasts so long, at most at rate ``most``."""
    size = min(size, lasts * most // PS_PER_S)
    rate = -(-size * PS_PER_S // lasts)
    if rate < LEAST_BYTES_PER_S:
        return 0, 0, lasts
    return size, rate, max(1, -(-size * PS_PER_S // rate))


def contending(
    stream: IntArray,
    src: IntArray,
    dst: IntArray,
    rate_bytes_per_s: IntArray,
    most_bytes_per_s: int,
) -> BoolArray:
    """Return which ops of a rank may exceed the memory's rate together with ops beside them."""
    # A communication may run at any time after the last kernel before it and before the first
    # kernel that waits for it. A stream runs one op at a time. Transfers between pipeline stages
    # are left out, as they are small.
    # ``stream`` (ops,). ``src, dst`` (edges,): op ``dst`` waits for op ``src``, in order of
    # ``dst``. ``rate_bytes_per_s`` (ops,): rate of each op alone [B/s]. ``most_bytes_per_s``: rate
    # that the memory gives [B/s].
    # Returns False for ops that are never slowed and never slow another; (ops,).
    contends = np.zeros(len(stream), np.bool_)
    communications, low, high = _windows(stream, src, dst)
    kernels = np.where(stream == ENGINE, rate_bytes_per_s, 0)
    # For every op, the highest rate of a collective of each stream that may run beside it.
    covers = {}
    for kind in (CC, CC_DP):
        on_stream = stream[communications] == kind
        rates = rate_bytes_per_s[communications[on_stream]]
        covers[kind] = cover(len(stream), low[on_stream], high[on_stream], rates)
    demand = kernels + covers[CC] + covers[CC_DP]
    contends |= (kernels > 0) & (demand > kernels) & (demand > most_bytes_per_s)
    # A collective contends if the highest rates of a kernel and of the other stream's collectives
    # in its window, which need not coincide, exceed the memory's rate together with its own.
    for kind, other in ((CC, CC_DP), (CC_DP, CC)):
        on_stream = stream[communications] == kind
        ops, first, end = communications[on_stream], low[on_stream], high[on_stream]
        greatest = (most_of(rates, first, end) for rates in (kernels, covers[other]))
        contends[ops] = sum(greatest, rate_bytes_per_s[ops]) > most_bytes_per_s
    return contends & (rate_bytes_per_s > 0)


def _windows(stream: IntArray, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Communications with kernels in their window, and the window's ends."""
    # The window has the ops that may run beside the communication. A stream runs in order, so both
    # ends of its communications' windows ascend.
    count, kernel = len(stream), stream == ENGINE
    before, after = np.full(count, -1, np.int64), np.full(count, count, np.int64)
    _nearest(src.astype(np.int64), dst.astype(np.int64), kernel, before, 1)
    # Backwards, all edges that leave an op come before those that lead to it.
    _nearest(dst[::-1].astype(np.int64), src[::-1].astype(np.int64), kernel, after, -1)
    communications = np.flatnonzero((stream == CC) | (stream == CC_DP))
    first, end = before[communications] + 1, after[communications]
    counted = np.concatenate([[0], np.cumsum(kernel)])
    has_kernels = counted[end] > counted[first]
    return communications[has_kernels], first[has_kernels], end[has_kernels]


@compiled
def _nearest(src: IntArray, dst: IntArray, kernel: BoolArray, nearest: IntArray, sign: int) -> None:
    """Find the latest kernel that each op waits for, directly or not, in ``nearest``."""
    # With sign -1, and edges reversed, find the earliest kernel that waits for each op.
    for k in range(len(src)):
        end = src[k] if kernel[src[k]] else nearest[src[k]]
        if sign * end > sign * nearest[dst[k]]:
            nearest[dst[k]] = end


def most_of(values: IntArray, low: IntArray, high: IntArray) -> IntArray:
    """Return the greatest of the values, which are from 0, in each stretch; 0 in an empty one."""
    # Stretches are half-open, ``low:high``. Two stretches of one power of two cover any longer one.
    most, width = np.zeros(len(low), np.int64), high - low
    greatest, span = values, 1  # greatest value of the ``span`` places from each one on
    while (width >= span).any():
        here = np.flatnonzero((width >= span) & (width < 2 * span))
        most[here] = np.maximum(greatest[low[here]], greatest[high[here] - span])
        greatest, span = np.maximum(greatest[:-span], greatest[span:]), 2 * span
    return most


def cover(count: int, low: IntArray, high: IntArray, value: IntArray) -> IntArray:
    """Return the greatest value among the stretches that each place lies in, or 0."""
    # As their ends ascend, the stretches over a place follow one another: they are those from the
    # first that ends behind it to the last that begins at it or before.
    # ``count``: number of places. ``low, high`` (stretches,): ends of the stretches, both
    # ascending. ``value`` (stretches,): values from 0.
    ended, begun = (np.cumsum(np.bincount(end, minlength=count))[:count] for end in (high, low))
    return most_of(value, ended, begun)


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

    @property
    def joins(self) -> int:
        """Number of joins of each group in a schedule; see :attr:`Program.offset`."""
        return 2 * self.calls if self.members.shape[1] > 1 else 0

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
    costs: JoinedCosts
    _worked_out: dict[tuple[object, ...], tuple[Draws, IntArray]] = field(default_factory=dict)

    def all(self) -> Iterator[Exchange]:
        """Yield every exchange that has a call."""
        stages = len(self.streams)
        for axis in WITHIN:
            if (axis, "") in self._steps_of:
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
        if (axis, part) not in self._steps_of:
            return np.empty(0, np.int64)
        ops = self.streams[stage].ops
        rows = np.flatnonzero(self._steps_of[axis, part][ops.step])
        return rows[np.argsort(ops.microbatch[rows], kind="stable")] if part else rows

    @cached_property
    def _steps_of(self) -> dict[tuple[str, str], BoolArray]:
        """Marks of the steps of each axis, bool (steps,) each, with sends and receives apart."""
        parts = [_axis_and_part(step) for step in self.steps]
        return {one: np.array([each == one for each in parts]) for one in dict.fromkeys(parts)}

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


OWN = 0  # column of ``Program.offset`` that holds a rank's first op; exchange e has column e + 1


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
    # (stages,): rate that the memory of a rank gives its kernels and collectives together [B/s]; 0
    # where contention for it is not simulated
    memory_bytes_per_s: IntArray
    facts: tuple[tuple[str, str | int], ...]  # names of model and cluster, for the trace

    def __len__(self) -> int:
        return len(self.stage)

    @cached_property
    def length(self) -> IntArray:
        """Ops of each row, int64 (rows,)."""
        return np.array([len(stream.ops) for stream in self.streams])[self.stage]

    @property
    def total(self) -> int:
        """Ops and joins of a schedule."""
        joins = sum(each.joins * len(each.members) for each in self.exchanges)
        return int(self.length.sum()) + joins

    @cached_property
    def offset(self) -> IntArray:
        """First op of each row in a schedule, and first join of its group in each exchange."""
        # (rows, 1 + exchanges). Ops are numbered rank by rank. Behind them stand the joins, two for
        # each call of each group: the first when all members are ready for the call, the second
        # when it is done. A group of one row, whose ranks are all equal after folding, waits for
        # nobody and has none.
        offset = np.full((len(self), 1 + len(self.exchanges)), -1, np.int64)
        offset[:, OWN] = np.cumsum(self.length) - self.length
        at = int(self.length.sum())
        for number, exchange in enumerate(self.exchanges, start=1):
            groups, joins = len(exchange.members), exchange.joins
            offset[exchange.members, number] = at + joins * np.arange(groups)[:, None]
            at += joins * groups
        return offset

    @cached_property
    def stream_of(self) -> IntArray:
        """Stream of each step, int64 (steps,)."""
        return np.array([step.stream for step in self.steps])

    @cached_property
    def calls(self) -> tuple[tuple[IntArray, IntArray], ...]:
        """Exchange and call of each op of each stage; the exchange of a kernel is -1."""
        calls: list[tuple[IntArray, IntArray]] = [
            (np.full(len(stream.ops), -1), np.zeros(len(stream.ops), np.int64))
            for stream in self.streams
        ]
        for number, shared in enumerate(self.exchanges):
            for role in self.roles(shared):
                exchange, call = calls[role.stage]
                exchange[role.ops], call[role.ops] = number, np.arange(shared.calls)
        return tuple(calls)

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
    # ``later``: shapes on each of the clusters but the first.
    kinds, catalog = (shapes, *later), Catalog()
    plan, joined, shared = shapes.plan, placement.joined, shared or SharedParts()
    of_stages = joined.of_stages
    per_token = shapes.model.experts.per_token if shapes.model.experts else 1
    placed, costs = shared.placed(placement), shared.costs(joined)

    def slowest_s(stage: int, step: LayerOp) -> float:
        """Time of a step within a stage in its slowest group [s]."""
        groups = placed.within(step.axis)[stage].chips
        return max(costs.times_ps(each, [step], plan, per_token)[0] for each in groups) / PS_PER_S

    @cache
    def exchanged(stage: int, step: LayerOp) -> tuple[float, float]:
        """Time of a step [s], and the share of a server's channels that its group uses."""
        groups, cluster = placed.within(step.axis)[stage].chips, joined.of_stage(stage)
        return slowest_s(stage, step), server_share(groups, cluster)

    firsts = np.unique(of_stages, return_index=True)[1].tolist()
    tried = [
        as_tried(each, partial(slowest_s, stage)) for each, stage in zip(kinds, firsts, strict=True)
    ]
    built_of = [(tried[kind], partial(exchanged, firsts[kind])) for kind in of_stages]
    of_ranks = streams(built_of, catalog, iterations)
    rates = [memory_bytes_per_s(each) if overlaps(plan) else 0 for each in kinds]
    memory = np.array(rates, np.int64)[of_stages]
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
        domain=joined.domain(placement.chip),
        chip=placement.chip,
        core=ranks % plan.ranks_per_chip,
        count=np.ones(plan.ranks, np.int64),
        exchanges=tuple(exchanges.all()),
        draws=drawn,
        memory_bytes_per_s=memory,
        facts=(("model", shapes.model.name), ("cluster", joined.name)),
    )
    return sharing(built) if memory.any() else built


def sharing(program: Program) -> Program:
    """Return the program with ops marked that contend for the memory of their rank."""
    most, each_rates = program.memory_bytes_per_s, _rates_bytes_per_s(program)
    streams = [
        replace(
            stream,
            contends=contending(
                program.stream_of[stream.ops.step], stream.src, stream.dst, rate, int(greatest)
            ),
        )
        for stream, rate, greatest in zip(program.streams, each_rates, most, strict=True)
    ]
    return replace(program, streams=tuple(streams))


def fits_in_memory_rate(program: Program) -> bool:
    """Return whether the memory of every rank serves its contending ops at their full rates."""
    # A stream runs one op at a time. So ops are never slowed if the highest rates of all streams
    # together do not exceed the memory's, and the run has the times that it has without contention.
    most, each_rates = program.memory_bytes_per_s, _rates_bytes_per_s(program)
    for stream, rates, limit in zip(program.streams, each_rates, most, strict=True):
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
