"""Chunks: which layers of the model each pipeline stage holds.

With ``vpp`` chunks a stage, chunk c of stage s is number c · pp + s in order of the model, or where
a schedule turns at the last stage number c · pp + pp − 1 − s, for every second chunk. Layers
that do not divide evenly are spread so that chunks differ by one at most. The fewer go to the last
chunk, which has the output layer besides, then to the first, which has the embedding, and on from
there, as early stages hold the most activations. So 126 layers in 64 chunks are 1, 2, …, 2, 1, as
Megatron-LM has them when it counts the embedding and the output as a layer each.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from topologies.arrays import IntArray
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan


@lru_cache(maxsize=1024)
def layer_counts(layers: int, chunks: int) -> tuple[int, ...]:
    """Layers of each chunk, as even as possible.

    Examples
    --------
    >>> layer_counts(6, 4), layer_counts(5, 4)
    ((1, 2, 2, 1), (1, 1, 2, 1))
    """
    most = -(-layers // chunks)
    fewer = [chunks - 1, *range(chunks - 1)][: chunks * most - layers]
    return tuple(most - (chunk in fewer) for chunk in range(chunks))


def chunk_layers(model: Model, plan: ParallelPlan, stage: int) -> list[IntArray]:
    """Numbers of the layers of each chunk of a stage."""
    counts = plan.stage_layers or layer_counts(model.layers, plan.pp * plan.vpp)
    held = [plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp)]
    return list(_numbers(counts, tuple(held)))


@lru_cache(maxsize=4096)
def _numbers(counts: tuple[int, ...], held: tuple[int, ...]) -> tuple[IntArray, ...]:
    end = np.cumsum(counts)
    return tuple(np.arange(end[number] - counts[number], end[number]) for number in held)


def end_stages(plan: ParallelPlan) -> tuple[int, int]:
    """Stages of the first and the last chunk of the model, with the embedding and the output.

    Examples
    --------
    >>> end_stages(ParallelPlan(pp=4, global_batch=4))
    (0, 3)
    """
    return 0, plan.pipeline.stage(plan.pp, plan.pp * plan.vpp - 1)


def is_moe(model: Model, layers: IntArray) -> IntArray:
    """1 for each layer that has experts, else 0."""
    sparse = np.array([kind.experts for kind in model.kinds], np.int64)
    return np.asarray(sparse[layer_kinds(model, layers)])


def layer_kinds(model: Model, layers: IntArray) -> IntArray:
    """Number of each layer's kind in ``model.kinds``.

    Examples
    --------
    >>> from workloads.models.huggingface import named
    >>> layer_kinds(named("deepseek-v3"), np.array([0, 2, 3, 60])).tolist()
    [0, 0, 1, 1]
    """
    return _kind_numbers(model)[np.asarray(layers, np.int64)]


@lru_cache(maxsize=64)
def _kind_numbers(model: Model) -> IntArray:
    number = {kind: place for place, kind in enumerate(model.kinds)}
    return np.array([number[kind] for kind in model.each_layer], np.int64)


def is_kept(plan: ParallelPlan, layers: IntArray) -> IntArray:
    """1 for each layer whose activations are kept where others are computed again, else 0."""
    late = np.asarray(layers) % plan.recompute_every > 0
    return (late & (plan.recompute == "full")).astype(np.int64)


def stage_layers(model: Model, plan: ParallelPlan) -> int:
    """Layers of the pipeline stage that has the most."""
    held = (chunk_layers(model, plan, stage) for stage in range(plan.pp))
    return max(sum(len(chunk) for chunk in chunks) for chunks in held)
