"""The interval that a predicted number is given with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

LEVEL = 0.8
"""Share of measurements that an interval is meant to hold."""


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
        Measurements that the width comes from, and why it is wider than they are.
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
        """Interval of another number that grows, or falls, in proportion to this one.

        The interval is symmetric in logarithms, so a rate has the factor of the time it follows.

        Parameters
        ----------
        number : float
            Such as tokens a second, in its own unit.

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
            Numbers in proportion to this one, each in its own unit, whose ends are added under
            their names; None for one that is not known.

        Examples
        --------
        >>> list(Interval(8.0, 12.5).document(mfu=0.4, cost_usd=None))
        ['level', 'low', 'high', 'basis', 'mfu']
        """
        ends = {name: self.scaled(value) for name, value in following.items() if value is not None}
        keys = {"level": self.level, "low": self.low, "high": self.high, "basis": self.basis}
        return keys | ends
