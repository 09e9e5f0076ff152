"""Job of weeks in one call: from a training step to goodput, tokens and cost, with ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from topologies.arguments import checked
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.confidence.poisson import fewest
from workloads.job.causes import FailureRates, failure_rates
from workloads.job.closed_form import daly_interval_s
from workloads.job.expectation import smooth_goodput
from workloads.job.intervals import search_interval
from workloads.job.job import Job, Recovery, Stragglers
from workloads.job.keywords import plan_with
from workloads.job.outcome import Outcome
from workloads.job.peers import PeerCopies, peer_copies
from workloads.job.plan import DAYS, JobPlan
from workloads.job.result import DAY_S, JobResult
from workloads.job.simulate import simulate
from workloads.job.state import State, job_state
from workloads.training.iteration import Iteration

LARGEST_UNIT_CHIPS = 144
"""Chips of the largest scale-up domain that a spare replaces whole; in a larger one, a server is
replaced."""
ENOUGH = 0.999
"""Share of time in which the default number of spares is enough."""
CLOSE = 1e-4
"""Relative difference between the tokens of a run and those stated that is close enough."""
PASSES = 5
"""Most corrections of the length of a run that trains on a number of tokens."""
SLICES = 90
"""Parts into which the timeline divides the first run."""
WITHIN = 1.2816
"""Standard deviations on either side of the mean that hold 80 % of a normal distribution."""


@checked(step="Pass the step that the job repeats, from cs.train.")
def run_job(step: Iteration, plan: JobPlan | None = None, **keywords: Any) -> JobResult:
    """Simulate a training job of weeks, with failures, checkpoints, spares and slow servers.

    Parameters
    ----------
    step : Iteration
        One optimizer step of the job, as :func:`cluster_sim.train` returns it.
    plan : JobPlan, optional
        Length of the job, checkpoints and spares.
    **keywords
        Fields of the plan, such as ``days=30`` or ``spares=4``, or options of
        ``cluster-sim run-job`` by their names, such as ``checkpoint="peer"`` or ``repair="4h"``;
        see :func:`workloads.job.keywords.plan_with`.

    Returns
    -------
    JobResult
        ``goodput``, and ``breakdown``, the share of time spent on each part.

    Raises
    ------
    InputError
        For times and numbers out of their range, and more failures than can be simulated.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> from workloads.training.iteration import iteration
    >>> from workloads.training.plan.plan import ParallelPlan
    >>> plan = ParallelPlan(tp=4, pp=2, dp=2, global_batch=8, seq=2048)
    >>> step = iteration(named("llama-3.1-8b"), cluster("trn2.48xlarge"), plan)
    >>> result = run_job(step, days=30, runs=2)
    >>> round(sum(result.breakdown.values()), 9), result.goodput > 0.9
    (1.0, True)
    """
    settings = plan_with(plan or JobPlan(), keywords, step.cluster, step.chips)
    state = job_state(step.model, step.plan, step.cluster)
    unit = unit_chips(step.cluster)
    if settings.tokens is not None and settings.tokens < step.plan.tokens:
        raise InputError(
            f"{settings.tokens:,} tokens are less than a step of {step.plan.tokens:,}. Use more, "
            "such as 15T."
        )
    job = _job(step, settings, state, unit)
    curve = search_interval(job, settings.seed)
    if settings.interval_s is None and job.peers is None:
        job = replace(job, interval_s=curve.best_s if curve else job.span_s)
    outcomes = _simulated(job, settings)
    missed = 0.0
    if settings.tokens is not None:
        job, outcomes, missed = _until(settings.tokens, job, outcomes, step.tokens_per_s, settings)
    varied = _varied(job, settings) if job.rates.high > job.rates.low else []
    return JobResult(
        *(step, job, state, unit, tuple(outcomes), tuple(varied), curve),
        goal=settings.tokens,
        note=_missed_note(settings.tokens, missed),
    )


def expected_job_goodput(step: Iteration, plan: JobPlan) -> float:
    """Return the goodput of a job by closed forms, for the effect of small changes.

    The random failures of a simulation would hide the effect of a change of one per cent. A
    checkpoint interval that is not stated is Daly's, and spares never run short.

    Parameters
    ----------
    step : Iteration
        One optimizer step. Its cluster's catalogue is read; its duration does not matter, except to
        copies at peers.
    plan : JobPlan
    """
    state = job_state(step.model, step.plan, step.cluster)
    return smooth_goodput(_job(step, plan, state, unit_chips(step.cluster)))


def unit_chips(cluster: Cluster) -> int:
    """Chips that a failure takes out and a spare replaces: a scale-up domain, or a server of it.

    A domain that has lost a server no longer holds the groups of ranks placed on it.
    """
    domain = cluster.chips_per_domain
    return domain if domain <= LARGEST_UNIT_CHIPS else cluster.chips_per_server


def spares_needed(rates: FailureRates, repair_s: float) -> int:
    """Fewest spares that are enough for 99.9 % of the time.

    The number of units in repair is Poisson, whatever the distribution of repair times (Palm's
    theorem); its mean is the rate of failures times the mean time to repair.

    Examples
    --------
    >>> from workloads.job.causes import Cause
    >>> spares_needed(FailureRates((Cause("chip", 1 / 3600, True),)), 7200.0)
    8
    """
    return fewest(ENOUGH, rates.replacing_per_s * repair_s)


def _job(step: Iteration, settings: JobPlan, state: State, unit: int) -> Job:
    """Return the job with the catalogue's values where the settings state none."""
    cluster = step.cluster
    catalogue = cluster.catalogue or shipped_catalogue()
    recovery = Recovery.from_catalogue(catalogue, state.read_s, warm=settings.warm)
    if settings.restart_s is not None:
        recovery = replace(recovery, restart_s=settings.restart_s)
    start_s = catalogue.value("job.restart", "start")
    peers = _peers(step, settings, state, start_s, catalogue) if settings.peers else None
    if settings.repair_s is not None:
        recovery = replace(recovery, repair_s=settings.repair_s)
    rates = settings.rates or failure_rates(cluster, step.chips, catalogue)
    stall_s = (
        state.write_s
        if settings.blocking
        else catalogue.value("fleet.training", "checkpoint_stall")
    )
    if peers is not None:
        stall_s = 0.0
    spares = spares_needed(rates, recovery.repair_s) if settings.spares is None else settings.spares
    servers = step.chips / cluster.chips_per_server
    slow = Stragglers.from_catalogue(catalogue, servers) if settings.stragglers else Stragglers()
    default_s = daly_interval_s(rates.mtbf_s, stall_s)
    if peers is not None:
        default_s = catalogue.value("fleet.training", "checkpoint_interval")
    span_s = (DAYS if settings.days is None else settings.days) * DAY_S
    if settings.tokens is not None:
        span_s = settings.tokens / step.tokens_per_s  # lengthened once the goodput is known
    return Job(
        rates=rates,
        recovery=recovery,
        interval_s=settings.interval_s or max(1.0, min(default_s, max(span_s, 1.0))),
        stall_s=stall_s,
        write_s=0.0 if settings.blocking else state.write_s,
        units=-(-step.chips // unit),
        spares=spares,
        span_s=span_s,
        stragglers=slow,
        peers=peers,
    )


def _peers(
    step: Iteration, settings: JobPlan, state: State, start_s: float, catalogue: Catalogue
) -> PeerCopies:
    """Return the copies in host memory; a restart time that the user states replaces theirs."""
    copies = peer_copies(
        state,
        step.cluster,
        state.writers,
        step_s=step.iteration_s,
        start_s=start_s,
        catalogue=catalogue,
    )
    return copies if settings.restart_s is None else replace(copies, restart_s=settings.restart_s)


def _simulated(job: Job, settings: JobPlan) -> list[Outcome]:
    """Simulate the runs of all seeds; the first has a timeline."""
    return [
        simulate(job, _rng(settings.seed, run), 0 if run else SLICES)
        for run in range(settings.runs)
    ]


def _until(
    tokens: int, job: Job, outcomes: list[Outcome], tokens_per_s: float, settings: JobPlan
) -> tuple[Job, list[Outcome], float]:
    """Lengthen a run until it trains on so many tokens in the mean over all seeds.

    The goodput hardly depends on the length, so each pass takes the length that the goodput of the
    one before asks for. In runs with few failures one more of them can still change the goodput
    more than the length does, so the closest run is kept, and returned with its relative
    difference.
    """
    closest = (job, outcomes, math.inf)
    for correction in range(PASSES + 1):
        useful_ms = sum(outcome.parts_ms["useful"] for outcome in outcomes)
        if not useful_ms:
            raise InputError(
                f"the job makes no progress in {job.span_s / DAY_S:.3g} days, so no length trains "
                f"on {tokens:,} tokens. Use fewer --failures or more --spares."
            )
        longer = tokens / (tokens_per_s * useful_ms / 1000 / len(outcomes))
        if abs(longer - 1) < closest[2]:
            closest = (job, outcomes, abs(longer - 1))
        if abs(longer - 1) < CLOSE or correction == PASSES:
            break
        job = replace(job, span_s=job.span_s * longer)
        outcomes = _simulated(job, settings)
    return closest


def _missed_note(tokens: int | None, missed: float) -> str:
    """Return a remark on a run whose length did not converge to its tokens; empty if it did."""
    if tokens is None or missed < CLOSE:
        return ""
    return (
        f"the length did not converge in {PASSES} corrections: the run trains on {tokens:,} tokens "
        f"within {missed:.2%} only, as single failures change it more. More --runs come closer."
    )


def _rng(seed: int, run: int) -> np.random.Generator:
    """Random numbers of one run."""
    return np.random.default_rng([seed, run])


def _varied(job: Job, settings: JobPlan) -> Sequence[Outcome]:
    """Simulate runs whose rates are drawn so that 80 % of them lie in the published range."""
    rates = job.rates
    middle = (math.log(rates.low) + math.log(rates.high)) / 2
    width = (math.log(rates.high) - math.log(rates.low)) / 2 / WITHIN
    outcomes = []
    for run in range(settings.runs):
        rng = _rng(settings.seed, settings.runs + run)
        factor = math.exp(rng.normal(middle, width))
        outcomes.append(simulate(replace(job, rates=rates.scaled(factor)), rng))
    return outcomes
