"""Interval that accompanies a predicted number."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LEVEL = 0.8
"""Share of measurements that an interval is meant to contain."""


@dataclass(frozen=True)
class Interval:
    """Low and high of a predicted number.

    Attributes
    ----------
    low, high : float
        Ends, in the unit of the number.
    level : float
        Share of measurements that should lie between them.
    basis : str
        Measurements from which the width comes, and reasons for which it is wider.
    """

    low: float
    high: float
    level: float = LEVEL
    basis: str = ""

    @property
    def factor(self) -> float:
        """Factor between an end of the interval and its middle, the geometric mean of the ends."""
        return math.sqrt(self.high / self.low)

    def scaled(self, number: float) -> dict[str, float]:
        """Return the interval of another number that is proportional, or inverse, to this one.

        The interval is symmetric in logarithms, so a rate has the same factor as its time.

        Parameters
        ----------
        number : float
            The other number, such as tokens a second, in its own unit.

        Examples
        --------
        >>> ends = Interval(8.0, 12.5).scaled(100.0)
        >>> round(ends["low"], 1), round(ends["high"], 1)
        (80.0, 125.0)
        """
        return {"low": number / self.factor, "high": number * self.factor}

    def document(self, **following: float | None) -> dict[str, Any]:
        """Return the keys of the command line's JSON.

        Parameters
        ----------
        **following : float or None
            Numbers that are proportional, or inverse, to this one, each in its own unit; their
            ends are added under their names. None for a number that is not known.

        Examples
        --------
        >>> list(Interval(8.0, 12.5).document(mfu=0.4, cost_usd=None))
        ['level', 'low', 'high', 'basis', 'mfu']
        """
        ends = {name: self.scaled(value) for name, value in following.items() if value is not None}
        keys = {"level": self.level, "low": self.low, "high": self.high, "basis": self.basis}
        return keys | ends
