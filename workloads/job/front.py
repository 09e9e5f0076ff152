"""Job of weeks in one call: from a training step to goodput, tokens and cost, with ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.support.arguments import Seed, check_names, checked
from topologies.support.errors import InputError
from topologies.support.options import described
from topologies.support.units import format_seconds
from workloads.confidence.poisson import fewest
from workloads.economics import bought_s
from workloads.job.causes import FailureRates, failure_rates, read_failures
from workloads.job.checkpoints import State, job_state, peer_copies
from workloads.job.goodput import Curve, daly_interval_s, search_interval, smooth_goodput
from workloads.job.job import DAYS, MAINTENANCE, Job, Outcome, Recovery, Replicas, Stragglers
from workloads.job.replan import replans
from workloads.job.result import DAY_S, JobResult
from workloads.job.simulate import simulate
from workloads.options.job import AUTO, JobInputs, budget_entry
from workloads.options.keywords import read_options
from workloads.training.iteration import Iteration
from workloads.training.plan.plan import ParallelPlan

LARGEST_UNIT_CHIPS = 144
"""Chips of the largest scale-up domain that a spare replaces whole; in a larger one, a server is
replaced."""
ENOUGH = 0.999  # share of time in which the default number of spares is enough
CLOSE = 1e-4
"""Relative difference between the tokens of a run and those stated that is close enough."""
PASSES = 5  # most corrections of the length of a run that trains on a number of tokens
NO_OTHER_PLAN = "--replan: no plan fits the units that are left without one, so that the job waits."
MOST_LACKING = 3  # most units without which a job goes on by another plan
LITTLE = 0.001  # change of goodput below which a remark names no number
DEAR = 0.1  # share of a job's price from which a remark says what its spares cost
WORTH = 0.01
"""Gain in goodput from which a remark says what going on with fewer replicas would give."""
SLICES = 90  # parts into which the timeline divides the first run


@checked(step="Pass the step that the job repeats, from cs.train.")
def run_job(
    step: Iteration, plan: JobInputs | None = None, *, seed: Seed = 0, **keywords: Any
) -> JobResult:
    """Simulate a training job of weeks, with failures, checkpoints, spares and slow servers.

    Parameters
    ----------
    step : Iteration
        One optimizer step of the job, as :func:`cluster_sim.train` returns it.
    plan : JobInputs, optional
        Length of the job, checkpoints and spares.
    seed : int, optional
        Seed of all random draws.
    **keywords
        Options of ``cluster-sim run-job`` by their names, such as ``days=30``, ``spares=4``,
        ``checkpoint="peer"`` or ``repair="4h"``; a plain number of a time is in seconds.

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
    check_names("run_job", keywords, ["step", "plan", "seed", *described(JobInputs)])
    how = read_options(JobInputs, {**vars(plan or JobInputs()), **keywords})
    goal, unit = how.goal, unit_chips(step.cluster)
    state = job_state(step.model, step.plan, step.cluster)
    if goal is not None and goal < step.plan.tokens:
        raise InputError(
            f"{goal:,} tokens are less than a step of {step.plan.tokens:,}. Use more, such as 15T."
        )
    job = _job(step, how, state, unit)
    others = replans(step, unit, _lacking(job)) if how.replan else ()
    job = replace(job, without=tuple(other.slower for other in others))
    job, outcomes, curve, missed = _run_through(job, how, step.tokens_per_s, seed)
    varied = _varied(job, how.runs, seed) if job.rates.high > job.rates.low else []
    runs = tuple(outcomes), tuple(varied)
    result = JobResult(step, job, state, unit, *runs, curve, goal, _spent(how, job), (), others)
    return replace(result, notes=_notes(result, how, missed, seed))


def _run_through(
    job: Job, how: JobInputs, tokens_per_s: float, seed: int
) -> tuple[Job, list[Outcome], Curve | None, float]:
    """Return a job with its interval of checkpoints and its length, and what became of it."""
    # A run until some tokens is searched anew where its whole length has windows that begin later.
    searched_s, missed = -1.0, 0.0
    while searched_s < 0 or any(
        searched_s <= window.begin_s < job.span_s for window in job.windows
    ):
        searched_s, curve = job.span_s, search_interval(job, seed)
        if how.interval_s is None and job.peers is None:
            job = replace(job, interval_s=curve.best_s if curve else job.span_s)
        outcomes = _simulated(job, how.runs, seed)
        if how.goal is not None:
            job, outcomes, missed = _until(how.goal, job, outcomes, tokens_per_s, seed)
    return job, outcomes, curve, missed


def _spent(how: JobInputs, job: Job) -> int | None:
    """Return a budget that determined the length of a run [USD]; None for one that did not."""
    return how.budget_usd if how.days is None or job.span_s < how.days * DAY_S else None


OF_A_WHOLE_JOB = (
    "tokens", "days", "steps", "goodput", "failures", "spare_chips", "cost_usd",
    "usd_per_million_tokens", "energy_joules",
)  # fmt: skip
"""Keys of a job's document that an answer about one of its steps repeats."""


def whole_job(step: Iteration, seed: int = 0, **length: Any) -> dict[str, Any]:
    """Return the length, the price and the energy of a job of a step, as an entry ``job``."""
    # Failures, checkpoints and spares are those that ``run_job`` has by default.
    if step.unlike:
        raise InputError(
            f"--{min(length)} counts failures and spares of a single cluster, and "
            "--later-stages names another. Leave one of them out."
        )
    run = run_job(step, seed=seed, **length)
    document = run.document()
    ends = {name: document["interval"].get(name) for name in OF_A_WHOLE_JOB}
    ends = {name: value for name, value in ends.items() if value and name not in length}
    job = {name: document[name] for name in OF_A_WHOLE_JOB}
    job |= budget_entry(length.get("budget"))
    return {"job": {**job, "interval": ends, **({"notes": [*run.notes]} if run.notes else {})}}


def expected_job_goodput(step: Iteration, plan: JobInputs) -> float:
    """Return the goodput of a job by closed forms, for the effect of small changes."""
    # The random failures of a simulation would hide the effect of a change of one per cent. A
    # checkpoint interval that is not stated is Daly's, and spares never run short.
    state = job_state(step.model, step.plan, step.cluster)
    return smooth_goodput(_job(step, plan, state, unit_chips(step.cluster)))


def unit_chips(cluster: Cluster) -> int:
    """Chips that a failure takes out and a spare replaces: a scale-up domain, or a server of it."""
    # A domain that has lost a server no longer holds the groups of ranks placed on it.
    domain = cluster.chips_per_domain
    return domain if domain <= LARGEST_UNIT_CHIPS else cluster.chips_per_server


def spares_needed(rates: FailureRates, repair_s: float) -> int:
    """Fewest spares that are enough for 99.9 % of the time.

    The number of units in repair is Poisson, whatever the distribution of repair times (Palm's
    theorem); its mean is the rate of failures times the mean time to repair.

    >>> from workloads.job.causes import Cause
    >>> spares_needed(FailureRates((Cause("chip", 1 / 3600, True),)), 7200.0)
    8
    """
    # Units that fail together are away together.
    per_s: dict[int, float] = {}
    for cause in rates.causes:
        if cause.replaces:
            per_s[cause.units] = per_s.get(cause.units, 0.0) + cause.per_s
    return sum(units * fewest(ENOUGH, each * repair_s) for units, each in per_s.items())


def _job(step: Iteration, how: JobInputs, state: State, unit: int) -> Job:
    """Return the job with the catalogue's values where the options state none."""
    cluster = step.cluster
    catalogue = cluster.numbers
    warm = how.standby == "warm"
    recovery = Recovery.from_catalogue(catalogue, state.read_s, warm=warm).with_stated(how)
    start_s = catalogue.value("job.restart", "start")
    peers = None
    if how.peers:
        times = {"step_s": step.iteration_s, "start_s": start_s}
        peers = peer_copies(state, cluster, state.writers, **times)
        if how.restart_s is not None:
            peers = replace(peers, restart_s=how.restart_s)
    if how.failures is None:
        rates = failure_rates(cluster, step.chips, catalogue)
    else:
        rates = read_failures(how.failures, cluster, step.chips)
    stall_s = state.stall_s if how.stall_s is None else how.stall_s
    if how.checkpoint == "blocking":
        stall_s = state.write_s
    elif peers is not None:
        stall_s = 0.0
    # In a job that is shorter than a repair, fewer units are away.
    enough = spares_needed(rates, min(recovery.repair_s, _span_s(step, how, step.chips)))
    servers = step.chips / cluster.chips_per_server
    slow = Stragglers.from_catalogue(catalogue, servers) if how.stragglers else Stragglers()
    default_s = daly_interval_s(rates.mtbf_s, stall_s)
    if peers is not None:
        default_s = catalogue.value("fleet.training", "checkpoint_interval")
    units = -(-step.chips // unit)
    spares = enough if how.spares == AUTO else int(how.spares)
    span_s = _span_s(step, how, step.chips + spares * unit)
    return Job(
        rates=rates,
        recovery=recovery,
        interval_s=how.interval_s or max(1.0, min(default_s, max(span_s, 1.0))),
        stall_s=stall_s,
        write_s=0.0 if how.checkpoint == "blocking" else state.write_s,
        units=units,
        spares=spares,
        span_s=span_s,
        stragglers=slow,
        peers=peers,
        windows=how.windows,
        replicas=replace(
            replicas_of(step.plan, units, unit, catalogue.value("fleet.change", "resize")),
            scaled=how.elastic_batch == "scaled",
        )
        if how.elastic
        else None,
    )


def _span_s(step: Iteration, how: JobInputs, chips: int) -> float:
    """Length of a run [s]."""
    if how.goal is not None:
        return how.goal / step.tokens_per_s  # lengthened once the goodput is known
    if how.budget_usd is None:
        return (DAYS if how.days is None else how.days) * DAY_S
    bought = bought_s(how.budget_usd, step.cluster, chips)
    return bought if how.days is None else min(bought, how.days * DAY_S)


def replicas_of(plan: ParallelPlan, units: int, unit: int, resize_s: float) -> Replicas:
    """Return the groups of data-parallel replicas that units of some chips take out."""
    # A unit holds parts of all replicas whose ranks it has, and a replica whose experts are divided
    # with others goes with them.
    before = plan.order[: plan.order.index("dp")]
    stride = math.prod(getattr(plan, axis) for axis in before)
    hit = max(1, min(plan.dp, unit * plan.ranks_per_chip // stride))
    hit = min(plan.dp, -(-hit // plan.ep) * plan.ep)
    groups = plan.dp // hit
    if groups < 2:
        raise InputError(
            f"--elastic: the loss of a unit of {unit} chips stops {hit:,} of {plan.dp:,} replicas, "
            "so that none can go on. Use a larger --dp, or an --order with dp last."
        )
    return Replicas(groups, -(-units // groups), plan.microbatches, resize_s)


def _notes(result: JobResult, how: JobInputs, missed: float, seed: int) -> tuple[str, ...]:
    """Return the remarks on a job."""
    remarks = (
        _missed_note(result.goal, missed),
        _elastic_note(result, how, seed),
        _spares_note(result, how, seed),
        _interval_note(result, how, seed),
        *(other.sentence(result.step) for other in result.replans),
        NO_OTHER_PLAN if how.replan and not result.replans else "",
        _windows_note(result, seed),
        *(
            f"--maintenance {window.text} changes nothing, as the run ends before it begins; state "
            "a shorter time until it begins, or a longer run."
            for window in result.job.windows
            if window.begin_s >= result.job.span_s
        ),
    )
    return tuple(filter(None, remarks))


def _elastic_note(result: JobResult, how: JobInputs, seed: int) -> str:
    """Return what going on with fewer replicas would give, or that it gives nothing; or empty."""
    job, step, goodput = result.job, result.step, result.goodput
    restart_s = (job.peers or job.recovery).restart_s - job.recovery.warm_saves_s
    if job.replicas is not None:
        cost_s = job.replicas.cost_s(restart_s, job.rates.mtbf_s, 1)
        if cost_s < restart_s:
            return ""
        return (
            "--elastic has an effect only while no spare is ready: to leave a replica out and take "
            f"it back loses {format_seconds(cost_s)}, a restart of all {format_seconds(restart_s)}."
        )
    days = job.span_s / DAY_S
    alone: dict[str, Any] = {"elastic": True, "checkpoint": "peer", "replan": False}
    alone |= dict.fromkeys(("checkpoint_stall", "tokens", "budget"))
    elastic = replace(how, **alone, days=days)
    try:
        trial = _job(step, elastic, result.state, result.unit_chips)
    except InputError:
        return ""  # no replica would be left, or no room for copies
    gained = simulate(trial, _rng(seed, 0)).goodput
    if gained < goodput + WORTH:
        return ""
    return (
        "all replicas wait while a failed one is replaced; --elastic --checkpoint peer goes on "
        f"with the others, for a goodput of {gained:.1%} ({goodput:.1%} without)."
    )


def _spares_note(result: JobResult, how: JobInputs, seed: int) -> str:
    """Return what fewer spares would cost, where nobody stated those that make the job dearer."""
    job, unit = result.job, result.unit_chips
    share = job.spares * unit / result.chips
    now = result.outcomes[0].goodput  # of the same failures
    if how.spares != AUTO or share < DEAR or not result.cost_usd or not now:
        return ""
    goodput, saved = {}, {}
    for spares in {0, 1, job.spares // 4, job.spares // 2} - {job.spares}:
        goodput[spares] = simulate(replace(job, spares=spares), _rng(seed, 0)).goodput
        chips = result.step.chips + spares * unit
        paid = math.inf if not goodput[spares] else chips / result.chips / goodput[spares]
        saved[spares] = 1 - paid * now
    fewer = max(saved, key=saved.__getitem__)
    text = f"{share:.0%} of the price is for spares, whose number is not stated"
    if saved[fewer] < WORTH:
        return f"{text}; fewer of them would make tokens no cheaper."
    return (
        f"{text}; with --spares {fewer} tokens would be {saved[fewer]:.0%} cheaper, at a goodput "
        f"of {goodput[fewer]:.1%} ({now:.1%} with {job.spares})."
    )


def _interval_note(result: JobResult, how: JobInputs, seed: int) -> str:
    """Return what the best checkpoint interval would give, where another one is stated."""
    job, curve = result.job, result.curve
    if how.interval_s is None or curve is None or job.peers is not None:
        return ""
    gained = simulate(replace(job, interval_s=curve.best_s), _rng(seed, 0)).goodput
    gained -= result.outcomes[0].goodput  # of the same failures
    best = f"checkpoints every {format_seconds(curve.best_s)}, the best interval found, would"
    if gained < LITTLE:
        return f"{best} change the goodput by less than {LITTLE:.1%}."
    return f"{best} raise the goodput by {gained:.1%}."


def _lacking(job: Job) -> int:
    """Return the most units that a job lacks in 99.9 % of the time, at least one."""
    away = fewest(ENOUGH, job.rates.replacing_per_s * job.recovery.repair_s)
    planned = max((window.units for window in job.windows), default=0)
    return min(MOST_LACKING, max(1, away + planned - job.spares))


def _windows_note(result: JobResult, seed: int) -> str:
    """Return what spares for planned downtime would give; empty where it hardly costs time."""
    job = result.job
    lost = result.breakdown.get(MAINTENANCE, 0.0)
    most = max((window.units for window in job.windows), default=0)
    if lost < WORTH or job.replicas is not None:
        return ""
    gained = simulate(replace(job, spares=job.spares + most), _rng(seed, 0)).goodput
    if gained < result.goodput + WORTH / 2:
        return ""
    return (
        f"maintenance takes {lost:.1%} of the time; with {most:,} more spare"
        f"{'s' * (most > 1)} for it the goodput would be {gained:.1%} ({result.goodput:.1%} now)."
    )


def _simulated(job: Job, runs: int, seed: int) -> list[Outcome]:
    """Simulate the runs of all seeds; the first has a timeline."""
    return [simulate(job, _rng(seed, run), 0 if run else SLICES) for run in range(runs)]


def _until(
    tokens: int, job: Job, outcomes: list[Outcome], tokens_per_s: float, seed: int
) -> tuple[Job, list[Outcome], float]:
    """Lengthen a run until it trains on so many tokens in the mean over all seeds."""
    # The goodput hardly depends on the length, so each pass takes the length that the goodput of
    # the one before asks for. In runs with few failures one more of them can still change the
    # goodput more than the length does, so the closest run is kept, and returned with its relative
    # difference.
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
        outcomes = _simulated(job, len(outcomes), seed)
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
    return np.random.default_rng([seed, run])


def _varied(job: Job, runs: int, seed: int) -> Sequence[Outcome]:
    """Simulate runs whose rates are drawn from the published range."""
    rngs = [_rng(seed, runs + run) for run in range(runs)]
    return [simulate(replace(job, rates=job.rates.drawn(rng)), rng) for rng in rngs]
