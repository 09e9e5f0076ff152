"""Windows of a night with a constant number of lent units, and the loans that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import IntArray


@dataclass(frozen=True)
class Window:
    """Units that are lent from minute ``first`` to minute ``last`` of the night."""

    first: int
    last: int
    units: int


def merged(edges: Sequence[int], units: Sequence[int]) -> list[Window]:
    """Join neighbouring windows with the same number of units.

    Examples
    --------
    >>> merged([0, 60, 120, 180], [5, 5, 3])
    [Window(first=0, last=120, units=5), Window(first=120, last=180, units=3)]
    """
    result: list[Window] = []
    for first, last, count in zip(edges[:-1], edges[1:], units, strict=True):
        if result and result[-1].units == count:
            result[-1] = Window(result[-1].first, last, count)
        else:
            result.append(Window(first, last, count))
    return result


def whole_loans(edges: Sequence[int], units: Sequence[int]) -> list[Window]:
    """Divide a changing number of units into loans without a break, the longest first.

    Units that were lent last are given back first.

    Examples
    --------
    >>> whole_loans([0, 60, 120, 180], [2, 5, 3])
    [Window(first=0, last=180, units=2), Window(first=60, last=180, units=1), \
Window(first=60, last=120, units=2)]
    """
    result: list[Window] = []
    open_loans: list[tuple[int, int]] = []  # begin and size, the last begun on top
    level = 0
    for moment, count in zip(edges, [*units, 0], strict=True):
        while level > count:
            first, size = open_loans.pop()
            back = min(size, level - count)
            result.append(Window(first, moment, back))
            level -= back
            if size > back:
                open_loans.append((first, size - back))
        if count > level:
            open_loans.append((moment, count - level))
            level = count
    return sorted(result, key=lambda window: (window.first, -window.last))


def without_short_loans(edges: Sequence[int], units: IntArray, least_minutes: float) -> IntArray:
    """Keep units that would be lent for ``least_minutes`` or less without a break.

    Examples
    --------
    >>> without_short_loans([0, 60, 120, 180], np.array([2, 5, 3]), 90).tolist()
    [2, 3, 3]
    """
    if least_minutes < min(np.diff(edges)):
        return units
    begins = np.asarray(edges[:-1])
    lent: IntArray = np.zeros_like(units)
    for loan in whole_loans(edges, units.tolist()):
        if loan.last - loan.first > least_minutes:
            lent[(begins >= loan.first) & (begins < loan.last)] += loan.units
    return lent


def largest_return(loans: Sequence[Window]) -> int:
    """Most units that come back at the same time.

    Examples
    --------
    >>> largest_return([Window(0, 180, 2), Window(60, 180, 1), Window(60, 120, 2)])
    3
    """
    back: Counter[int] = Counter()
    for loan in loans:
        back[loan.last] += loan.units
    return max(back.values(), default=0)
