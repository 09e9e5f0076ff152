"""Times of all layers of a model on one rank: matrix products, and the kernels between them."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.serving.rank.experts import experts_s
from workloads.serving.rank.products import mixer_s, mlp_s, projections_s
from workloads.serving.rank.share import RankShare

BLOCK_SCALES_FROM = 1024
"""Tokens up to which products whose weights have a scale for each block take no longer."""
LAYER_PRODUCTS, LATENT_PRODUCTS = 4, 6
"""Products of a layer beside its routed experts, whose kernels are their own: two of the MLP and
two around attention, or four around latent attention."""


def products_s(rank: RankShare, tokens: FloatArray, *, prompts: bool = False) -> FloatArray:
    """Return the time of all matrix products of an iteration [s].

    The output layer runs for one token of each request. ``prompts`` says whether the iteration runs
    prompts, for which experts may be run by blocks.
    """
    model, ranks = rank.model, rank.ranks
    dense = mlp_s(rank, tokens, model.ffn)
    layers = rank.attention_layers * projections_s(rank, tokens)
    layers = layers + (model.layers - model.moe_layers) * dense
    if model.recurrence:
        layers = layers + (model.layers - rank.attention_layers) * mixer_s(rank, tokens)
    if model.experts and model.moe_layers:
        layers = layers + model.moe_layers * experts_s(rank, tokens, prompts=prompts)
    layers = layers + model.layers * _block_scales_s(rank, tokens)
    head = rank.product_s(np.minimum(tokens, 256.0), model.vocab / ranks, model.hidden)
    return np.asarray(layers + head)


def _block_scales_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Time that one layer's products take longer for scales of blocks, (sizes,) [s]."""
    if rank.precision != "fp8":
        return np.zeros_like(tokens)
    products = LATENT_PRODUCTS if rank.model.latent else LAYER_PRODUCTS
    each = rank.overhead("block_scale_token") * np.maximum(tokens - BLOCK_SCALES_FROM, 0.0)
    return np.asarray(products * each)


def small_kernels_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time of the kernels between products, such as norms and rotation [s]."""
    model = rank.model
    count = model.layers * rank.catalogue.value(family, "layer_kernels")
    if model.experts:
        count += model.moe_layers * rank.catalogue.value(family, "expert_kernels")
    passed = 2 * 2.0 * tokens * model.hidden
    return np.asarray(count * rank.pass_s(passed))
