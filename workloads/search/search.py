"""The search: estimate every plan that fits, simulate the best in full, rank them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from cluster_sim.schedule.table import IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from workloads.models.model import Model
from workloads.search.candidates import Candidates, candidates
from workloads.search.communication import FloatArray
from workloads.search.estimate import estimate
from workloads.search.fit import Fit, fit
from workloads.training.iteration import iteration
from workloads.training.memory.memory import Memory
from workloads.training.plan.plan import ParallelPlan

Watch = Callable[[Sequence[Any], str], Iterable[Any]]
"""Hands on a sequence that takes a while, told what is being done, to show progress."""
TOP = 10
SIMULATED = 2
"""Plans that are simulated for each one that is asked for."""


def unwatched(items: Sequence[Any], _what: str) -> Iterable[Any]:
    """Show no progress."""
    return items


@dataclass(frozen=True)
class Finalist:
    """A plan that was simulated.

    Attributes
    ----------
    plan : ParallelPlan
    estimate_rank : int
        Its place among the estimates, from 1.
    estimate_s, iteration_s : float
        Estimated and simulated time of one optimizer step [s].
    breakdown_s : mapping of str to float
        Parts of the simulated step, mean over ranks [s].
    memory : Memory
        Of the rank that needs most.
    tokens_per_s, mfu, hfu : float
    """

    plan: ParallelPlan
    estimate_rank: int
    estimate_s: float
    iteration_s: float
    breakdown_s: Mapping[str, float]
    memory: Memory
    tokens_per_s: float
    mfu: float
    hfu: float

    @property
    def estimate_error(self) -> float:
        """Estimated over simulated time, minus 1."""
        return self.estimate_s / self.iteration_s - 1


@dataclass(frozen=True)
class Agreement:
    """How well the estimates of the finalists agree with their simulation.

    Attributes
    ----------
    plans : int
    kendall_tau : float or None
        Rank correlation, 1 for the same order; None for fewer than two plans.
    median_abs_error, worst_abs_error : float
        Of estimated over simulated time.
    """

    plans: int
    kendall_tau: float | None
    median_abs_error: float
    worst_abs_error: float


@dataclass(frozen=True, eq=False)
class Search:
    """What was found.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    candidates : int
        Plans that divide model, batch and cluster.
    pruned : mapping of str to int
        How many of them were left out, by reason.
    oversized : int
        How many do not fit in memory.
    plans : tuple of ParallelPlan
        The others, which were all estimated.
    estimate_s : float64 array (plans,)
        Estimated time of one optimizer step [s].
    total_bytes : int64 array (plans,)
        Memory of the rank that needs most [B].
    finalists : tuple of Finalist
        Simulated ones, the fastest first.
    next_estimate_s : float or None
        Best estimate among the plans that were not simulated [s].
    overlapped_s : float or None
        Simulated time of the fastest plan with overlap ``all``, which a framework must be asked
        for; None where the overlap was stated or compared [s].
    agreement : Agreement
    estimated_in_s, simulated_in_s : float
        Wall-clock time of both parts [s].
    """

    model: Model
    cluster: Cluster
    candidates: int
    pruned: Mapping[str, int]
    oversized: int
    plans: tuple[ParallelPlan, ...] = field(repr=False)
    estimate_s: FloatArray = field(repr=False)
    total_bytes: IntArray = field(repr=False)
    finalists: tuple[Finalist, ...]
    next_estimate_s: float | None
    overlapped_s: float | None
    agreement: Agreement
    estimated_in_s: float
    simulated_in_s: float


def search(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    stated: Mapping[str, Any] | None = None,
    lnc: int | None = None,
    finalists: int = SIMULATED * TOP,
    each: Sequence[str] = (),
    engine: str = "fast",
    watch: Watch = unwatched,
) -> Search:
    """Find the fastest plans that fit in memory.

    Parameters
    ----------
    model : Model
    cluster : Cluster
        All of whose chips are used.
    global_batch : int
        Sequences of one optimizer step.
    stated : mapping, optional
        Fields of :class:`~workloads.training.plan.plan.ParallelPlan` that are not to be varied.
    lnc : int, optional
        Physical cores of a logical one.
    finalists : int
        How many of the best estimates are simulated in full.
    each : sequence of str
        Fields of a plan: of plans that agree in all of these only the best estimate counts, such
        as ``("tp", "pp")`` for one plan of each way to divide the model. ``overlap`` is varied only
        if it is among them.
    engine : {"fast", "reference"}
    watch : function
        Wraps the sequences of candidates, of plans that fit and of finalists, and is told what is
        being done, to show progress.

    Raises
    ------
    InputError
        When no plan divides everything, or none fits: which comes nearest, and by how many bytes.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> found = search(named("gpt2"), cluster("trn2.48xlarge"), 64, finalists=2)
    >>> best = found.finalists[0]
    >>> best.plan.dp, found.agreement.plans
    (16, 2)
    """
    if isinstance(finalists, bool) or finalists < 1:
        raise InputError(f"finalists is {finalists}; at least one plan must be simulated. Use 20.")
    begun = time.perf_counter()
    settled = _settled(stated or {}, each)
    found = candidates(model, cluster, global_batch, stated=stated, spared=settled, lnc=lnc)
    weighed = _estimated(found, settled, each, watch)
    estimated = time.perf_counter()
    ran = _simulated(weighed, finalists, engine, watch)
    overlapped_s = None if "overlap" in settled else _overlapped_s(found, ran[0].plan, engine)
    times = (estimated - begun, time.perf_counter() - estimated)
    return _ranked(weighed, ran, overlapped_s, times)


@dataclass(frozen=True, eq=False)
class _Estimated:
    """Every plan that fits with its estimate, and in which order they are simulated."""

    found: Candidates
    fits: Fit
    plans: tuple[ParallelPlan, ...]
    estimate_s: FloatArray
    order: IntArray


def _estimated(
    found: Candidates, settled: Collection[str], each: Sequence[str], watch: Watch
) -> _Estimated:
    """Weigh all plans and estimate those that fit."""
    fits = fit(found, settled, watch=watch)
    plans = tuple(found.plans[row] for row in np.flatnonzero(fits.fits).tolist())
    estimate_s = estimate(found.model, found.cluster, watch(plans, "estimated"))
    order = _first_of_each(np.argsort(estimate_s, kind="stable"), plans, each)
    return _Estimated(found, fits, plans, estimate_s, order)


def _simulated(
    weighed: _Estimated, finalists: int, engine: str, watch: Watch
) -> tuple[Finalist, ...]:
    """The best estimates simulated, the fastest first."""
    found, rows = weighed.found, weighed.order[:finalists].tolist()
    ran = [
        _finalist(found, weighed.plans[row], place, float(weighed.estimate_s[row]), engine)
        for place, row in enumerate(watch(rows, "simulated"), start=1)
    ]
    return tuple(sorted(ran, key=lambda one: (one.iteration_s, one.memory.total)))


def _overlapped_s(found: Candidates, plan: ParallelPlan, engine: str) -> float:
    """Time of a plan when all that can overlap does [s]."""
    beside = replace(plan, overlap="all")
    return iteration(found.model, found.cluster, beside, engine=engine).iteration_s


def _ranked(
    weighed: _Estimated,
    ran: tuple[Finalist, ...],
    overlapped_s: float | None,
    took_s: tuple[float, float],
) -> Search:
    """What was found."""
    found, fits = weighed.found, weighed.fits
    left_s = weighed.estimate_s[weighed.order[len(ran) :]].tolist()
    return Search(
        model=found.model,
        cluster=found.cluster,
        candidates=found.considered,
        pruned={**found.pruned, **fits.pruned},
        oversized=fits.oversized,
        plans=weighed.plans,
        estimate_s=weighed.estimate_s,
        total_bytes=fits.total_bytes[fits.fits],
        finalists=ran,
        next_estimate_s=left_s[0] if left_s else None,
        overlapped_s=overlapped_s,
        agreement=agreement([(one.estimate_s, one.iteration_s) for one in ran]),
        estimated_in_s=took_s[0],
        simulated_in_s=took_s[1],
    )


def _settled(stated: Mapping[str, Any], each: Sequence[str]) -> set[str]:
    """Fields by which no plan is left out: those that are stated, and those to be compared."""
    return {*(name for name, value in stated.items() if value is not None), *each}


def _first_of_each(order: IntArray, plans: Sequence[ParallelPlan], each: Sequence[str]) -> IntArray:
    """Rows in order, of those that agree in all of some fields only the first."""
    names = [one.name for one in fields(ParallelPlan)]
    for name in each:
        if name not in names:
            raise InputError(
                f"a plan has no {name!r}.{suggestion(name, names)} It has {', '.join(names)}."
            )
    if not each:
        return order
    seen: dict[tuple[Any, ...], int] = {}
    for row in order.tolist():
        seen.setdefault(tuple(getattr(plans[row], name) for name in each), row)
    return np.array(list(seen.values()), np.int64)


def _finalist(
    found: Candidates, plan: ParallelPlan, place: int, estimate_s: float, engine: str
) -> Finalist:
    step = iteration(found.model, found.cluster, plan, engine=engine)
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
    )


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Agreement of pairs of an estimated and a simulated time.

    Examples
    --------
    >>> agreement([(1.0, 1.0), (2.2, 2.0), (3.0, 4.0)]).kendall_tau
    1.0
    """
    from scipy.stats import kendalltau

    estimated, simulated = np.array(pairs, float).T
    errors = np.abs(estimated / simulated - 1)
    tau = float(kendalltau(estimated, simulated).statistic) if len(pairs) > 1 else np.nan
    return Agreement(
        plans=len(pairs),
        kendall_tau=tau if np.isfinite(tau) else None,
        median_abs_error=float(np.median(errors)),
        worst_abs_error=float(errors.max()),
    )
