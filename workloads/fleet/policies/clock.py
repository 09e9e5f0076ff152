"""``clock``: one number of serving units by day, another between two hours of the night."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.static import best_static
from workloads.fleet.policies.view import Policy, View
from workloads.options.fleet import PolicyInputs


def clock(
    day: npt.ArrayLike,
    night: npt.ArrayLike,
    *,
    night_from: float = 0.0,
    night_to: float = 8.0,
    weekend_all_night: bool = False,
) -> Policy:
    """Serve with ``night`` units from one hour (UTC) to another, with ``day`` units otherwise.

    Fixed evening hours are all that has been disclosed of Project Rainier; DeepSeek has shown
    00:30–08:30 local time.
    """
    by_day, by_night = (np.atleast_1d(np.asarray(units, float)) for units in (day, night))

    def policy(view: View) -> FloatArray:
        inside = (view.hour - night_from) % 24.0 < (night_to - night_from) % 24.0
        return by_night if inside or (weekend_all_night and view.weekday >= 5) else by_day

    return policy


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    busiest = best_static(situation.need, headroom=settings.headroom or 0.0)
    night_from, night_to = settings.night_hours
    return clock(
        busiest,
        busiest * settings.night_share,
        night_from=night_from,
        night_to=night_to,
    )


KIND = PolicyKind(
    "clock",
    "the busiest hour's need by day, a share of it at night",
    _build,
)
