"""Intervals of answers that depend on several uncertain inputs at once.

An input is known up to a factor. Its logarithm is normal on either side of the prediction, each
side with the spread that its measured residuals have. The question is asked again with one input
at a time at either end of its interval and the others as predicted. In between, and beyond, the
answer is taken to be linear in the score of the input, and effects of several inputs to add up.
At the points of a lattice, which all answers share, the inputs then have their values together, and
the interval of an answer lies between two quantiles of its values there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.confidence.interval import LEVEL, Interval

if TYPE_CHECKING:
    from topologies.arrays import FloatArray

POINTS = 2048  # points of the lattice: quantiles of a normal answer are right to 0.5 % of its width
ROOT = 1.1673039782614187  # root of x^5 = x + 1, from which the lattice of four inputs follows
INPUTS = 4  # most inputs of an answer
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

    def document(self) -> dict[str, float | str]:
        """Return the keys of the command line's JSON."""
        return {"low": self.low, "high": self.high, "basis": self.basis}


AS_STATED = Uncertain(basis="as stated")  # factor on an input that is known


@lru_cache(1)
def lattice() -> FloatArray:
    """Return standard normal scores of independent inputs; (inputs, points)."""
    # The additive recurrence with powers of the root above fills the unit cube evenly (Roberts
    # 2018, "The unreasonable effectiveness of quasirandom sequences").
    steps = ROOT ** -np.arange(1.0, INPUTS + 1)
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
