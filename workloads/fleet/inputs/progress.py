"""How fast a job trains: one simulated iteration of a plan that fits, or the roofline alone."""

from __future__ import annotations

import math
from dataclasses import replace

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving.profile import forward_s
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

SEQUENCE = 8192
"""Tokens of a training sequence: Llama 3's (arXiv 2407.21783)."""
SEQUENCES_PER_UNIT = 32
"""Of one step; 64 UltraServers then run Llama 3's batch of 16 million tokens."""
MOST_STAGES = 16
PASSES = 3.0
"""A backward pass takes twice a forward pass."""


def training_rates(model: Model, cluster: Cluster) -> tuple[tuple[int, float], ...]:
    """Return (units, tokens per second) of a job of a model, for :class:`TrainingJob`.

    Servers are tensor-parallel; the pipeline is the shortest that divides the layers and fits in
    memory; the rest is data-parallel, and each unit brings 32 sequences to a step, so that the
    batch grows with the job and throughput in proportion. The iteration is simulated on the fewest
    whole units with at least two replicas. Where no plan fits the fleet, the roofline of a forward
    pass, three times, stands in for it.

    Raises
    ------
    InputError
        For a cluster without chips.
    """
    for stages in range(1, MOST_STAGES + 1):
        replica = cluster.chips_per_server * stages
        units = math.lcm(replica, cluster.chips_per_domain) // cluster.chips_per_domain
        if units * cluster.chips_per_domain == replica:
            units *= 2
        if model.layers % stages or units > cluster.domains:
            continue
        plan = ParallelPlan(
            tp=cluster.chips_per_server,
            pp=stages,
            dp=units * cluster.chips_per_domain // replica,
            global_batch=SEQUENCES_PER_UNIT * units,
            seq=SEQUENCE,
            overlap="dp",
        )
        try:
            step = iteration(model, replace(cluster, domains=units), plan)
        except InputError:
            continue
        return ((units, plan.tokens / step.iteration_s),)
    return ((1, _roofline_tokens_per_s(model, cluster)),)


def _roofline_tokens_per_s(model: Model, cluster: Cluster) -> float:
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    return servers * SEQUENCE / (PASSES * forward_s(model, cluster, SEQUENCE))
