"""Speed of a training job: the best plan of a narrowed search, or the roofline alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.shapes.basic import Torus
from workloads.models.model import Model
from workloads.search import search
from workloads.serving.profile import forward_s
from workloads.training.plan.plan import ParallelPlan

SEQUENCE = 8192
"""Tokens of a training sequence: Llama 3's (arXiv 2407.21783)."""
UNITS = (1, 2, 4, 8, 16, 32)
"""Scale-up domains on which a plan is looked for, the fewest first."""
LEAST_CHIPS = 128
"""Chips of the smallest job that is simulated, so that its gradients cross domains."""
MOST_CHIPS = 1024
"""Chips of the largest scale-up domain on which a plan is looked for whole."""
PASSES = 3.0
"""A backward pass takes twice a forward pass."""
SETTLED: Mapping[str, Any] = {
    "seq": SEQUENCE,
    "cp": 1,
    "microbatch": 1,
    "overlap": "dp",
    "schedule": ParallelPlan.schedule,
    "order": ("tp", "cp", "dp", "pp"),
}
"""Fields that are not searched, so that a search takes a second. The others, the degrees of tensor,
pipeline, data and expert parallelism and recomputation, decide nearly all of the speed."""
NARROWED: tuple[Mapping[str, Any], ...] = (
    {"zero": 3, "recompute": "selective"},
    {"recompute": "full"},
)
"""Searches in turn; the second where no plan of the first fits in memory."""


@dataclass(frozen=True)
class TrainingRate:
    """Throughput of a training job.

    Attributes
    ----------
    units : int
        Scale-up domains of the simulated job.
    tokens_per_s : float
        On so many units; in proportion on others, because the batch grows with the job.
    plan : ParallelPlan, optional
        None where no plan fits and the roofline of three forward passes stands in.
    """

    units: int
    tokens_per_s: float
    plan: ParallelPlan | None = None


def training_rate(model: Model, cluster: Cluster, *, precision: str = "bf16") -> TrainingRate:
    """Return the throughput of a job that trains a model on units of a cluster.

    The plan is the fastest that the plan search finds on the fewest units (of at least 128 chips)
    on which one fits; every chip brings one sequence of 8,192 tokens to a step. Where no plan fits
    the fleet, the roofline of a forward pass, three times, stands in for it.

    Raises
    ------
    InputError
        For a cluster without chips.
    """
    slice_, slices = _priced_slice(cluster)
    if slices > 1:
        priced = training_rate(model, slice_, precision=precision)
        return replace(priced, tokens_per_s=priced.tokens_per_s * slices)
    for units in UNITS:
        if units > cluster.domains:
            break
        chips = units * cluster.chips_per_domain
        if chips < LEAST_CHIPS and units * 2 <= cluster.domains:
            continue
        part = replace(cluster, domains=units)
        for narrowed in NARROWED:
            stated = {**SETTLED, **narrowed, "precision": precision}
            if model.experts:
                stated["etp"] = 1
            try:
                best = search(model, part, chips, stated=stated, finalists=1).finalists[0]
            except InputError:
                continue
            return TrainingRate(units, best.tokens_per_s, best.plan)
    return TrainingRate(1, _roofline_tokens_per_s(model, cluster))


def _priced_slice(cluster: Cluster) -> tuple[Cluster, float]:
    """Return a slice of a large torus on which plans are priced, and how many make up a unit.

    Axes are halved, the longest first, as the slices of a pod are cut that jobs are given. Pricing
    a ring of thousands of chips takes minutes and gigabytes.
    """
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
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    return servers * SEQUENCE / (PASSES * forward_s(model, cluster, SEQUENCE))
