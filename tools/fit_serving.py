"""Fit of a serving engine's overheads to measured points at batch 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.serving.profile import constant, profile, prompt_overhead_s, share_of_overhead


@dataclass(frozen=True)
class Point:
    """A measurement at batch 1.

    Attributes
    ----------
    model : Model
    prompt_tokens, output_tokens : int
        Tokens that were run, with prompts padded to their bucket.
    ttft_s, tpot_s : float
        Measured time to first token and time per later token [s].
    """

    model: Model
    prompt_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float


@dataclass(frozen=True)
class Overheads:
    """Overheads of a serving engine beyond the roofline, which all models share.

    Attributes
    ----------
    iteration_s : float
        Overhead of an iteration of a model with the catalogue's ``overhead_layers`` layers [s].
    prompt_token_layer_s : float
        Overhead of a prompt's token in a layer [s].
    """

    iteration_s: float
    prompt_token_layer_s: float


def fit(points: Sequence[Point], cluster: Cluster) -> Overheads:
    """Fit two overheads by least squares: one to decode, then one to prefill.

    Measured decode exceeds the roofline by the model's share of an iteration's overhead, measured
    prefill by that and by ``tokens · layers · prompt_token_layer_s``. All-reduces keep their floor,
    which decode cannot distinguish from the overhead of a layer.

    Parameters
    ----------
    points : sequence of Point
        Measurements of at least two models.
    cluster : Cluster
        Cluster whose first server is the replica.
    """
    if len({point.model.layers for point in points}) < 2:
        raise InputError("overheads need points of at least two models of different depth.")
    catalogue = cluster.catalogue
    if catalogue is None:
        raise InputError(f"{cluster.name} has no catalogue to take overheads from.")
    layers = np.array([point.model.layers for point in points], float)
    tokens = np.array([point.prompt_tokens for point in points], float)
    share = np.array([share_of_overhead(point.model, cluster.chip, catalogue) for point in points])
    bare = np.array([_bare(point, cluster, catalogue) for point in points])
    decode_s = np.array([point.tpot_s for point in points])
    iteration = _slope(share, decode_s - bare[:, 1], decode_s)
    prefill_s = np.array([point.ttft_s for point in points])
    prompt = _slope(layers * tokens, prefill_s - bare[:, 0] - share * iteration, prefill_s)
    return Overheads(iteration, prompt)


def _slope(unit: FloatArray, lacking_s: FloatArray, measured_s: FloatArray) -> float:
    """Time of one unit, by least squares of the missing time relative to the measured one [s]."""
    weight = 1 / measured_s**2
    return float(np.sum(weight * unit * lacking_s) / np.sum(weight * unit**2))


def _bare(point: Point, cluster: Cluster, catalogue: Catalogue) -> tuple[float, float]:
    """Times of prefill and of one decode iteration without the two overheads [s]."""
    replica = profile(point.model, cluster)
    share = share_of_overhead(point.model, cluster.chip, catalogue)
    overhead = share * constant(catalogue, cluster.chip, "iteration_overhead")
    prompt = prompt_overhead_s(point.model, cluster.chip, catalogue)
    context = point.prompt_tokens + point.output_tokens // 2
    prefill = replica.prefill_s(point.prompt_tokens) - prompt * point.prompt_tokens
    return prefill - overhead, replica.decode_s(1, context) - overhead
