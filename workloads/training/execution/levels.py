"""Levels of detail: a program prepared for one of them, and its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from cluster_sim.engine.faults import Faults
from cluster_sim.engine.repeats import simulate_calls
from cluster_sim.engine.times import HorizonError
from cluster_sim.hardware.faults import Fault, fault_table, gone_around
from cluster_sim.schedule.repeats import calls_written_out
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import Trace, run
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.training.execution.chunk_level import Expanded, expand, project, with_durations
from workloads.training.execution.jitter import Disturbance, disturb
from workloads.training.execution.lower import OWN, Layout, lay_out, lower
from workloads.training.execution.rank_vector import Progress, RankVector, evaluate
from workloads.training.program.fold import equal_ranks, keep
from workloads.training.program.groups import ByValue
from workloads.training.program.program import Exchange, Program, fits_in_memory_rate

WRITTEN_OUT = ("chunk", "flow")
"""Levels that put collectives on links. ``ready`` prepares them for a program of all ranks."""
LARGEST_ENGINE_RANKS = 1024
"""Largest number of ranks that level ``auto`` hands to an engine; more go to the rank vector."""
LEAST_VECTOR_RANKS = 4
"""Different ranks of a stage from which on the rank vector takes less time than an engine: to order
the ops of a stage takes as long as to lower and run them for one or two ranks."""


@dataclass(frozen=True, eq=False)
class Ready:
    """A run that is prepared for one level and can be started."""

    program: Program
    disturbed: Disturbance | None
    # Schedule for an engine; None at the level of the rank vector.
    schedule: Schedule | Expanded | None = None
    faults: Faults | None = None
    # The same program undisturbed and without faults, to compare with; None if nothing disturbs the
    # run. At the collective level equal ranks are run once.
    undisturbed: Schedule | Expanded | None = None
    # (rows,): row of the undisturbed program that each row equals; None where it is that of the
    # same number.
    like: IntArray | None = None

    def run(
        self, engine: str, progress: Progress | None = None
    ) -> tuple[Trace | RankVector, Trace | None]:
        """Run the program, and without its disturbances as well if it has some."""
        if self.schedule is None:
            return evaluate(self.program, self.disturbed, progress=progress), None
        undisturbed = None if self.undisturbed is None else _run(self.undisturbed, engine)
        return _run(self.schedule, engine, self.faults), undisturbed

    def ops(self, trace: Trace | RankVector) -> int:
        """Return the number of ops that were run; the trace of a written-out run has fewer."""
        return self.schedule.ops if isinstance(self.schedule, Expanded) else len(trace)


def ready(
    program: Program,
    cluster: Cluster,
    level: str,
    faults: Sequence[Fault],
    disturbed: Disturbance | None,
    *,
    engine: str = "fast",
    structures: ByValue | None = None,
    healthy: Program | None = None,
) -> Ready:
    """Prepare the run of a program at a level of detail."""
    # ``level`` ("chunk", "flow", "collective", "rank-vector"). ``engine`` ("fast", "reference"):
    # engine that will run it.
    if level == "rank-vector" and faults:
        raise InputError(
            "--level rank-vector follows no faults. Use --level collective, or chunk for links and "
            "adapters that fail after the start."
        )
    if level == "rank-vector":
        return Ready(with_shared_memory(program), disturbed)
    usual = lower(program, memory=level == "collective", structures=structures)
    schedule = disturb(usual, program, disturbed) if disturbed else usual
    compared = bool(disturbed or faults or healthy)
    if level == "collective":
        table = fault_table(schedule, faults) if faults else None
        if not compared:
            return Ready(program, disturbed, schedule, table)
        usually = healthy or program
        like = equal_ranks(usually)
        undisturbed = lower(keep(usually, like), memory=True, structures=structures)
        return Ready(program, disturbed, schedule, table, undisturbed, like)
    in_place = engine == "fast" and not faults
    down, slow = gone_around(faults)
    how = partial(expand, program, cluster=cluster, as_flows=level == "flow", in_place=in_place)
    expanded = how(schedule, down=down)
    table = fault_table(expanded.schedule, slow, cluster) if slow else None
    whole = how(schedule) if down else expanded
    calm = with_durations(whole, usual) if disturbed else whole
    return Ready(program, disturbed, expanded, table, calm if compared else None)


def automatic(program: Program, faults: Sequence[Fault], *, exact_vector: bool = False) -> str:
    """Return the level that ``auto`` chooses for a program, which may be folded."""
    # With ``exact_vector`` the rank vector, which keeps no trace, is also taken for fewer ranks
    # where it gives the same times sooner.
    if len(program) > LARGEST_ENGINE_RANKS and not faults:
        return "rank-vector"
    many = len(program) >= LEAST_VECTOR_RANKS * len(program.streams)
    if exact_vector and many and not faults and fits_in_memory_rate(program):
        return "rank-vector"
    return "collective"


def _run(schedule: Schedule | Expanded, engine: str, faults: Faults | None = None) -> Trace:
    if isinstance(schedule, Schedule):
        return run(schedule, engine=engine, faults=faults)
    whole, routines = schedule.schedule, schedule.routines
    try:
        times = simulate_calls(whole, routines, engine=engine, faults=faults)
    except HorizonError as mistake:
        raise InputError(str(mistake)) from None
    if times.blocked.any():
        run(
            calls_written_out(whole, routines), engine=engine, faults=faults
        )  # raises with the reason
    return project(times, schedule)


# Memory that kernels and collectives share, for the rank vector: as longer durations.
# The rank vector follows clocks, which no other op can slow. So one rank of each stage is run at
# the collective level, where ops that contend for memory are flows, and every kernel and call takes
# as long in the rank vector as it took there on average.

APART = 0.01
"""Share of a step by which these durations may miss flows on memory; 0.98 % was the most in 360
random plans, 0.01 % the mean. Without them steps were up to 8.5 % too short."""


def with_shared_memory(program: Program) -> Program:
    """Return the program with the durations that memory leaves to ops which overlap."""
    if not program.memory_bytes_per_s.any() or fits_in_memory_rate(program):
        return program
    few = keep(program, np.unique(program.stage, return_inverse=True)[1])
    times, layout = run(lower(few, memory=True)).times, lay_out(few)
    lasts = times.end_ps - times.start_ps
    both = zip(few.exchanges, program.exchanges, strict=True)
    return replace(
        program,
        step_ps=_kernels(few, layout, lasts),
        exchanges=tuple(_calls(few, layout, lasts, *pair) for pair in both),
    )


def _kernels(few: Program, layout: Layout, lasts: IntArray) -> IntArray:
    """Mean time of each step's kernel where ops last so long [ps]."""
    sums, ops = np.zeros(len(few.steps)), np.zeros(len(few.steps))
    for row, stage in enumerate(few.stage.tolist()):
        step = few.streams[stage].ops.step
        begin = int(layout.offset[row, OWN])
        sums += np.bincount(step, lasts[begin : begin + len(step)], len(sums))
        ops += np.bincount(step, minlength=len(ops))
    mean = np.rint(sums / np.maximum(1, ops)).astype(np.int64)
    kernel = np.array([not step.axis for step in few.steps])
    return np.where(kernel, np.maximum(few.step_ps, mean), few.step_ps)


def _calls(
    few: Program, layout: Layout, lasts: IntArray, exchange: Exchange, whole: Exchange
) -> Exchange:
    """Return an exchange whose calls are longer by the share that they were among few ranks."""
    took = np.zeros(exchange.calls, np.int64)
    for members in exchange.members:
        for row, role in zip(members.tolist(), exchange.role.tolist(), strict=True):
            op = layout.offset[row, OWN] + exchange.ops[role]
            np.maximum(took, lasts[op], out=took)
    alone = exchange.duration_ps[exchange.kind].max(axis=0)
    longer = np.maximum(1.0, took / np.maximum(1, alone))
    return replace(whole, duration_ps=np.rint(whole.duration_ps * longer).astype(np.int64))
