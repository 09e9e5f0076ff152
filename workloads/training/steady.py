"""Times of training steps of many microbatches, from simulations of few."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.training.execution.steady_state import microbatch_ps, repeats
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import Memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.shared_parts import SharedParts

FEWEST = 4  # smallest period, in microbatches, for extrapolating a longer run from two


class SteadyStep(NamedTuple):
    """Results kept of a simulated step."""

    seconds: float  # time of the step [s]
    memory: Memory  # memory of the rank that needs most
    provenance: Mapping[str, str]  # provenance of each kind of input


def steady(
    model: Model, machine: Cluster, plan: ParallelPlan, shared: SharedParts | None = None
) -> SteadyStep:
    """Simulate a step; one of many microbatches by runs that are long enough to find the time.

    Once the pipeline is full every further microbatch takes the same time, so the time of a long
    run follows from those of two shorter ones. ``shared`` has parts that several steps on the
    machine have in common.
    """
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
    """Return a run, and the times of runs of these numbers of microbatches, ascending [s].

    If the run of ``base`` microbatches is in a steady state, no other one is made.
    """
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
    """Return a plan with a batch of so many microbatches."""
    return replace(plan, global_batch=count * plan.microbatch * plan.dp)
