"""Batch work beside lending: the part of tonight's loans that waiting requests need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.inputs.batch import BatchWork


@dataclass(frozen=True, eq=False)
class BatchNeed:
    """Unit-hours that a batch tier needs in the coming night, and in those of the backtest.

    Requests that arrived within one deadline before the decision are known by then, and are due
    within one deadline after it.

    Attributes
    ----------
    tonight : float
        Need of the coming night [unit-hours].
    before : float array (answered,)
        Needs of the nights of the backtest [unit-hours].
    lent_before : float array (answered,)
        Unit-hours that the answer lent on those nights.
    """

    tonight: float
    before: FloatArray
    lent_before: FloatArray

    def document(self, lent: float) -> dict[str, Any]:
        """Return the need by its keys in the command line's JSON.

        ``lent`` are the unit-hours that are lent tonight.
        """
        return {
            "unit_hours": self.tonight,
            "fits": self.tonight <= lent,
            "nights_too_short": int((self.before > self.lent_before).sum()),
        }


def batch_need(work: BatchWork, days_back: npt.NDArray[np.int64], lent: FloatArray) -> BatchNeed:
    """Return the need of a batch tier in the coming night and in the nights of the backtest.

    Parameters
    ----------
    work : BatchWork
        Batch requests, with the history as their demand, which ends now.
    days_back : int64 array (answered,)
        Days from each night of the backtest to the coming night.
    lent : float array (answered,)
        Unit-hours lent on each night of the backtest.

    Examples
    --------
    A tier that keeps one unit busy all day needs 24 unit-hours of every night:

    >>> from workloads.demand import constant
    >>> work = BatchWork(constant(120.0, minutes=4320), np.full(4320, 2.0))
    >>> need = batch_need(work, np.array([1]), np.array([20.0]))
    >>> round(need.tonight, 6), need.document(30.0)["nights_too_short"]
    (24.0, 1)
    """
    unit_hours = work.demand.requests[0] / (work.rate_per_s * 60.0) / 60.0
    sums = np.concatenate([[0.0], np.cumsum(unit_hours)])
    ends = len(unit_hours) - MINUTES_PER_DAY * np.concatenate([[0], days_back])
    need = sums[np.maximum(ends, 0)] - sums[np.maximum(ends - work.deadline_minutes, 0)]
    return BatchNeed(float(need[0]), need[1:], lent)
