"""Sensitivity of an answer to the numbers of the catalogue.

The answer is computed once with a catalogue that records which numbers are read. Each of these is
then raised by one per cent. A number that changes the answer and has a range is also set to either
end of it. The other numbers keep their values, so interactions between numbers are not seen.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.catalogue.catalogue import Catalogue, Entry
from topologies.support.errors import InputError
from workloads.confidence.interval import LEVEL, Interval
from workloads.economics import Economics, ends_of_prices

if TYPE_CHECKING:
    import pandas as pd

    from topologies.support.arrays import FloatArray

STEP = Fraction(1, 100)  # relative step of the elasticity
WIDE_STEP = Fraction(1, 10)
"""Relative step for answers that jump. A request that comes just after the end of an iteration
instead of just before gets its first token a whole iteration later, which hides the effect of one
per cent of a number."""
LEAST = 1e-6  # relative change of the answer below which a number does not matter
COUNTS = ("count",)  # units of whole numbers, which are changed only over their range

Answer = Callable[[Catalogue], float]
Watch = Callable[[Sequence[Entry]], Iterable[Entry]]


@dataclass(frozen=True)
class NotingCatalogue(Catalogue):
    """A catalogue that records which numbers are read."""

    # Every row read so far by its part, quantity and variant, in order
    read: dict[tuple[str, ...], Entry] = field(default_factory=dict, compare=False)
    # One item for each copy whose reads are not recorded here, as another process may have one
    copies: list[bool] = field(default_factory=list, compare=False)

    def __getstate__(self) -> dict[str, object]:
        """Return the fields of a copy, and record that there is one."""
        self.copies.append(True)
        return vars(self)

    def entry(self, part: str, quantity: str) -> Entry:
        """Return the row in force, and record that it was read."""
        row = super().entry(part, quantity)
        self.read[row[:3]] = row
        return row

    def with_rows(self, rows: Iterable[Entry]) -> Catalogue:
        """Return a catalogue with other rows, whose reads are not recorded."""
        self.copies.append(True)
        return super().with_rows(rows)

    def with_variants(self, names: Mapping[str, str]) -> Catalogue:
        """Return a catalogue with other variants that records in the same place."""
        other = super().with_variants(names)
        digest = f"{self.digest} {other.digest}"
        return NotingCatalogue(digest, other.rows, other.chosen, self.read, self.copies)


def noting(catalogue: Catalogue) -> NotingCatalogue:
    """Return a catalogue with the same numbers that records reads."""
    # Its digest is unique, so that no result cached for the original, or for an earlier catalogue
    # that recorded its reads, takes the place of a read.
    digest = f"{catalogue.digest} noted {uuid.uuid4()}"
    return NotingCatalogue(digest, catalogue.rows, catalogue.chosen)


@dataclass(frozen=True)
class Sensitivity:
    """Effect of one number of the catalogue on an answer."""

    input: str  # ``PART.QUANTITY``
    grade: str  # grade of the number in the catalogue
    unit: str  # SI unit of the number, such as ``B/s``
    # low, high: ends of the number's range [``unit``]; None where no source gives a range.
    low: float | None
    high: float | None
    # change_low, change_high: relative change of the answer with the number at either end
    change_low: float | None
    change_high: float | None
    # Relative change of the answer over that of the number, for a rise of one per cent (ten for
    # answers that jump)
    elasticity: float

    @property
    def swing(self) -> float:
        """Largest relative change of the answer over the range, or over ± 10 % without a range."""
        ends = [abs(change) for change in (self.change_low, self.change_high) if change is not None]
        return max(ends, default=abs(self.elasticity) * 0.1)


def sensitivity(
    answer: Answer,
    catalogue: Catalogue,
    watch: Watch = lambda entries: entries,
    step: Fraction = STEP,
) -> list[Sensitivity]:
    """Return the numbers of the catalogue that change an answer, the largest swing first."""
    # ``answer`` is computed from a catalogue, and ``step`` the relative rise of each number.
    noted = noting(catalogue)
    base = answer(noted)
    entries = list(noted.read.values())
    rows = [_of_entry(answer, catalogue, base, entry, step) for entry in watch(entries)]
    moving = [row for row in rows if row is not None]
    return sorted(moving, key=lambda row: (-row.swing, row.input))


def _of_entry(
    answer: Answer, catalogue: Catalogue, base: float, entry: Entry, step: Fraction
) -> Sensitivity | None:
    """Return the effect of one number; None where the answer does not depend on it."""
    elasticity = 0.0
    if entry.unit not in COUNTS:
        change = _change(answer, catalogue, base, entry, entry.exact * (1 + step))
        elasticity = (change or 0.0) / float(step)
    low = high = None
    if entry.unit in COUNTS or abs(elasticity) > LEAST:
        low, high = (
            None if end is None else _change(answer, catalogue, base, entry, Fraction(end))
            for end in (entry.low, entry.high)
        )
    if max(abs(change or 0.0) for change in (elasticity, low, high)) <= LEAST:
        return None
    name = f"{entry.part}.{entry.quantity}"
    unit = entry.unit
    return Sensitivity(name, entry.grade, unit, entry.low, entry.high, low, high, elasticity)


def _change(
    answer: Answer, catalogue: Catalogue, base: float, entry: Entry, value: Fraction
) -> float | None:
    """Relative change of the answer with one number replaced; None for a value that is refused."""
    moved = entry._replace(exact=value, low=None, high=None)
    try:
        seconds = answer(catalogue.with_rows([moved]))
    except InputError:
        return None
    return seconds / base - 1 if math.isfinite(seconds) else None


def sensitivity_frame(rows: Sequence[Sensitivity]) -> pd.DataFrame:
    """Return one row for each number: the keys of the command line's JSON."""
    import pandas as pd

    columns = ("input", "low", "high", "change_low", "change_high", "elasticity", "grade", "unit")
    return pd.DataFrame(
        [[getattr(row, name) for name in columns] for row in rows], columns=list(columns)
    )


# Intervals of answers that depend on several uncertain inputs at once.
#
# An input is known up to a factor. Its logarithm is normal on either side of the prediction, each
# side with the spread that its measured residuals have. The question is asked again with one input
# at a time at either end of its interval and the others as predicted. In between, and beyond, the
# answer is taken to be linear in the score of the input, and effects of several inputs to add up.
# At the points of a lattice, which all answers share, the inputs then have their values together,
# and the interval of an answer lies between two quantiles of its values there.

POINTS = 2048  # points of the lattice: quantiles of a normal answer are right to 0.5 % of its width
ROOT = 1.1673039782614187  # root of x^5 = x + 1, from which the lattice of four inputs follows
INPUTS = 5  # most inputs of an answer; the last is the price of a chip
WITHIN = NormalDist().inv_cdf((1 + LEVEL) / 2)  # score of the ends of an interval
ENDS = (-WITHIN, 0.0, WITHIN)  # scores at which a question is asked


@dataclass(frozen=True)
class Uncertain:
    """Factor on an input, 1 as predicted, of which 80 % lie between two ends."""

    low: float = 1.0
    high: float = 1.0
    basis: str = ""  # measurements behind the ends

    @classmethod
    def of(cls, ends: Interval) -> Uncertain:
        """Return the factor on a number that has an interval."""
        return cls(ends.low / ends.middle, ends.high / ends.middle, ends.basis)

    @property
    def is_point(self) -> bool:
        """Return whether the input is known."""
        return self.low == self.high == 1.0

    def factors(self, scores: FloatArray) -> FloatArray:
        """Return the factors at standard normal scores.

        >>> Uncertain(0.5, 3.0).factors(np.array([-WITHIN, 0.0, WITHIN])).round(9).tolist()
        [0.5, 1.0, 3.0]
        """
        ends = math.log(self.low), 0.0, math.log(self.high)
        result: FloatArray = np.exp(between(ends, ENDS, scores))
        return result

    def scores(self, factors: FloatArray) -> FloatArray:
        """Return the scores of factors, all 0 for an input that is known."""
        logs = np.log(factors)
        sides = np.where(logs < 0, -math.log(self.low), math.log(self.high))
        result: FloatArray = np.divide(logs * WITHIN, sides, out=0.0 * logs, where=sides > 0)
        return result

    def over(self, other: Uncertain) -> Uncertain:
        """Return the factor on a ratio of two independent inputs.

        >>> ratio = Uncertain(0.5, 2.0).over(Uncertain())
        >>> ratio.low, round(ratio.high, 9)
        (0.5, 2.0)
        """
        down = math.hypot(math.log(self.low), math.log(other.high))
        up = math.hypot(math.log(self.high), math.log(other.low))
        return Uncertain(math.exp(-down), math.exp(up), f"{self.basis}; {other.basis}")

    def times(
        self, value: float, ends: Mapping[str, float], instead_of: Uncertain | None = None
    ) -> dict[str, float]:
        """Return the ends of a value that is in proportion to this input, from its other ends.

        ``instead_of``: the input in place of this one that the ends were found with.

        >>> priced = Uncertain(0.5, 1.5).times(2.0, {"low": 1.5, "high": 4.0})
        >>> again = Uncertain().times(2.0, priced, Uncertain(0.5, 1.5))
        >>> round(again["low"], 9), round(again["high"], 9)
        (1.5, 4.0)
        """
        was = instead_of or Uncertain()
        if (self.is_point and was.is_point) or not 0 < ends["low"] <= value <= ends["high"]:
            return {"low": ends["low"], "high": ends["high"]}
        squares = (
            math.log(other) ** 2 - math.log(before) ** 2 + math.log(mine) ** 2
            for other, before, mine in (
                (value / ends["low"], was.low, self.low),
                (ends["high"] / value, was.high, self.high),
            )
        )
        down, up = (math.sqrt(max(0.0, square)) for square in squares)
        return {"low": value * math.exp(-down), "high": value * math.exp(up)}

    def document(self) -> dict[str, float | str]:
        """Return the keys of the command line's JSON."""
        return {"low": self.low, "high": self.high, "basis": self.basis}


AS_STATED = Uncertain(basis="as stated")  # factor on an input that is known


def price_of(costs: Iterable[tuple[float, Economics]]) -> Uncertain:
    """Return the factor on a sum of costs, with the rows of their prices."""
    parts = [(usd, each) for usd, each in costs if usd]
    rows = "; ".join(dict.fromkeys(each.price_basis for _, each in parts))
    low, high = ends_of_prices(parts)
    return Uncertain(low, high, rows or "no price")


@lru_cache(1)
def lattice() -> FloatArray:
    """Return standard normal scores of independent inputs; (inputs, points)."""
    # The additive recurrence with powers of the root above fills the unit cube evenly (Roberts
    # 2018, "The unreasonable effectiveness of quasirandom sequences").
    # That of prices is no power of it: the fourth and the fifth power add up to a whole number.
    steps = np.append(ROOT ** -np.arange(1.0, INPUTS), math.e)
    shares = (0.5 + np.outer(steps, np.arange(1, POINTS + 1))) % 1.0
    normal = NormalDist()
    result: FloatArray = np.vectorize(normal.inv_cdf)(shares)
    result.flags.writeable = False
    return result


def between(values: Sequence[float], at: Sequence[float], scores: FloatArray) -> FloatArray:
    """Return an answer at scores of an input, from its values at some scores, in ascending order.

    >>> between((1.0, 2.0, 5.0), (-1.0, 0.0, 1.0), np.array([0.0, 0.5, 2.0])).tolist()
    [2.0, 3.5, 8.0]
    """
    slopes = np.diff(values) / np.diff(at)
    place = np.clip(np.searchsorted(at, scores) - 1, 0, len(slopes) - 1)
    result: FloatArray = np.take(values, place) + slopes[place] * (scores - np.take(at, place))
    return result


def sampled(values: Sequence[float], scores: FloatArray) -> FloatArray:
    """Return an answer at scores, from the values of runs of which each is as likely.

    >>> sampled((3.0, 1.0, 2.0), np.array([0.0])).tolist(), sampled([7.0], np.zeros(2)).tolist()
    ([2.0], [7.0, 7.0])
    """
    if len(values) < 2:
        return np.full(len(scores), float(values[0]))
    shares = (np.arange(len(values)) + 0.5) / len(values)
    return between(sorted(values), [NormalDist().inv_cdf(share) for share in shares], scores)


def ends_of(values: FloatArray, value: float) -> dict[str, float]:
    """Return the low and high end of an answer, which hold the answer as predicted as well."""
    # The nearest value, as some may be infinite: the price of tokens of which there may be none.
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="nearest")
    return {"low": min(float(low), value), "high": max(float(high), value)}


def finite_ends(
    drawn: Mapping[str, FloatArray], values: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return the ends of answers by name; a price of what may never be made has none."""
    ends = {
        name: ends_of(each, float(values[name]))
        for name, each in drawn.items()
        if values.get(name) is not None
    }
    return {name: each for name, each in ends.items() if math.isfinite(each["high"])}


def each_of(cost: FloatArray | float, amount: FloatArray) -> FloatArray:
    """Return a cost for each of an amount, infinite where the amount is nothing."""
    result: FloatArray = np.divide(cost, amount, out=np.full(len(amount), np.inf), where=amount > 0)
    return result
