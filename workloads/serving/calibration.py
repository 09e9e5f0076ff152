"""Fitting the overheads of a serving engine to measured points at batch 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving.profile import constant, profile, share_of_overhead


@dataclass(frozen=True)
class Point:
    """A measurement at batch 1.

    Attributes
    ----------
    model : Model
    prompt_tokens, output_tokens : int
        As run: prompts padded to their bucket.
    ttft_s, tpot_s : float
    """

    model: Model
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Overheads:
    """Overheads that the roofline does not hold [s]: the same for all models.

    Attributes
    ----------
    iteration_s, all_reduce_floor_s, prompt_token_layer_s : float
    """

    iteration_s: float
    all_reduce_floor_s: float
    prompt_token_layer_s: float


def fit(points: Sequence[Point], cluster: Cluster) -> Overheads:
    """Fit three overheads by least squares: two to decode, then one to prefill.

    Decode lacks ``iteration + 2 layers floor`` from the roofline, prefill that and ``tokens layers
    prompt``.

    Parameters
    ----------
    points : sequence of Point
        Of at least two models.
    cluster : Cluster
        Its first server is the replica.
    """
    if len({point.model.layers for point in points}) < 2:
        raise InputError("overheads need points of at least two models of different depth.")
    layers = np.array([point.model.layers for point in points], float)
    tokens = np.array([point.prompt_tokens for point in points], float)
    bare = [_bare(point, cluster) for point in points]
    lacking = np.array([point.tpot_s for point in points]) - [decode for _, decode in bare]
    columns = np.stack([np.ones_like(layers), 2 * layers], axis=1)
    (iteration, floor), *_ = np.linalg.lstsq(columns, lacking, rcond=None)
    rest = np.array([point.ttft_s for point in points]) - [prefill for prefill, _ in bare]
    rest -= iteration + 2 * layers * floor
    units = layers * tokens
    weights = 1 / np.array([point.ttft_s for point in points])
    prompt = np.sum(weights**2 * units * rest) / np.sum((weights * units) ** 2)
    return Overheads(float(iteration), float(floor), float(prompt))


def _bare(point: Point, cluster: Cluster) -> tuple[float, float]:
    """Times of prefill and of one decode iteration without the three overheads [s]."""
    made = profile(point.model, cluster)
    book = cluster.catalogue
    if book is None:
        raise InputError(f"{cluster.name} has no catalogue to take overheads from.")
    share = share_of_overhead(point.model, cluster.chip, book)
    overhead = share * constant(book, cluster.chip, "iteration_overhead")
    floors = 2 * point.model.layers * constant(book, cluster.chip, "all_reduce_floor")
    context = point.prompt_tokens + point.output_tokens // 2
    prefill = made.prefill_s(point.prompt_tokens) - made.prefill_token_s * point.prompt_tokens
    return prefill - overhead - floors, made.decode_s(1, context) - overhead - floors
