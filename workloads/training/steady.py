"""Times of training steps of many microbatches, from simulations of few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from cluster_sim.trace.trace import Trace
from topologies.arrays import BoolArray, IntArray
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.training.execution.lower import OWN, lay_out
from workloads.training.execution.rank_vector import RankVector
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import Memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.schedule import PipelineSchedule
from workloads.training.program.program import Program
from workloads.training.program.shared_parts import SharedParts
from workloads.training.program.stage import kinds_of_passes

# Steady state of a pipeline: the exact time that each further microbatch adds to a step.
# Once its pipeline is full a step repeats itself: every rank runs the same ops again a fixed time
# later, for the next microbatch. A step of more microbatches takes as many of these periods longer,
# to the picosecond, and need not be simulated.

LEAST_ROUNDS = 3
"""Fewest rounds of a stretch: two to compare, and a last one in which no op has become ready."""
REMEMBERED = 4096  # results of :func:`_stretch` that are kept


class Stretch(NamedTuple):
    """Passes of a stage, or their ops, that consist of equal rounds, each of one microbatch.

    A longer step has the same passes up to ``end``, then a round for each further microbatch, then
    the passes of this one from ``end`` on, for the last microbatches.
    """

    # begin, end: place of the first pass or op of the stretch, and the place after its last
    begin: int
    end: int
    each: int  # passes or ops of one round


class RankTimes(NamedTuple):
    """Times of the ops of a rank, int64 arrays (ops,) [ps], and the stretch of equal rounds."""

    ready: IntArray
    start: IntArray
    end: IntArray
    stretch: Stretch


def repeats(plan: ParallelPlan, longest: int) -> bool:
    """Return whether every stage of a plan has enough equal rounds of passes."""
    # Stages with several chunks have none: their rounds have as many microbatches as there are
    # stages.
    return bool(_stretches(plan, longest))


def microbatch_ps(
    plan: ParallelPlan, program: Program, trace: Trace | RankVector, longest: int
) -> int | None:
    """Return the time that each further microbatch adds to a step [ps]."""
    # Two instants are compared that lie a period apart, both before any op that would be another
    # one in a longer step. If every rank is in the same state at both, apart from the numbers of
    # microbatches, a longer step ends as long after the later instant as this step ends after the
    # earlier one. The state of a rank is which ops are done, and since when the others are ready or
    # running. How much of an op is left may depend on the ops that ran beside it, so all ops of a
    # whole period before each instant are compared.
    # Returns None if the step does not repeat itself exactly, or has no trace of every op.
    stretches = _stretches(plan, longest)
    if not stretches or not isinstance(trace, Trace):
        return None
    ranks = _rank_times(program, trace, stretches)
    # At the later instant no op of any stretch's last round is ready, and so none behind it.
    later = min(int(rank.ready[rank.stretch.end - rank.stretch.each :].min()) for rank in ranks) - 1
    start, each = ranks[0].start, ranks[0].stretch.each
    last = ranks[0].stretch.end - each - 1
    period = int(start[last] - start[last - each])
    alike = period > 0 and all(_same_state(rank, later, period) for rank in ranks)
    return period if alike else None


def _stretches(plan: ParallelPlan, longest: int) -> list[Stretch]:
    """Stretch of each stage's passes; empty if a stage has too few equal rounds."""
    if plan.pipeline.pairs_passes:
        return []  # ops of two passes take turns, so the ops of a pass are not in one place
    order = plan.pipeline, plan.pp, plan.vpp, plan.microbatches, longest
    stretches = [_stretch(*order, stage) for stage in range(plan.pp)]
    rounds = [(stretch.end - stretch.begin) // stretch.each for stretch in stretches]
    return stretches if min(rounds) >= LEAST_ROUNDS else []


@lru_cache(REMEMBERED)
def _stretch(
    schedule: PipelineSchedule, pp: int, chunks: int, microbatches: int, longest: int, stage: int
) -> Stretch:
    """Passes of a stage of which a step of ``longest`` microbatches has more rounds, if any."""
    shorter, longer = (
        np.stack([kinds_of_passes(order, chunks), order.microbatch])
        for order in (
            passes(schedule, pp, stage, count, chunks) for count in (microbatches, longest)
        )
    )
    count, further = shorter.shape[1], longest - microbatches
    each = count // microbatches
    moved = longer[:, each * further :] - [[0], [further]]
    end = _count_until_false((shorter == longer[:, :count]).all(axis=0))
    begin = count - _count_until_false((shorter == moved).all(axis=0)[::-1])
    rounds = longer[:, begin : end + each * further]
    equal = np.array_equal(rounds[:, each:], rounds[:, :-each] + [[0], [1]])
    return Stretch(begin, end, each) if equal else Stretch(0, 0, each)


def _count_until_false(flags: BoolArray) -> int:
    return len(flags) if flags.all() else int(flags.argmin())


def _rank_times(program: Program, trace: Trace, stretches: Sequence[Stretch]) -> list[RankTimes]:
    """Times of the ops of each row of a program, whose stages have these stretches of passes."""
    of_ops = [
        _stretch_of_ops(stretch, stream.begins)
        for stretch, stream in zip(stretches, program.streams, strict=True)
    ]
    columns = trace.times.ready_ps, trace.times.start_ps, trace.times.end_ps
    offset = lay_out(program).offset[:, OWN].tolist()
    ranks = []
    for stage, low in zip(program.stage.tolist(), offset, strict=True):
        high = low + len(program.streams[stage].ops)
        ready, start, end = (column[low:high] for column in columns)
        ranks.append(RankTimes(ready, start, end, of_ops[stage]))
    return ranks


def _stretch_of_ops(stretch: Stretch, begins: IntArray) -> Stretch:
    """Ops of a stretch of passes, of which ``begins`` has the first ops."""
    begin, last, end = begins[[stretch.begin, stretch.end - stretch.each, stretch.end]].tolist()
    return Stretch(begin, end, end - last)


def _same_state(rank: RankTimes, later: int, period: int) -> bool:
    """Return whether a rank is in the same state at an instant and a period before it [ps]."""
    begin, end, each = rank.stretch
    earlier = later - period
    before, after = slice(begin, end - each), slice(begin + each, end)
    done, waiting = rank.end[before] <= earlier - period, rank.ready[before] > earlier
    compared = ~(done | waiting)
    shifts = [(column[after] - column[before])[compared] for column in rank[:3]]
    lasted = (rank.end[before] - rank.start[before])[compared]
    return bool(
        rank.end[:begin].max(initial=0) <= earlier - period
        and rank.end[begin : begin + each].max() <= earlier
        and np.array_equal(done, rank.end[after] <= earlier)
        and np.array_equal(waiting, rank.ready[after] > later)
        and all((shift == period).all() for shift in shifts)
        and lasted.max(initial=0) <= period
    )


FEWEST = 4  # smallest period, in microbatches, for extrapolating a longer run from two


class SteadyStep(NamedTuple):
    """Results kept of a simulated step."""

    seconds: float  # time of the step [s]
    memory: Memory  # memory of the rank that needs most
    provenance: Mapping[str, str]  # provenance of each kind of input


def steady(
    model: Model, machine: Cluster, plan: ParallelPlan, shared: SharedParts | None = None
) -> SteadyStep:
    """Simulate a step; one of many microbatches by runs that are long enough to find the time."""
    # Once the pipeline is full every further microbatch takes the same time, so the time of a long
    # run follows from those of two shorter ones. ``shared`` has parts that several steps on the
    # machine have in common.
    parts = shared or SharedParts()

    @cache
    def run(microbatches: int) -> Iteration:
        part = _with_microbatches(plan, microbatches)
        return iteration(model, machine, part, shared=parts, allow_oversized=True, partial=True)

    period = plan.pp * -(-FEWEST // plan.pp)  # whole rounds of an interleaved schedule
    base = 2 * period
    if plan.microbatches <= base:
        step = run(plan.microbatches)
        seconds = step.iteration_s
    elif plan.microbatches <= base + 2 * period:
        step, (seconds,) = _times(run, plan, base, [plan.microbatches])
    else:
        step, (short, long) = _times(run, plan, base, [base, base + period])
        seconds = long + (plan.microbatches - base - period) * ((long - short) / period)
    return SteadyStep(seconds, step.memory, step.provenance)


def _times(
    run: Callable[[int], Iteration], plan: ParallelPlan, base: int, counts: Sequence[int]
) -> tuple[Iteration, list[float]]:
    """Return a run, and the times of runs of these numbers of microbatches, ascending [s]."""
    # If the run of ``base`` microbatches is in a steady state, no other one is made.
    longest = counts[-1]
    if repeats(_with_microbatches(plan, base), longest):
        step = run(base)
        each_ps = microbatch_ps(step.plan, step.program, step.trace, longest)
        if each_ps is not None:
            first_ps = step.trace.total_ps
            return step, [(first_ps + (count - base) * each_ps) / PS_PER_S for count in counts]
    steps = [run(count) for count in counts]
    return steps[-1], [step.iteration_s for step in steps]


def _with_microbatches(plan: ParallelPlan, count: int) -> ParallelPlan:
    return replace(plan, global_batch=count * plan.microbatch * plan.dp)
