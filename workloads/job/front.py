"""Job of weeks in one call: from a training step to goodput, tokens and cost, with ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.support import display
from topologies.support.arguments import Seed, check_names, checked
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from topologies.support.options import described
from topologies.support.units import format_seconds
from workloads.confidence.interval import Interval
from workloads.confidence.poisson import fewest
from workloads.confidence.sensitivity import (
    Uncertain,
    each_of,
    ends_of,
    finite_ends,
    lattice,
    price_of,
    sampled,
)
from workloads.economics import TOKENS, Economics, bought_s
from workloads.job.causes import FailureRates, failure_rates, read_failures
from workloads.job.checkpoints import State, job_state, peer_copies
from workloads.job.goodput import Curve, daly_interval_s, search_interval, smooth_goodput
from workloads.job.job import DAYS, MAINTENANCE, Job, Outcome, Recovery, Replicas, Stragglers
from workloads.job.replan import Replan, replans
from workloads.job.simulate import simulate
from workloads.options.job import AUTO, JobInputs, usd_of
from workloads.options.keywords import read_options
from workloads.training.iteration import Iteration
from workloads.training.plan.plan import ParallelPlan

if TYPE_CHECKING:
    import pandas as pd


DAY_S = 86400.0
Share = TypeVar("Share", float, FloatArray)
LOW, HIGH = 0.1, 0.9  # quantiles of the runs between which 80 % of them lie


@display.by_facts("Training job")
@dataclass(frozen=True, eq=False)
class JobResult:
    """A simulated job of weeks.

    Attributes
    ----------
    step : Iteration
        One optimizer step of the job.
    job : Job
        Inputs of the simulation.
    state : State
        Checkpoint of the job.
    unit_chips : int
        Chips of a unit that a spare replaces.
    outcomes : tuple of Outcome
        Runs at the stated failure rates, one for each seed.
    varied : tuple of Outcome
        Runs whose failure rates were drawn from their published range.
    curve : Curve or None
        Goodput at several checkpoint intervals; None where nothing fails.
    goal : int, optional
        Tokens that determined the length of the run; None for a run of another length.
    budget_usd : int, optional
        Price that determined the length of the run [USD]; None where nothing or less was stated.
    notes : tuple of str
        Remarks: a length that did not converge to the tokens, and what ``elastic`` would give.
    replans : tuple of Replan
        Plans by which it goes on without one unit, two and so on where no spare is left.
    """

    step: Iteration
    job: Job
    state: State
    unit_chips: int
    outcomes: tuple[Outcome, ...]
    varied: tuple[Outcome, ...] = field(repr=False)
    curve: Curve | None = field(repr=False)
    goal: int | None = None
    budget_usd: int | None = None
    notes: tuple[str, ...] = ()
    replans: tuple[Replan, ...] = ()

    @property
    def chips(self) -> int:
        """Chips that compute and chips that wait as spares."""
        return self.step.chips + self.job.spares * self.unit_chips

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Share of time of each part, as the mean over the runs; the shares sum to 1."""
        total = sum(outcome.span_ms for outcome in self.outcomes)
        return {
            part: sum(outcome.parts_ms[part] for outcome in self.outcomes) / total
            for part in self.job.parts
        }

    @property
    def goodput(self) -> float:
        """Useful share of time, as the mean over the runs."""
        return self.breakdown["useful"]

    @property
    def failures_by_cause(self) -> dict[str, float]:
        """Failures by cause, as the mean over the runs."""
        causes = self.outcomes[0].failures
        return {
            name: float(np.mean([outcome.failures[name] for outcome in self.outcomes]))
            for name in causes
        }

    @property
    def interval(self) -> Interval:
        """Interval of the goodput, from runs of all seeds and at rates drawn from their range."""
        seen = np.array([outcome.goodput for outcome in (*self.outcomes, *self.varied)])
        low, high = np.quantile(seen, (LOW, HIGH))
        rates = self.job.rates
        ranged = (
            f"failure rates × {rates.low:.2g} to {rates.high:.2g}, as published clusters differ"
            if rates.high > rates.low
            else "failure rates as stated"
        )
        basis = f"{len(seen)} runs of different seeds; {ranged}"
        return Interval(min(float(low), self.goodput), max(float(high), self.goodput), basis=basis)

    @property
    def tokens(self) -> float:
        """Tokens that the job trains on."""
        return self.goodput * self.job.span_s * self.step.tokens_per_s

    @property
    def _basis(self) -> str:
        return f"goodput: {self.interval.basis}; step time: {self.step.interval.basis}"

    @cached_property
    def _drawn(self) -> dict[str, FloatArray]:
        """Amounts of all inputs together, by their keys in the document; (points,) for each."""
        # A run of stated tokens is as long, and as dear, as these ask for.
        _, _, steps, failures, price = lattice()
        runs = (*self.outcomes, *self.varied)
        goodput = np.clip(sampled([each.goodput for each in runs], failures), 0.0, 1.0)
        working = sampled([sum(each.shares[part] for part in WORKING) for each in runs], failures)
        slower = Uncertain.of(self.step.interval).factors(steps)
        tokens = goodput * self.job.span_s * self.step.tokens_per_s / slower
        longer, usd, watts = np.ones(len(tokens)), self.cost_usd, self._power_w(working)
        if self.goal is not None:
            longer = each_of(self.tokens, tokens)
        elif self.budget_usd is not None:  # a dearer chip buys fewer days
            longer = 1 / self._price.factors(price)
        bought = tokens * (1.0 if self.goal is not None else longer)
        drawn = {"tokens": bought, "days": self.job.span_s / DAY_S * longer}
        if self.goal is None:
            drawn["steps"] = bought / self.step.plan.tokens
        if usd is not None:
            cost = usd * self._price.factors(price)
            drawn["cost_usd"] = cost * longer
            drawn["usd_per_million_tokens"] = each_of(cost * TOKENS, tokens)
        if watts is not None:
            drawn["energy_joules"] = self.job.span_s * longer * watts
        return drawn

    @property
    def _price(self) -> Uncertain:
        """Factor on the price of a chip."""
        return price_of([(1.0, Economics.of(self.step.cluster))])

    @property
    def cost_usd(self) -> float | None:
        """Price of all chips, spares included, for the whole run; None without a known price."""
        usd_per_chip_s = Economics.of(self.step.cluster).usd_per_chip_s
        return self.chips * self.job.span_s * usd_per_chip_s if usd_per_chip_s else None

    @property
    def energy_joules(self) -> float | None:
        """Energy drawn from the grid [J]; spares, and all chips outside of steps, are idle."""
        watts = self._power_w(sum(self.breakdown[part] for part in WORKING))
        return None if watts is None else self.job.span_s * watts

    def _power_w(self, working: Share) -> Share | None:
        """Mean power where chips compute for a share of the time; None if it is not known."""
        economics = Economics.of(self.step.cluster)
        step_j = self.step.cost.energy_joules
        if step_j is None:
            return None
        idle_w = economics.pue * economics.idle_w
        spares = self.job.spares * self.unit_chips * idle_w
        waiting = self.step.chips * idle_w
        return working * (step_j / self.step.iteration_s) + (1 - working) * waiting + spares

    def document(self) -> dict[str, Any]:
        """All results under the keys of the command line."""
        return {**self._document, "interval": self._interval_document()}

    @cached_property
    def _document(self) -> dict[str, Any]:
        job, usd = self.job, self.cost_usd
        mtbf_s, curve = job.rates.mtbf_s, self.curve
        failed = self.failures_by_cause
        return {
            "model": self.step.model.name,
            "cluster": self.step.cluster.name,
            "chips": self.step.chips,
            "days": job.span_s / DAY_S,
            "goodput": self.goodput,
            "breakdown": self.breakdown,
            "failures": sum(failed.values()),
            "failures_by_cause": failed,
            "mtbf_s": None if math.isinf(mtbf_s) else mtbf_s,
            "checkpoint_interval_s": job.interval_s,
            "best_checkpoint_interval_s": curve.best_s if curve else None,
            "young_daly_interval_s": daly_interval_s(mtbf_s, job.stall_s) if curve else None,
            "checkpoint_bytes": self.state.checkpoint_bytes,
            "checkpoint_stall_s": job.stall_s,
            "checkpoint_write_s": self.state.write_s,
            "restart_s": job.recovery.restart_s,
            "detection_s": job.recovery.detection_s,
            "repair_s": job.recovery.repair_s,
            "spares": job.spares,
            "spare_chips": job.spares * self.unit_chips,
            "most_spares_used": max(outcome.spares_used for outcome in self.outcomes),
            **self._peer_document(),
            "elastic": job.replicas is not None,
            **self._planned_document(),
            "iteration_s": self.step.iteration_s,
            "tokens": self.tokens,
            "steps": self.tokens / self.step.plan.tokens,
            "tokens_per_s": self.tokens / job.span_s,
            "cost_usd": usd,
            "usd_per_million_tokens": usd * 1e6 / self.tokens if usd and self.tokens else None,
            "energy_joules": self.energy_joules,
            "runs": len(self.outcomes) + len(self.varied),
            "curve": self.curve_rows(),
            **({"notes": list(self.notes)} if self.notes else {}),
        }

    def _interval_document(self) -> dict[str, Any]:
        """Intervals of goodput, step time, and the amounts that follow from both."""
        step, document = self.step.interval, self._document
        ends = finite_ends(self._drawn, document)
        ends = {name: each for name, each in ends.items() if each["low"] < each["high"]}
        return {
            **self.interval.document(),
            **ends,
            "tokens": {**ends_of(self._drawn["tokens"], self.tokens), "basis": self._basis},
            **({} if self._price.is_point else {"price": self._price.document()}),
            "iteration_s": {"low": step.low, "high": step.high, "basis": step.basis},
        }

    def _peer_document(self) -> dict[str, Any]:
        """Copies in host memory, and the restart with warm spares; empty without either."""
        peers, saved_s = self.job.peers, self.job.recovery.warm_saves_s
        document: dict[str, Any] = {}
        if peers is not None:
            document = {
                "peer_copy_interval_s": peers.every_s,
                "peer_copy_s": peers.copy_s,
                "peer_bytes_per_server": peers.bytes_per_server,
                "host_bytes_per_server": peers.host_bytes,
                "peer_restart_s": peers.restart_s,
                "peer_pairs_lost": float(
                    np.mean([outcome.pairs_lost for outcome in self.outcomes])
                ),
            }
        if saved_s:
            document["warm_restart_s"] = (peers or self.job.recovery).restart_s - saved_s
        return document

    def _planned_document(self) -> dict[str, Any]:
        """Planned downtime, and plans without some units; empty without either."""
        windows = [window.text for window in self.job.windows]
        plans = [
            {"units": each.units, "plan": each.degrees, "iteration_s": each.iteration_s}
            for each in self.replans
        ]
        return {
            **({"maintenance": windows} if windows else {}),
            **({"plans_without_units": plans} if plans else {}),
        }

    def curve_rows(self) -> list[dict[str, float]]:
        """Simulated goodput at each checkpoint interval of the search."""
        if self.curve is None:
            return []
        pairs = zip(self.curve.interval_s, self.curve.goodput, strict=True)
        return [{"checkpoint_interval_s": s, "goodput": share} for s, share in pairs]

    def frame(self) -> pd.DataFrame:
        """Return a table with one row a run: share of each part, failures, checkpoints, spares.

        ``varied`` marks the runs whose failure rates were drawn.
        """
        import pandas as pd

        rows = [(False, outcome) for outcome in self.outcomes] + [
            (True, outcome) for outcome in self.varied
        ]
        return pd.DataFrame(
            {
                "varied": varied,
                **outcome.shares,
                "failures": sum(outcome.failures.values()),
                "checkpoints": outcome.checkpoints,
                "replaced": outcome.replaced,
                "spares_used": outcome.spares_used,
            }
            for varied, outcome in rows
        )

    def timeline(self) -> pd.DataFrame:
        """Return the first run in slices of time, one row a slice.

        ``day`` is the end of the slice; the other columns are the share of each part. Work counts
        in the slice in which a checkpoint saves it or a failure loses it.
        """
        import pandas as pd

        rows, previous_ms = [], dict.fromkeys(self.job.parts, 0)
        for at_ms, parts_ms in self.outcomes[0].slices:
            spent = {part: ms - previous_ms[part] for part, ms in parts_ms.items()}
            total = sum(spent.values())
            if total:
                shares = {part: ms / total for part, ms in spent.items()}
                rows.append({"day": at_ms / 1000 / DAY_S, **shares})
                previous_ms = dict(parts_ms)
        return pd.DataFrame(rows)

    @property
    def _facts(self) -> dict[str, object]:
        ends = self.interval
        return {
            "model": self.step.model.name,
            "chips": f"{self.step.chips:,} and {self.job.spares * self.unit_chips:,} spare",
            "days": f"{self.job.span_s / DAY_S:g}",
            "goodput": f"{self.goodput:.1%} (80 %: {ends.low:.1%} – {ends.high:.1%})",
            "failures": f"{sum(self.failures_by_cause.values()):,.1f}",
            "tokens": f"{self.tokens:.4g}",
        }


LARGEST_UNIT_CHIPS = 144
"""Chips of the largest scale-up domain that a spare replaces whole; in a larger one, a server is
replaced."""
ENOUGH = 0.999  # share of time in which the default number of spares is enough
CLOSE = 1e-4
"""Relative difference between the tokens of a run and those stated that is close enough."""
PASSES = 5  # most corrections of the length of a run that trains on a number of tokens
WORKING = ("useful", "lost_work", "stragglers", "fewer_replicas")  # parts in which chips compute
NO_OTHER_PLAN = "--replan: no plan fits the units that are left without one, so that the job waits."
MOST_LACKING = 3  # most units without which a job goes on by another plan
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
    curve = search_interval(job, seed)
    if how.interval_s is None and job.peers is None:
        job = replace(job, interval_s=curve.best_s if curve else job.span_s)
    outcomes, missed = _simulated(job, how.runs, seed), 0.0
    if goal is not None:
        job, outcomes, missed = _until(goal, job, outcomes, step.tokens_per_s, seed)
    varied = _varied(job, how.runs, seed) if job.rates.high > job.rates.low else []
    runs = tuple(outcomes), tuple(varied)
    result = JobResult(step, job, state, unit, *runs, curve, goal, _spent(how, job), (), others)
    return replace(result, notes=_notes(result, how, missed, seed))


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
    job |= {"budget_usd": usd} if (usd := usd_of(length.get("budget"))) else {}
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
    enough = spares_needed(rates, recovery.repair_s)
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
