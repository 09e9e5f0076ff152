"""Times of attention and of recurrent states on one rank, for decode and for prompts."""

from __future__ import annotations

from workloads.kernels.times import AttentionShape, attention_s, decode_attention
from workloads.serving.rank.share import RankShare

STATE_BYTES = 4.0
"""Bytes of one element of a recurrent state, kept in 32 bits."""
SCAN_TOKENS = 128
"""Tokens of a chunk that a scan over states takes at once."""
SCAN_STATE = 128 * 128
"""Elements of one head's state."""
LONG_TOKENS = 16_384
"""Length of a prompt whose attention gives the time of each pair of tokens: starts vanish in it."""


def decode_kv_s(rank: RankShare) -> float:
    """Time of one cached token of one request on one rank, all layers [s].

    It is streamed, and each query head computes one score with it, whichever takes longer. Chips
    whose kernels keep up with the stream have no time of a score.
    """
    chip, book = rank.cluster.chip, rank.catalogue
    drawn = book.value(chip, "hbm_bandwidth") * book.value("serving.decode", "kv_stream_efficiency")
    engines = book.value(chip, "dma_bandwidth") if book.has(chip, "dma_bandwidth") else drawn
    streamed_s = rank.kv_bytes_on_rank() / (min(drawn, engines) / rank.per_chip)
    scored_s = rank.attention_layers * rank.query_heads * rank.overhead("decode_score")
    return max(streamed_s, scored_s)


def decode_request_s(rank: RankShare) -> float:
    """Time of one decoding request whatever its cache holds, all layers [s].

    A pair of a sequence and a key-value head costs the attention kernel some time; the state
    of a layer without attention is read and written.
    """
    heads = max(1.0, rank.model.kv_heads / rank.ranks)
    return rank.attention_layers * heads * _pair_s(rank) + _state_s(rank)


def _pair_s(rank: RankShare) -> float:
    """Time of one sequence and key-value head in the attention kernel of decode [s]."""
    engine = rank.overhead("decode_pair")
    if engine:
        return engine
    how = {"ranks_per_chip": rank.per_chip, "catalogue": rank.catalogue}
    with_it, without = (
        decode_attention(rank.cluster.chip, requests, 0, 1, 1, **how).seconds  # type: ignore[arg-type]
        for requests in (1, 0)
    )
    return float(with_it - without)


def _state_s(rank: RankShare) -> float:
    """Time to read and write the states of one request on one rank, all layers [s]."""
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    moved = 2 * STATE_BYTES * mixer.state / rank.ranks
    seconds = rank.pass_s(moved)
    return float((rank.model.layers - rank.attention_layers) * seconds)


def scan_token_s(rank: RankShare) -> float:
    """Scan of a prompt by layers that keep a state, of each token, all layers [s].

    The kernel walks over the prompt chunk by chunk, head after head of the rank.
    """
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    heads = mixer.state / SCAN_STATE / rank.ranks
    chunks_s = (rank.model.layers - rank.attention_layers) * heads * rank.overhead("scan_chunk")
    return float(chunks_s / SCAN_TOKENS)


def prefill_square_s(rank: RankShare) -> float:
    """Time of attention of a prompt token for each token before it, all layers [s]."""
    heads, keys = rank.query_heads, rank.kv_heads
    shape = AttentionShape(1, LONG_TOKENS, heads, keys, rank.model.head_dim)
    seconds = attention_s(
        rank.cluster.chip, shape, ranks_per_chip=rank.per_chip, catalogue=rank.catalogue
    )
    return float(rank.attention_layers * seconds / (0.5 * LONG_TOKENS**2))
