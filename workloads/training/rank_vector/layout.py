"""Which ranks are worked on together: blocks of whole components, a stretch of each stage.

Ranks that meet in all but the widest exchanges form components, usually a replica of the model.
Ranks of a stage are put in order of component, so that a block is a stretch of every stage.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_sim.schedule import BoolArray, IntArray
from workloads.training.program import Exchange, Program

BLOCK_RANKS = 256
"""Ranks of a block at least, if there are as many: long enough for vectors, short for caches."""
LARGEST_COMPONENT = 4096
"""Ranks that may be joined to one component; exchanges that would join more are wide."""


class Layout(NamedTuple):
    """Where ranks, groups and call times are.

    Attributes
    ----------
    order : int64 array (ranks,)
        Rows of the program, stage by stage, each in order of component.
    stage_at : int64 array (stages + 1,)
        First place of each stage in ``order``.
    low : int64 array (blocks + 1, stages)
        First rank of each block among those of each stage.
    wide : bool array (exchanges,)
    group_low : int64 array (exchanges, blocks + 1)
        First group of each block.
    width, role_of : int64 arrays (exchanges,), (exchanges, widest)
        Members of a group, and which part of a call each is.
    member_at, group_at, time_at, calls, groups : int64 array (exchanges,)
        Where an exchange begins in ``member``, ``kind`` and ``duration_ps``; its sizes.
    member : int64 array
        Place of each member among the ranks of its stage, group by group.
    kind : int64 array
    duration_ps : int64 array
    group_of, own_at : int64 arrays
        Of wide exchanges: group of each rank of each part's stage, from ``own_at[exchange, part]``.
    """

    order: IntArray
    stage_at: IntArray
    low: IntArray
    wide: BoolArray
    group_low: IntArray
    width: IntArray
    role_of: IntArray
    member_at: IntArray
    group_at: IntArray
    time_at: IntArray
    calls: IntArray
    groups: IntArray
    member: IntArray
    kind: IntArray
    duration_ps: IntArray
    group_of: IntArray
    own_at: IntArray

    @property
    def blocks(self) -> int:
        """Blocks of ranks."""
        return len(self.low) - 1

    @property
    def rows(self) -> IntArray:
        """Ranks of each stage."""
        return np.diff(self.stage_at)


def layout(program: Program) -> Layout:
    """Return the blocks of a program's ranks."""
    component, wide = _components(program)
    stages = len(program.streams)
    order = np.lexsort((component, program.stage))
    stage_at = np.searchsorted(program.stage[order], np.arange(stages + 1))
    place = np.empty(len(program), np.int64)
    place[order] = np.arange(len(program))
    place -= stage_at[program.stage]
    first = _first_components(component)
    low = np.stack(
        [
            np.searchsorted(component[order[stage_at[s] : stage_at[s + 1]]], first)
            for s in range(stages)
        ],
        axis=1,
    )
    tables = _exchanges(program.exchanges, wide, component, first, place)
    own = _own_groups(program, wide, place, np.diff(stage_at), tables)
    return Layout(order, stage_at, low, wide, **tables, **own)


def _components(program: Program) -> tuple[IntArray, BoolArray]:
    """Component of each rank, numbered by first rank, and which exchanges join several."""
    component: IntArray = np.arange(len(program))
    wide = np.zeros(len(program.exchanges), np.bool_)
    calls: dict[str, int] = {}
    for exchange in program.exchanges:
        calls[exchange.axis] = max(calls.get(exchange.axis, 0), exchange.calls)
    for axis in sorted(calls, key=lambda one: -calls[one]):
        among = [number for number, one in enumerate(program.exchanges) if one.axis == axis]
        joined = _joined(component, [program.exchanges[number] for number in among])
        if np.bincount(joined).max() <= max(LARGEST_COMPONENT, np.bincount(component).max()):
            component = joined
        else:
            wide[among] = True
    return component, wide


def _joined(component: IntArray, exchanges: list[Exchange]) -> IntArray:
    pairs = [
        (component[one.members[:, :1]].repeat(one.members.shape[1] - 1, 1), one.members[:, 1:])
        for one in exchanges
    ]
    src = np.concatenate([a.reshape(-1) for a, _ in pairs])
    dst = component[np.concatenate([b.reshape(-1) for _, b in pairs])]
    size = len(component)
    graph = coo_array((np.ones(len(src), np.int8), (src, dst)), shape=(size, size))
    found = connected_components(graph, directed=False)[1][component]
    _, first, code = np.unique(found, return_index=True, return_inverse=True)
    numbered = np.empty(len(first), np.int64)
    numbered[np.argsort(first)] = np.arange(len(first))
    joined: IntArray = numbered[code]
    return joined


def _first_components(component: IntArray) -> IntArray:
    """First component of each block, and one past the last."""
    sizes = np.bincount(component)
    block = (np.cumsum(sizes) - sizes) // BLOCK_RANKS
    first = np.flatnonzero(np.diff(block, prepend=-1))
    return np.append(first, len(sizes))


def _exchanges(
    exchanges: tuple[Exchange, ...],
    wide: BoolArray,
    component: IntArray,
    first: IntArray,
    place: IntArray,
) -> dict[str, Any]:
    """Groups of all exchanges in order of block."""
    member, kind, duration, group_low = [], [], [], []
    widest = max((one.members.shape[1] for one in exchanges), default=1)
    role_of = np.zeros((len(exchanges), widest), np.int64)
    for number, one in enumerate(exchanges):
        of = component[one.members[:, 0]]
        by_block = np.argsort(of, kind="stable")
        member.append(place[one.members[by_block]].reshape(-1))
        kind.append(one.kind[by_block])
        duration.append(one.duration_ps.reshape(-1))
        group_low.append(np.searchsorted(of[by_block], first))
        role_of[number, : len(one.role)] = one.role
    return {
        "group_low": np.array(group_low, np.int64).reshape(len(exchanges), len(first)),
        "width": np.array([one.members.shape[1] for one in exchanges], np.int64),
        "role_of": role_of,
        "member_at": _begins(member),
        "group_at": _begins(kind),
        "time_at": _begins(duration),
        "calls": np.array([one.calls for one in exchanges], np.int64),
        "groups": np.array([len(one.members) for one in exchanges], np.int64),
        "member": _concatenated(member),
        "kind": _concatenated(kind),
        "duration_ps": _concatenated(duration),
    }


def _own_groups(
    program: Program, wide: BoolArray, place: IntArray, rows: IntArray, tables: dict[str, Any]
) -> dict[str, Any]:
    """Group of each rank in each part of the wide exchanges."""
    parts = max((len(one.ops) for one in program.exchanges), default=1)
    own_at = np.zeros((len(program.exchanges), parts), np.int64)
    found: list[IntArray] = []
    at = 0
    for number in np.flatnonzero(wide).tolist():
        one = program.exchanges[number]
        width = one.members.shape[1]
        begin = tables["member_at"][number]
        member = tables["member"][begin : begin + one.members.size].reshape(-1, width)
        for role in range(len(one.ops)):
            places = np.flatnonzero(one.role == role)
            stage = int(program.stage[one.members[0, places[0]]])
            group = np.full(int(rows[stage]), -1, np.int64)
            group[member[:, places]] = np.arange(len(member))[:, None]
            own_at[number, role] = at
            at += len(group)
            found.append(group)
    return {"group_of": _concatenated(found), "own_at": own_at}


def _begins(parts: list[IntArray]) -> IntArray:
    lengths = np.array([len(part) for part in parts], np.int64)
    begins: IntArray = np.cumsum(lengths) - lengths
    return begins


def _concatenated(parts: list[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
