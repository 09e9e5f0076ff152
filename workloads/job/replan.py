"""Plans by which a job goes on without units that no spare replaces, from its last checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from topologies.support.errors import InputError
from topologies.support.units import format_seconds
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import check_model
from workloads.training.usual_plan import fits

DEEPER = 4  # most stages that are tried, as a multiple of the job's


@dataclass(frozen=True)
class Replan:
    """The plan of a job that lacks some units."""

    units: int  # units that it goes without
    # Its plan, whose batch is rounded up to whole microbatches of all replicas, where some wait
    plan: ParallelPlan
    iteration_s: float
    slower: float  # share by which the same tokens take longer

    @property
    def degrees(self) -> str:
        """Degrees of parallelism, as a phrase."""
        return f"tp {self.plan.tp}, pp {self.plan.pp}, dp {self.plan.dp}"

    def sentence(self, step: Iteration) -> str:
        """Return which plan it is, and how long its steps take."""
        usual = step.plan
        same = (self.plan.tp, self.plan.pp) == (usual.tp, usual.pp)
        what = "fewer replicas" if same else "another plan"
        lost = "1 unit is" if self.units == 1 else f"{self.units:,} units are"
        return (
            f"where {lost} lost and no spare is left, the job goes on with {what}, {self.degrees}: "
            f"{format_seconds(self.iteration_s)} a step in place of "
            f"{format_seconds(step.iteration_s)}."
        )


def replans(step: Iteration, unit_chips: int, most: int) -> tuple[Replan, ...]:
    """Return the fastest plans without one unit, two, and so on up to ``most``.

    They end before the first number of units without which no plan fits in memory. A plan that
    leaves a further unit idle is taken where it is faster.
    """
    if len(step.stated.clusters) > 1:
        raise InputError(
            "--replan is for a job on one kind of chips; leave it out, or name one cluster."
        )
    result = list[Replan]()
    for units in range(1, most + 1):
        steps = [each for plan in _plans(step, unit_chips * units) if (each := _step(step, plan))]
        if not steps:
            break
        best = min(steps, key=lambda each: each.iteration_s)
        slower = max(0.0, best.iteration_s / step.iteration_s - 1)
        result.append(Replan(units, best.plan, best.iteration_s, slower))
    return tuple(
        replace(min(result[place:], key=lambda each: each.iteration_s), units=place + 1)
        for place in range(len(result))
    )


def _step(step: Iteration, plan: ParallelPlan) -> Iteration | None:
    """Return the step of a plan on the job's cluster; None where it does not run."""
    try:
        return iteration(step.model, step.stated.clusters[0], plan, partial=True)
    except InputError:
        return None


def _plans(step: Iteration, lost_chips: int) -> list[ParallelPlan]:
    """Return the job's shape with fewer replicas, and the quickest of each tp, where they fit."""
    cluster = step.stated.clusters[0]
    ranks = (step.chips - lost_chips) * step.plan.ranks_per_chip
    fitting: dict[tuple[int, bool], ParallelPlan] = {}
    for plan in sorted(_shapes(step, ranks), key=lambda plan: _length(step.model.layers, plan)):
        key = plan.tp, (plan.tp, plan.pp) == (step.plan.tp, step.plan.pp)
        if key in fitting:
            continue
        try:
            check_model(plan, step.model)
            on_stack = framework_of(plan, cluster).on(cluster, step.model)
        except InputError:
            continue
        if fits(step.model, plan, on_stack):
            fitting[key] = plan
    return list(fitting.values())


def _shapes(step: Iteration, ranks: int) -> Iterator[ParallelPlan]:
    """Yield plans with other numbers of stages, twice or half the tp, and all replicas there are.

    The batch is kept: where it does not divide by the replicas, some take a microbatch more.
    """
    usual = step.plan
    for tp in {usual.tp, 2 * usual.tp, max(1, usual.tp // 2)}:
        for pp in range(1, min(step.model.layers, DEEPER * usual.pp) + 1):
            dp = ranks // (tp * pp * usual.cp) // usual.ep * usual.ep
            samples = dp * usual.microbatch
            if not dp:
                continue
            vpp = usual.vpp if pp > 1 else 1
            changes: dict[str, Any] = {"tp": tp, "pp": pp, "dp": dp, "vpp": vpp}
            changes["global_batch"] = -(-usual.global_batch // samples) * samples
            try:
                yield replace(usual, **changes)
            except InputError:
                continue


def _length(layers: int, plan: ParallelPlan) -> float:
    """Return the time of a step but for a factor: microbatches and bubble of the longest stage."""
    slots = plan.microbatches + (plan.pp - 1) / plan.vpp
    return slots * -(-layers // plan.pp) * plan.microbatch / plan.tp
