"""Levels of detail: a program prepared for one of them, and its run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from cluster_sim.engine.faults import Faults
from cluster_sim.engine.routines import simulate_calls
from cluster_sim.engine.times import HorizonError
from cluster_sim.hardware.fault_text import Fault, fault_table, gone_around
from cluster_sim.schedule.routines import written_out
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import Trace, run
from topologies.arrays import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.training.execution.chunk_level import Expanded, expand, project, with_durations
from workloads.training.execution.jitter import Disturbance, disturb
from workloads.training.execution.lower import lower
from workloads.training.execution.rank_vector import Progress, RankVector, evaluate
from workloads.training.execution.shared_durations import with_shared_memory
from workloads.training.program.by_value import ByValue
from workloads.training.program.fold import equal_ranks, keep
from workloads.training.program.program import Program, fits_in_memory_rate

WRITTEN_OUT = ("chunk", "flow")
"""Levels that write collectives out on links, for which every rank must be simulated."""
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
    """Prepare the run of a program at a level of detail.

    ``level`` ("chunk", "flow", "collective", "rank-vector"). ``engine`` ("fast", "reference"):
    engine that will run it.
    """
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
    """Return the level that ``auto`` chooses for a program, which may be folded.

    With ``exact_vector`` the rank vector, which keeps no trace, is also taken for fewer ranks where
    it gives the same times sooner.
    """
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
        run(written_out(whole, routines), engine=engine, faults=faults)  # raises with the reason
    return project(times, schedule)
