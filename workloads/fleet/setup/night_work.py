"""Night work: jobs of a file, or default ones, with their throughput, state and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.demand import Demand
from workloads.fleet.inputs.job_file import read_jobs
from workloads.fleet.inputs.jobs import STEP_TOKENS, TrainingJob, default_jobs
from workloads.fleet.setup.post_training_rates import transfer_s, with_phases
from workloads.fleet.setup.progress import training_rate
from workloads.fleet.state.services import Service
from workloads.job.peers import held_bytes, room_for_copies
from workloads.models.model import Model

POST = "post-training"
"""Beginning of the names of default jobs that may be post-training by reinforcement learning."""


def night_work(
    cluster: Cluster,
    models: Sequence[Model],
    training: str | Path | None,
    services: Sequence[Service],
    demand: Demand,
    post_training: str = "",
) -> tuple[TrainingJob, ...]:
    """Return the jobs of a file, or default ones, with their open fields filled in.

    Jobs without a throughput of their own train the largest served model by a simulated plan; their
    state follows from its parameters. The interval of checkpoints comes from the catalogue.
    Evaluation runs at the token rate of a saturated serving unit, and so do the rollouts of
    post-training jobs.

    Parameters
    ----------
    cluster, models, services, demand
        As in a :class:`workloads.fleet.scenario.Scenario`.
    training : path, optional
        File of jobs.
    post_training : str
        Mode, ``lockstep`` or ``one-behind``, in which the default jobs named post-training run
        rollouts and updates; empty for plain training.

    Raises
    ------
    InputError
        For a file that cannot be read.
    """
    catalogue = cluster.catalogue or shipped_catalogue()
    jobs = (
        read_jobs(training) if training else default_jobs(cluster.domains, step_tokens=STEP_TOKENS)
    )
    if post_training and not training:
        jobs = tuple(
            replace(job, post_training=post_training) if job.name.startswith(POST) else job
            for job in jobs
        )
    interval_s = catalogue.value("fleet.training", "checkpoint_interval")
    jobs = tuple(
        replace(job, checkpoint_every_s=job.checkpoint_every_s or interval_s) for job in jobs
    )
    rate = _served_tokens_per_s(services[0], demand)
    jobs = tuple(
        replace(job, tokens_per_s=((1, rate),)) if job.evaluation and not job.rated else job
        for job in jobs
    )
    trained = _within_hosts(
        _trained(jobs, models, cluster, catalogue), cluster, catalogue, bool(training)
    )
    return tuple(
        with_phases(job, rollout_tokens_per_s=rate, transfer_s=_transfer_s(cluster, models))
        if job.post_training
        else job
        for job in trained
    )


def _trained(
    jobs: Sequence[TrainingJob], models: Sequence[Model], cluster: Cluster, catalogue: Catalogue
) -> Sequence[TrainingJob]:
    """Fill in the throughput and the state of the largest model in jobs that state none."""
    if not models or all(job.rated or job.evaluation for job in jobs):
        return jobs
    largest = max(models, key=lambda model: model.parameters)
    trained = training_rate(largest, cluster)
    state = largest.parameters * catalogue.value("fleet.training", "state_bytes_per_parameter")
    return tuple(
        job
        if job.evaluation or job.rated
        else replace(
            job,
            tokens_per_s=((trained.units, trained.tokens_per_s),),
            state_bytes=job.state_bytes or state,
        )
        for job in jobs
    )


def _within_hosts(
    jobs: Sequence[TrainingJob], cluster: Cluster, catalogue: Catalogue, stated: bool
) -> Sequence[TrainingJob]:
    """Check that the copies and paused states of jobs fit into host memory.

    A job of a file that does not fit is an error; a default job does without.
    """
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    room = room_for_copies(cluster, catalogue)
    result = []
    for job in jobs:
        part = job.state_bytes / (job.min_units * servers)
        copies = held_bytes(part) if job.checkpoint == "peer" else 0.0
        paused = part if job.reclaim == "pause" else 0.0
        if copies + paused > room and stated:
            raise _no_room(job, cluster, copies, paused, room)
        # Copies are given up first, then the state of a pause: a job can do without either.
        if copies + paused > room and copies:
            job, copies = replace(job, checkpoint="async"), 0.0
        if paused > room:
            job = replace(job, reclaim="checkpoint")
        result.append(job)
    return result


def host_memory_note(jobs: Sequence[TrainingJob], units: int) -> str:
    """Sentence about default jobs that do without copies or pauses for lack of host memory.

    It is empty where the memory suffices.
    """
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


def _no_room(
    job: TrainingJob, cluster: Cluster, copies: float, paused: float, room: float
) -> InputError:
    """Return the error that names a job's need of host memory, and its alternatives."""
    kept = {"copies at peers": copies, "the state of a pause": paused}
    remedies = {"copies at peers": "checkpoint async", "the state of a pause": "reclaim checkpoint"}
    needed = [what for what, size in kept.items() if size]
    return InputError(
        f"job {job.name}: {' and '.join(needed)} take {(copies + paused) / 1e9:,.0f} GB of host "
        f"memory in each server of {job.min_units:,} units, and {cluster.name} has room for "
        f"{room / 1e9:,.0f} GB; raise min_units, or write "
        f"{' or '.join(remedies[what] for what in needed)}."
    )


def _transfer_s(cluster: Cluster, models: Sequence[Model]) -> float:
    """Time to send the weights of the largest model to all rollout units [s]."""
    largest = max((float(model.parameters) for model in models), default=0.0)
    return transfer_s(cluster, largest)


def _served_tokens_per_s(service: Service, demand: Demand) -> float:
    """Prompt and output tokens that a saturated unit handles at the demand's mean lengths [1/s]."""
    weights = demand.requests[0]
    prompt, output = (
        float(np.average(column[0], weights=weights if weights.any() else None))
        for column in (demand.prompt_tokens, demand.output_tokens)
    )
    work = float(service.capacity.work(prompt, output))
    return service.capacity.rate_max_per_s / work * (prompt + output)
