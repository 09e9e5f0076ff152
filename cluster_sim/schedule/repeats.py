"""Repeats: ops that stand in a schedule once and run many times, so that it stays small.

*Routines* run each time that a join calls them, such as the collective of a training step's layers.
*Rounds* stand for many in a row, such as those of a ring. :func:`calls_written_out` and
:func:`rounds_written_out` give the equivalent schedules of plain ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.table import (
    OP_COLUMNS,
    BoolArray,
    Edges,
    Flows,
    IntArray,
    Schedule,
    pointers,
    runs,
)


@dataclass(frozen=True, eq=False)
class Routines:
    """Routines of a schedule, and the joins that call them.

    The ops of all routines come after the other ops of the schedule. The last op of a routine is a
    join that waits for the rest of the routine. A call begins when the calling join ends; the op
    after that join waits for its own edges and for the end of the call. Calls of one routine never
    overlap.
    """

    first: IntArray  # (routines + 1,): routine k has the ops first[k]:first[k + 1]; last, of all
    caller: IntArray  # (calls,): join that makes the call, one at most, and belongs to no routine
    routine: IntArray  # (calls,): number of the routine that is called

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def outside(self) -> int:
        """Number of ops that belong to no routine."""
        return int(self.first[0])

    @property
    def ops(self) -> int:
        """Number of ops that a run executes: those outside routines, and those of every call."""
        return self.outside + int(np.diff(self.first)[self.routine].sum())


def calls_written_out(whole: Schedule, routines: Routines) -> Schedule:
    """Return the schedule with ops of its own for each call, routine by routine."""
    order = np.argsort(routines.routine, kind="stable")
    caller, routine = routines.caller[order], routines.routine[order]
    length = np.diff(routines.first)[routine]
    begin = routines.outside + np.cumsum(length) - length
    # shift[i] = number of op i minus that of the op it is a copy of, its origin.
    shift = np.concatenate([np.zeros(routines.outside, np.int64), np.repeat(
        begin - routines.first[routine], length)])  # fmt: skip
    origin = np.arange(len(shift)) - shift
    calls = caller, begin, begin + length - 1
    return Schedule(
        **{name: getattr(whole, name)[origin] for name in OP_COLUMNS},
        edges=_edges(whole, origin, shift, calls),
        resources=whole.resources,
        flows=flows_of_copies(whole, origin),
    )


def _edges(
    whole: Schedule, origin: IntArray, shift: IntArray, calls: tuple[IntArray, IntArray, IntArray]
) -> Edges:
    """Edges of the written-out ops, which ``origin`` and ``shift`` map to the ops of ``whole``."""
    # A caller also leads to those ops of its call that wait for nothing else, and the last op of
    # the call to the op after the caller.
    edges = whole.edges
    copied = _rows(edges.ptr, origin)
    src = np.repeat(np.arange(len(origin)), np.diff(edges.ptr)[origin])
    waits = np.zeros(len(whole), np.bool_)
    waits[edges.dst] = True
    caller, begin, end = calls
    # Ops of calls come last; ``head`` counts from the first of them.
    call = np.repeat(np.arange(len(begin)), end - begin + 1)
    outside = len(origin) - len(call)
    head = np.flatnonzero(~waits[origin[outside:]])
    lag_ps = np.zeros(len(head) + len(caller), np.int64)
    return Edges.from_pairs(
        len(origin),
        np.concatenate([src, caller[call[head]], end]),
        np.concatenate([edges.dst[copied] + shift[src], head + outside, caller + 1]),
        np.concatenate([edges.lag_ps[copied], lag_ps]),
        np.concatenate([edges.start_mask()[copied], lag_ps > 0]),
    )


def flows_of_copies(whole: Schedule, origin: IntArray) -> Flows:
    """Return rate caps and shares of the flows among the ops that ``origin`` copies."""
    flows = whole.flows
    row = np.full(len(whole), -1)
    row[flows.op] = np.arange(len(flows))
    op = np.flatnonzero(row[origin] >= 0)
    row = row[origin[op]]
    shares = _rows(flows.ptr, row)
    return Flows(
        op.astype(np.int32),
        flows.cap_bytes_per_s[row],
        pointers(np.diff(flows.ptr)[row]),
        flows.resource[shares],
        flows.weight[shares],
    )


def _rows(ptr: IntArray, picked: IntArray) -> IntArray:
    """Return the rows ``ptr[k]:ptr[k + 1]`` of each k in ``picked``, one k after the other."""
    return runs(ptr[picked], np.diff(ptr)[picked])


@dataclass(frozen=True, eq=False)
class LargerBlocks:
    """The larger of the blocks that travel through the rounds, where these are of two sizes."""

    both: Schedule  # the rounds, and behind them the same as if every block were a larger one
    is_larger: BoolArray  # (rings, blocks): in the order in which blocks follow another
    # (ops,): block that each op carries in the first round, in row-major numbers of ``is_larger``.
    # In each round it carries the block before that of the round before
    block: IntArray

    def in_rounds(self, first: int, count: int) -> BoolArray:
        """Return which ops carry a larger block in some rounds in a row, bool (count, ops)."""
        blocks = self.is_larger.shape[1]
        twice = np.concatenate([self.is_larger, self.is_larger], axis=1)
        turned = np.lib.stride_tricks.sliding_window_view(twice, blocks, axis=1)
        begin = blocks - np.arange(first, first + count) % blocks
        carried = turned[:, begin].swapaxes(0, 1).reshape(count, -1)
        return np.take(carried, self.block, axis=1)


@dataclass(frozen=True, eq=False)
class Rounds:
    """A schedule in rounds of equally many ops, and how often each round is repeated.

    Round k has the ops ``k * ops`` up to ``(k + 1) * ops``. Behind the last round come the final
    ops, no more than one round has, from which no edge leads on. An edge leads to an op of the same
    round or of the round that follows, from the last round to the final ops; between two repeats of
    a round to the next repeat. The ops at one place of all rounds have equally many edges. Every op
    behind the first round waits for another. ``larger``: ops that carry a larger block take kind,
    resource, duration and size, and the lags of their edges, from the second half of its schedule.
    """

    schedule: Schedule
    ops: int
    repeats: IntArray  # (rounds,): number of times that each round stands in a row
    larger: LargerBlocks | None = None

    @property
    def count(self) -> int:
        """Number of rounds, repeats included."""
        return int(self.repeats.sum())

    @property
    def final_ops(self) -> int:
        """Number of ops behind the last round."""
        return len(self.schedule) - self.ops * len(self.repeats)

    @property
    def all_ops(self) -> int:
        """Number of ops that a run executes."""
        return self.ops * self.count + self.final_ops

    @property
    def of_both_sizes(self) -> Schedule:
        """The schedule, followed by that of larger blocks where there are any."""
        return self.schedule if self.larger is None else self.larger.both

    @property
    def edges(self) -> int:
        """Number of edges that lead from the ops of a round."""
        return int(self.schedule.edges.ptr[self.ops])

    def followers(self) -> IntArray:
        """Return where each edge leads, counted from the first op of its round (rounds, edges)."""
        dst = self.schedule.edges.dst.reshape(len(self.repeats), self.edges)
        return dst - self.ops * np.arange(len(self.repeats))[:, None]

    def waits(self) -> tuple[IntArray, IntArray]:
        """Return how many edges lead to each op from its own round, and from the one before."""
        followers = self.followers()
        counted = [np.bincount(row, minlength=2 * self.ops) for row in followers]
        both = np.array(counted, np.int64).reshape(len(followers), 2, self.ops)
        return both[:, 0], both[:, 1]


def rounds_written_out(rounds: Rounds) -> Schedule:
    """Return the equivalent schedule without repeats, in which every round has ops of its own."""
    whole, ops, per_round = rounds.of_both_sizes, rounds.ops, rounds.edges
    like = np.repeat(np.arange(len(rounds.repeats)), rounds.repeats)
    final = np.arange(len(rounds.repeats) * ops, len(rounds.schedule))
    origin = like[:, None] * ops + np.arange(ops)
    rows = like[:, None] * per_round + np.arange(per_round)
    if rounds.larger is not None:
        is_larger = rounds.larger.in_rounds(0, rounds.count)
        origin += len(rounds.schedule) * is_larger
        width = np.diff(rounds.schedule.edges.ptr[: ops + 1])
        rows += len(rounds.schedule.edges) * np.repeat(is_larger, width, axis=1)
    origin, rows = np.append(origin.ravel(), final), rows.ravel()
    dst = rounds.followers()[like] + ops * np.arange(len(like))[:, None]
    edges = whole.edges
    return Schedule(
        **{name: getattr(whole, name)[origin] for name in OP_COLUMNS},
        edges=Edges(
            pointers(np.diff(edges.ptr)[origin]),
            dst.ravel().astype(np.int32),
            edges.lag_ps[rows],
            None if edges.from_start is None else edges.from_start[rows],
        ),
        resources=whole.resources,
        flows=flows_of_copies(whole, origin),
    )
