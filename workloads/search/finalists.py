"""Full simulation of the plans with the best estimates, in a few parallel processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from cluster_sim.processes import available_workers, can_fork, forked
from cluster_sim.progress import Watch
from topologies.clusters.cluster import Cluster
from workloads.economics import StepCost
from workloads.models.model import Model
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import Memory
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.shared_parts import SharedParts

Task = tuple[ParallelPlan, int, float]
"""A plan, the place of its estimate among all, and the estimate [s]."""
LARGE_CHIPS = 1024  # smallest number of chips for which a second process is worth its start
PROCESSES = 2  # processes on large clusters


@dataclass(frozen=True)
class Finalist:
    """A plan that was simulated."""

    plan: ParallelPlan
    estimate_rank: int  # place of its estimate among all estimates, from 1
    # estimate_s, iteration_s: estimated and simulated time of one optimizer step [s]
    estimate_s: float
    iteration_s: float
    breakdown_s: Mapping[str, float]  # parts of the simulated step, mean over ranks [s]
    memory: Memory  # memory of the rank that needs most
    tokens_per_s: float
    mfu: float
    hfu: float
    cost: StepCost  # price and energy of the step

    @property
    def estimate_error(self) -> float:
        """Relative error of the estimate: estimated over simulated time, minus 1."""
        return self.estimate_s / self.iteration_s - 1

    def worth(self, objective: str) -> float:
        """Return the quantity that a search ranks by: time, cost or energy; less is better."""
        value = {"cost": self.cost.cost_usd, "energy": self.cost.energy_joules}.get(objective)
        return self.iteration_s if value is None else value


@dataclass(frozen=True)
class OwnPlan:
    """Plan of a user's own beside those of a search."""

    # The plan as simulated; its ``estimate_rank`` is its place among all plans that fit
    finalist: Finalist
    # Single change of its fields that saves most time, with what follows from it; empty if none
    # saves any
    change: Mapping[str, Any] = field(default_factory=dict)
    changed: Finalist | None = None  # the plan with that change

    @property
    def rank(self) -> int:
        """Place of the plan among all that fit."""
        return self.finalist.estimate_rank


@dataclass(frozen=True)
class Runner:
    """Simulator of plans of one model on one cluster."""

    model: Model
    cluster: Cluster
    engine: str  # ("fast", "reference")

    @cached_property
    def shared(self) -> SharedParts:
        """Parts of programs that the plans have in common."""
        return SharedParts()

    def finalist(self, plan: ParallelPlan, place: int, estimate_s: float) -> Finalist:
        """Simulate one plan."""
        step = self.step(plan)
        return Finalist(
            plan=plan,
            estimate_rank=place,
            estimate_s=estimate_s,
            iteration_s=step.iteration_s,
            breakdown_s=step.breakdown_s,
            memory=step.memory,
            tokens_per_s=step.tokens_per_s,
            mfu=step.mfu,
            hfu=step.hfu,
            cost=step.cost,
        )

    def step(self, plan: ParallelPlan) -> Iteration:
        """Simulate the step of a plan, of which a search reads the times by category alone."""
        cache = self.shared
        return iteration(
            self.model, self.cluster, plan, engine=self.engine, shared=cache, trace=False
        )

    def processes(self, plans: int, stated: int) -> int:
        """Return the number of processes for a number of plans; a stated one goes first."""
        # Where processes cannot be forked, such as in a notebook, it is one.
        if not can_fork():
            return 1
        if stated or self.cluster.chips < LARGE_CHIPS:
            return min(max(1, stated), plans)
        return min(PROCESSES, plans, available_workers())


def simulated(
    runner: Runner,
    plans: Sequence[ParallelPlan],
    estimate_s: Sequence[float],
    processes: int,
    watch: Watch,
) -> list[Finalist]:
    """Simulate plans in order of their estimates; results do not depend on the processes."""
    # Processes are forked, so each has the caller's caches; the first plan is simulated before,
    # which fills these. Plans of the same degrees go to the same process: these have the same
    # groups, whose collectives are timed once, and some have the same passes.
    tasks = list(zip(plans, range(1, len(plans) + 1), estimate_s, strict=True))
    count = runner.processes(len(plans), processes)

    def simulate(bundle: Sequence[Task]) -> list[Finalist]:
        return [runner.finalist(*task) for task in bundle]

    first = simulate(tasks[:1])
    # One process takes the plans one by one, so that its progress bar moves with each.
    pieces = bundles(tasks[1:]) if count > 1 else [[task] for task in tasks[1:]]
    # A progress bar has a thread, and beside one nothing may be forked: the pool comes first.
    with forked(simulate, pieces, count) as later:
        results = chain(first, chain.from_iterable(later))
        simulations = [next(results) for _ in watch(tasks, "simulated")]
    return sorted(simulations, key=lambda finalist: finalist.estimate_rank)


def bundles(tasks: Sequence[Task]) -> list[list[Task]]:
    """Bundle the tasks whose plans have the same degrees, the largest bundle first."""
    alike: dict[tuple[int, ...], list[Task]] = {}
    for task in tasks:
        plan = task[0]
        degrees = plan.tp, plan.cp, plan.dp, plan.pp, plan.ep, plan.expert_tp
        alike.setdefault(degrees, []).append(task)
    return sorted(alike.values(), key=len, reverse=True)
