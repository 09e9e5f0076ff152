"""Engines: when each op of a schedule starts and ends, by the rules of time.

The reference engine defines the rules in SimPy; the fast engine is compiled and gives the same
integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from cluster_sim.engine import reference
from cluster_sim.engine.times import (
    DONE,
    DOOMED,
    FAILED,
    NEVER,
    READY,
    RUNNING,
    WAITING,
    Attempts,
    HorizonError,
    Times,
)
from cluster_sim.schedule import Schedule

__all__ = [
    "DONE",
    "DOOMED",
    "FAILED",
    "NEVER",
    "READY",
    "RUNNING",
    "WAITING",
    "Attempts",
    "HorizonError",
    "Times",
    "simulate",
]


def simulate(
    schedule: Schedule,
    *,
    engine: str = "fast",
    until_ps: int | None = None,
    until_ops: Iterable[int] | None = None,
) -> Times:
    """Run a schedule and say when each op was ready, started and ended.

    For the time being ``fast`` is served by the reference engine.

    Examples
    --------
    >>> from cluster_sim.build import schedule
    >>> from cluster_sim.schedule import FIXED, Edges, Resources
    >>> link = Resources.table("link", [0], [1])
    >>> two = schedule(kind=[FIXED] * 2, resource=0, duration_ps=5, resources=link,
    ...                edges=Edges.from_pairs(2, [0], [1], lag_ps=3))
    >>> simulate(two).start_ps.tolist()
    [0, 8]
    """
    if until_ps is not None or until_ops is not None:
        raise NotImplementedError("stopping comes with the compiled engine")
    return reference.simulate(schedule)
