"""Capacity that can be lent when its return takes a lead time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecast import recent, same_time, smoothed


def lendable(
    load: FloatArray,
    *,
    lead_minutes: Sequence[int] = (5, 15, 30, 60),
    every: int = 15,
    exceeded: float = 0.001,
) -> pd.DataFrame:
    """Headroom and freed capacity by lead time, for two controllers.

    Capacity is decided every ``every`` minutes and takes effect ``lead`` minutes later.
    ``reactive`` expects the largest five-minute mean of the last 15 minutes, ``with yesterday`` the
    larger of that and the same interval 24 hours ago. The headroom is the smallest factor on the
    expectation by which the load exceeds capacity in at most a share ``exceeded`` of the minutes.
    The first day serves as history only. Returns ``lead_minutes, controller, headroom, freed``
    (share of the peak capacity).
    """
    smooth = smoothed(np.asarray(load, float))
    longest = max(lead_minutes, default=0)
    if len(smooth) <= MINUTES_PER_DAY + longest:
        raise InputError(
            f"a load of {len(smooth) / MINUTES_PER_DAY:.3g} days is too short for changes that "
            f"take {longest:,} minutes: the first day serves as history only. Give at least "
            f"{-(-(MINUTES_PER_DAY + longest + 1) // MINUTES_PER_DAY)} days."
        )
    rows = []
    for lead in lead_minutes:
        at = np.arange(MINUTES_PER_DAY, len(smooth) - lead, every)
        begin = at + lead
        now = recent(smooth, at)
        yesterday = same_time(smooth, begin, np.full(len(begin), MINUTES_PER_DAY), every)
        for name, expected in (("reactive", now), ("with yesterday", np.fmax(now, yesterday))):
            minute = (begin[:, None] + np.arange(every)).ravel()
            capacity = np.repeat(expected, every)[minute < len(smooth)]
            came = smooth[minute[minute < len(smooth)]]
            headroom = float(np.quantile(came / capacity, 1 - exceeded))
            kept = np.minimum(headroom * capacity, smooth.max()).mean() / smooth.max()
            rows.append((lead, name, headroom, float(1 - kept)))
    return pd.DataFrame(rows, columns=["lead_minutes", "controller", "headroom", "freed"])
