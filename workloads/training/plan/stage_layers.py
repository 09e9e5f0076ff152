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
from itertools import accumulate

import numpy as np

from topologies.arrays import IntArray
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules import pipeline_schedule


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
    counts = _counts(model, plan)
    held = [plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp)]
    return list(_numbers(counts, tuple(held)))


@lru_cache(maxsize=4096)
def _numbers(counts: tuple[int, ...], held: tuple[int, ...]) -> tuple[IntArray, ...]:
    end = np.cumsum(counts)
    return tuple(np.arange(end[number] - counts[number], end[number]) for number in held)


def first_layers(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """First layer of each chunk of the model in its order, and the number of layers.

    Examples
    --------
    >>> from workloads.models.huggingface import named
    >>> first_layers(named("llama-3.1-8b"), ParallelPlan(pp=4, global_batch=4))
    (0, 8, 16, 24, 32)
    """
    return (0, *accumulate(_counts(model, plan)))


def _counts(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    return plan.stage_layers or layer_counts(model.layers, plan.pp * plan.vpp)


@lru_cache(maxsize=1024)
def chunk_numbers(schedule: str, pp: int, vpp: int) -> tuple[IntArray, IntArray]:
    """Numbers in the model of all stages' chunks, int64 (stages, vpp), and the stage of each.

    Examples
    --------
    >>> [numbers.tolist() for numbers in chunk_numbers("interleaved", 2, 2)]
    [[[0, 2], [1, 3]], [0, 1, 0, 1]]
    """
    how = pipeline_schedule(schedule)
    number = [[how.number(pp, stage, chunk) for chunk in range(vpp)] for stage in range(pp)]
    stage = [how.stage(pp, chunk) for chunk in range(pp * vpp)]
    return np.array(number, np.int64), np.array(stage, np.int64)


def kinds_of_chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """Layers of each chunk of the model, by kind and by what is kept of them.

    Returns
    -------
    tuple of tuple of int
        For each chunk in order of the model the number of layers of each of ``model.kinds``, first
        of those that are computed again as the plan says, then of those that are kept.
    """
    return _kinds_of_chunks(
        model, _counts(model, plan), plan.recompute_every if plan.recompute == "full" else 1
    )


@lru_cache(maxsize=4096)
def _kinds_of_chunks(
    model: Model, counts: tuple[int, ...], every: int
) -> tuple[tuple[int, ...], ...]:
    layers = np.arange(model.layers)
    kept = layers % every > 0
    number = len(model.kinds) * kept + layer_kinds(model, layers)
    so_far = np.zeros((model.layers + 1, 2 * len(model.kinds)), np.int64)
    so_far[1:] = np.cumsum(number[:, None] == np.arange(2 * len(model.kinds)), axis=0)
    first = [0, *accumulate(counts)]
    return tuple(map(tuple, np.diff(so_far[first], axis=0).tolist()))


def stage_kinds(model: Model, plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """Layers that a stage holds, by kind.

    Examples
    --------
    >>> from workloads.models.huggingface import named
    >>> stage_kinds(named("deepseek-v3"), ParallelPlan(pp=2, global_batch=2), 0)
    (3, 28)
    """
    chunks, kinds = kinds_of_chunks(model, plan), len(model.kinds)
    held = [chunks[plan.pipeline.number(plan.pp, stage, chunk)] for chunk in range(plan.vpp)]
    return tuple(
        sum(layers[kind] + layers[kinds + kind] for layers in held) for kind in range(kinds)
    )


def unlike_stages(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """The first of the stages that hold chunks of alike layers and the same ends of the model."""
    return _unlike_stages(model, _counts(model, plan), plan.schedule, plan.pp, plan.vpp)


@lru_cache(maxsize=4096)
def _unlike_stages(
    model: Model, counts: tuple[int, ...], schedule: str, pp: int, vpp: int
) -> tuple[int, ...]:
    number, stage = chunk_numbers(schedule, pp, vpp)
    kinds = np.array(_kinds_of_chunks(model, counts, 1))[number].reshape(pp, -1)
    ends = np.arange(pp)[:, None] == stage[[0, -1]]
    _, first = np.unique(np.concatenate([kinds, ends], axis=1), axis=0, return_index=True)
    return tuple(sorted(first.tolist()))


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
