"""Interval that accompanies a predicted number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LEVEL = 0.8  # share of measurements that an interval is meant to contain


@dataclass(frozen=True)
class Interval:
    """Low and high of a predicted number."""

    # low, high: ends, in the unit of the number
    low: float
    high: float
    level: float = LEVEL  # share of measurements that should lie between them
    basis: str = ""  # measurements from which the width comes, and reasons for which it is wider
    value: float = 0.0  # the number itself; 0 where it is the geometric mean of the ends

    @property
    def middle(self) -> float:
        """The number that lies between the ends."""
        return self.value or math.sqrt(self.low * self.high)

    @property
    def factor(self) -> float:
        """Factor between the number and the end that is farther from it."""
        return max(self.high / self.middle, self.middle / self.low)

    def scaled(self, number: float, *, rate: bool = False) -> dict[str, float]:
        """Return the interval of another number that is proportional to this one.

        Parameters
        ----------
        number : float
            The other number, such as a price, in its own unit.
        rate : bool
            Whether it is inverse to this one instead, as tokens a second are to a time.

        Examples
        --------
        >>> price, speed = (Interval(8.0, 15.0, value=10.0).scaled(60.0, rate=r) for r in (0, 1))
        >>> price, speed
        ({'low': 48.0, 'high': 90.0}, {'low': 40.0, 'high': 75.0})
        """
        if rate:
            return {
                "low": number * self.middle / self.high,
                "high": number * self.middle / self.low,
            }
        return {"low": number * self.low / self.middle, "high": number * self.high / self.middle}

    def document(
        self, *, rates: Mapping[str, float] | None = None, **following: float | None
    ) -> dict[str, Any]:
        """Return the keys of the command line's JSON.

        Parameters
        ----------
        rates : mapping of str to float, optional
            Numbers that are inverse to this one, each in its own unit; their ends are added under
            their names.
        **following : float or None
            Numbers that are proportional to this one. None for a number that is not known.

        Examples
        --------
        >>> list(Interval(8.0, 12.5).document(rates={"mfu": 0.4}, cost_usd=None))
        ['level', 'low', 'high', 'basis', 'mfu']
        """
        ends = {name: self.scaled(value, rate=True) for name, value in (rates or {}).items()}
        ends |= {name: self.scaled(value) for name, value in following.items() if value is not None}
        keys = {"level": self.level, "low": self.low, "high": self.high, "basis": self.basis}
        return keys | ends
