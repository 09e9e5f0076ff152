"""Faults (rule 8): from an instant on, a resource runs at P/Q of its nominal speed, or is dead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import HORIZON_PS, BoolArray, IntArray, Schedule

LARGEST_TERM = 2**15  # P and Q are at most this, so that scaling stays within 64 bits


class FaultError(ValueError):
    """Error for an impossible fault; the message names the row and the value."""


@dataclass(frozen=True, eq=False)
class Faults:
    """Changes of the speed of resources, one row each, in order of time and then of resource."""

    time_ps: IntArray  # instant of the change
    resource: IntArray
    # Speed from then on as a fraction P/Q of nominal, in lowest terms; 0/1 is dead, 1/1 healthy.
    numerator: IntArray
    denominator: IntArray
    # Ops in flight on a resource that dies fail, and no op after them runs; else they restart when
    # it revives.
    fails: BoolArray

    def __len__(self) -> int:
        return len(self.time_ps)

    @classmethod
    def none(cls) -> Faults:
        """Return an empty table."""
        return cls.table([], [], [])

    @classmethod
    def table(
        cls,
        time_ps: npt.ArrayLike,
        resource: npt.ArrayLike,
        numerator: npt.ArrayLike,
        denominator: npt.ArrayLike = 1,
        *,
        fails: npt.ArrayLike = False,
    ) -> Faults:
        """Make a checked, ordered table; one value in place of a column holds for all rows.

        Resource 3 dies at 5 ps and comes back at half its speed at 9 ps:

        >>> Faults.table([5, 9], 3, [0, 1], [1, 2]).numerator.tolist()
        [0, 1]
        """
        times = np.atleast_1d(np.asarray(time_ps, np.int64))

        def column(values: npt.ArrayLike, dtype: npt.DTypeLike) -> IntArray:
            return np.broadcast_to(np.asarray(values, dtype), times.shape)

        number, top, bottom = (column(c, np.int64) for c in (resource, numerator, denominator))
        _check(times, number, top, bottom)
        order = np.lexsort((number, times))
        shrink = np.gcd(top, bottom)
        return cls(
            time_ps=times[order],
            resource=number[order].astype(np.int32),
            numerator=(top // shrink)[order],
            denominator=(bottom // shrink)[order],
            fails=np.broadcast_to(np.asarray(fails, np.bool_), times.shape)[order],
        )

    def check(self, schedule: Schedule) -> None:
        """Refuse faults of resources that a schedule does not have, naming the first such row."""
        resources = len(schedule.resources)
        for row in np.flatnonzero((self.resource < 0) | (self.resource >= resources))[:1]:
            raise FaultError(
                f"fault {row}: resource {self.resource[row]}; the schedule has {resources}"
            )


def _check(time_ps: IntArray, resource: IntArray, top: IntArray, bottom: IntArray) -> None:
    order = np.lexsort((resource, time_ps))
    at, on = time_ps[order], resource[order]
    twice = np.zeros(len(order), np.bool_)
    twice[order[1:]] = (at[1:] == at[:-1]) & (on[1:] == on[:-1])
    for bad, why in (
        (time_ps < 0, "is before the run begins"),
        (time_ps > HORIZON_PS, "is past the horizon of 2**62 ps"),
        ((top < 0) | (top > LARGEST_TERM), f"has a numerator outside 0 … {LARGEST_TERM}"),
        ((bottom < 1) | (bottom > LARGEST_TERM), f"has a denominator outside 1 … {LARGEST_TERM}"),
        (top > bottom, "is above nominal: give ops a shorter duration instead"),
        (twice, "is the second for its resource at its instant"),
    ):
        for row in np.flatnonzero(bad)[:1]:
            raise FaultError(
                f"fault {row} (resource {resource[row]} at {time_ps[row]} ps, "
                f"speed {top[row]}/{bottom[row]}) {why}"
            )
