"""A collective that has been built: its schedule, and the result that it must achieve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.chunks import Chunks
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, JOIN, Codes, Edges, Resources, Schedule
from topologies.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective as a schedule, with the result that it must achieve."""

    kind: str
    algorithm: str
    schedule: Schedule
    chunks: Chunks  # of all groups; ranks are numbered from group to group
    chip_of_rank: IntArray
    group_of_rank: IntArray
    steps: int  # rounds that follow one another


def one_op_a_rank(
    calls: Sequence[CollectiveCall], times_ps: Sequence[int], algorithm: str
) -> Schedule:
    """Build a schedule of calls at once: a join, one op on each rank of each, and a join."""
    lasts = np.repeat(np.array(times_ps, np.int64), [call.ranks for call in calls])
    ranks, kind_of_all, size_bytes = len(lasts), calls[0].kind, calls[0].size_bytes
    duration = np.concatenate([[0], lasts, [0]])
    kind = np.where(duration > 0, FIXED, JOIN).astype(np.uint8)
    op = np.arange(1, ranks + 1)
    what = np.concatenate([[0], np.full(ranks, 1), [0]]).astype(np.uint8)
    return schedule(
        OpColumns(
            kind=kind, duration_ps=duration, size_bytes=np.where(kind == FIXED, size_bytes, 0)
        ),
        edges=Edges.from_pairs(
            ranks + 2,
            np.concatenate([np.zeros(ranks, np.int64), op]),
            np.concatenate([op, np.full(ranks, ranks + 1)]),
        ),
        resources=Resources.none(),
        labels={
            "rank": np.concatenate([[0], op - 1, [0]]),
            "what": Codes(what, ("join", kind_of_all)),
        },
        facts={"collective": kind_of_all, "algorithm": algorithm, "size_bytes": size_bytes},
    )
