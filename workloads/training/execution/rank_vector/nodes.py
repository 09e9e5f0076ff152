"""Nodes that all ranks of a stage have in common: runs of kernels, and calls in which ranks meet.

A run is a chain of kernels of one category without anything in between, so that only its start and
end matter. A call is one node, even where its members are of several stages. Nodes and their waits
are the same for all ranks of a stage; only the times differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from cluster_sim.engine.compiler.jit import compiled
from cluster_sim.schedule.table import ScheduleError
from topologies.support.arrays import BoolArray, IntArray, present
from workloads.training.program.breakdown import ORDER
from workloads.training.program.program import Exchange, Program

IDLE = len(ORDER)  # code of idle time; smaller codes are the categories of the breakdown


class Nodes(NamedTuple):
    """Nodes in an order in which each comes after all nodes that it waits for."""

    # A call has one part for each role of its members, a run has a single part. Ops are numbered
    # stage after stage.

    # exchange, call: (nodes,): exchange of a call and its number there; the exchange of a run is -1
    exchange: IntArray
    call: IntArray
    part_ptr: IntArray  # (nodes + 1,): first part of each node, and the number of parts
    # stage, category: (parts,): stage and category of each part
    stage: IntArray
    category: IntArray
    first: IntArray  # (parts,): first op of each part, by its number in the stage
    # (parts,): last op of each part, numbered through all stages; its end is the part's end
    value: IntArray
    # run_ptr, run_op, run_ps: ops of each part, by number in the stage, and their undisturbed times
    # [ps]
    run_ptr: IntArray
    run_op: IntArray
    run_ps: IntArray
    run_sum_ps: IntArray  # (parts,): time of all ops of each part [ps]
    # wait_ptr, wait: ops that each part waits for, numbered through all stages
    wait_ptr: IntArray
    wait: IntArray
    base: IntArray  # (stages + 1,): first op of each stage


def nodes(program: Program) -> Nodes:
    """Return the nodes of a program."""
    streams = program.streams
    lengths = [len(stream.ops) for stream in streams]
    base = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    stage = np.repeat(np.arange(len(lengths)), lengths)
    src = np.concatenate([stream.src + at for stream, at in zip(streams, base, strict=False)])
    dst = np.concatenate([stream.dst + at for stream, at in zip(streams, base, strict=False)])
    step = np.concatenate([stream.ops.step for stream in streams])
    exchange, call = (np.concatenate(column) for column in zip(*program.calls, strict=True))
    first, role = np.arange(len(stage)), np.zeros(len(stage), np.int64)
    for shared in program.exchanges:
        places = [member.ops + base[member.stage] for member in program.roles(shared)]
        for which, at in enumerate(places):
            first[at], role[at] = places[0], which
    place = {what: code for code, names in enumerate(ORDER.values()) for what in names}
    category = np.array([place[each.what] for each in program.steps], np.int64)[step]
    rank, meets = _ranks(first, src, dst), exchange >= 0
    if (rank < 0).any():
        stuck = int(np.flatnonzero(rank < 0)[0])
        raise ScheduleError(f"op {stuck} of the program waits for itself through others")
    head = _heads(first, rank, src, dst, meets, category)
    # Ops in order of node, then of role, then of waiting.
    order = np.lexsort((np.where(meets, 0, rank), role, rank[head], head))
    order = order[np.argsort(rank[head[order]], kind="stable")]
    heads, roles = head[order], role[order]
    begins = np.ones(len(order), np.bool_)
    begins[1:] = (heads[1:] != heads[:-1]) | (roles[1:] != roles[:-1])
    begin = np.flatnonzero(begins)
    run_ptr = np.append(begin, len(order))
    lead, last = order[begin], order[run_ptr[1:] - 1]
    new_node = np.ones(len(begin), np.bool_)
    new_node[1:] = head[lead[1:]] != head[lead[:-1]]
    part_ptr = np.append(np.flatnonzero(new_node), len(begin))
    part_of = np.empty(len(order), np.int64)
    part_of[order] = np.cumsum(begins) - 1
    outside = part_of[src] != part_of[dst]
    src, to = src[outside], part_of[dst[outside]]
    by_part = np.argsort(to, kind="stable")
    wait_ptr = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=len(begin)))])
    where, run_ps = stage[order], program.step_ps[step[order]]
    total = np.concatenate([[0], np.cumsum(run_ps)])
    return Nodes(
        exchange=exchange[lead[new_node]],
        call=call[lead[new_node]],
        part_ptr=part_ptr,
        stage=stage[lead],
        category=category[lead],
        first=lead - base[stage[lead]],
        value=last,
        run_ptr=run_ptr,
        run_op=order - base[where],
        run_ps=run_ps,
        run_sum_ps=np.diff(total[run_ptr]),
        wait_ptr=wait_ptr.astype(np.int64),
        wait=src[by_part],
        base=base,
    )


def _ranks(first: IntArray, src: IntArray, dst: IntArray) -> IntArray:
    """Place of each op's node in a topological order, -1 in or behind a cycle."""
    # ``first`` is the op that stands for each op's node: itself, or the first member of its call.
    count = len(first)
    leaves, enters = first[src], first[dst]
    ptr = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(leaves, minlength=count), out=ptr[1:])
    leads = enters[np.argsort(leaves, kind="stable")]
    waits = np.bincount(enters, minlength=count)
    queue = np.flatnonzero((first == np.arange(count)) & (waits == 0))
    rank = np.full(count, -1, np.int64)
    _number_in_order(
        ptr, leads, waits, np.append(queue, np.zeros(count, np.int64)), len(queue), rank
    )
    return rank[first]


@compiled
def _number_in_order(
    ptr: IntArray, leads: IntArray, waits: IntArray, queue: IntArray, ends: int, rank: IntArray
) -> None:
    """Number nodes in topological order; ``queue`` begins with the nodes that wait for nothing."""
    taken = 0
    while taken < ends:
        node = queue[taken]
        rank[node] = taken
        taken += 1
        for k in range(ptr[node], ptr[node + 1]):
            waits[leads[k]] -= 1
            if waits[leads[k]] == 0:
                queue[ends] = leads[k]
                ends += 1


def _heads(
    first: IntArray,
    rank: IntArray,
    src: IntArray,
    dst: IntArray,
    meets: BoolArray,
    category: IntArray,
) -> IntArray:
    """First op of each op's node: of its call, or of the run of kernels that the op continues."""
    # A kernel continues the run before it if it waits for that op alone, and alone waits for it.
    count = len(first)
    before = np.full(count, -1, np.int64)
    before[dst] = src  # the last edge into an op; only ops with one are looked at
    alone = (np.bincount(dst, minlength=count) == 1) & (before >= 0) & ~meets
    op = np.flatnonzero(alone)
    b = before[op]
    continues = (np.bincount(src, minlength=count)[b] == 1) & ~meets[b]
    op = op[continues & (category[op] == category[b])]
    head = first.copy()
    _follow_runs(op[np.argsort(rank[op], kind="stable")], before, head)
    return head


@compiled
def _follow_runs(ops: IntArray, before: IntArray, head: IntArray) -> None:
    """Give each op the head of the op before it, in order along each run."""
    for op in ops:
        head[op] = head[before[op]]


# The chain of each stage: parts of nodes that follow one another on every rank.
# Kernels of a stage and the calls that they wait for make up nearly all of its work. Intervals of a
# chain never overlap, so the time that they cover is the sum of their lengths, and a rank can be
# idle only in the gaps between them.

ASIDE, CLOSE, OPEN = range(3)
"""Places of a part: beside the chain; on the chain, beginning exactly as the part before it ends;
and on the chain, where it may begin later and so leave a gap."""


def chain(nodes: Nodes, base: BoolArray, allowed: BoolArray) -> IntArray:
    """Return the place of each part, int64 (parts,)."""
    # ``base`` (parts,): parts that are known to follow one another on every rank. ``allowed``
    # (parts,): parts that may join the chain where they lie between two neighbours of its base.
    stages, parts = len(nodes.base) - 1, len(nodes.stage)
    position, after = np.full((2, parts), -1)
    before = np.full(parts, parts)
    _positions(nodes.stage, nodes.wait_ptr, wait_part(nodes), base, position, after, before)
    length = np.bincount(nodes.stage[base], minlength=stages)
    between = np.minimum(before, length[nodes.stage]) == after + 1
    node = np.repeat(np.arange(len(nodes.exchange)), np.diff(nodes.part_ptr))
    lone = (nodes.exchange[node] < 0) & (np.diff(nodes.wait_ptr) == 1)
    return _placed(nodes, base | (allowed & between), lone)


def _placed(nodes: Nodes, joins: BoolArray, lone: BoolArray) -> IntArray:
    """Place of each part where those that join are put on the chain if they follow all of it."""
    after, place = np.full(len(nodes.stage), -1), np.full(len(nodes.stage), ASIDE)
    latest = np.full(len(nodes.base) - 1, -1)
    _places(nodes.stage, nodes.wait_ptr, wait_part(nodes), joins, lone, after, latest, place)
    return place


def wait_part(nodes: Nodes) -> IntArray:
    """Return for each wait the part whose last op is waited for, int64 (waits,)."""
    part_of = np.zeros(nodes.base[-1], np.int64)
    part_of[nodes.value] = np.arange(len(nodes.value))
    waits: IntArray = part_of[nodes.wait]
    return waits


@compiled
def _positions(
    stage: IntArray,
    wait_ptr: IntArray,
    wait_part: IntArray,
    base: BoolArray,
    position: IntArray,
    after: IntArray,
    before: IntArray,
) -> None:
    """Number the base parts of each stage, and find between which of them each part lies."""
    # ``after`` becomes the number of the last base part that a part waits for, ``before`` that of
    # the first base part that waits for it.
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            waits = wait_part[k]
            after[part] = max(after[part], position[waits] if base[waits] else after[waits])
        if base[part]:
            position[part] = after[part] + 1
    for part in range(len(stage) - 1, -1, -1):
        follows = position[part] if base[part] else before[part]
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            before[wait_part[k]] = min(before[wait_part[k]], follows)


@compiled
def _places(
    stage: IntArray,
    wait_ptr: IntArray,
    wait_part: IntArray,
    joins: BoolArray,
    lone: BoolArray,
    after: IntArray,
    latest: IntArray,
    place: IntArray,
) -> None:
    """Put each part that joins on the chain of its stage if it follows all parts there so far."""
    for part in range(len(stage)):
        for k in range(wait_ptr[part], wait_ptr[part + 1]):
            after[part] = max(after[part], after[wait_part[k]])
        if joins[part] and after[part] == latest[stage[part]]:
            direct = lone[part] and wait_part[wait_ptr[part]] == latest[stage[part]]
            place[part] = CLOSE if direct else OPEN
            after[part] = latest[stage[part]] = part


# Unions of categories that suffice to attribute every picosecond to one category.
# Where several categories are active at once, the time belongs to the first in their order. So a
# category gets the time by which it extends the union of all categories before it. Where the
# intervals of a union follow one another on every rank, as a chain of waits, its length is the sum
# of theirs, and it need not be followed.

SUMMED = -1  # code that asks for the sum of the intervals in place of a union
ALL = 0  # the union of all categories: its gaps are idle time


class Unions(NamedTuple):
    """Unions to follow, of which the first is that of all categories."""

    # Every union of a category and all before it contains the whole chain. A category whose union
    # by itself is followed is never on the chain.

    first: IntArray  # (categories,): union of a category and all before it, or ``SUMMED``
    alone: IntArray  # (categories,): union of a category by itself, or ``SUMMED``
    top: IntArray  # (unions,): last category of a union of several
    place: IntArray  # (parts,): place of each part on the chain of its stage or beside it
    followed: int  # number of unions: those of several categories, then those of one

    def spent(self, covered: IntArray, summed: IntArray) -> IntArray:
        """Time of each category, int64 (categories, ranks)."""
        # ``covered`` (unions, ranks). ``summed`` (categories, ranks): sum of the intervals of each
        # category.
        sums = np.cumsum(summed, axis=0)
        upto = np.where((self.first == SUMMED)[:, None], sums, covered[self.first])
        return np.diff(upto, axis=0, prepend=0)

    def active(self, covered: IntArray, summed: IntArray) -> IntArray:
        """Time in which something of each category is on, int64 (categories, ranks)."""
        return np.where((self.alone == SUMMED)[:, None], summed, covered[self.alone])


def unions(nodes: Nodes) -> Unions:
    """Return the unions to follow for a program's nodes."""
    codes = np.unique(nodes.category).tolist()
    first, alone = np.full((2, IDLE), SUMMED)
    top = [IDLE - 1]
    for code in range(IDLE):
        if code >= codes[-1]:
            first[code] = ALL
        elif code not in codes:
            first[code] = first[code - 1] if code else SUMMED
        elif not in_a_row(nodes, nodes.category <= code):
            first[code] = len(top)
            top.append(code)
    overlaps = [code for code in codes if not in_a_row(nodes, nodes.category == code)]
    alone[overlaps] = len(top) + np.arange(len(overlaps))
    lowest = int(np.argmax(first != SUMMED))
    allowed = (nodes.category == lowest) & (alone[lowest] == SUMMED)
    place = chain(nodes, nodes.category < lowest, allowed)
    return Unions(first, alone, np.array(top), place, len(top) + len(overlaps))


def in_a_row(nodes: Nodes, chosen: BoolArray) -> bool:
    """Return whether the chosen parts of every rank wait for each other, one after the other."""
    return bool((_placed(nodes, chosen, np.zeros_like(chosen))[chosen] != ASIDE).all())


# Layout of ranks in blocks that can be evaluated one after the other.
# Ranks that meet in any but the widest exchanges form a component, usually a replica of the model.
# The ranks of each stage are ordered by component, so that a block, which is a number of whole
# components, is one contiguous stretch of every stage.

BLOCK_RANKS = 4096
"""Fewest ranks of a block, where there are as many: long enough for vector instructions, short
enough for caches."""
LARGEST_COMPONENT = 4096
"""Most ranks of one component; exchanges that would join more to one are wide."""


class Layout(NamedTuple):
    """Places of ranks, groups and call times."""

    # A rank's row is its place in the arrays of its block: stage after stage, with room for the
    # widest stretch of each.

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


def layout(program: Program) -> Layout:
    """Return the blocks of a program's ranks."""
    component, wide = _components(program)
    stages = len(program.streams)
    order = np.lexsort((component, program.stage))
    stage_at = np.searchsorted(program.stage[order], np.arange(stages + 1))
    place = np.empty(len(program), np.int64)
    place[order] = np.arange(len(program))
    place -= stage_at[program.stage]
    # First component of each block, and one past the last.
    sizes = np.bincount(component)
    begins = np.diff((np.cumsum(sizes) - sizes) // BLOCK_RANKS, prepend=-1)
    first = np.append(np.flatnonzero(begins), len(sizes))
    of_stage = [component[order[stage_at[s] : stage_at[s + 1]]] for s in range(stages)]
    low = np.stack([np.searchsorted(numbers, first) for numbers in of_stage], axis=1)
    row_at = np.concatenate([[0], np.cumsum(np.diff(low, axis=0).max(axis=0))])
    tables = _exchanges(program, wide, component, first, low, place)
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


def _exchanges(
    program: Program,
    wide: BoolArray,
    component: IntArray,
    first: IntArray,
    low: IntArray,
    place: IntArray,
) -> dict[str, Any]:
    """Tables of all exchanges; the groups of narrow exchanges are in order of block."""
    # ``component``, ``place`` (ranks,): component of each rank, and its place among those of its
    # stage. ``first`` (blocks + 1,): first component of each block. ``low``: see :class:`Layout`.
    exchanges = program.exchanges
    member, kind, group_low, packed = [], [], [], []
    roles = max((len(exchange.ops) for exchange in exchanges), default=1)
    role_ptr = np.zeros((len(exchanges), roles + 1), np.int64)
    for number, exchange in enumerate(exchanges):
        role_ptr[number] = np.searchsorted(np.sort(exchange.role), np.arange(roles + 1))
        its_own = component[exchange.members[:, 0]] * (not wide[number])
        by_block = np.argsort(its_own, kind="stable")
        kind.append(exchange.kind[by_block])
        group_low.append(np.searchsorted(its_own[by_block], first) * (not wide[number]))
        # Members in order of role, each as its position in the block's stretch of its stage.
        ranks = exchange.members[by_block][:, np.argsort(exchange.role, kind="stable")]
        block = np.searchsorted(first, its_own[by_block], side="right") - 1
        local: IntArray = place[ranks] - low[block][:, program.stage[ranks[0]]]
        same_role = np.diff(np.sort(exchange.role)) == 0
        packed.append(bool((np.diff(local)[:, same_role] == 1).all()))
        member.append(local[: 0 if wide[number] else None].reshape(-1))
    duration = [exchange.duration_ps.reshape(-1) for exchange in exchanges]
    return {
        "group_low": np.array(group_low, np.int64).reshape(len(exchanges), len(first)),
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
    lengths = np.array([len(part) for part in parts], np.int64)
    begins: IntArray = np.cumsum(lengths) - lengths
    return begins


def _concatenated(parts: Sequence[IntArray]) -> IntArray:
    return np.concatenate([np.empty(0, np.int64), *parts]).astype(np.int64)
