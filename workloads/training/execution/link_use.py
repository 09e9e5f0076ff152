"""Use of links and adapters by the collectives of each group, as shares of their capacity.

A collective is a flow on the links that it uses, as at the flow level of a single job. Groups that
lie whole domains apart use corresponding links, so the messages of one of them are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import uplinks
from cluster_sim.schedule.merge import unite_resources
from cluster_sim.schedule.table import Resources, Schedule
from topologies.arrays import FloatArray, IntArray, distinct_rows, present
from topologies.clusters.cluster import Cluster
from topologies.memory_limit import check_memory
from topologies.routing.scale_out import clos, period
from topologies.shapes.links import domain_links
from workloads.training.execution.chunk_level import PARTS, as_flow, call_schedule
from workloads.training.layers.steps import LayerOp
from workloads.training.program.groups import group_of
from workloads.training.program.program import Exchange, Program

BYTES_OF_ROW = 800
"""Peak memory for each group, step and link [B]: measured as 790 B for 3.4 M of them."""


@dataclass(frozen=True, eq=False)
class LinkUse:
    """Shares of links that the calls of groups take: a row for each group, step and link.

    ``group`` (rows,): group, counted through all exchanges.
    ``step`` (rows,): step of the program whose calls take the share.
    ``link`` (rows,): row of ``links``.
    ``parts`` (rows,): share of the link's capacity, in thousandths, that a call alone takes.
    ``links``: links, adapters and memories that are shared.
    ``first`` (exchanges + 1,): first group of each exchange.
    """

    group: IntArray
    step: IntArray
    link: IntArray
    parts: IntArray
    links: Resources
    first: IntArray

    def of(self, rows: IntArray) -> LinkUse:
        """Return the use that some rows state."""
        columns = {name: getattr(self, name)[rows] for name in ("group", "step", "link", "parts")}
        return replace(self, **columns)

    def exchange(self) -> IntArray:
        """Return the exchange of each row."""
        return np.searchsorted(self.first, self.group, side="right") - 1

    def loads(self, program: Program) -> FloatArray:
        """Return the load of each link if every group calls at once, relative to its capacity.

        A stream runs one call at a time, so each group counts with its largest on each.
        """
        stream = np.array([step.stream for step in program.steps])[self.step]
        keys = np.stack([self.link, self.group, stream], axis=1)
        order = np.lexsort((-self.parts, *keys.T))
        largest = order[distinct_rows(keys[order])[0]]
        parts = np.bincount(self.link[largest], self.parts[largest], len(self.links))
        return np.asarray(parts / PARTS)

    def where_full(self, program: Program) -> LinkUse:
        """Return the use of those links that may be full.

        A link that all groups together cannot fill slows nobody, so leaving it out changes no time.
        """
        return self.of(np.flatnonzero(self.loads(program)[self.link] > 1))


def link_use(program: Program, clusters: Sequence[Cluster], patterns: Patterns) -> LinkUse:
    """Return the links that the groups of a program use.

    ``clusters`` (stages,): cluster of each stage, with the numbers of its job's framework.
    ``patterns``: cache that several programs may share.

    Raises InputError for a collective that is too long for a flow, and for more shares than this
    process has room for.
    """
    groups, steps, parts = (list[IntArray]() for _ in range(3))
    tables: list[Resources] = []
    first = np.cumsum([0, *(len(exchange.members) for exchange in program.exchanges)])
    rows = 0
    for exchange, start in zip(program.exchanges, first.tolist(), strict=False):
        cluster = clusters[program.stage[exchange.members[0, 0]]]
        for group, step, alone_ps in _calls(program, exchange):
            chips = program.chip[exchange.members[group]]
            if (chips == chips[0]).all():
                continue
            table, share = patterns.used(cluster, chips, program.steps[step], alone_ps)
            if len(share):
                tables.append(table)
                parts.append(share)
                groups.append(np.full(len(share), start + group))
                steps.append(np.full(len(share), step))
                rows += len(share)
        check_memory(
            f"a table of {rows:,} shares of links, which groups of ranks take,",
            rows * BYTES_OF_ROW,
            "Use fewer chips, or train --level collective.",
        )
    if not tables:
        none = np.empty(0, np.int64)
        return LinkUse(none, none, none, none, Resources.none(), first)
    links, numbers = unite_resources(tables)
    use = [np.concatenate(column) for column in (groups, steps, numbers, parts)]
    return LinkUse(use[0], use[1], use[2], use[3], links, first)


def _calls(program: Program, exchange: Exchange) -> Iterator[tuple[int, int, int]]:
    """Yield the steps of each group of an exchange, with the time of a call alone [ps]."""
    stage = program.stage[exchange.members[0, 0]]
    step = program.streams[stage].ops.step[exchange.ops[exchange.role[0]]]
    numbers, where = present(step)
    calls = [int(np.argmax(where == number)) for number in range(len(numbers))]
    alone = exchange.duration_ps[:, calls].tolist()
    for group, kind in enumerate(exchange.kind.tolist()):
        for number, alone_ps in zip(numbers.tolist(), alone[kind], strict=True):
            yield group, number, alone_ps


class Patterns:
    """Cache of the links that collectives use, by the places of their chips."""

    def __init__(self) -> None:
        self._messages: dict[tuple[object, ...], Schedule] = {}
        self._flows: dict[tuple[object, ...], Schedule] = {}
        self._moved: dict[tuple[object, ...], Resources] = {}

    def used(
        self, cluster: Cluster, chips: IntArray, step: LayerOp, alone_ps: int
    ) -> tuple[Resources, IntArray]:
        """Return the links that a call uses, and its share of each in thousandths."""
        base = _base(cluster, chips)
        messages = cluster, (chips - base).tobytes(), step.collective, step.size_bytes
        key = *messages, alone_ps
        if key not in self._flows:
            if messages not in self._messages:
                group = group_of(cluster, chips - base)
                built = call_schedule(group, step.collective, step.size_bytes)
                self._messages[messages] = built
            self._flows[key] = as_flow(self._messages[messages], alone_ps)
        flow = self._flows[key]
        if (*key, base) not in self._moved:
            self._moved[*key, base] = _moved(flow.resources, base, cluster)
        return self._moved[*key, base], flow.flows.weight


def _base(cluster: Cluster, chips: IntArray) -> int:
    """Return the chip with which the domain, or the part of the fabric, of a group begins."""
    each = cluster.chips_per_domain
    low, high = int(chips.min()), int(chips.max())
    if low // each != high // each:
        rate = communication_costs(cluster).scale_out_bytes_per_s
        each = period(cluster) if len(uplinks(cluster, chips[:1], rate)) else each
    return low // each * each


def _moved(table: Resources, base: int, cluster: Cluster) -> Resources:
    """Return the resources that lie as many chips further on."""
    if not base:
        return table
    each = cluster.chips_per_domain
    switches = domain_links(cluster.shape).nodes - each

    def further(node: IntArray) -> IntArray:
        moved = np.where(node >= cluster.chips, node + base // each * switches, node + base)
        return np.where(node < 0, node, moved).astype(np.int32)

    owner, peer = further(table.owner), further(table.peer)
    for layer in clos(cluster)[1][:-1] if cluster.scale_out is not None else ():
        for number, kind in enumerate(table.kinds):
            if kind in (f"{layer.name}-up", f"{layer.name}-down"):
                here = table.kind == number
                owner[here] = table.owner[here] + base // layer.chips
    return replace(table, owner=owner, peer=peer)
