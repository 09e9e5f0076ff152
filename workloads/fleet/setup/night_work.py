"""Night work: jobs of a file, or default ones, with their throughput, state and checkpoints.

The search of a training plan takes half of the time of ``lend``, so its rate is kept in a file. A
rate follows from the model, the cluster with its catalogue, and the code and data of the simulator;
a digest of all of these is part of the name of the file, so a change of any of them leads to a new
search.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.shapes.basic import Torus
from topologies.support.errors import InputError, shown
from topologies.support.files import kept_files
from topologies.support.units import format_seconds
from workloads.confidence.kinds import BARE, Prediction, training_kind
from workloads.confidence.sensitivity import Uncertain
from workloads.confidence.split_conformal import interval
from workloads.demand import Demand
from workloads.fleet.inputs.jobs import (
    STEP_TOKENS,
    PostTraining,
    TrainingJob,
    default_jobs,
    read_jobs,
)
from workloads.fleet.state.services import Failures, Fleet, Service
from workloads.fleet.state.world import USUAL_INTERVAL_S
from workloads.job.checkpoints import held_bytes, room_for_copies
from workloads.job.goodput import expected_goodput
from workloads.models.model import Model
from workloads.options.fleet import FleetInputs
from workloads.search.search import search
from workloads.serving.profile import forward_s
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import training_interval

# All units of a gang stop when one of them fails, so a gang of n units is stopped n times as often
# as one unit. Its goodput is that of a job with the times of `workloads.fleet.state.world`.
LEAST_GOODPUT = 0.9  # share of its time that the largest default gang computes for


def gang_mtbf_s(failures: Failures, units: int, fleet_units: int) -> float:
    """Mean time between the stops of a gang of some units of a fleet [s]."""
    per_s = units / failures.unit_mtbf_s
    for domain in failures.domains:
        per_s += domain.count(units, failures.servers) / domain.mtbf_s
    per_s += sum(units / fleet_units / mtbf_s for mtbf_s in failures.interruptions.values())
    return 1 / per_s


def gang_goodput(job: TrainingJob, units: int, fleet: Fleet) -> float:
    """Share of time for which a gang of some units computes, by a closed form."""
    if fleet.failures is None:
        return 1.0
    costs = fleet.costs
    recovery, copies = costs.recovery, costs.copies(job, units)
    warm_s = recovery.warm_saves_s if job.standby == "warm" else 0.0
    mtbf_s = gang_mtbf_s(fleet.failures, units, fleet.units)
    if copies is not None:
        return expected_goodput(
            copies.every_s,
            mtbf_s,
            checkpoint_s=0.0,
            restart_s=copies.restart_s - warm_s,
            detection_s=recovery.detection_s + copies.copy_s,
        )
    moved_s = job.state_bytes / min(costs.store_bytes_per_s, units * costs.store_client_bytes_per_s)
    return expected_goodput(
        job.checkpoint_every_s or USUAL_INTERVAL_S,
        mtbf_s,
        checkpoint_s=costs.stall_s(job, units),
        restart_s=recovery.restart_s + moved_s - warm_s,
        detection_s=recovery.detection_s + moved_s,
    )


def most_units(job: TrainingJob, fleet: Fleet) -> int:
    """Return the size of a job that failures allow, at least a unit and at most its own."""
    if gang_goodput(job, job.units, fleet) >= LEAST_GOODPUT:
        return job.units
    sizes = range(1, job.units + 1)
    return max(1, bisect_right(sizes, -LEAST_GOODPUT, key=lambda n: -gang_goodput(job, n, fleet)))


def gang_note(jobs: Sequence[TrainingJob], fleet: Fleet) -> str:
    """Sentence about default jobs that failures keep below their usual size; empty for none."""
    usual = {job.name: job.units for job in default_jobs(fleet.units)}
    capped = {job.name: job for job in jobs if job.units < usual.get(job.name, 0)}
    if fleet.failures is None or not capped:
        return ""
    sizes = [
        f"{job.units:,} units ({job.units * fleet.chips_per_unit:,} chips)"
        for job in {job.units: job for job in capped.values()}.values()
    ]
    largest = max(capped.values(), key=lambda job: job.units)
    stop_s = gang_mtbf_s(fleet.failures, largest.units, fleet.units)
    before = usual[largest.name]
    return (
        f"default training gangs have at most {' or '.join(sizes)}: failures stop one of "
        f"{largest.units:,} every {format_seconds(stop_s)}, and one of {before:,} would compute "
        f"for {gang_goodput(largest, before, fleet):.0%} of its time, less than "
        f"{LEAST_GOODPUT:.0%}; --training FILE.csv states other jobs."
    )


PACKAGES = ("cluster_sim", "topologies", "workloads")
READ = (".py", ".csv", ".json", ".yaml", ".toml")  # suffixes of the files that results depend on
CACHE = "__pycache__"  # folder whose files follow from the others


@dataclass(frozen=True)
class TrainingRate:
    """Throughput of a training job."""

    units: int  # scale-up domains of the simulated job
    # Throughput on these units [1/s]. On other numbers of units it is taken in proportion, because
    # the batch grows with the job
    tokens_per_s: float
    # None where no plan fits, and the throughput is that of the roofline
    plan: ParallelPlan | None = None


def _rate(document: dict[str, Any]) -> TrainingRate:
    plan: dict[str, Any] | None = document.pop("plan")
    if plan is None:
        return TrainingRate(**document)
    for name, item in plan.items():  # tuples are lists in JSON
        plan[name] = tuple(item) if isinstance(item, list) else item
    return TrainingRate(**document, plan=ParallelPlan(**plan))


def rate_digest(model: Model, cluster: Cluster) -> str:
    """Return a digest of the inputs of a rate and of all code."""
    inputs = (model, cluster, cluster.numbers, np.__version__)
    return kept_files.digest(kept_files.exact_text(inputs), _program())


@cache
def _program() -> str:
    folders = (Path(__file__).parents[3] / package for package in PACKAGES)
    paths = (path for folder in folders for path in sorted(folder.rglob("*.*")))
    sources = (path for path in paths if path.suffix in READ and CACHE not in path.parts)
    return kept_files.digest(*(path.read_bytes() for path in sources))


SEQUENCE = 8192  # tokens of a training sequence: Llama 3's (arXiv 2407.21783)
UNITS = (1, 2, 4, 8, 16, 32)
"""Numbers of scale-up domains on which a plan is searched, the fewest first."""
LEAST_CHIPS = 128
"""Chips of the smallest job that is simulated, so that its gradients cross domains."""
MOST_CHIPS = 1024  # chips of the largest torus on which a plan is searched without cutting a slice
PASSES = 3.0  # time of a step in forward passes: a backward pass takes two
SETTLED: Mapping[str, Any] = {
    "seq": SEQUENCE,
    "cp": 1,
    "microbatch": 1,
    "overlap": "dp",
    "schedule": ParallelPlan.schedule,
    "precision": "bf16",
    "order": ("tp", "cp", "dp", "pp"),
}
"""Fields of a plan that are fixed, so that a search takes seconds. The searched fields (degrees of
tensor, pipeline, data and expert parallelism, ZeRO, recomputation) decide nearly all of the speed.
"""
RECOMPUTED = ("none", "selective", "full")
"""Recomputation of the plans among which the fastest is taken."""


def training_rate(model: Model, cluster: Cluster) -> TrainingRate:
    """Return the throughput of a job that trains a model on units of a cluster."""
    # The plan is the fastest that the plan search finds on the fewest units (of at least 128 chips)
    # on which any fits; every chip adds one sequence of 8,192 tokens to a step. Where no plan fits
    # the fleet, a step takes three times the roofline of a forward pass. What was searched on some
    # units is kept in a file, from which clusters of any number of such units read it.
    slice_, slices = _priced_slice(cluster)
    for units in UNITS:
        if units > slice_.domains:
            break
        if units * slice_.chips_per_domain < LEAST_CHIPS and units * 2 <= slice_.domains:
            continue
        part = replace(slice_, domains=units, name="units")  # whatever the cluster is called
        digest = rate_digest(model, part)
        searched = partial(_searched, model, part)
        rate = kept_files.made_once("training-rate", digest, searched, _rate, asdict)
        if rate.plan is not None:
            return replace(rate, tokens_per_s=rate.tokens_per_s * slices)
    return TrainingRate(1, _roofline_tokens_per_s(model, slice_) * slices)


def _searched(model: Model, part: Cluster) -> TrainingRate:
    """Return the rate of the fastest plan on all units of a part, or that none fits."""
    best = TrainingRate(part.domains, 0.0)
    for recompute in RECOMPUTED:
        stated = {**SETTLED, "recompute": recompute}
        if model.experts:
            stated["etp"] = 1
        with contextlib.suppress(InputError):  # no plan fits in memory
            fastest = search(model, part, part.chips, stated=stated, finalists=1).finalists[0]
            if fastest.tokens_per_s > best.tokens_per_s:
                best = TrainingRate(part.domains, fastest.tokens_per_s, fastest.plan)
    return best


def _priced_slice(cluster: Cluster) -> tuple[Cluster, float]:
    """Return a slice of a large torus on which plans are timed, and the slices in a unit."""
    # Axes are halved, the longest first, as pods are cut into the slices that jobs get. A whole
    # torus is not timed, because a ring of thousands of chips takes minutes and gigabytes.
    shape = cluster.shape
    if not isinstance(shape, Torus) or shape.chips <= MOST_CHIPS:
        return cluster, 1.0
    axes = list(shape.axes)
    while math.prod(axis.size for axis in axes) > MOST_CHIPS:
        longest = max(range(len(axes)), key=lambda number: axes[number].size)
        axes[longest] = replace(axes[longest], size=axes[longest].size // 2)
    part = replace(cluster, shape=replace(shape, axes=tuple(axes)), domains=1)
    return part, shape.chips / part.shape.chips


def _roofline_tokens_per_s(model: Model, cluster: Cluster) -> float:
    """Training throughput of a unit by the roofline of a forward pass on each server [1/s]."""
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    return servers * SEQUENCE / (PASSES * forward_s(model, cluster, SEQUENCE))


BYTES = 2.0  # bytes of a parameter on its way to the rollout units: BF16
STEP = STEP_TOKENS / 8  # default tokens of a post-training step: an eighth of a pre-training step


def transfer_s(cluster: Cluster, parameters: float) -> float:
    """Time until every rollout unit holds new weights, 0 on a fleet of one unit [s]."""
    # Every unit receives one copy through all its adapters and passes it on while it arrives (a
    # pipelined broadcast), so the time is that of one copy whatever the number of units.
    if cluster.domains == 1 or cluster.scale_out is None:
        return 0.0
    rate = cluster.scale_out.bandwidth_bytes_per_s * cluster.chips_per_domain
    return parameters * BYTES / rate


def post_training_document(jobs: Sequence[TrainingJob]) -> list[dict[str, Any]]:
    """Return the steady state of every post-training job at full size, for JSON."""
    rows = []
    for job in jobs:
        if job.phases is not None:
            split = job.phases.best(job.units)
            row = {"job": job.name, "units": job.units, "mode": job.post_training}
            rows.append({**row, **asdict(split), "bound": split.bound})
    return rows


POST = "post-training"
"""Beginning of the names of default jobs that may be post-training by reinforcement learning."""


def night_work(
    cluster: Cluster,
    models: Sequence[Model],
    options: FleetInputs,
    services: Sequence[Service],
    demand: Demand,
    fleet: Fleet | None = None,
    *,
    kinds: Sequence[str] = ("",),
    name: str = "",
) -> tuple[TrainingJob, ...]:
    """Return the jobs of a file, or default ones, with their open fields filled in."""
    # ``kinds``: all kinds of units of the fleet; ``name``: the kind of this cluster.
    # Jobs without a throughput of their own train the largest served model by a simulated plan;
    # their state follows from its parameters. The interval of checkpoints comes from the catalogue.
    # Evaluation runs at the token rate of a saturated serving unit, and so do the rollouts of
    # post-training jobs.
    catalogue, file = cluster.numbers, options.training
    jobs = read_jobs(file) if file else _default_jobs(cluster, models, fleet)
    if file:
        jobs = tuple(job for job in jobs if _is_of(job, kinds, name, file))
    mode = "" if file else options.post_training or ""
    interval_s = catalogue.value("fleet.training", "checkpoint_interval")
    service = services[0]
    prompt, output = demand.mean_lengths()
    work = float(service.capacity.work(prompt, output))
    rate = service.capacity.rate_max_per_s / work * (prompt + output)
    sent_s = transfer_s(cluster, max((float(model.parameters) for model in models), default=0.0))
    filled = [
        replace(
            job,
            post_training=mode if mode and job.name.startswith(POST) else job.post_training,
            checkpoint_every_s=job.checkpoint_every_s or interval_s,
            tokens_per_s=((1, rate),) if job.evaluation and not job.rated else job.tokens_per_s,
        )
        for job in jobs
    ]
    result = []
    for job in _trained(filled, models, cluster, stated=bool(file)):
        if how := job.post_training:
            step = job.step_tokens if job.step_tokens > 1 else STEP
            phases = PostTraining(rate, job.rate(job.units) / job.units, sent_s, step, how)
            job = replace(job, phases=phases, step_tokens=step)
        result.append(job)
    return tuple(result)


def _is_of(job: TrainingJob, kinds: Sequence[str], name: str, file: Path) -> bool:
    """Return whether a job of a file runs on the kind of this name, or on the only kind."""
    if job.kind not in kinds and (job.kind or len(kinds) > 1):
        listed = ", ".join(kinds)
        raise InputError(
            f"{file}: job {job.name} states "
            + (f"kind {shown(job.kind)!r}" if job.kind else "no kind of units")
            + f"; write one of {listed} in column kind."
        )
    return (job.kind or name) == name


def _default_jobs(
    cluster: Cluster, models: Sequence[Model], fleet: Fleet | None
) -> tuple[TrainingJob, ...]:
    """Return the default jobs, of sizes that failures let compute for most of their time."""
    usual = default_jobs(cluster.domains, step_tokens=STEP_TOKENS)
    if fleet is None:
        return usual
    trained = _trained(usual, models, cluster, stated=False)
    sizes = {job.fixed: most_units(job, fleet) for job in trained if not job.evaluation}
    most = (sizes.get(False, math.inf), sizes.get(True, math.inf))
    return default_jobs(cluster.domains, step_tokens=STEP_TOKENS, most=most)


def _trained(
    jobs: Sequence[TrainingJob], models: Sequence[Model], cluster: Cluster, *, stated: bool
) -> Sequence[TrainingJob]:
    """Fill in the throughput and the state of the largest model in jobs that state none."""
    if not models or all(job.rated or job.evaluation for job in jobs):
        return _within_hosts(jobs, cluster, stated)
    largest = max(models, key=lambda model: model.parameters)
    trained = training_rate(largest, cluster)
    if trained.plan is None:  # a roofline, of which no more is known than of a step by degrees
        kind = training_kind(experts=largest.experts is not None, zero=0)
        bare = replace(Prediction(kind, cluster.measured_chip), stated=BARE, assumed=True)
        step_time = Uncertain.of(interval(1.0, bare))
    else:
        step_time = Uncertain.of(training_interval(largest, trained.plan, cluster, 1.0))
    each = cluster.numbers.value("fleet.training", "state_bytes_per_parameter")
    filled = [
        job
        if job.evaluation or job.rated
        else replace(
            job,
            tokens_per_s=((trained.units, trained.tokens_per_s),),
            state_bytes=job.state_bytes or largest.parameters * each,
            step_time=step_time,
            # An elastic job loses a step when it shrinks: one as large as that which was timed.
            step_tokens=job.step_tokens
            if stated or job.fixed
            else min(job.step_tokens, job.units * cluster.chips_per_domain * SEQUENCE),
        )
        for job in jobs
    ]
    return _within_hosts(filled, cluster, stated)


def _within_hosts(
    jobs: Sequence[TrainingJob], cluster: Cluster, stated: bool
) -> Sequence[TrainingJob]:
    """Check that the copies and paused states of jobs fit into host memory."""
    # A job of a file that does not fit is an error; a default job does without.
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    room = room_for_copies(cluster, cluster.numbers)
    result = []
    for job in jobs:
        part = job.state_bytes / (job.min_units * servers)
        copies = held_bytes(part) if job.checkpoint == "peer" else 0.0
        paused = part if job.reclaim == "pause" else 0.0
        if copies + paused > room and stated:
            needs = [("copies at peers", "checkpoint async")] if copies else []
            needs += [("the state of a pause", "reclaim checkpoint")] if paused else []
            raise InputError(
                f"job {job.name}: {' and '.join(what for what, _ in needs)} take "
                f"{(copies + paused) / 1e9:,.0f} GB of host memory in each server of "
                f"{job.min_units:,} units, and {cluster.name} has room for {room / 1e9:,.0f} GB; "
                f"raise min_units, or write {' or '.join(remedy for _, remedy in needs)}."
            )
        # Copies are given up first, then the state of a pause: a job can do without either.
        if copies + paused > room and copies:
            job, copies = replace(job, checkpoint="async"), 0.0
        if paused > room:
            job = replace(job, reclaim="checkpoint")
        result.append(job)
    return result


def host_memory_note(jobs: Sequence[TrainingJob], units: int) -> str:
    """Sentence about default jobs that do without copies or pauses for lack of host memory."""
    # It is empty where the memory suffices.
    defaults = {job.name: job for job in default_jobs(units)}
    changed = [(defaults[job.name], job) for job in jobs if job.name in defaults]
    lacking = [
        what
        for what, differs in (
            ("keep no copies at peers", any(a.checkpoint != b.checkpoint for a, b in changed)),
            (
                "save to the store instead of pausing",
                any(a.reclaim != b.reclaim for a, b in changed),
            ),
        )
        if differs
    ]
    if not lacking:
        return ""
    return f"default jobs {' and '.join(lacking)}: their state does not fit into host memory."
