"""``threshold``: follows the load of the last minutes, and gives up units idle for a while."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.fleet.policies.kind import PolicyKind, Situation, check_not_negative
from workloads.fleet.policies.view import Policy, View
from workloads.options.fleet import PolicyInputs


def threshold(*, headroom: float = 0.10, hysteresis: float = 0.05, hold_s: float = 900.0) -> Policy:
    """React to the load of the last minute.

    Parameters
    ----------
    headroom : float
        Units above the need of the load, as a share of that need.
    hysteresis : float
        Share of the units that has to be idle before any are given up.
    hold_s : float
        Time for which units have to be idle before they are given up [s].
    """
    check_not_negative(headroom=headroom, hysteresis=hysteresis, hold_s=hold_s)

    def policy(view: View) -> FloatArray:
        """Units for the load, fewer only below the hysteresis."""
        hold_minutes = max(1, round(hold_s / 60.0))
        # Units to work off the waiting requests within ten minutes come on top.
        need = view.load[:, -1] * (1 + headroom) + view.backlog / 10.0
        past = view.load[:, -hold_minutes:].max(axis=1) * (1 + headroom)
        have = (view.serving + view.coming).astype(float)
        lower = np.maximum(need, past)
        return np.where(need > have, need, np.where(lower < have * (1 - hysteresis), lower, have))

    return policy


def _build(settings: PolicyInputs, _situation: Situation) -> Policy:
    return threshold(
        headroom=0.10 if settings.headroom is None else settings.headroom,
        hysteresis=0.05 if settings.hysteresis is None else settings.hysteresis,
        hold_s=900.0 if settings.hold_s is None else settings.hold_s,
    )


KIND = PolicyKind(
    "threshold",
    "the last minute's load, and a headroom",
    _build,
)
