"""Runs of schedules with routines, in memory that grows with the routines and not their calls."""

from __future__ import annotations

from dataclasses import replace

from cluster_sim.engine import fast, simulate
from cluster_sim.engine.faults import Faults
from cluster_sim.engine.times import Times
from cluster_sim.schedule.routines import Routines, written_out
from cluster_sim.schedule.table import Schedule


def simulate_calls(
    schedule: Schedule, routines: Routines, *, engine: str = "fast", faults: Faults | None = None
) -> Times:
    """Run a schedule with routines; return the times of the ops outside of them.

    The compiled engine runs a routine in place, call after call. SimPy runs the schedule written
    out, and so does the compiled engine with faults, of which ``attempts`` and ``dead`` then tell.
    Raises ValueError when a routine is called while it runs.
    """
    if engine == "fast" and not faults:
        return fast.simulate_calls(schedule, routines)
    times = simulate(written_out(schedule, routines), engine=engine, faults=faults)
    columns = ("ready_ps", "start_ps", "end_ps", "status")
    kept = {name: getattr(times, name)[: routines.outside] for name in columns}
    return replace(times, **kept)
