"""Rounds: a schedule of a few rounds of ops, each of which stands for many in a row.

A ring all-reduce of a thousand ranks has two thousand rounds, nearly all of them alike. As rounds
it is written down as four, so that its memory does not grow with their number;
:func:`written_out` gives the equivalent schedule of plain ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.routines import flows_of_copies
from cluster_sim.schedule.table import BoolArray, Edges, IntArray, Schedule


@dataclass(frozen=True, eq=False)
class LargerBlocks:
    """The larger of the blocks that travel through the rounds, where these are of two sizes.

    ``block`` (ops,): block that each op carries in the first round, in row-major numbers of
    ``is_larger``. In each round it carries the block before that of the round before.
    """

    both: Schedule  # the rounds, and behind them the same as if every block were a larger one
    is_larger: BoolArray  # (rings, blocks): in the order in which blocks follow another
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


def written_out(rounds: Rounds) -> Schedule:
    """Return the equivalent schedule without repeats, in which every round has ops of its own.

    >>> from cluster_sim.schedule.build import OpColumns, schedule
    >>> from cluster_sim.schedule.table import FIXED, JOIN, Edges, Resources
    >>> link = Resources.table("link", [0], [1])
    >>> send = schedule(OpColumns([FIXED, JOIN], [0, -1], [5, 0]), resources=link,
    ...                 edges=Edges.from_pairs(2, [0], [1]))
    >>> written_out(Rounds(send, 1, np.array([4])))
    Schedule(5 ops, 4 edges, 1 resources)
    """
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
    edges, names = whole.edges, ("kind", "resource", "duration_ps", "size_bytes", "priority")
    return Schedule(
        **{name: getattr(whole, name)[origin] for name in names},
        edges=Edges(
            np.append(0, np.cumsum(np.diff(edges.ptr)[origin])).astype(np.int64),
            dst.ravel().astype(np.int32),
            edges.lag_ps[rows],
            None if edges.from_start is None else edges.from_start[rows],
        ),
        resources=whole.resources,
        flows=flows_of_copies(whole, origin),
    )
