"""Phases of an instant (rule 5), as priorities by which SimPy orders events of equal time."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import simpy

ENDS, FAULTS, READINESS, STARTS = 1, 2, 3, 4
"""Phases of one instant, in their order; events of ``env.timeout`` are in the first.

The starts on resource r are in phase ``STARTS + r``, so resources come in number order. With R
resources, ops that hold none start in ``STARTS + R``, rates are solved in ``STARTS + R + 1``, and
a run that is to stop at the instant does so in ``STARTS + R + 2``.
"""


class Picoseconds(simpy.Environment):
    """SimPy's environment with a clock in whole picoseconds."""

    @property
    def now(self) -> int:
        """The present instant [ps]."""
        return self._now  # type: ignore[return-value]


class Phase(simpy.Event):
    """An event in a chosen phase of a chosen instant."""

    def plan(self, phase: int, delay: int, callback: Callable[[Any], None] | None = None) -> None:
        """Schedule the event in a phase of the instant ``delay`` from now [ps]."""
        self._ok, self._value = True, None
        if callback is not None:
            self.callbacks.append(callback)
        self.env.schedule(self, phase, delay)  # type: ignore[arg-type]


def scaled(duration_ps: int, factor: Fraction) -> int:
    """Multiply a duration by a fraction, rounded up [ps] (rule 8)."""
    return -(-duration_ps * factor.numerator // factor.denominator)
