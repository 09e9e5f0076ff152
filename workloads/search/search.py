"""The search: estimate every plan that fits, simulate the best in full, rank them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from topologies import display
from topologies.arrays import FloatArray, IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from workloads.confidence.rank_correlation import kendall_tau
from workloads.models.model import Model
from workloads.search.aim import Aim, AimFields
from workloads.search.candidates import Candidates, candidates
from workloads.search.estimate import estimate
from workloads.search.finalists import Finalist, Runner, Watch, simulated
from workloads.search.fit import Fit, fit
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    import pandas as pd


def unwatched(items: Sequence[Any], _what: str) -> Iterable[Any]:
    """Show no progress."""
    return items


@dataclass(frozen=True)
class Agreement:
    """Agreement of the estimates of the finalists with their simulation.

    Attributes
    ----------
    plans : int
    kendall_tau : float or None
        Rank correlation, 1 for the same order; None for fewer than two plans.
    median_abs_error, worst_abs_error : float
        Errors of estimated over simulated time.
    """

    plans: int
    kendall_tau: float | None
    median_abs_error: float
    worst_abs_error: float


@dataclass(frozen=True, eq=False)
class Search:
    """Result of a search.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    candidates : int
        Plans that divide model, batch and cluster.
    pruned : mapping of str to int
        Number of plans that were left out, by reason.
    oversized : int
        Number of plans that do not fit in memory.
    plans : tuple of ParallelPlan
        The others, which were all estimated.
    estimate_s : float64 array (plans,)
        Estimated time of one optimizer step [s].
    total_bytes : int64 array (plans,)
        Memory of the rank that needs most [B].
    finalists : tuple of Finalist
        Simulated ones, the best by the objective first.
    next_estimate_s : float or None
        Best estimate among the plans that were not simulated [s].
    overlapped_s : float or None
        Simulated time of the fastest plan with overlap ``all``, which a framework must be asked
        for; None where the overlap was stated or compared [s].
    agreement : Agreement
    estimated_in_s, simulated_in_s : float
        Wall-clock time of both parts [s].
    objective : {"time", "cost", "energy"}
        Measure by which the finalists are ranked.
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
    objective: str = "time"

    def frame(self) -> pd.DataFrame:
        """Return the simulated plans as a table, the fastest first."""
        import pandas as pd  # half a second that no command spends

        return pd.DataFrame(
            {
                **display.stated_fields(finalist.plan),
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

    def __repr__(self) -> str:
        return display.line("Search", self._facts)

    def _repr_html_(self) -> str:
        return display.table("Plan search", self._facts)


def search(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    aim: Aim | None = None,
    *,
    stated: Mapping[str, Any] | None = None,
    engine: str = "fast",
    watch: Watch = unwatched,
    **changes: Unpack[AimFields],
) -> Search:
    """Find the best plans that fit in memory.

    Parameters
    ----------
    model : Model
    cluster : Cluster
        All of whose chips are used.
    global_batch : int
        Sequences of one optimizer step.
    aim : Aim, optional
        Measure to search by, and how far to go.
    stated : mapping, optional
        Fields of :class:`~workloads.training.plan.plan.ParallelPlan` that are not to be varied.
    engine : {"fast", "reference"}
    watch : function
        Wraps the sequences of candidates, of plans that fit and of finalists to show progress;
        it is given a word for the work.
    **changes
        Fields of the aim, such as ``finalists=5`` or ``objective="energy"``.

    Raises
    ------
    InputError
        When no plan divides everything, or none fits: which comes nearest, and by how many bytes.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> result = search(named("gpt2"), cluster("trn2.48xlarge"), 64, finalists=2)
    >>> best = result.finalists[0]
    >>> best.plan.dp, result.agreement.plans
    (16, 2)
    """
    sought = replace(aim or Aim(), **changes)
    begun = time.perf_counter()
    settled = _settled(stated or {}, sought.each)
    listed = candidates(model, cluster, global_batch, stated=stated, spared=settled, lnc=sought.lnc)
    weighed = _estimated(listed, settled, sought, watch)
    estimated = time.perf_counter()
    ran = _simulated(weighed, sought, engine, watch)
    overlapped_s = None if "overlap" in settled else _overlapped_s(listed, ran[0].plan, engine)
    times = (estimated - begun, time.perf_counter() - estimated)
    return _ranked(weighed, ran, overlapped_s, sought, times)


@dataclass(frozen=True, eq=False)
class _Estimated:
    """Plans that fit with their estimates, and the order in which they are simulated."""

    listed: Candidates
    fits: Fit
    plans: tuple[ParallelPlan, ...]
    estimate_s: FloatArray
    order: IntArray


def _estimated(listed: Candidates, settled: Collection[str], aim: Aim, watch: Watch) -> _Estimated:
    """Weigh all plans and estimate those that fit."""
    fits = fit(listed, settled, watch=watch, margin=aim.memory_margin)
    plans = tuple(listed.plans[row] for row in np.flatnonzero(fits.fits).tolist())
    estimate_s = estimate(listed.model, listed.cluster, plans, watch)
    order = _first_of_each(np.argsort(estimate_s, kind="stable"), plans, aim.each)
    return _Estimated(listed, fits, plans, estimate_s, order)


def _simulated(weighed: _Estimated, aim: Aim, engine: str, watch: Watch) -> tuple[Finalist, ...]:
    """Simulate the best estimates, and sort them by the aim."""
    rows = weighed.order[: aim.finalists].tolist()
    ran = simulated(
        Runner(weighed.listed.model, weighed.listed.cluster, engine),
        [weighed.plans[row] for row in rows],
        weighed.estimate_s[rows].tolist(),
        aim.processes,
        watch,
    )
    return tuple(
        sorted(ran, key=lambda finalist: (finalist.worth(aim.objective), finalist.memory.total))
    )


def _overlapped_s(listed: Candidates, plan: ParallelPlan, engine: str) -> float:
    """Time of a plan when all that can overlap does [s]."""
    beside = replace(plan, overlap="all")
    return iteration(listed.model, listed.cluster, beside, engine=engine).iteration_s


def _ranked(
    weighed: _Estimated,
    ran: tuple[Finalist, ...],
    overlapped_s: float | None,
    aim: Aim,
    took_s: tuple[float, float],
) -> Search:
    """Result of a search."""
    listed, fits = weighed.listed, weighed.fits
    left_s = weighed.estimate_s[weighed.order[len(ran) :]].tolist()
    return Search(
        model=listed.model,
        cluster=listed.cluster,
        candidates=listed.considered,
        pruned={**listed.pruned, **fits.pruned},
        oversized=fits.oversized,
        plans=weighed.plans,
        estimate_s=weighed.estimate_s,
        total_bytes=fits.total_bytes[fits.fits],
        finalists=ran,
        next_estimate_s=left_s[0] if left_s else None,
        overlapped_s=overlapped_s,
        agreement=agreement([(finalist.estimate_s, finalist.iteration_s) for finalist in ran]),
        estimated_in_s=took_s[0],
        simulated_in_s=took_s[1],
        objective=aim.objective,
    )


def _settled(stated: Mapping[str, Any], each: Sequence[str]) -> set[str]:
    """Fields that no plan is left out for: those stated, and those to be compared."""
    return {*(name for name, value in stated.items() if value is not None), *each}


def _first_of_each(order: IntArray, plans: Sequence[ParallelPlan], each: Sequence[str]) -> IntArray:
    """Return rows in order, and of those that agree in all of some fields only the first."""
    names = [column.name for column in fields(ParallelPlan)]
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


def agreement(pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Agreement of pairs of an estimated and a simulated time.

    Examples
    --------
    >>> agreement([(1.0, 1.0), (2.2, 2.0), (3.0, 4.0)]).kendall_tau
    1.0
    """
    estimated, simulated = np.array(pairs, float).T
    errors = np.abs(estimated / simulated - 1)
    tau = kendall_tau(estimated, simulated)
    return Agreement(
        plans=len(pairs),
        kendall_tau=tau if np.isfinite(tau) else None,
        median_abs_error=float(np.median(errors)),
        worst_abs_error=float(errors.max()),
    )
