"""Throughput of a training job: from the best plan of a narrowed search, or from the roofline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.shapes.basic import Torus
from workloads.fleet.setup.kept_rates import TrainingRate, keep_rate, load_rate, rate_name
from workloads.models.model import Model
from workloads.search import search
from workloads.serving.profile import forward_s
from workloads.training.plan.plan import ParallelPlan

SEQUENCE = 8192
"""Tokens of a training sequence: Llama 3's (arXiv 2407.21783)."""
UNITS = (1, 2, 4, 8, 16, 32)
"""Numbers of scale-up domains on which a plan is searched, the fewest first."""
LEAST_CHIPS = 128
"""Chips of the smallest job that is simulated, so that its gradients cross domains."""
MOST_CHIPS = 1024
"""Chips of the largest torus on which a plan is searched without cutting a slice."""
PASSES = 3.0
"""Time of a step in forward passes: a backward pass takes two."""
SETTLED: Mapping[str, Any] = {
    "seq": SEQUENCE,
    "cp": 1,
    "microbatch": 1,
    "overlap": "dp",
    "schedule": ParallelPlan.schedule,
    "order": ("tp", "cp", "dp", "pp"),
}
"""Fields of a plan that are fixed, so that a search takes a second. The searched fields (degrees of
tensor, pipeline, data and expert parallelism, and recomputation) decide nearly all of the speed."""
NARROWED: tuple[Mapping[str, Any], ...] = (
    {"zero": 3, "recompute": "selective"},
    {"recompute": "full"},
)
"""Further fixed fields of each search; the next is tried where no plan of one fits in memory."""


def training_rate(model: Model, cluster: Cluster, *, precision: str = "bf16") -> TrainingRate:
    """Return the throughput of a job that trains a model on units of a cluster.

    The plan is the fastest that the plan search finds on the fewest units (of at least 128 chips)
    on which any fits; every chip adds one sequence of 8,192 tokens to a step. Where no plan fits
    the fleet, a step takes three times the roofline of a forward pass. The result is kept in a
    file, from which the next call with equal inputs reads it.

    Raises
    ------
    InputError
        For a cluster without chips.
    """
    name = rate_name(model, cluster, precision)
    rate = load_rate(name)
    if rate is None:
        rate = _searched(model, cluster, precision)
        keep_rate(name, rate)
    return rate


def _searched(model: Model, cluster: Cluster, precision: str) -> TrainingRate:
    slice_, slices = _priced_slice(cluster)
    if slices > 1:
        priced = _searched(model, slice_, precision)
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
    """Return a slice of a large torus on which plans are timed, and the slices in a unit.

    Axes are halved, the longest first, as pods are cut into the slices that jobs get. A whole torus
    is not timed, because a ring of thousands of chips takes minutes and gigabytes.
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
    """Training throughput of a unit by the roofline of a forward pass on each server [1/s]."""
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    return servers * SEQUENCE / (PASSES * forward_s(model, cluster, SEQUENCE))
