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
        """Return the interval of a number proportional to this one, or inverse as a ``rate`` is."""
        if rate:
            return {
                "low": number * self.middle / self.high,
                "high": number * self.middle / self.low,
            }
        return {"low": number * self.low / self.middle, "high": number * self.high / self.middle}

    def document(
        self, *, rates: Mapping[str, float] | None = None, **following: float | None
    ) -> dict[str, Any]:
        """Return the keys of the command line's JSON."""
        # ``rates`` are numbers that are inverse to this one, such as tokens a second to a time, and
        # ``following`` those that are proportional to it, None where not known; their ends are
        # added.
        ends = {name: self.scaled(value, rate=True) for name, value in (rates or {}).items()}
        ends |= {name: self.scaled(value) for name, value in following.items() if value is not None}
        keys = {"level": self.level, "low": self.low, "high": self.high, "basis": self.basis}
        return keys | ends
