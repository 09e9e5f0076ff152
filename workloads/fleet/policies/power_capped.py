"""``power-cap``: serves by forecast, and trains on as many units as the site's power allows."""

from __future__ import annotations

import math

from topologies.errors import InputError
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.view import Decision, Policy, View, units_wanted
from workloads.options.fleet import PolicyInputs


def power_capped(serve: Policy, *, cap_w: float, step: float = 0.01) -> Policy:
    """Keep the draw of the site under a cap by training on fewer units; serving goes first.

    Units that serve, or are on their way to serving, count with their full draw, all others that
    are not broken with their idle draw. The limit on training falls at once; it rises only by more
    than ``step`` of the fleet, so that small changes of the load move no gang.

    ``serve``: decides how many units serve. ``cap_w``: most that the site may draw [W]. ``step``:
    least rise of the limit, as a share of the fleet.
    """
    if not cap_w > 0:
        raise InputError(f"a power cap of {cap_w:g} W is not above 0; write it in MW.")
    limit = [-1]

    def policy(view: View) -> Decision:
        """Units as the serving policy wants, training as the power allows."""
        alive = view.units - view.broken
        serving = int((view.serving + view.coming).sum())
        rise_w = view.unit_busy_w - view.unit_idle_w
        left_w = cap_w - alive * view.unit_idle_w - serving * rise_w
        allowed = max(0, min(math.floor(left_w / rise_w) if rise_w > 0 else alive, alive))
        if view.minute == 0 or not limit[0] <= allowed <= limit[0] + step * view.units:
            limit[0] = allowed
        return Decision(units_wanted(serve, view), training=limit[0])

    return policy


def _build(settings: PolicyInputs, _situation: Situation) -> Policy:
    if settings.power_cap_w is None:
        raise InputError("policy power-cap needs the most that the site may draw; add --power-cap.")
    headroom = 0.05 if settings.headroom is None else settings.headroom
    serve = forecast(quantile=settings.quantile, headroom=headroom)
    return power_capped(serve, cap_w=settings.power_cap_w)


KIND = PolicyKind(
    "power-cap",
    "serves by forecast, trains within the site's power",
    _build,
    bound="mpc-oracle",
)
