"""Times of the matrix products of one layer on one rank."""

from __future__ import annotations

import functools
import math

import numpy as np

from topologies.arrays import FloatArray
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.models.model import Experts, expert_parameters
from workloads.serving.rank.share import RankShare


def mlp_s(rank: RankShare, tokens: FloatArray, ffn: int, hidden: int = 0) -> FloatArray:
    """Return the time of the products of one MLP of width ``ffn``, which all ranks divide [s]."""
    hidden = hidden or rank.model.hidden
    up = (2 if rank.model.gated_mlp else 1) * ffn / rank.ranks
    first = rank.product_s(tokens, up, hidden)
    return first + rank.product_s(tokens, hidden, round(ffn / rank.ranks))


def projections_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products around one layer's attention [s].

    Every rank has the whole down-projections of latent attention.
    """
    model = rank.model
    values = rank.query_heads * (model.value_width // model.heads)
    queries = rank.query_heads * (model.query_width // model.heads)
    output = rank.product_s(tokens, model.hidden, values)
    if not model.latent:
        qkv = queries * (1 + model.attention_gate) + 2 * rank.kv_heads * model.head_dim
        return output + rank.product_s(tokens, qkv, model.hidden)
    if model.attention_gate:
        output = output + rank.product_s(tokens, values, model.hidden)
    latent = model.latent
    down = rank.product_s(tokens, latent.kv_rank + latent.rope_dim, model.hidden)
    heads_up = rank.query_heads * (latent.nope_dim + latent.value_dim)
    up = rank.product_s(tokens, heads_up, latent.kv_rank)
    if not latent.query_rank:
        return output + down + up + rank.product_s(tokens, queries, model.hidden)
    compressed = rank.product_s(tokens, latent.query_rank, model.hidden)
    return output + down + up + compressed + rank.product_s(tokens, queries, latent.query_rank)


def index_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products of one layer's indexer, which every rank runs whole [s]."""
    model, index = rank.model, rank.model.indexer
    if index is None:
        return np.zeros_like(tokens)
    compressed = model.latent.query_rank if model.latent else 0
    queries = rank.product_s(tokens, index.heads * index.dim, compressed or model.hidden)
    return queries + rank.product_s(tokens, index.columns, model.hidden)


def mixer_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products around and within the mixer of one layer with a state [s]."""
    mixer, ranks = rank.model.recurrence, rank.ranks
    if mixer is None:
        return np.zeros_like(tokens)
    into = rank.product_s(tokens, mixer.columns / ranks, rank.model.hidden)
    within = mixer.products / max(1, mixer.inner) / ranks
    inside = rank.product_s(tokens, within, mixer.inner) if mixer.products else 0.0
    return into + inside + rank.product_s(tokens, rank.model.hidden, round(mixer.inner / ranks))


EXPERT_BLOCK = 512
"""Routed tokens of a block of Neuron's grouped products for prompts: the default of NxD."""
BLOCK_PASSES = 3
"""Passes of a block's tokens through memory: gathering them, reading and writing their sums."""


def experts_s(rank: RankShare, tokens: FloatArray, *, prompts: bool = False) -> FloatArray:
    """Return the time of one layer's routed experts and shared expert [s]."""
    some = rank.model.experts
    if some is None:
        return np.zeros_like(tokens)
    routed = _fetched_experts_s(rank, tokens, some)
    if prompts and rank.overhead("expert_block"):
        whole = tokens * some.per_token >= EXPERT_BLOCK
        routed = np.where(whole, expert_blocks(rank, tokens) * block_s(rank), routed)
    alone, kept = rank.alone, tokens / rank.attention_dp
    if some.latent:  # every rank has the whole products around the experts
        hidden = rank.model.hidden
        routed = routed + alone.product_s(kept, some.latent, hidden)
        routed = routed + alone.product_s(kept, hidden, some.latent)
    if not some.shared_ffn:
        return np.asarray(routed)
    return np.asarray(routed + mlp_s(alone, kept, some.shared_ffn))


def _fetched_experts_s(rank: RankShare, tokens: FloatArray, some: Experts) -> FloatArray:
    """Time of the grouped products of the experts that tokens are routed to [s].

    A grouped kernel takes the longer of streaming the weights of every such expert once, and of
    computing all rows at a share of the rate of one product of that many rows; on GPUs a start is
    added. Where groups of ranks divide the experts, all groups wait for the busiest one. Neuron's
    programs of decode loop over the tokens and fetch the experts of each, until all experts are
    fetched. Fetching takes a start and some time for each row of an expert's matrices, however few
    columns of it a rank holds.
    """
    groups = 1 if rank.overhead("expert_block") else rank.ep
    touched, rows_of_experts = busiest_group(some, tokens, groups)
    element = ELEMENT_BYTES[rank.experts.format.weights]
    weights = touched * expert_parameters(rank.model) * groups / rank.ranks * element
    share, rate = rank.overhead("expert_stream"), rank.overhead("expert_rate") or 1.0
    hbm = rank.catalogue.value(rank.cluster.chip, "hbm_bandwidth")
    streamed = weights / (share * hbm) if share else rank.pass_s(weights)
    inner, width = some.ffn * groups, rank.model.expert_hidden
    computed = mlp_s(rank.experts, rows_of_experts, inner, width) / rate
    fused = rank.experts.format.products == "mxfp8"
    start_s = (fused and rank.overhead("fused_expert_layer")) or rank.overhead("expert_layer")
    routed = np.maximum(streamed, computed) + start_s
    looped = np.minimum(tokens, some.count / some.per_token)
    rows = some.per_token * width
    fetched_s = rank.overhead("expert_token") + rank.overhead("expert_row") * rows
    return np.asarray(routed + fetched_s * np.maximum(0.0, looped - 1))


def busiest_group(some: Experts, tokens: FloatArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """Return the experts in use and the routed rows of the busiest group of ranks.

    Routing is balanced and random, so both numbers vary about their means as sums of independent
    choices do. The busiest of G groups exceeds the mean by as much as the largest of G normal
    variates is expected to. With one group the numbers are the means. Returns ``touched``: experts
    that any token is routed to, in the shape of ``tokens``. ``rows``: rows that the group's experts
    compute, in the shape of ``tokens``.
    """
    held = some.count / groups
    chance = 1 - (1 - some.per_token / some.count) ** tokens
    above = expected_largest(groups)
    touched = held * chance + above * np.sqrt(held * chance * (1 - chance))
    mean = tokens * some.per_token / groups
    rows = mean + above * np.sqrt(mean * (1 - 1 / groups))
    return np.minimum(touched, held), np.minimum(rows, tokens * min(some.per_token, held))


@functools.cache
def expected_largest(count: int) -> float:
    """Return the expected largest one of ``count`` independent standard normal variates.

    >>> [round(expected_largest(count), 3) for count in (1, 2, 4, 8)]
    [0.0, 0.564, 1.029, 1.424]
    """
    at = np.linspace(-8.0, 8.0, 16_001)
    density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in at])
    return float(np.trapezoid(count * at * density * below ** (count - 1), at))


def expert_blocks(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the blocks of one layer that each rank runs for a prompt's tokens, (sizes,).

    Tokens are sorted by expert into blocks of ``EXPERT_BLOCK``, and programs are compiled for
    the worst routing: ``ceil((T k - (E - 1)) / B) + E - 1`` blocks for the E experts of a rank
    (``forward_blockwise`` of NxD 2.28; Neuron's guide to mixtures of experts). Every rank
    holds a part of all experts unless ``ep`` divides them, so that more chips leave it as many
    blocks.
    """
    some = rank.model.experts
    if some is None:
        return np.zeros_like(tokens)
    others = max(1, round(some.count / rank.ep)) - 1
    routed = tokens * some.per_token
    full = np.ceil(np.maximum(0.0, routed - others) / EXPERT_BLOCK)
    return np.asarray(np.minimum(routed, full + others))


def block_s(rank: RankShare) -> float:
    """Return the time of one block: its start, its products, and the traffic of its tokens [s]."""
    some = rank.model.experts
    if some is None:
        return 0.0
    rows = np.array([float(EXPERT_BLOCK)])
    width = rank.model.expert_hidden
    products = float(mlp_s(rank.experts, rows, some.ffn * rank.ep, width)[0])
    moved = BLOCK_PASSES * 2.0 * EXPERT_BLOCK * width
    return rank.overhead("expert_block") + products + moved / rank.overhead("expert_block_rate")


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
    model, alone, some = rank.model, rank.alone, tokens / rank.attention_dp
    dense = mlp_s(alone, some, model.ffn)
    layers = rank.attention_layers * projections_s(alone, some)
    layers = layers + rank.dense_layers * dense
    if model.indexer:
        layers = layers + rank.index_layers * index_s(alone, some)
    if model.recurrence:
        layers = layers + rank.recurrent_layers * mixer_s(alone, some)
    if model.experts and model.moe_layers:
        layers = layers + model.moe_layers * experts_s(rank, tokens, prompts=prompts)
    layers = layers + model.layers * _block_scales_s(rank, some)
    head = rank.product_s(np.minimum(some, 256.0), model.vocab / alone.ranks, model.hidden)
    return np.asarray(layers + head)


def _block_scales_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Time that one layer's products take longer for scales of blocks, (sizes,) [s]."""
    if rank.format.products != "fp8":
        return np.zeros_like(tokens)
    products = LATENT_PRODUCTS if rank.model.latent else LAYER_PRODUCTS
    each = rank.overhead("block_scale_token") * np.maximum(tokens - BLOCK_SCALES_FROM, 0.0)
    return np.asarray(products * each)


SHARED_KERNELS, NORM_KERNELS = 2, 2
"""Kernels of a shared expert, of those of a layer with experts: its activation and its sum. Kernels
that normalise queries and keys head by head, beside those of any layer."""


def small_kernels_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time of the kernels between products, such as norms, and attention's start [s]."""
    model = rank.model
    each = rank.catalogue.value(family, "layer_kernels")
    count = rank.parts / 2 * each + rank.attention_layers * min(each, NORM_KERNELS * model.qk_norm)
    count += rank.index_layers * rank.overhead("index_kernels")
    if model.experts:
        each = rank.catalogue.value(family, "expert_kernels")
        each -= min(each, SHARED_KERNELS) if not model.experts.shared_ffn else 0
        count += model.moe_layers * each
    passed = 2 * 2.0 * tokens / rank.attention_dp * model.hidden
    started_s = rank.attention_layers * rank.overhead("attention_floor")
    started_s += rank.model.layers * rank.overhead("layer_start")
    return np.asarray(count * rank.pass_s(passed) + started_s)
