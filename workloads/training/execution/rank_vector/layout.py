"""Layout of ranks in blocks that can be evaluated one after the other.

Ranks that meet in any but the widest exchanges form a component, usually a replica of the model.
The ranks of each stage are ordered by component, so that a block, which is a number of whole
components, is one contiguous stretch of every stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from topologies.arrays import BoolArray, IntArray, present
from workloads.training.program.exchanges import Exchange
from workloads.training.program.program import Program

BLOCK_RANKS = 4096
"""Fewest ranks of a block, where there are as many: long enough for vector instructions, short
enough for caches."""
LARGEST_COMPONENT = 4096
"""Most ranks of one component; exchanges that would join more to one are wide."""


class Layout(NamedTuple):
    """Places of ranks, groups and call times.

    A rank's row is its place in the arrays of its block: stage after stage, with room for the
    widest stretch of each.
    """

    order: IntArray  # (ranks,): rows of the program, stage by stage, each in order of component
    stage_at: IntArray  # (stages + 1,): first place of each stage in ``order``
    low: IntArray  # (blocks + 1, stages): first rank of each block among those of each stage
    row_at: IntArray  # (stages + 1,): first row of each stage, and their number
    wide: BoolArray  # (exchanges,): whether the groups of an exchange span blocks
    group_low: IntArray  # (exchanges, blocks + 1): first group of each block; 0 for wide exchanges
    # (exchanges,): whether the members of every role of every group are neighbours in the block
    packed: BoolArray
    # width, role_ptr: (exchanges,), (exchanges, roles + 1): number of members of a group, and the
    # first member of each role
    width: IntArray
    role_ptr: IntArray
    # member_at, group_at, time_at: (exchanges,): where an exchange begins in ``member``, ``kind``
    # and ``duration_ps``
    member_at: IntArray
    group_at: IntArray
    time_at: IntArray
    # calls, groups: (exchanges,): numbers of calls and groups of each exchange
    calls: IntArray
    groups: IntArray
    # Members of narrow exchanges, group by group, each as its position in the block's stretch of
    # its stage
    member: IntArray
    kind: IntArray  # kind of each group; groups of one kind have the same durations
    duration_ps: IntArray  # duration of each call of each kind [ps]
    # group_of, own_at: group of each rank in the wide exchanges; the ranks of a role's stage begin
    # at ``own_at[exchange, role]``
    group_of: IntArray
    own_at: IntArray

    @property
    def blocks(self) -> int:
        """Blocks of ranks."""
        return len(self.low) - 1

    @property
    def ranks(self) -> IntArray:
        """Ranks of each stage."""
        return np.diff(self.stage_at)

    @property
    def widest(self) -> IntArray:
        """Ranks of each stage in the block that has most of them."""
        return np.diff(self.row_at)


class _Blocks(NamedTuple):
    """Blocks of ranks, from which the tables of exchanges are built."""

    component: IntArray  # (ranks,): component of each rank
    first: IntArray  # (blocks + 1,): first component of each block
    low: IntArray  # (blocks + 1, stages): first rank of each block among those of each stage
    place: IntArray  # (ranks,): place of a rank among those of its stage


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
    of_stage = [component[order[stage_at[s] : stage_at[s + 1]]] for s in range(stages)]
    low = np.stack([np.searchsorted(numbers, first) for numbers in of_stage], axis=1)
    row_at = np.concatenate([[0], np.cumsum(np.diff(low, axis=0).max(axis=0))])
    blocks = _Blocks(component, first, low, place)
    tables = _exchanges(program, wide, blocks)
    groups = _own_groups(program, wide, place, np.diff(stage_at))
    return Layout(order, stage_at, low, row_at, wide, **tables, **groups)


def _components(program: Program) -> tuple[IntArray, BoolArray]:
    """Component of each rank, numbered by first rank, and which exchanges are wide."""
    # Axes are joined from the one with most calls on, so that wide exchanges have the fewest calls.
    component: IntArray = np.arange(len(program))
    wide = np.zeros(len(program.exchanges), np.bool_)
    axes = [exchange.axis for exchange in program.exchanges]
    calls: dict[str, int] = {}
    for exchange in program.exchanges:
        calls[exchange.axis] = max(calls.get(exchange.axis, 0), exchange.calls)
    for axis in sorted(calls, key=lambda name: -calls[name]):
        among = [number for number, other in enumerate(axes) if other == axis]
        joined = _joined(component, [program.exchanges[number] for number in among])
        if np.bincount(joined).max() <= max(LARGEST_COMPONENT, np.bincount(component).max()):
            component = joined
        else:
            wide[among] = True
    return component, wide


def _joined(component: IntArray, exchanges: list[Exchange]) -> IntArray:
    """Components after all members of each group are joined, numbered by first rank."""
    # As components are numbered by first rank, the least number of a set names its first rank.
    least = np.arange(len(component))
    for exchange in exchanges:
        members = component[exchange.members]
        _unite(least, np.ascontiguousarray(members).reshape(-1), members.shape[1])
    _point_to_least(least)
    return present(least[component])[1]


@compiled
def _unite(least: IntArray, members: IntArray, width: int) -> None:
    """Unite the sets of the members of each group, in a forest that leads to their least member."""
    for k in range(len(members)):
        a, b = members[k // width * width], members[k]
        while least[a] != a:
            least[a] = least[least[a]]
            a = least[a]
        while least[b] != b:
            least[b] = least[least[b]]
            b = least[b]
        if a < b:
            least[b] = a
        else:
            least[a] = b


@compiled
def _point_to_least(least: IntArray) -> None:
    """Let each member lead to the least of its set at once; a parent is less than its children."""
    for k in range(len(least)):
        least[k] = least[least[k]]


def _first_components(component: IntArray) -> IntArray:
    """First component of each block, and one past the last."""
    sizes = np.bincount(component)
    block = (np.cumsum(sizes) - sizes) // BLOCK_RANKS
    first = np.flatnonzero(np.diff(block, prepend=-1))
    return np.append(first, len(sizes))


def _exchanges(program: Program, wide: BoolArray, blocks: _Blocks) -> dict[str, Any]:
    """Tables of all exchanges; the groups of narrow exchanges are in order of block."""
    exchanges = program.exchanges
    member, kind, group_low, packed = [], [], [], []
    roles = max((len(exchange.ops) for exchange in exchanges), default=1)
    role_ptr = np.zeros((len(exchanges), roles + 1), np.int64)
    for number, exchange in enumerate(exchanges):
        role_ptr[number] = np.searchsorted(np.sort(exchange.role), np.arange(roles + 1))
        component = blocks.component[exchange.members[:, 0]] * (not wide[number])
        by_block = np.argsort(component, kind="stable")
        kind.append(exchange.kind[by_block])
        group_low.append(np.searchsorted(component[by_block], blocks.first) * (not wide[number]))
        local = _local(program, exchange, component[by_block], by_block, blocks)
        same_role = np.diff(np.sort(exchange.role)) == 0
        packed.append(bool((np.diff(local)[:, same_role] == 1).all()))
        member.append(local[: 0 if wide[number] else None].reshape(-1))
    duration = [exchange.duration_ps.reshape(-1) for exchange in exchanges]
    return {
        "group_low": np.array(group_low, np.int64).reshape(len(exchanges), len(blocks.first)),
        "packed": np.array(packed, np.bool_),
        "width": np.array([exchange.members.shape[1] for exchange in exchanges], np.int64),
        "role_ptr": role_ptr,
        "member_at": _begins(member),
        "group_at": _begins(kind),
        "time_at": _begins(duration),
        "calls": np.array([exchange.calls for exchange in exchanges], np.int64),
        "groups": np.array([len(exchange.members) for exchange in exchanges], np.int64),
        "member": _concatenated(member),
        "kind": _concatenated(kind),
        "duration_ps": _concatenated(duration),
    }


def _local(
    program: Program, exchange: Exchange, component: IntArray, by_block: IntArray, blocks: _Blocks
) -> IntArray:
    """Members in order of role, each as its position in the block's stretch of its stage."""
    ranks = exchange.members[by_block][:, np.argsort(exchange.role, kind="stable")]
    block = np.searchsorted(blocks.first, component, side="right") - 1
    low = blocks.low[block][:, program.stage[ranks[0]]]
    local: IntArray = blocks.place[ranks] - low
    return local


def _own_groups(
    program: Program, wide: BoolArray, place: IntArray, ranks: IntArray
) -> dict[str, Any]:
    """Group of each rank in each role of the wide exchanges."""
    roles = max((len(exchange.ops) for exchange in program.exchanges), default=1)
    own_at = np.zeros((len(program.exchanges), roles), np.int64)
    groups: list[IntArray] = []
    at = 0
    for number in np.flatnonzero(wide).tolist():
        exchange = program.exchanges[number]
        for role in range(len(exchange.ops)):
            members = exchange.members[:, exchange.role == role]
            group = np.full(int(ranks[program.stage[members[0, 0]]]), -1, np.int64)
            group[place[members]] = np.arange(len(members))[:, None]
            own_at[number, role] = at
            at += len(group)
            groups.append(group)
    return {"group_of": _concatenated(groups), "own_at": own_at}


def _begins(parts: Sequence[IntArray]) -> IntArray:
    """Index at which each part begins where the parts are concatenated."""
    lengths = np.array([len(part) for part in parts], np.int64)
    begins: IntArray = np.cumsum(lengths) - lengths
    return begins


def _concatenated(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
