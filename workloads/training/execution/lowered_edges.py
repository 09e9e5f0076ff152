"""Edges of a lowered program, written for all ranks and groups at once.

The ops that a rank's op leads to are the same for all ranks of a stage but for three kinds of
offset: the rank's first op, and the first join of each of its groups. So the edges of all ranks are
one outer sum of these offsets and of a table that the stage has in common.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from cluster_sim.schedule.table import Edges
from topologies.arrays import IntArray
from workloads.training.execution.layout import OWN, Layout, calls_of_stages, joins_of_group, tile
from workloads.training.program.program import Program
from workloads.training.program.streams import Stream


@dataclass(frozen=True, eq=False)
class Template:
    """Edges of a rank of one stage, in a form that is the same for all ranks of the stage."""

    exchange: IntArray  # (ops,): exchange that an op takes part in, -1 for none
    call: IntArray  # (ops,): number of the op's call among those of the exchange
    # src, column, value: (edges,): each edge leads from op ``src`` to the op or join ``offset[row,
    # column] + value``. Edges are sorted by ``src``. Those that leave a communication have its op
    # as their source here, although in the schedule they leave the join that ends its call.
    src: IntArray
    column: IntArray
    value: IntArray

    @cached_property
    def leaving(self) -> dict[int, IntArray]:
        """Edges that leave the ops of each exchange, and under -1 those that leave kernels."""
        left = self.exchange[self.src].astype(np.int32)
        order = np.argsort(left, kind="stable")
        first = np.flatnonzero(np.diff(left[order], prepend=-2))
        numbers, ends = left[order[first]].tolist(), [*first.tolist(), len(order)]
        return {
            number: order[low:high]
            for number, (low, high) in zip(numbers, pairwise(ends), strict=True)
        }


def _leads_to(
    stream: Stream, exchange: IntArray, call: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Edges of a stream, each to an op of the rank itself or to the join before a call."""
    meets = exchange[stream.dst] >= 0
    column = np.where(meets, exchange[stream.dst] + 1, OWN)
    value = np.where(meets, 2 * call[stream.dst], stream.dst)
    by_src = np.argsort(stream.src, kind="stable")
    return stream.src[by_src], column[by_src], value[by_src]


def lowered_edges(program: Program, layout: Layout) -> Edges:
    """Return the edges of the ops of all rows and of the joins of all groups."""
    templates = [
        Template(*calls, *_leads_to(stream, *calls))
        for stream, calls in zip(program.streams, calls_of_stages(program), strict=True)
    ]
    of_stage = [_rank_edges(template) for template in templates]
    meeting = [number for number, each in enumerate(program.exchanges) if joins_of_group(each)]
    of_exchange = [_join_edges(program, templates, number) for number in meeting]
    # First the number of edges that leave each op and join, whose sums say where they begin; then
    # the targets, written in that order.
    ptr = np.zeros(layout.total + 1, np.int64)
    tile(program, layout, ptr[1:], [leads.leaving for leads in of_stage])
    for number, leads in zip(meeting, of_exchange, strict=True):
        layout.joins(program, number, ptr[1:])[:] = leads.leaving
    np.cumsum(ptr, out=ptr)
    targets = np.empty(int(ptr[-1]), np.int32)
    offset = layout.offset.astype(np.int32)
    at = 0
    for row, stage in enumerate(program.stage.tolist()):
        at = of_stage[stage].write(offset[row], targets, at)
    for number, leads in zip(meeting, of_exchange, strict=True):
        for members in program.exchanges[number].members:
            at = leads.write(offset[members].reshape(-1), targets, at)
    return Edges(ptr, targets, np.zeros(len(targets), np.int64))


@dataclass(frozen=True, eq=False)
class Leads:
    """Edges that are the same for all rows of a stage, or for all groups of an exchange."""

    # (ops,), (joins,): number of edges that leave each op of the row, or each join of the group
    leaving: IntArray
    # place, value: (edges,): each edge leads to ``offset[place] + value``
    place: IntArray
    value: IntArray

    def write(self, offset: IntArray, targets: IntArray, at: int) -> int:
        """Write the targets of the edges from place ``at`` on, and return the place after them."""
        part = targets[at : at + len(self.value)]
        np.take(offset, self.place, out=part, mode="clip")
        part += self.value
        return at + len(self.value)


def _rank_edges(template: Template) -> Leads:
    """Edges of a rank of a stage; an op that communicates leads only to the join of its call."""
    communicates = template.exchange >= 0
    within = ~communicates[template.src]
    ops = np.flatnonzero(communicates)
    src = np.concatenate([template.src[within], ops])
    column = np.concatenate([template.column[within], template.exchange[ops] + 1])
    value = np.concatenate([template.value[within], 2 * template.call[ops] + 1])
    order = np.argsort(src, kind="stable")
    leaving = np.bincount(src, minlength=len(communicates))
    return Leads(leaving, column[order], value[order].astype(np.int32))


def _join_edges(program: Program, templates: list[Template], number: int) -> Leads:
    """Edges of the joins of a group of an exchange.

    The first join of a call leads to its ops, the second to the ops that wait for these. A stage
    has at most one role in an exchange.
    """
    exchange = program.exchanges[number]
    join, member, value = (list[IntArray]() for _ in range(3))
    for stage, op, places in program.roles(exchange):
        template = templates[stage]
        after = template.leaving.get(number, op[:0])
        joins = [2 * np.arange(exchange.calls), 2 * template.call[template.src[after]] + 1]
        leads = [np.full(len(op), OWN), template.column[after]], [op, template.value[after]]
        role_join, role_column, role_value = (np.concatenate(part) for part in (joins, *leads))
        for place in places.tolist():
            # Row of the member among the group's rows of offsets, which ``Leads.write`` flattens.
            member.append(role_column + place * (1 + len(program.exchanges)))
            join.append(role_join)
            value.append(role_value)
    joins_of = np.concatenate(join)
    order = np.argsort(joins_of, kind="stable")
    return Leads(
        np.bincount(joins_of, minlength=2 * exchange.calls),
        np.concatenate(member)[order],
        np.concatenate(value)[order].astype(np.int32),
    )
