"""``static``: keeps the units that the busiest hour needs at all times."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from workloads.demand.trace import period_means
from workloads.fleet.policies.kind import PolicyKind, Situation
from workloads.fleet.policies.view import Policy
from workloads.options.fleet import PolicyInputs


def static(units: npt.ArrayLike) -> Policy:
    """Keep the same number of units serving at all times."""
    fixed = np.atleast_1d(np.asarray(units, float))
    return lambda view: fixed


def best_static(need: FloatArray, *, headroom: float = 0.0) -> FloatArray:
    """Units that the busiest hour needs of each pool; (pools,)."""
    result: FloatArray = period_means(need, 60).max(axis=1) * (1 + headroom)
    return result


def _build(settings: PolicyInputs, situation: Situation) -> Policy:
    busiest = best_static(situation.need, headroom=settings.headroom or 0.0)
    if settings.static_units is None:
        return static(busiest)
    return static(busiest * settings.static_units / busiest.sum())


KIND = PolicyKind("static", "what the busiest hour needs, always", _build)
