"""Times of the matrix products of one layer on one rank."""

from __future__ import annotations

import numpy as np

from topologies.arrays import FloatArray
from workloads.serving.rank.share import RankShare


def mlp_s(rank: RankShare, tokens: FloatArray, ffn: int) -> FloatArray:
    """Return the time of the products of one MLP of width ``ffn``, which all ranks divide [s]."""
    up = (2 if rank.model.gated_mlp else 1) * ffn / rank.ranks
    first = rank.product_s(tokens, up, rank.model.hidden)
    return first + rank.product_s(tokens, rank.model.hidden, round(ffn / rank.ranks))


def projections_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products around one layer's attention [s].

    Every rank has the whole down-projections of latent attention.
    """
    model = rank.model
    values = rank.query_heads * (model.value_width // model.heads)
    queries = rank.query_heads * (model.query_width // model.heads)
    output = rank.product_s(tokens, model.hidden, values)
    if not model.latent:
        qkv = queries + 2 * rank.kv_heads * model.head_dim
        return output + rank.product_s(tokens, qkv, model.hidden)
    latent = model.latent
    down = rank.product_s(tokens, latent.kv_rank + latent.rope_dim, model.hidden)
    heads_up = rank.query_heads * (latent.nope_dim + latent.value_dim)
    up = rank.product_s(tokens, heads_up, latent.kv_rank)
    if not latent.query_rank:
        return output + down + up + rank.product_s(tokens, queries, model.hidden)
    compressed = rank.product_s(tokens, latent.query_rank, model.hidden)
    return output + down + up + compressed + rank.product_s(tokens, queries, latent.query_rank)


def mixer_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products around and within the mixer of one layer with a state [s]."""
    mixer, ranks = rank.model.recurrence, rank.ranks
    if mixer is None:
        return np.zeros_like(tokens)
    into = rank.product_s(tokens, mixer.columns / ranks, rank.model.hidden)
    within = mixer.products / max(1, mixer.inner) / ranks
    inside = rank.product_s(tokens, within, mixer.inner) if mixer.products else 0.0
    return into + inside + rank.product_s(tokens, rank.model.hidden, round(mixer.inner / ranks))
