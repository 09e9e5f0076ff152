"""``mpc``: solve the coming hours as a linear programme over the forecast, again and again.

Every 15 minutes the units that should serve in each step of the next hours are chosen so that

    sum over steps of  kept units  +  cost of a change · units that come back  +  dear · units short

is least, where kept units and units that come back are whole time steps of units withheld from
training. Units short of the forecast cost so much that none is, unless the fleet has no more. What
the first step says is ordered (model-predictive control; solved by HiGHS through scipy).
"""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.demand.trace import MINUTES_PER_DAY
from workloads.fleet.policies.forecast import largest_ahead
from workloads.fleet.policies.forecasting import with_margin
from workloads.fleet.policies.kind import PolicyKind, Settings, Situation
from workloads.fleet.policies.view import Policy, View

STEP = 15
"""Minutes between two solutions, and of a step of the programme."""
SHORT = 100.0
"""Cost of a unit that is missing for one step, in steps of a unit that does not train."""


def predictive(
    *,
    change_s: float,
    quantile: float = 0.999,
    headroom: float = 0.05,
    hours: float = 6.0,
    most: float = 3.0,
) -> Policy:
    """Plan the coming hours by a linear programme over the forecast.

    Parameters
    ----------
    change_s : float
        Unit-time that a change there and back takes from training [s].
    quantile, headroom, most : float
        Margin on the forecast, as in :func:`workloads.fleet.policies.forecasting.forecast`.
    hours : float
        Length of the plan.
    """
    steps = max(2, round(hours * 60 / STEP))

    def policy(view: View) -> FloatArray | None:
        if view.minute % STEP and view.minute > 0:
            return None
        need = np.stack(
            [_expected(view, row, steps, quantile, most) for row in range(len(view.load))]
        )
        need = need * (1 + headroom)
        need[:, 0] += view.backlog / 10.0
        have = (view.serving + view.coming).astype(float)
        return first_step(need, have, float(view.units), change_s / (60.0 * STEP))

    return policy


def first_step(need: FloatArray, have: FloatArray, units: float, change: float) -> FloatArray:
    """Solve the programme and return its first step; (pools,) units.

    Parameters
    ----------
    need : float array (pools, steps)
    have : float array (pools,)
        Units that serve or are on their way.
    units : float
        Size of the whole fleet.
    change : float
        Cost of a unit that comes back, in steps of a unit that does not train.

    Examples
    --------
    A valley of two steps is not lent when a change costs three, and is when it costs one:

    >>> need = np.array([[2.0, 2.0, 10.0, 10.0]])
    >>> first_step(need, np.array([10.0]), 20.0, 3.0), first_step(need, np.array([10.0]), 20.0, 1.0)
    (array([10.]), array([2.]))
    """
    from scipy import optimize, sparse  # slow to import

    pools, steps = need.shape
    size = pools * steps
    keep = sparse.identity(size, format="csr")
    none = sparse.csr_matrix((size, size))
    before = sparse.kron(
        sparse.identity(pools), sparse.eye(steps, steps, k=-1, format="csr"), format="csr"
    )
    start = np.zeros((pools, steps))
    start[:, 0] = have
    total = sparse.kron(np.ones((1, pools)), sparse.identity(steps), format="csr")
    rows = sparse.vstack(
        [
            sparse.hstack([-keep, none, -keep]),  # kept + short >= need
            sparse.hstack([keep - before, -keep, none]),  # come back >= kept - kept before
            sparse.hstack([total, sparse.csr_matrix((steps, 2 * size))]),  # kept <= fleet
        ],
        format="csr",
    )
    bounds = np.concatenate([-need.ravel(), start.ravel(), np.full(steps, units)])
    cost = np.concatenate([np.ones(size), np.full(size, change), np.full(size, SHORT)])
    solved = optimize.linprog(cost, A_ub=rows, b_ub=bounds, method="highs")
    if solved.x is None:
        return need[:, 0]
    kept: FloatArray = np.round(solved.x[:size].reshape(pools, steps)[:, 0], 6)
    return kept


def _expected(view: View, row: int, steps: int, quantile: float, most: float) -> FloatArray:
    """Forecast of a pool in every step with its margin; what is ordered now counts after a lead."""
    load = view.load[row]
    lead = max(1, -(-round(view.lead_s * 1000) // 60_000)) if np.isfinite(view.lead_s) else 1
    first_weekday = (view.weekday - (view.history + view.minute) // MINUTES_PER_DAY) % 7
    soon = with_margin(load, STEP, lead, first_weekday, quantile, most)
    ahead = largest_ahead(load, every=STEP, steps=steps, lead=lead, first_weekday=first_weekday)
    margin = soon / ahead[0] if ahead[0] > 0 else 1.0
    result: FloatArray = ahead * margin
    result[0] = soon
    return result


def _build(settings: Settings, situation: Situation) -> Policy:
    return predictive(
        change_s=situation.lead_s + situation.back_s,
        quantile=settings.quantile,
        headroom=0.05 if settings.headroom is None else settings.headroom,
    )


KIND = PolicyKind("mpc", "plans the coming hours by a linear programme over the forecast", _build)
