"""Engines, which find when each op of a schedule starts and ends, by the rules of time."""

from __future__ import annotations

from collections.abc import Iterable

from cluster_sim.engine import fast
from cluster_sim.engine.faults import FaultError, Faults
from cluster_sim.engine.shared_rates.max_min import max_min_rates
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
from cluster_sim.schedule.table import HORIZON_PS, Schedule

__all__ = [
    "DONE",
    "DOOMED",
    "FAILED",
    "NEVER",
    "READY",
    "RUNNING",
    "WAITING",
    "Attempts",
    "FaultError",
    "Faults",
    "HorizonError",
    "Times",
    "max_min_rates",
    "simulate",
]


def simulate(
    schedule: Schedule,
    *,
    engine: str = "fast",
    faults: Faults | None = None,
    until_ps: int | None = None,
    until_ops: Iterable[int] | None = None,
) -> Times:
    """Run a schedule and return when each op was ready, started and ended.

    ``engine``: ``"fast"``, the compiled one, or ``"reference"``, that in SimPy; both give the same
    integers. ``faults``: resources that change their speed during the run (rule 8). ``until_ps``:
    stop when everything that happens at this instant, starts included, has happened [ps].
    ``until_ops``: stop after the instant at which the first of these ops ends.

    Raises HorizonError when the run would pass 2⁶² ps (rule 6), FaultError for a fault of a
    resource that the schedule does not have, and ValueError for an unknown engine, instant or op.

    >>> from cluster_sim.schedule.build import OpColumns, schedule
    >>> from cluster_sim.schedule.table import FIXED, Edges, Resources
    >>> link = Resources.table("link", [0], [1])
    >>> two = schedule(OpColumns(kind=[FIXED] * 2, resource=0, duration_ps=5), resources=link,
    ...                edges=Edges.from_pairs(2, [0], [1], lag_ps=3))
    >>> simulate(two).start_ps.tolist()
    [0, 8]
    """
    if engine not in ("fast", "reference"):
        raise ValueError(f'engine "{engine}" is unknown. Use "fast" or "reference".')
    if until_ps is not None and not 0 <= until_ps <= HORIZON_PS:
        raise ValueError(f"until_ps is {until_ps}; a run begins at 0 and ends by 2**62")
    watched = sorted({int(op) for op in until_ops or ()})
    for op in watched[:1] + watched[-1:]:  # sorted: the smallest and the largest bound the rest
        if not 0 <= op < len(schedule):
            raise ValueError(f"until_ops names op {op}; the schedule has {len(schedule)} ops")
    rows = Faults.none() if faults is None else faults
    rows.check(schedule)
    if engine == "fast":
        return fast.simulate(schedule, rows, until_ps, watched)
    from cluster_sim.engine import reference  # SimPy takes its time to load

    return reference.simulate(schedule, rows, until_ps, watched)
