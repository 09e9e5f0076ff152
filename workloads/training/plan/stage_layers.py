"""Layers of the model that each pipeline stage holds, in one or several chunks.

With ``vpp`` chunks a stage, chunk c of stage s is number c · pp + s in order of the model. Under a
schedule that turns at the last stage, every second chunk is number c · pp + pp − 1 − s instead.

Where layers do not divide evenly, some chunks have one layer fewer: first the last chunk, which has
the output layer besides, then the first, which has the embedding, and then the chunks that follow
the first, as early stages hold the most activations. So 126 layers in 64 chunks are 1, 2, …, 2, 1,
as in Megatron-LM when it counts the embedding and the output as a layer each.
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
    """Layers of each chunk, as even as possible."""
    most = -(-layers // chunks)
    shorter = [chunks - 1, *range(chunks - 1)][: chunks * most - layers]
    return tuple(most - (chunk in shorter) for chunk in range(chunks))


def chunk_layers(model: Model, plan: ParallelPlan, stage: int) -> list[IntArray]:
    """Return the layer numbers of each chunk of a stage."""
    counts = _counts(model, plan)
    chunks = [plan.pipeline.number(plan.pp, stage, chunk) for chunk in range(plan.vpp)]
    return list(_layer_numbers(counts, tuple(chunks)))


@lru_cache(maxsize=4096)
def _layer_numbers(counts: tuple[int, ...], chunks: tuple[int, ...]) -> tuple[IntArray, ...]:
    """Layer numbers of some chunks; ``counts`` has the number of layers of every chunk."""
    end = np.cumsum(counts)
    return tuple(np.arange(end[chunk] - counts[chunk], end[chunk]) for chunk in chunks)


def first_layers(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """Return the first layer of each chunk in order of the model, then the number of layers."""
    return (0, *accumulate(_counts(model, plan)))


def _counts(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    return plan.stage_layers or layer_counts(model.layers, plan.pp * plan.vpp)


def layers_by_cost(model: Model, pp: int) -> tuple[int, ...]:
    """Count the layers of stages that take turns until their share of the products is passed."""
    # The output layer counts as well, so that the last stages may be left without a layer
    # (nanotron, ``build_model`` and ``get_block_compute_costs``).
    products = 4 * model.query_width * model.hidden + 3 * model.ffn * model.hidden
    whole = model.layers * products + model.vocab * model.hidden
    counts, stage = [0] * pp, 0
    for layer in range(1, model.layers + 1):
        counts[stage] += 1
        stage += layer * products * pp > whole * (stage + 1)
    return tuple(counts)


@lru_cache(maxsize=1024)
def chunk_numbers(schedule: str, pp: int, vpp: int) -> tuple[IntArray, IntArray]:
    """Number the chunks of all stages in order of the model."""
    # Returns ``number`` (stages, vpp): number in the model of each chunk of each stage. ``stage``
    # (chunks,): stage that holds each chunk of the model.
    pipeline = pipeline_schedule(schedule)
    number = [[pipeline.number(pp, stage, chunk) for chunk in range(vpp)] for stage in range(pp)]
    stage = [pipeline.stage(pp, chunk) for chunk in range(pp * vpp)]
    return np.array(number, np.int64), np.array(stage, np.int64)


def kinds_of_chunks(model: Model, plan: ParallelPlan) -> tuple[tuple[int, ...], ...]:
    """Count the layers of each chunk by kind, and by whether their activations are kept."""
    # Returns, for each chunk in order of the model: the number of layers of each of ``model.kinds``
    # that are recomputed as the plan says, then the number of layers of each kind whose activations
    # are kept, as full recomputation of only every N-th layer leaves them.
    return _kinds_of_chunks(
        model, _counts(model, plan), plan.recompute_every if plan.recompute == "full" else 1
    )


@lru_cache(maxsize=4096)
def _kinds_of_chunks(
    model: Model, counts: tuple[int, ...], every: int
) -> tuple[tuple[int, ...], ...]:
    layers = np.arange(model.layers)
    kept = layers % every > 0
    column = len(model.kinds) * kept + layer_kinds(model, layers)
    # Row n of the table has the layers of each column among the first n layers of the model.
    counted = np.zeros((model.layers + 1, 2 * len(model.kinds)), np.int64)
    counted[1:] = np.cumsum(column[:, None] == np.arange(2 * len(model.kinds)), axis=0)
    first = [0, *accumulate(counts)]
    return tuple(map(tuple, np.diff(counted[first], axis=0).tolist()))


def stage_kinds(model: Model, plan: ParallelPlan, stage: int) -> tuple[int, ...]:
    """Count the layers that a stage holds by kind."""
    chunks, kinds = kinds_of_chunks(model, plan), len(model.kinds)
    held = [chunks[plan.pipeline.number(plan.pp, stage, chunk)] for chunk in range(plan.vpp)]
    return tuple(
        sum(layers[kind] + layers[kinds + kind] for layers in held) for kind in range(kinds)
    )


def unlike_stages(model: Model, plan: ParallelPlan) -> tuple[int, ...]:
    """Return stages of which one needs the most memory, ascending."""
    # If chunks of two stages have as many layers of each kind, recomputed and kept alike, and both
    # stages hold the same of embedding and output layer, the earlier one needs no less, as it holds
    # more microbatches. Where a schedule turns at the last stage, stages that hold more of one
    # chunk hold less of another, so there every stage is one of them.
    if plan.pipeline.turns:
        return tuple(range(plan.pp))
    every = plan.recompute_every if plan.recompute == "full" else 1
    return _unlike_stages(model, _counts(model, plan), plan.schedule, plan.pp, plan.vpp, every)


@lru_cache(maxsize=4096)
def _unlike_stages(
    model: Model, counts: tuple[int, ...], schedule: str, pp: int, vpp: int, every: int
) -> tuple[int, ...]:
    number, stage = chunk_numbers(schedule, pp, vpp)
    kinds = np.array(_kinds_of_chunks(model, counts, every))[number].reshape(pp, -1)
    ends = np.arange(pp)[:, None] == stage[[0, -1]]
    _, first = np.unique(np.concatenate([kinds, ends], axis=1), axis=0, return_index=True)
    return tuple(sorted(first.tolist()))


def end_stages(plan: ParallelPlan) -> tuple[int, int]:
    """Return the stages of the model's first chunk, with the embedding, and last, the output."""
    return 0, plan.pipeline.stage(plan.pp, plan.pp * plan.vpp - 1)


def is_moe(model: Model, layers: IntArray) -> IntArray:
    """Return 1 for each layer that has experts, else 0."""
    has_experts = np.array([kind.experts for kind in model.kinds], np.int64)
    return np.asarray(has_experts[layer_kinds(model, layers)])


def layer_kinds(model: Model, layers: IntArray) -> IntArray:
    """Return the number of each layer's kind in ``model.kinds``."""
    return _kind_numbers(model)[np.asarray(layers, np.int64)]


@lru_cache(maxsize=64)
def _kind_numbers(model: Model) -> IntArray:
    number = {kind: place for place, kind in enumerate(model.kinds)}
    return np.array([number[kind] for kind in model.each_layer], np.int64)


def is_kept(plan: ParallelPlan, layers: IntArray) -> IntArray:
    """Return 1 for each layer whose activations full recomputation keeps, else 0."""
    between = np.asarray(layers) % plan.recompute_every > 0
    return (between & (plan.recompute == "full")).astype(np.int64)


def stage_layers(model: Model, plan: ParallelPlan) -> int:
    """Count the layers of the pipeline stage that has the most."""
    held = (chunk_layers(model, plan, stage) for stage in range(plan.pp))
    return max(sum(len(chunk) for chunk in chunks) for chunks in held)
