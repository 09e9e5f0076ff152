"""Rates of post-training jobs on a cluster: rollouts, updates, and transfers of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from topologies.clusters.cluster import Cluster
from workloads.fleet.inputs.jobs import STEP_TOKENS, TrainingJob
from workloads.fleet.inputs.post_training import PostTraining

BYTES = 2.0
"""Bytes of a parameter on its way to the rollout units: BF16."""
STEP = STEP_TOKENS / 8
"""Default tokens of a post-training step: an eighth of a pre-training step."""


def transfer_s(cluster: Cluster, parameters: float) -> float:
    """Time until every rollout unit holds new weights, 0 on a fleet of one unit [s].

    Every unit receives one copy through all its adapters and passes it on while it arrives (a
    pipelined broadcast), so the time is that of one copy whatever the number of units.
    """
    if cluster.domains == 1 or cluster.scale_out is None:
        return 0.0
    rate = cluster.scale_out.bandwidth_bytes_per_s * cluster.chips_per_domain
    return parameters * BYTES / rate


def with_phases(job: TrainingJob, *, rollout_tokens_per_s: float, transfer_s: float) -> TrainingJob:
    """Return a post-training job with the rates of its rollouts, updates and transfers.

    Parameters
    ----------
    job : TrainingJob
        Its throughput is taken for that of the updates.
    rollout_tokens_per_s : float
        Rate of one unit that serves at saturation [1/s].
    transfer_s : float
        Time until all rollout units hold new weights [s].
    """
    step_tokens = job.step_tokens if job.step_tokens > 1 else STEP
    phases = PostTraining(
        rollout_tokens_per_s,
        job.rate(job.units) / job.units,
        transfer_s,
        step_tokens,
        job.post_training,
    )
    return replace(job, phases=phases, step_tokens=step_tokens)


def post_training_document(jobs: Sequence[TrainingJob]) -> list[dict[str, Any]]:
    """Return the steady state of every post-training job at full size, for JSON."""
    rows = []
    for job in jobs:
        if job.phases is not None:
            split = job.phases.best(job.units)
            row = {"job": job.name, "units": job.units, "mode": job.post_training}
            rows.append({**row, **asdict(split), "bound": split.bound})
    return rows
