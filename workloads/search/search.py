"""Search: estimate the plans that fit, simulate the best, and rank these."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster_sim.processes import available_workers, can_fork, forked
from cluster_sim.progress import Watch, progress, unwatched
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import check_names, checked
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, check_choice
from workloads.confidence.split_conformal import rank_correlation
from workloads.economics import StepCost
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.search.candidates import candidates
from workloads.search.estimate import best_estimates, estimate
from workloads.search.fit import fit
from workloads.training.iteration import Iteration, iteration
from workloads.training.memory.memory import Memory, likely
from workloads.training.plan.plan import PLAN_FIELDS, SEARCHED, ParallelPlan
from workloads.training.plan.schedules.registry import DEFAULT
from workloads.training.plan.stages import check_model, idle_fields_in_all
from workloads.training.program.groups import SharedParts

if TYPE_CHECKING:
    import pandas as pd

TOP = 10  # plans that the list of results shows
SIMULATED = 2  # plans that are simulated for each plan that the list shows
OBJECTIVES = ("time", "cost", "energy")
MOST_MARGIN = 0.9
HARDLY = 1.01  # most that a plan which leaves memory free may take, over the best, to come first


@dataclass(frozen=True)
class Aim:
    """Measure that a search for plans optimises, and the extent of the search."""

    # ("time", "cost", "energy"): measure by which the simulated plans are ranked. On one cluster at
    # one price the cost is proportional to time; energy also depends on whether chips compute or
    # wait.
    objective: str = "time"
    finalists: int = SIMULATED * TOP  # number of the best estimates that are simulated in full
    # Fields of a plan. Of plans that agree in all of these fields only the one with the best
    # estimate is simulated; ``("tp", "pp")`` gives a plan for each way to divide the model.
    # ``overlap`` is varied only if it is among them.
    each: Sequence[str] = ()
    memory_margin: float = 0.0  # share of a rank's memory that a plan must leave free
    # Processes that simulate finalists in parallel; 0 for two on large clusters, else one
    processes: int = 0
    lnc: int | None = None  # physical cores of a logical core of Trainium
    chips: int | None = None  # chips that plans use, the first of the cluster; all of them for None

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)
        if isinstance(self.finalists, bool) or self.finalists < 1:
            raise InputError(
                f"finalists is {self.finalists}; at least one plan must be simulated. Use 20."
            )
        if not 0 <= self.memory_margin <= MOST_MARGIN:
            raise InputError(
                f"memory margin {self.memory_margin:g} is outside 0 to {MOST_MARGIN}: a share of a "
                "rank's memory, such as 0.1."
            )


@dataclass(frozen=True)
class Agreement:
    """Agreement of the finalists' estimates with their simulations."""

    plans: int  # number of finalists
    # Rank correlation, 1 for the same order; None for fewer than two plans.
    kendall_tau: float | None
    # median_abs_error, worst_abs_error: relative errors of estimated times
    median_abs_error: float
    worst_abs_error: float


@dataclass(frozen=True, eq=False)
class Estimates:
    """Plans of a search that fit in memory, with their estimates, before any is simulated."""

    model: Model
    cluster: Cluster  # with the numbers of the plans' framework
    bare: Cluster = field(repr=False)  # as it was stated
    aim: Aim
    candidates: int  # plans that divide model, batch and cluster
    pruned: Mapping[str, int]  # numbers of plans that were left out, by reason
    oversized: int  # plans that do not fit in memory
    plans: tuple[ParallelPlan, ...] = field(repr=False)  # those that fit
    # (plans,): time of one optimizer step [s]; infinite for plans that a lower bound of their
    # estimate shows to be slower than the finalists and the next plan
    best_estimate_s: FloatArray = field(repr=False)
    total_bytes: IntArray = field(repr=False)  # (plans,): memory of the rank that needs most [B]
    stated: Collection[str]  # fields that were stated, and so are the same in all plans
    estimated_in_s: float  # wall-clock time of estimating [s]

    @cached_property
    def order(self) -> list[int]:
        """Rows of the plans that may be simulated, the best estimate first."""
        # Of plans that agree in all of the fields to be compared only the first.
        rows: list[int] = np.argsort(self.best_estimate_s, kind="stable").tolist()
        if not self.aim.each:
            return rows
        seen: dict[tuple[Any, ...], int] = {}
        for row in rows:
            seen.setdefault(tuple(getattr(self.plans[row], name) for name in self.aim.each), row)
        return list(seen.values())

    def first_step(self) -> Iteration:
        """Simulate the plan with the best estimate alone."""
        return self.step_of(self.plans[self.order[0]], "fast")

    def step_of(self, plan: ParallelPlan, engine: str) -> Iteration:
        """Simulate a plan in which fields that nobody stated are known as such."""
        # As of a step whose plan was searched, so that both have the same interval.
        free = {name for name in PLAN_FIELDS if name not in (*self.stated, *SEARCHED)}
        free = free - {"framework"} | {*plan.assumed}
        plan = replace(plan, assumed=tuple(name for name in PLAN_FIELDS if name in free))
        return iteration(self.model, self.bare, plan, engine=engine, trace=False, partial=True)

    def simulate(self, engine: str = "fast", watch: Watch = unwatched) -> Search:
        """Simulate the best in full, and rank them."""
        start = time.perf_counter()
        runner, objective = Runner(self.model, self.cluster, engine), self.aim.objective
        rows = self.order[: self.aim.finalists]
        best, best_s = [self.plans[row] for row in rows], self.best_estimate_s[rows].tolist()
        finalists = simulated(runner, best, best_s, self.aim.processes, watch)
        finalists.sort(key=lambda each: (each.worth(objective), each.memory.total))
        first = _roomy(finalists, objective)
        finalists.sort(key=lambda each: each is not first)
        overlapped_s = None
        if "overlap" not in (*self.stated, *self.aim.each):
            overlapped_s = runner.step(replace(finalists[0].plan, overlap="all")).iteration_s
        later_s = self.best_estimate_s[self.order[len(rows) :]].tolist()
        return Search(
            **{each.name: getattr(self, each.name) for each in fields(Estimates)},
            finalists=tuple(finalists),
            next_estimate_s=next(iter(later_s), None),
            overlapped_s=overlapped_s,
            agreement=agreement([(plan.estimate_s, plan.iteration_s) for plan in finalists]),
            simulated_in_s=time.perf_counter() - start,
            engine=engine,
        )


@display.by_facts("Plan search")
@dataclass(frozen=True, eq=False)
class Search(Estimates):
    """Result of a search, with all that is known before plans are simulated.

    Attributes
    ----------
    finalists : tuple of Finalist
        Plans that were simulated, the best by the objective first; before it one that leaves 5 %
        of a rank's memory free, if that takes at most 1 % more.
    next_estimate_s : float or None
        Best estimate among the plans that were not simulated [s].
    overlapped_s : float or None
        Simulated time of the best plan with overlap ``all``, which frameworks offer as an option
        [s]; None if the overlap was stated or compared.
    agreement : Agreement
    simulated_in_s : float
        Wall-clock time of simulating [s].
    engine : {"fast", "reference"}
        Engine that simulated the finalists.
    own_plan : OwnPlan or None
        Plan of the user's own, simulated beside the finalists.
    """

    finalists: tuple[Finalist, ...]
    next_estimate_s: float | None
    overlapped_s: float | None
    agreement: Agreement
    simulated_in_s: float
    engine: str
    own_plan: OwnPlan | None = None

    @property
    def objective(self) -> str:
        """Measure by which the finalists are ranked."""
        return self.aim.objective

    @cached_property
    def first(self) -> Iteration:
        """Step of the first plan, in which fields that nobody stated are known as such."""
        return self.step_of(self.finalists[0].plan, self.engine)

    @property
    def chips(self) -> int:
        """Chips that the plans use."""
        plan = self.finalists[0].plan
        return -(-plan.ranks // plan.ranks_per_chip)

    @property
    def without_effect(self) -> dict[str, str]:
        """Stated fields that change nothing in any simulated plan, with the reason."""
        idle = idle_fields_in_all([each.plan for each in self.finalists], self.model)
        return {name: reason for name, reason in idle.items() if name in self.stated}

    @property
    def estimated(self) -> int:
        """Number of plans that were estimated; the others were left out by a lower bound."""
        return int(np.isfinite(self.best_estimate_s).sum())

    @cached_property
    def estimate_s(self) -> FloatArray:
        """Estimated time of one optimizer step of every plan, float64 (plans,) [s]."""
        # Estimates that the search did without are computed when this is first read.
        if self.estimated == len(self.plans):
            return self.best_estimate_s
        return estimate(self.model, self.cluster, self.plans)

    def frame(self) -> pd.DataFrame:
        """Return the simulated plans as a table, the fastest first."""
        import pandas as pd  # takes half a second, and no command needs the table

        # A field that one plan has and another leaves at its default stands for both.
        names = dict.fromkeys(
            name for f in self.finalists for name in display.stated_fields(f.plan)
        )
        return pd.DataFrame(
            {
                **{name: getattr(finalist.plan, name) for name in names},
                "estimate_s": finalist.estimate_s,
                "iteration_s": finalist.iteration_s,
                "mfu": finalist.mfu,
                "memory_bytes": finalist.memory.total,
            }
            for finalist in self.finalists
        )

    @property
    def _facts(self) -> dict[str, object]:
        best = self.finalists[0]
        return {
            "model": self.model.name,
            "cluster": self.cluster.name,
            "plans": f"{self.candidates:,}",
            "fitting": f"{len(self.plans):,}",
            "best": f"{best.iteration_s:.4g} s, MFU {best.mfu:.1%}",
            **display.stated_fields(best.plan),
        }


def estimates(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    aim: Aim | None = None,
    *,
    stated: Mapping[str, Any] | None = None,
    watch: Watch = unwatched,
    **changes: Any,
) -> Estimates:
    """Estimate the plans that fit in memory."""
    # ``changes`` are fields of the aim, such as ``finalists=5`` or ``objective="energy"``.
    aim = replace(aim or Aim(), **changes)
    check_names("a plan", aim.each, PLAN_FIELDS)
    start = time.perf_counter()
    named = {name for name, value in (stated or {}).items() if value is not None}
    # Fields whose values leave out no plan: stated ones, and those to be compared.
    settled, size = {*named, *aim.each}, {"lnc": aim.lnc, "chips": aim.chips}
    listed = candidates(model, cluster, global_batch, stated=stated, spared=settled, **size)
    fits = fit(listed, settled, watch=watch, margin=aim.memory_margin)
    plans = tuple(listed.plans[row] for row in np.flatnonzero(fits.fits).tolist())
    # The finalists and one more are needed, and of each kind to be compared the best.
    count = len(plans) if aim.each else aim.finalists + 1
    seconds = best_estimates(model, listed.cluster, plans, count, watch)
    return Estimates(
        model=model,
        cluster=listed.cluster,
        bare=cluster,
        aim=aim,
        candidates=listed.considered,
        pruned={**listed.pruned, **fits.pruned},
        oversized=fits.oversized,
        plans=plans,
        best_estimate_s=seconds,
        total_bytes=fits.total_bytes[fits.fits],
        stated=named,
        estimated_in_s=time.perf_counter() - start,
    )


def search(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    aim: Aim | None = None,
    *,
    engine: str = "fast",
    watch: Watch = unwatched,
    **changes: Any,
) -> Search:
    """Find the best plans that fit in memory; ``changes`` as of :func:`estimates`."""
    weighed = estimates(model, cluster, global_batch, aim, watch=watch, **changes)
    return weighed.simulate(engine, watch)


def _roomy(finalists: Sequence[Finalist], objective: str) -> Finalist:
    """Return the best plan that leaves ``FREE`` of a rank's memory, if that costs hardly more."""
    most = HARDLY * finalists[0].worth(objective)
    worth_it = (each for each in finalists if each.worth(objective) <= most)
    return next((each for each in worth_it if each.memory.roomy), finalists[0])


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Return the agreement of pairs of an estimated and a simulated time."""
    estimated, simulated = np.array(pairs, float).T
    errors = np.abs(estimated / simulated - 1)
    return Agreement(
        plans=len(pairs),
        kendall_tau=rank_correlation(estimated, simulated),
        median_abs_error=float(np.median(errors)),
        worst_abs_error=float(errors.max()),
    )


# Full simulation of the plans with the best estimates, in a few parallel processes.

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
        return iteration(
            self.model,
            self.cluster,
            plan,
            engine=self.engine,
            shared=self.shared,
            trace=False,
            partial=True,
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


# Plan of a user's own beside those of a search: its place, and the change that helps it most.

ALONE = ("ep", "etp", "microbatch", "zero", "recompute", "sequence_parallel", "order")
"""Fields that change without another one."""
GAIN = 0.001
"""Smallest share of the estimated time that a change must save to be worth a simulation."""


def own_plan(search: Search, plan: ParallelPlan, engine: str = "fast") -> OwnPlan:
    """Return a plan as simulated, its place among the plans that fit, and what helps it most."""
    # The place is that of its simulated time among the finalists, or of its estimate where all of
    # them are faster.
    # ``engine`` ("fast", "reference").
    runner = Runner(search.model, search.cluster, engine)
    (estimate_s,) = estimate(search.model, search.cluster, [plan]).tolist()
    mine = runner.finalist(plan, 1, estimate_s)
    worth = mine.worth(search.objective)
    faster = sum(
        each.plan != plan and each.worth(search.objective) < worth for each in search.finalists
    )
    if faster == len(search.finalists):
        faster = max(faster, int((search.estimate_s < estimate_s).sum()))
    mine = replace(mine, estimate_rank=faster + 1)
    changes = [
        change for change in single_changes(plan, search.plans) if _suits(plan, change, search)
    ]
    if not changes:
        return OwnPlan(mine)
    plans = [replace(plan, **change) for change in changes]
    seconds = estimate(search.model, search.cluster, plans)
    best = int(np.argmin(seconds))
    if seconds[best] > (1 - GAIN) * estimate_s:
        return OwnPlan(mine)
    changed = runner.finalist(plans[best], 1, float(seconds[best]))
    better = changed.iteration_s < mine.iteration_s
    return OwnPlan(mine, changes[best], changed) if better else OwnPlan(mine)


def single_changes(plan: ParallelPlan, tried: Sequence[ParallelPlan]) -> Iterator[dict[str, Any]]:
    """Yield changes of one field of a plan to a value that other plans have."""
    # Each comes with what follows from it: replicas make up for a changed degree, and a pipeline
    # has a schedule and its chunks together. Some changes do not suit model or batch.
    for name in ("tp", "pp", "cp"):
        ranks = getattr(plan, name) * plan.dp
        for degree in _values(tried, name):
            follows = {"vpp": 1, "schedule": DEFAULT} if name == "pp" and degree == 1 else {}
            if degree != getattr(plan, name) and ranks % degree == 0:
                yield {name: degree, "dp": ranks // degree, **follows}
    for name in ALONE:
        values = (value for value in _values(tried, name) if value != getattr(plan, name))
        yield from ({name: value} for value in values)
    if plan.stage_layers:
        yield {"stage_layers": ()}
    for schedule, vpp in dict.fromkeys((one.schedule, one.vpp) for one in tried):
        if plan.pp > 1 and (schedule, vpp) != (plan.schedule, plan.vpp):
            yield {"schedule": schedule, "vpp": vpp, "stage_layers": ()}


def _values(tried: Sequence[ParallelPlan], name: str) -> list[Any]:
    return sorted({getattr(plan, name) for plan in tried})


def _suits(plan: ParallelPlan, change: Mapping[str, Any], search: Search) -> bool:
    """Return whether a changed plan is another one, divides the model, and is likely to fit."""
    try:
        changed = replace(plan, **change)
        check_model(changed, search.model)
    except InputError:
        return False
    needed = likely(search.model, changed, search.cluster.numbers, search.cluster.chip)
    return changed != plan and needed.total <= needed.capacity


@checked(model=MODEL_REMEDY, cluster=CLUSTER_REMEDY)
def search_plans(
    model: Model | str,
    cluster: Cluster | str,
    global_batch: int,
    *,
    finalists: int = 10,
    each: Sequence[str] = (),
    beside: ParallelPlan | None = None,
    quiet: bool = False,
    **stated: Any,
) -> Search:
    """Estimate every parallel plan that fits in memory, and simulate the best plans in full.

    Parameters
    ----------
    model : Model or str
        A model or its name, as :func:`cluster_sim.model` takes it.
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it.
    global_batch : int
        Sequences of one optimizer step.
    finalists : int, default 10
        Plans to simulate in full.
    each : sequence of str
        Keep the best plan of each combination of these fields, such as ``["tp", "pp"]``.
    beside : Plan, optional
        Plan of your own with the same batch, to be ranked too: ``own_plan`` of the result.
    quiet : bool
        Show no progress, which otherwise appears on terminals and in notebooks after two seconds.
    **stated
        Fields of a plan that are kept, such as ``seq=8192``; all others are varied.

    Returns
    -------
    Search
        ``finalists`` with their simulated ``iteration_s`` [s], best first; ``frame()`` is a table.

    Raises
    ------
    InputError
        For an unknown name or field, and when no plan divides model, batch and cluster, or fits.

    Examples
    --------
    >>> best = search_plans("gpt2", "trn2.48xlarge", 16, finalists=1, pp=1, tp=2, quiet=True)
    >>> best.finalists[0].plan.dp
    8
    """
    parameters = ("model", "cluster", "global_batch", "finalists", "each", "beside", "quiet")
    check_names("search_plans", stated, [*parameters, *PLAN_FIELDS])
    result = search(
        as_model(model),
        as_cluster(cluster),
        global_batch,
        stated=stated,
        finalists=finalists,
        each=each,
        watch=partial(progress, quiet=quiet),
    )
    return result if beside is None else replace(result, own_plan=own_plan(result, beside))
