"""Folding: ranks that do the same at the same time are simulated once and counted.

Two ranks are equal if they are on one stage, take part in exchanges of the same duration, and
communicate there with ranks that are equal in turn. The classes are found by refinement: ranks are
divided by stage, then again and again by the classes that they communicate with, until no class
splits. The folded run has the times of the whole run, to the picosecond.

A round tells ranks apart that are one exchange nearer or farther from a place where costs differ.
Pipelines that cross a leaf switch at different stages take as many rounds as they have stages, so
ranks are first divided by their place under the switches too, which most often leaves nothing to
split, and the rounds go on with one rank of each such class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cluster_sim.hardware.faults import Fault
from topologies.support.arrays import IntArray, distinct, distinct_rows, first_places
from workloads.training.program.program import Exchange, Program

MOST_COUNTED = 4
"""Largest range of values, in multiples of their number, that is numbered by counting; sorting is
faster for a wider one."""


def fold(program: Program, apart: IntArray | None = None) -> Program:
    """Return the program with one row for each kind of equal ranks; faults keep rows ``apart``."""
    return keep(program, equal_ranks(program, apart))


def keep(program: Program, classes: IntArray) -> Program:
    """Return the program with the first rank of each class only."""
    # ``classes`` (rows,): class of each row, as :func:`equal_ranks` returns it.
    first = first_places(classes)
    names = ("stage", "rank", "domain", "chip", "core")
    return replace(
        program,
        count=np.bincount(classes, weights=program.count).astype(np.int64),
        exchanges=tuple(_folded(exchange, classes) for exchange in program.exchanges),
        **{name: getattr(program, name)[first] for name in names},
    )


def equal_ranks(program: Program, apart: IntArray | None = None) -> IntArray:
    """Return the class of each rank, numbered in order of the first rank, int64 (ranks,)."""
    stage = np.asarray(program.stage, np.int64).copy()
    if apart is not None and len(apart):
        stage[apart] = len(program.streams) + np.arange(len(apart))
    start = _numbered(stage)
    repeats = int(program.domain.max(initial=0)) + 1
    if repeats == 1:
        return _refine(program, start)
    sizes = np.bincount(start)
    settled = (_refined(start, sizes, each, _cost(each)) is start for each in program.exchanges)
    if all(settled):  # ranks of one class communicate with equal ranks already
        return start
    placed = _refine(program, _numbered(start * repeats + program.domain))
    return _refine(keep(program, placed), _numbered(start[first_places(placed)]))[placed]


def _refine(program: Program, classes: IntArray) -> IntArray:
    """Split classes until ranks of one class communicate with equal ranks."""
    # Exchanges are ordered by stage. Going through them forward and backward by turns, a difference
    # reaches all stages of a pipeline in one round, as each exchange sees the classes that the one
    # before has split.
    exchanges = _different(program.exchanges)
    sizes = np.bincount(classes)
    while True:
        before = classes
        for exchange, cost in exchanges:
            finer = _refined(classes, sizes, exchange, cost)
            if finer is not classes:
                classes, sizes = finer, np.bincount(finer)
        if classes is before:
            return classes
        # What a rank exchanges with itself alone, as the first of equal ones, tells nothing more.
        exchanges = [
            each
            for each in reversed(exchanges)
            if (each[0].members != each[0].members[:, :1]).any()
        ]


def _different(exchanges: Sequence[Exchange]) -> list[tuple[Exchange, IntArray]]:
    """Return exchanges that tell ranks apart differently, with the numbers of their costs."""
    # A transfer forward and the one backward join the same pairs, most often at the same cost.
    different: dict[tuple[bytes, ...], tuple[Exchange, IntArray]] = {}
    for exchange in exchanges:
        cost = _cost(exchange)
        order = np.argsort(exchange.members[0], kind="stable")
        parts = exchange.members[:, order], _numbered(exchange.role[order]), _numbered(cost)
        different.setdefault(tuple(part.tobytes() for part in parts), (exchange, cost))
    return list(different.values())


def affected_ranks(program: Program, faults: Sequence[Fault]) -> IntArray:
    """Return the rows of ranks on chips that a fault strikes; they are equal to no other rank."""
    return np.flatnonzero(np.isin(program.chip, [fault.chip for fault in faults]))


def _refined(classes: IntArray, sizes: IntArray, exchange: Exchange, cost: IntArray) -> IntArray:
    """Split classes by the role in an exchange, its duration, and the classes that take part."""
    # ``classes`` (ranks,): classes, which are returned themselves if none is split. ``sizes``
    # (classes,): ranks of each class. ``cost`` (groups,): number that groups with equal costs
    # share.
    met = classes[exchange.members]
    different: IntArray = np.zeros(1, np.int64)
    if (cost == cost[0]).all() and _all_as_first(met):
        met = met[:1]  # one group stands for all
    else:
        sets = _without_repeats(exchange.role * len(sizes) + met)
        different = distinct_rows(np.concatenate([cost[:, None], sets], axis=1))[1]
    roles = int(exchange.role.max()) + 1
    mark = 1 + different[:, None] * roles + exchange.role
    if _alike(mark, met, sizes, len(exchange.members) // len(met)):
        return classes
    of_all = np.zeros(len(classes), np.int64)
    of_all[exchange.members] = mark
    finer = _numbered(classes * (int(mark.max()) + 1) + of_all)
    # Rows of a folded program stand for several members of a group, so counts of members tell
    # nothing about them.
    return finer if int(finer.max()) >= len(sizes) else classes


def _all_as_first(rows: IntArray) -> bool:
    return bool((rows == rows[:1]).all())


def _alike(mark: IntArray, met: IntArray, sizes: IntArray, times: int) -> bool:
    """Return whether an exchange splits no class: its ranks have equal marks, or none has any."""
    # ``mark`` (rows, members): mark of each member of the groups. ``met`` (rows, members): class of
    # each member. ``sizes`` (classes,): ranks of each class.
    class_mark = np.zeros(len(sizes), np.int64)
    class_mark[met] = mark
    marked = times * np.bincount(met.reshape(-1), minlength=len(sizes))
    return bool((mark == class_mark[met]).all() and ((marked == 0) | (marked == sizes)).all())


def _cost(exchange: Exchange) -> IntArray:
    """Number for each group that groups with equal durations and memory traffic share."""
    rows = zip(exchange.duration_ps, exchange.draws.size_bytes, strict=True)
    numbers: dict[tuple[bytes, bytes], int] = {}
    cost = [
        numbers.setdefault((lasts.tobytes(), drawn.tobytes()), len(numbers))
        for lasts, drawn in rows
    ]
    return np.array(cost, np.int64)[exchange.kind]


def _without_repeats(rows: IntArray) -> IntArray:
    """Different values of each row, ascending, after a -1 for each repetition."""
    ordered = np.sort(rows, axis=1)
    ordered[:, 1:][ordered[:, 1:] == ordered[:, :-1]] = -1
    ordered.sort(axis=1)
    return ordered


def _numbered(values: IntArray) -> IntArray:
    """Number values from 0 in order of first appearance; no value may be negative."""
    span = int(values.max(initial=-1)) + 1
    if span > MOST_COUNTED * len(values):
        values = np.unique(values, return_inverse=True)[1]
        span = int(values.max()) + 1
    first = np.full(span, len(values), np.int64)
    first[values[::-1]] = np.arange(len(values))[::-1]
    place = np.empty(span, np.int64)
    place[np.argsort(first)] = np.arange(span)
    return place[values]


def _folded(exchange: Exchange, classes: IntArray) -> Exchange:
    """Return an exchange with one group for each combination of classes, as a set in each role."""
    met = classes[exchange.members]
    if _all_as_first(met):
        met = met[:1]
    by_role = np.argsort(exchange.role, kind="stable")
    ends = np.cumsum(np.bincount(exchange.role, minlength=len(exchange.ops)))
    sets = [_sets(met[:, places]) for places in np.split(by_role, ends[:-1])]
    role = np.repeat(np.arange(len(sets)), [some.shape[1] for some in sets])
    members = np.concatenate(sets, axis=1)
    first = distinct_rows(members)[0]
    return replace(exchange, members=members[first], role=role, kind=exchange.kind[first])


def _sets(rows: IntArray) -> IntArray:
    """Distinct values of each row, ascending; a row with fewer of them repeats its last one."""
    if len(rows) == 1:
        return distinct(rows)[None]
    ordered = _without_repeats(rows)
    widest = int((ordered >= 0).sum(axis=1).max())
    kept = ordered[:, -widest:]
    return np.where(kept < 0, kept[:, -1:], kept)
