"""Classes of equal ranks and links, by which jobs that share links are simulated folded.

Ranks are equal if they do the same and their groups cross equal links; links are equal if equal
groups cross them with equal shares. The classes are found by refinement, as those of a single job
are (:mod:`workloads.training.program.fold`). Rates are divided max-min fairly, so equal groups have
equal rates, and one group and one link stand for all of a class.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from topologies.arrays import IntArray, distinct_rows
from workloads.training.execution.link_use import LinkUse
from workloads.training.program.fold import equal_ranks, keep
from workloads.training.program.program import Exchange, Program


class FoldedUse(NamedTuple):
    """Shares of one link of each class that the groups of each class take.

    ``exchange`` (rows,).
    ``member`` (rows,): row of the folded program that is the first of the group's members.
    ``step`` (rows,): step whose calls take the share.
    ``link`` (rows,): row of :attr:`LinkUse.links`.
    ``parts`` (rows,): share of all groups of the class that cross the link, in thousandths.
    """

    exchange: IntArray
    member: IntArray
    step: IntArray
    link: IntArray
    parts: IntArray


def folded(program: Program, use: LinkUse) -> tuple[Program, FoldedUse]:
    """Return the program with one rank of each class, and the use of one link of each class."""
    classes, link_class = _classes(program, use)
    return keep(program, classes), _folded_use(program, use, classes, link_class)


def _classes(program: Program, use: LinkUse) -> tuple[IntArray, IntArray]:
    """Class of each rank, and of each link."""
    link_class: IntArray = np.zeros(len(use.links), np.int64)
    counts = (0, 0)
    while True:
        items = np.stack([use.step, link_class[use.link], use.parts], axis=1)
        colour = _alike(use.group, items, int(use.first[-1]))
        coloured = [
            _coloured(exchange, colour[low:high])
            for exchange, low, high in zip(
                program.exchanges, use.first[:-1].tolist(), use.first[1:].tolist(), strict=True
            )
        ]
        classes = equal_ranks(replace(program, exchanges=tuple(coloured)))
        group_class = _group_classes(program, classes)
        items = np.stack([use.exchange(), group_class[use.group], use.step, use.parts], axis=1)
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
    """Return a number for each owner that owners with equal items share, int64 (owners,).

    >>> _alike(np.array([0, 2, 2, 1]), np.array([[7], [7], [8], [7]]), 4)
    array([1, 1, 2, 0])
    """
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
    key = np.stack([rows.exchange(), member, rows.step, rows.link], axis=1)
    if not len(key):
        return FoldedUse(*[*key.T, rows.parts])
    picked, which = distinct_rows(key)
    parts = np.bincount(which, rows.parts).astype(np.int64)
    whole = FoldedUse(*[*key[picked].T, parts])
    # Links of different classes may be alike once groups are folded.
    contents = np.stack([whole.exchange, whole.member, whole.step, whole.parts], axis=1)
    alike = _alike(whole.link, contents, len(use.links))
    one = np.full(int(alike.max()) + 1, -1)
    one[alike[whole.link][::-1]] = whole.link[::-1]
    kept = np.flatnonzero(one[alike[whole.link]] == whole.link)
    return FoldedUse(*(column[kept] for column in whole))
