"""The definition of the rules of time in SimPy: a process for every resource that ops hold."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cluster_sim.engine.faults import Faults
from cluster_sim.engine.reference.disturb import Disturbance
from cluster_sim.engine.reference.run import Run
from cluster_sim.engine.times import Attempts, HorizonError, Times, settle
from cluster_sim.schedule.table import HORIZON_PS, Schedule

__all__ = ["Run", "simulate"]


def simulate(
    schedule: Schedule, faults: Faults, until_ps: int | None = None, until_ops: Iterable[int] = ()
) -> Times:
    """Run a schedule in SimPy; see :func:`cluster_sim.engine.simulate`."""
    run = Run(schedule, np.unique(faults.resource), until_ops)
    disturbance = Disturbance(run, faults)
    if until_ps is not None:
        run.stop_after(until_ps)
    run.env.run()
    return _outcome(run, disturbance)


def _outcome(run: Run, disturbance: Disturbance) -> Times:
    """Collect the times of the ops from the objects of a run that is over."""
    moving = run.sharing.moving
    if moving and run.stopped_ps is None:  # an end past the horizon is never planned
        raise HorizonError.of(min(moving))
    lost = np.zeros(len(run.kind), np.uint8)
    lost[list(disturbance.lost)] = list(disturbance.lost.values())
    end, op, start = np.array(sorted(disturbance.attempts), np.int64).reshape(-1, 3).T
    ready_ps, start_ps, end_ps = (
        np.array(column, np.int64) for column in (run.ready, run.start, run.end)
    )
    dead = [number for number, server in enumerate(run.servers) if not server.speed]
    return settle(
        Times(
            ready_ps=ready_ps,
            start_ps=start_ps,
            end_ps=end_ps,
            status=lost,
            attempts=Attempts(op.astype(np.int32), start, end),
            dead=np.array(dead, np.int32),
            stopped_ps=run.stopped_ps,
        ),
        np.array(run.pending, np.int64),
        now=HORIZON_PS if run.stopped_ps is None else run.stopped_ps,
        on_its_way=bool(moving or disturbance.remaining),
    )
