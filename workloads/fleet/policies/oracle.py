"""``oracle``: knows the demand of the run, and pays for role changes as every policy does."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.view import Policy, View
from workloads.options.fleet import PolicyInputs


def oracle(
    need: FloatArray, *, lead_s: float = 0.0, shortest_valley_s: float = 0.0, ramp: int = 0
) -> Policy:
    """Serve exactly the need of each minute, with units ordered in time.

    ``need`` (services, minutes): units that each minute of the run will need. ``lead_s``: time by
    which units are ordered ahead [s]. ``shortest_valley_s``: valleys of the need shorter than this
    are not lent [s]: a change there and back would not pay. ``ramp``: most units that can be
    ordered in a minute, 0 for any number.
    """
    lead = int(-(-lead_s // 60.0)) if np.isfinite(lead_s) else need.shape[1]
    window = min(
        int(shortest_valley_s // 60.0) if np.isfinite(shortest_valley_s) else 2**30, need.shape[1]
    )
    plan = np.ceil(need - 1e-9)
    if window > 1:
        import pandas as pd  # names of policies are listed without it

        # A morphological closing fills exactly the valleys that are narrower than the window: the
        # least of the maxima of all windows with a minute. Both windows end at their row.
        padded = pd.DataFrame(np.pad(plan, ((0, 0), (window, window)), mode="edge").T)
        closed = padded.rolling(window).max().rolling(window).min()
        plan = closed.to_numpy().T[:, 2 * window - 1 : -1]
    if lead:
        ahead = np.pad(plan, ((0, 0), (0, lead)), mode="edge")
        windows = np.lib.stride_tricks.sliding_window_view(ahead, lead + 1, axis=1)
        plan = windows.max(axis=2)
    if ramp:
        # From behind: a minute has at least what the next one has, less one minute's orders.
        steps = ramp * np.arange(plan.shape[1], dtype=float)
        plan = np.maximum.accumulate((plan - steps)[:, ::-1], axis=1)[:, ::-1] + steps

    def policy(view: View) -> FloatArray:
        wanted: FloatArray = plan[:, min(view.minute, plan.shape[1] - 1)]
        return wanted

    return policy


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    """Order ahead by the change time; lend no valley shorter than a change there and back."""
    lead_s = situation.lead_s
    return oracle(
        situation.need * (1 + (settings.headroom or 0.0)),
        lead_s=lead_s + 60.0 if lead_s else 0.0,
        shortest_valley_s=lead_s + situation.back_s,
        ramp=situation.ramp,
    )


KIND = PolicyKind("oracle", "the future, ordered early enough: an upper bound", _build)
