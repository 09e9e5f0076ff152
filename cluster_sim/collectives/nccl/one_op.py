"""A collective of which only the time is known, as a schedule: one op a rank between two joins."""

from __future__ import annotations

import math

import numpy as np

from cluster_sim.build import schedule
from cluster_sim.collectives.bounds import AROUND, Bound
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.nccl.load import load_of
from cluster_sim.collectives.nccl.times import SWITCH, constants, nccl_ps
from cluster_sim.schedule import FIXED, JOIN, Codes, Edges, Resources, Schedule

NAME = "nccl"
"""What ``auto`` is called on machines whose collectives are NCCL's, as it was measured."""


def one_op_a_rank(op: str, group: Group, size_bytes: int) -> Schedule:
    """Schedule of NCCL's measured time: a join, one op on each rank, a join.

    Its algorithm is chosen by NCCL inside that time, so there are no chunks to follow.
    """
    ranks, time_ps = group.ranks, nccl_ps(op, group, size_bytes)
    kind = np.full(ranks + 2, FIXED if time_ps else JOIN, np.uint8)
    kind[[0, -1]] = JOIN
    each = np.arange(1, ranks + 1)
    rank = np.concatenate([[0], each - 1, [0]])
    what = np.concatenate([[0], np.full(ranks, 1), [0]]).astype(np.uint8)
    return schedule(
        kind=kind,
        duration_ps=np.where(kind == FIXED, time_ps, 0),
        size_bytes=np.where(kind == FIXED, size_bytes, 0),
        edges=Edges.from_pairs(
            ranks + 2,
            np.concatenate([np.zeros(ranks, np.int64), each]),
            np.concatenate([each, np.full(ranks, ranks + 1)]),
        ),
        resources=Resources.none(),
        labels={"rank": rank, "what": Codes(what, ("join", op))},
        facts={"collective": op, "algorithm": NAME, "size_bytes": int(size_bytes)},
    )


def steps(op: str, group: Group, size_bytes: int) -> int:
    """Steps one after the other, inside and between domains."""
    load = load_of(op, group, size_bytes)
    return math.ceil(float(load.steps + load.far_steps))


def bound_with_switch(op: str, group: Group, size_bytes: int, bound: Bound) -> Bound:
    """Lower bound where the switches of a domain may reduce: a rank then sends its buffer once."""
    reduces = SWITCH[0] in constants(group.cluster).chip and op == "all-reduce"
    if not reduces or bound.what in ("distance", AROUND):
        return bound
    return Bound(f"{bound.what}, reduced in the switch", bound.time_ps // 2)
