"""Steady latency and throughput of a replica at a fixed concurrency, as published tables state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.serving.profile import profile
from workloads.serving.replica import BUCKETS, Batching, closed_loop
from workloads.serving.requests import fixed_lengths, poisson

ROUNDS = 4
"""Requests of each user; the first round fills the batch and is left out."""
GPU_CHUNK = 8192
"""Tokens of a mixed iteration of a GPU engine: TensorRT-LLM's default."""


@dataclass(frozen=True)
class Steady:
    """Medians of the time to first token and per later token [s], output tokens per second."""

    ttft_s: float
    tpot_s: float
    tokens_per_s: float


def steady(
    model: Model,
    cluster: Cluster,
    *,
    tp: int | None = None,
    precision: str = "bf16",
    prompt_tokens: int,
    output_tokens: int,
    concurrency: int = 1,
) -> Steady:
    """Predict one row of a serving benchmark.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    tp : int, optional
        As for :func:`workloads.serving.profile.profile`.
    precision : str
    prompt_tokens, output_tokens : int
        Of every request.
    concurrency : int
        Requests that are always there.
    """
    made = profile(model, cluster, tp=tp, precision=precision)
    trainium = chip_family(cluster.chip, cluster.catalogue).is_neuron
    chunk = 0 if trainium else max(GPU_CHUNK, concurrency + 1)
    batching = Batching(concurrency, chunk, BUCKETS if trainium else ())
    lengths = fixed_lengths(prompt_tokens, output_tokens)
    asked = poisson(1.0, ROUNDS * concurrency, lengths, np.random.default_rng(0))
    served = closed_loop(made, asked, concurrency, batching)
    late = slice(concurrency, None)
    begun, done = served.end_s[:concurrency].max(), np.sort(served.end_s)
    after = done[done > begun]
    span = after[-1] - begun if len(after) else done[-1]
    finished = len(after) if len(after) else len(done)
    tpot = served.tpot_s[late]
    return Steady(
        ttft_s=float(np.median(served.ttft_s[late])),
        tpot_s=float(np.nanmedian(tpot)) if output_tokens > 1 else 0.0,
        tokens_per_s=float(finished * output_tokens / span),
    )
