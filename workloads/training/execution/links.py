"""Use of links and adapters by the collectives of each group, as shares of their capacity.

A collective is a flow for each of its phases on the links that it uses, as at the flow level of a
single job. Groups that lie whole domains apart use corresponding links, so the messages of one of
them are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives.group import Group
from cluster_sim.engine.times import Times
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import uplinks
from cluster_sim.schedule.build import OpColumns, schedule, unite_resources
from cluster_sim.schedule.repeats import Routines
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    NO_RESOURCE,
    Edges,
    Flows,
    Resources,
    Schedule,
)
from cluster_sim.trace.trace import run
from topologies.clusters.cluster import Cluster
from topologies.routing import clos, period
from topologies.shapes.links import domain_links
from topologies.support.arrays import FloatArray, IntArray, distinct_rows, pointers, present, runs
from topologies.support.memory_limit import check_memory
from workloads.training.execution import chunk_level
from workloads.training.execution.lower import lower
from workloads.training.layers.steps import LayerOp
from workloads.training.program.fold import equal_ranks, keep
from workloads.training.program.groups import group_of
from workloads.training.program.program import OWN, Exchange, Program

BYTES_OF_ROW = 200
"""Peak memory for each group, step and link [B]: measured as 153 B for 1.2 M of them."""


@dataclass(frozen=True, eq=False)
class LinkUse:
    """Shares of links that calls of groups take: a row for each group, step, phase and link."""

    group: IntArray  # (rows,): group, counted through all exchanges
    step: IntArray  # (rows,): step of the program whose calls take the share
    link: IntArray  # (rows,): row of ``links``
    parts: IntArray  # (rows,): share of the link's capacity, in thousandths, of a call alone
    # begin_ps, phase_ps: (rows,): start and time of the phase in a call alone [ps]
    begin_ps: IntArray
    phase_ps: IntArray
    links: Resources  # links, adapters and memories that are shared
    first: IntArray  # (exchanges + 1,): first group of each exchange

    def of(self, rows: IntArray) -> LinkUse:
        """Return the use that some rows state."""
        names = "group", "step", "link", "parts", "begin_ps", "phase_ps"
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def exchange(self) -> IntArray:
        """Return the exchange of each row."""
        return np.searchsorted(self.first, self.group, side="right") - 1

    def loads(self, program: Program) -> FloatArray:
        """Return the load of each link if every group calls at once, relative to its capacity."""
        # A stream runs one call at a time, so each group counts with its largest phase on each.
        stream = program.stream_of[self.step]
        keys = np.stack([self.link, self.group, stream], axis=1)
        order = np.lexsort((-self.parts, *keys.T))
        largest = order[distinct_rows(keys[order])[0]]
        parts = np.bincount(self.link[largest], self.parts[largest], len(self.links))
        return np.asarray(parts / chunk_level.PARTS)

    def where_full(self, program: Program) -> LinkUse:
        """Return the use of those links that may be full."""
        # A link that all groups together cannot fill slows nobody, so leaving it out changes no
        # time.
        return self.of(np.flatnonzero(self.loads(program)[self.link] > 1))


def link_use(program: Program, clusters: Sequence[Cluster], patterns: Patterns) -> LinkUse:
    """Return the links that the groups of a program use."""
    # ``clusters`` (stages,): cluster of each stage, with the numbers of its job's framework.
    # ``patterns``: cache that several programs may share. Raises InputError for a collective that
    # is too long for a flow, and for more shares than this process has room for.
    groups, steps, parts, begins, phases = (list[IntArray]() for _ in range(5))
    tables: list[Resources] = []
    first = np.cumsum([0, *(len(exchange.members) for exchange in program.exchanges)])
    rows = 0
    for exchange, start in zip(program.exchanges, first.tolist(), strict=False):
        cluster = clusters[program.stage[exchange.members[0, 0]]]
        chips = program.chip[exchange.members]
        base = _bases(cluster, chips)
        inside = chips - base[:, None]
        apart = np.flatnonzero((chips != chips[:, :1]).any(axis=1))
        examples, which = distinct_rows(np.column_stack([inside, exchange.kind])[apart])
        for number, example in enumerate(apart[examples].tolist()):
            alike = apart[which == number]
            for step, alone_ps in _calls(program, exchange, int(exchange.kind[example])):
                group = group_of(cluster, inside[example])
                beside = chunk_level.groups_of_chip(program, exchange, group)
                flow = patterns.flow(group, program.steps[step], alone_ps, beside)
                crossed, lasting = flow.flows, flow.duration_ps + flow.size_bytes
                phase = np.repeat(crossed.op, np.diff(crossed.ptr))
                used = flow.resources.picked(crossed.resource)
                tables.append(_moved(used, base[alike], cluster))
                parts.append(np.tile(crossed.weight, len(alike)))
                begins.append(np.tile((np.cumsum(lasting) - lasting)[phase], len(alike)))
                phases.append(np.tile(lasting[phase], len(alike)))
                groups.append(np.repeat(start + alike, len(used)))
                steps.append(np.full(len(tables[-1]), step))
                rows += len(tables[-1])
        check_memory(
            f"a table of {rows:,} shares of links, which groups of ranks take,",
            rows * BYTES_OF_ROW,
            "Use fewer chips, or train --level collective.",
        )
    if not rows:
        none = np.empty(0, np.int64)
        return LinkUse(none, none, none, none, none, none, Resources.none(), first)
    links, numbers = unite_resources(tables)
    columns = groups, steps, numbers, parts, begins, phases
    use = [np.concatenate(column) for column in columns]
    return _with_held_adapters(
        LinkUse(use[0], use[1], use[2], use[3], use[4], use[5], links, first)
    )


def _with_held_adapters(use: LinkUse) -> LinkUse:
    """Return the use with adapters that are held while their messages wait for an uplink."""
    at_once = np.stack([use.exchange(), use.step, use.begin_ps], axis=1)
    flow = distinct_rows(np.stack([use.group, use.step, use.begin_ps], axis=1))[1]
    return replace(
        use, parts=chunk_level.held_adapters(use.links, use.link, at_once, flow, use.parts)
    )


def _calls(program: Program, exchange: Exchange, kind: int) -> list[tuple[int, int]]:
    """Return the steps of the groups of a kind, with the time of a call alone [ps]."""
    numbers, where = present(program.steps_of(exchange))
    calls = [int(np.argmax(where == number)) for number in range(len(numbers))]
    return list(zip(numbers.tolist(), exchange.duration_ps[kind, calls].tolist(), strict=True))


class Patterns:
    """Cache of the links that collectives use, by the places of their chips."""

    def __init__(self) -> None:
        # Links that a call keeps busy, and for how long: messages and fabric take far more memory.
        self._used: dict[tuple[object, ...], chunk_level.LinkTime] = {}
        self._flows: dict[tuple[object, ...], Schedule] = {}

    def flow(self, group: Group, step: LayerOp, alone_ps: int, beside: int) -> Schedule:
        """Return a call as flows on the links that it uses, ``beside`` as many on its chips."""
        chips = group.chip_of_rank.tobytes()
        messages = group.cluster, chips, step.collective, step.size_bytes
        key = *messages, alone_ps, beside
        if key not in self._flows:
            if messages not in self._used:
                built = chunk_level.call_schedule(group, step.collective, step.size_bytes)
                used = chunk_level.link_time(built)
                picked = np.flatnonzero(used.busy_ps.any(axis=0))
                self._used[messages] = used._replace(
                    resources=built.resources.picked(picked), busy_ps=used.busy_ps[:, picked]
                )
            self._flows[key] = chunk_level.as_flow(self._used[messages], alone_ps, beside)
        return self._flows[key]


def _bases(cluster: Cluster, chips: IntArray) -> IntArray:
    """Return the chip with which the domain, or the part of the fabric, of each group begins."""
    each = cluster.chips_per_domain
    low, high = chips.min(axis=1), chips.max(axis=1)
    rate = communication_costs(cluster).scale_out_bytes_per_s
    across = period(cluster) if len(uplinks(cluster, chips[0, :1], rate)) else each
    size = np.where(low // each == high // each, each, across)
    return np.asarray(low // size * size)


def _moved(table: Resources, base: IntArray, cluster: Cluster) -> Resources:
    """Return the resources that lie as many chips further on, for each of these numbers."""
    each = cluster.chips_per_domain
    switches = domain_links(cluster.shape).nodes - each
    domain = base[:, None] // each

    def further(node: IntArray) -> IntArray:
        moved = np.where(node >= cluster.chips, node + domain * switches, node + base[:, None])
        return np.where(node < 0, node, moved).astype(np.int32)

    owner, peer = further(table.owner), further(table.peer)
    for layer in clos(cluster)[1][:-1] if cluster.scale_out is not None else ():
        for number, kind in enumerate(table.kinds):
            if kind in (f"{layer.name}-up", f"{layer.name}-down"):
                here = table.kind == number
                owner[:, here] = table.owner[here] + base[:, None] // layer.chips
    moved = table.picked(np.tile(np.arange(len(table)), len(base)))
    return replace(moved, owner=owner.ravel(), peer=peer.ravel())


# Classes of equal ranks and links, by which jobs that share links are simulated folded.
#
# Ranks are equal if they do the same and their groups cross equal links; links are equal if equal
# groups cross them with equal shares. The classes are found by refinement, as those of a single job
# are (:mod:`workloads.training.program.fold`). Rates are divided max-min fairly, so equal groups
# have equal rates, and one group and one link stand for all of a class.


class FoldedUse(NamedTuple):
    """Shares of one link of each class that the groups of each class take."""

    exchange: IntArray  # (rows,)
    member: IntArray  # (rows,): row of the folded program that is the first of the group's members
    step: IntArray  # (rows,): step whose calls take the share
    link: IntArray  # (rows,): row of :attr:`LinkUse.links`
    begin_ps: IntArray  # (rows,): as in :class:`LinkUse`
    phase_ps: IntArray  # (rows,): as in :class:`LinkUse`
    parts: IntArray  # (rows,): share, in thousandths, of all groups of the class on the link


def folded(program: Program, use: LinkUse) -> tuple[Program, FoldedUse]:
    """Return the program with one rank of each class, and the use of one link of each class."""
    classes, link_class = _classes(program, use)
    return keep(program, classes), _folded_use(program, use, classes, link_class)


def _classes(program: Program, use: LinkUse) -> tuple[IntArray, IntArray]:
    """Class of each rank, and of each link."""
    link_class: IntArray = np.zeros(len(use.links), np.int64)
    counts = (0, 0)
    while True:
        phase = use.step, use.begin_ps, use.phase_ps
        items = np.stack([*phase, link_class[use.link], use.parts], axis=1)
        colour = _alike(use.group, items, int(use.first[-1]))
        coloured = [
            _coloured(exchange, colour[low:high])
            for exchange, low, high in zip(
                program.exchanges, use.first[:-1].tolist(), use.first[1:].tolist(), strict=True
            )
        ]
        classes = equal_ranks(replace(program, exchanges=tuple(coloured)))
        group_class = _group_classes(program, classes)
        owner = use.exchange(), group_class[use.group]
        items = np.stack([*owner, *phase, use.parts], axis=1)
        link_class = _alike(use.link, items, len(use.links))
        before, counts = counts, (int(classes.max()), int(link_class.max(initial=0)))
        if before == counts:
            return classes, link_class


def _coloured(exchange: Exchange, colour: IntArray) -> Exchange:
    """Return an exchange whose groups of different colours have different costs."""
    first, kind = distinct_rows(np.stack([exchange.kind, colour], axis=1))
    # A last call that takes as long as the number of the colour tells the costs apart.
    old = exchange.kind[first]
    cost = np.hstack([exchange.duration_ps[old], colour[first, None]])
    draws = type(exchange.draws)(*(column[old] for column in exchange.draws))
    return replace(exchange, kind=kind, duration_ps=cost, draws=draws)


def _group_classes(program: Program, classes: IntArray) -> IntArray:
    """Return the lowest class among the members of each group, which no unequal group has."""
    lowest = [classes[exchange.members].min(axis=1) for exchange in program.exchanges]
    return np.concatenate([np.empty(0, np.int64), *lowest])


def _alike(owner: IntArray, items: IntArray, owners: int) -> IntArray:
    """Return a number for each owner that owners with equal items share, int64 (owners,)."""
    if not len(owner):
        return np.zeros(owners, np.int64)
    item = distinct_rows(items)[1]
    order = np.lexsort((item, owner))
    bounds = np.searchsorted(owner[order], np.arange(owners + 1)).tolist()
    item, numbers = item[order], {b"": 0}
    return np.array(
        [
            numbers.setdefault(item[low:high].tobytes(), len(numbers))
            for low, high in pairwise(bounds)
        ]
    )


def _folded_use(
    program: Program, use: LinkUse, classes: IntArray, link_class: IntArray
) -> FoldedUse:
    """Use of the first link of each class, without links that carry the same as another."""
    used = np.zeros(len(use.links), np.bool_)
    used[use.link] = True
    links = np.flatnonzero(used)
    first = np.full(int(link_class.max(initial=0)) + 1, -1)
    first[link_class[links][::-1]] = links[::-1]
    rows = use.of(np.flatnonzero(first[link_class[use.link]] == use.link))
    member = _group_classes(program, classes)[rows.group]
    call = rows.exchange(), member, rows.step
    key = np.stack([*call, rows.link, rows.begin_ps, rows.phase_ps], axis=1)
    if not len(key):
        return FoldedUse(*[*key.T, rows.parts])
    picked, which = distinct_rows(key)
    parts = np.bincount(which, rows.parts).astype(np.int64)
    whole = FoldedUse(*[*key[picked].T, parts])
    # Links of different classes may be alike once groups are folded.
    contents = np.stack([*whole[:3], *whole[4:]], axis=1)
    alike = _alike(whole.link, contents, len(use.links))
    one = np.full(int(alike.max()) + 1, -1)
    one[alike[whole.link][::-1]] = whole.link[::-1]
    kept = np.flatnonzero(one[alike[whole.link]] == whole.link)
    return FoldedUse(*(column[kept] for column in whole))


# Schedule of a folded program, of a job or of several, with flows on the links that may be full.
#
# A call of a class of groups is a flow for each of its phases, on one link of each class of links.
# Its times are those of a run of all ranks in which every call is flows
# (:mod:`workloads.training.execution.chunk_level`).

BYTES_OF_OP = 300
"""Peak memory for each op of a schedule, with its share of flows [B]."""


@dataclass(frozen=True, eq=False)
class SideBySide:
    """Schedule of a folded program, of a job or of several."""

    program: Program  # folded program
    usual: Schedule  # its schedule at the collective level
    # The same ops; of each call that uses links the op of one member, for which the others wait,
    # ends the call. Behind all ops stand its waits and flows, first the first wait of each call.
    schedule: Schedule
    exchange: IntArray  # (calls,): exchange of each call that uses links
    op: IntArray  # (calls,): op that ends it

    def longer_ps(self, times: Times) -> IntArray:
        """Return by how much each call takes longer than alone, int64 (calls,) [ps]."""
        begin_ps = times.start_ps[len(self.usual) :][: len(self.op)]
        return np.asarray(times.end_ps[self.op] - begin_ps - self.usual.duration_ps[self.op])

    def run(self, engine: str) -> Times:
        """Return the times of all ops."""
        return run(self.schedule, engine=engine).times

    def ends_ps(self, times: Times, stage: int, steps: int) -> IntArray:
        """Return when each step of the ranks of a stage ends, int64 (steps,) [ps]."""
        ends = np.zeros(steps, np.int64)
        ops = len(self.program.streams[stage].ops)
        for row in np.flatnonzero(self.program.stage == stage).tolist():
            begin = int(self.program.offset[row, OWN])
            of_row = times.end_ps[begin : begin + ops].reshape(steps, -1)
            np.maximum(ends, of_row.max(axis=1), out=ends)
        return ends


def folded_flows(program: Program, cluster: Cluster) -> tuple[Program, chunk_level.Expanded]:
    """Return the folded program of a job, and its iteration with a flow for each call."""
    # Raises InputError for collectives that are known by their times alone, and for a schedule that
    # this process has no room for.
    chunk_level.check_messages(cluster)
    use = link_use(program, [cluster] * len(program.streams), Patterns()).where_full(program)
    few, of_classes = folded(program, use)
    flows = side_by_side(few, of_classes, use.links)
    meeting: list[IntArray] = [
        np.arange(len(each.members) if each.joins else 0) for each in few.exchanges
    ]
    none = np.empty(0, np.int64)
    no_calls = Routines(np.array([len(flows.schedule)]), none, none)
    op, end = chunk_level.ends(few, meeting)
    return few, chunk_level.Expanded(flows.schedule, no_calls, flows.usual, op, end, flows.op)


def side_by_side(program: Program, use: FoldedUse, links: Resources) -> SideBySide:
    """Return the schedule of a folded program whose groups use links."""
    # Raises InputError for a schedule that this process has no room for.
    check_memory(
        f"a schedule of {program.total:,} ops, with a rank of each class that shares links alike,",
        program.total * BYTES_OF_OP,
        "Use a smaller global_batch or fewer steps, or train --level collective.",
    )
    usual = lower(program)
    used, place = np.unique(use.link, return_inverse=True)
    order = np.lexsort((place, use.begin_ps, use.step, use.member, use.exchange))
    use, place = FoldedUse(*(column[order] for column in use)), place[order]
    op, low, high = _phases(program, use)
    begin_ps, phase_ps = use.begin_ps[low], use.phase_ps[low]
    first, last = np.diff(op, prepend=-1) != 0, np.diff(op, append=-1) != 0
    # Behind all ops stand those of phases: a wait, from the end of the phase before, and a flow.
    wait_ps = begin_ps - np.where(first, 0, np.roll(begin_ps + phase_ps, 1))
    by_wait = np.argsort(~first, kind="stable")
    wait, flow = len(usual) + np.arange(2 * len(op)).reshape(2, -1)
    wait = wait[np.argsort(by_wait)]
    calls, rest_ps = op[last], usual.duration_ps[op[last]] - (begin_ps + phase_ps)[last]
    kind, resource, duration = (
        column.copy() for column in (usual.kind, usual.resource, usual.duration_ps)
    )
    kind[calls], resource[calls] = np.where(rest_ps, FIXED, JOIN), NO_RESOURCE
    duration[calls] = rest_ps
    edges, place_of, none = usual.edges, np.arange(len(usual)), np.zeros(2 * len(op), np.int64)
    place_of[calls] = wait[first]
    waits = np.where(wait_ps, FIXED, JOIN)[by_wait]
    together = schedule(
        OpColumns(
            kind=np.concatenate([kind, waits, np.full(len(op), FLOW)]),
            resource=np.append(resource, none + NO_RESOURCE),
            duration_ps=np.concatenate([duration, wait_ps[by_wait], none[: len(op)]]),
            size_bytes=np.concatenate([usual.size_bytes, none[: len(op)], phase_ps]),
            priority=np.append(usual.priority, usual.priority[np.append(op[by_wait], op)]),
        ),
        edges=Edges.from_pairs(
            len(usual) + len(none),
            np.concatenate([edges.sources(), wait, flow]),
            np.concatenate([place_of[edges.dst], flow, np.where(last, op, np.roll(wait, -1))]),
            np.append(edges.lag_ps, none),
            np.append(edges.start_mask(), none > 0),
        ),
        resources=Resources.concat([usual.resources, links.picked(used)]),
        flows=_shares(flow, low, high, len(usual.resources) + place, use.parts),
    )
    return SideBySide(program, usual, together, use.exchange[low[last]], calls)


def _phases(program: Program, use: FoldedUse) -> tuple[IntArray, ...]:
    """Return for each phase of each call its op, and its shares from the first to the last."""
    key = np.stack([use.exchange, use.member, use.step, use.begin_ps], axis=1)
    bounds = np.flatnonzero(np.diff(key, axis=0, prepend=-1, append=-1).any(axis=1))
    phases = [np.empty((3, 0), np.int64)]
    for low, high in pairwise(bounds.tolist()):
        ours = _ops(program, *key[low, :3].tolist())
        phases.append(np.stack(np.broadcast_arrays(ours, low, high)))
    whole = np.concatenate(phases, axis=1)
    return tuple(whole[:, np.lexsort((whole[1], whole[0]))])


def _shares(
    flow: IntArray, low: IntArray, high: IntArray, resource: IntArray, parts: IntArray
) -> Flows:
    """Return flows from rows of their shares, ``low`` to ``high`` of each."""
    row = runs(low, high - low)
    return Flows(
        flow.astype(np.int32),
        np.full(len(flow), chunk_level.PACE),
        pointers(high - low),
        resource[row].astype(np.int32),
        parts[row].astype(np.int32),
    )


def _ops(program: Program, number: int, member: int, step: int) -> IntArray:
    """Ops of the first member of a group that make the calls of a step."""
    exchange = program.exchanges[number]
    group = int(np.argmax((exchange.members == member).any(axis=1)))
    first = int(exchange.members[group, 0])
    # The step is that of the first role: a receiver's op of the same call is another step.
    calls = exchange.ops[int(exchange.role[0])]
    return np.asarray(program.offset[first, OWN] + calls[program.steps_of(exchange) == step])
