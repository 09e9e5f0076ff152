"""Times of attention and of recurrent states on one rank, for decode and for prompts."""

from __future__ import annotations

from topologies.catalogue.catalogue import chip_family
from workloads.kernels.times import AttentionShape, attention_s, decode_attention
from workloads.serving.rank.share import RankShare

STATE_BYTES = 4.0
"""Bytes of one element of a recurrent state, which is stored in 32 bits."""
SCAN_TOKENS = 128
"""Tokens of a chunk that a scan over states processes at once."""
SCAN_STATE = 128 * 128
"""Elements of one head's state."""
LONG_TOKENS = 16_384
"""Length of the prompt from whose attention the time for each pair of tokens is taken. It is long,
so that launches do not matter."""


def decode_kv_s(rank: RankShare) -> float:
    """Return the time of one cached token of one request on one rank, in all layers [s].

    It is the longer one of streaming the token's keys and values, and of computing scores with the
    query heads. Of the heads that share a key-value head only some take longer than one: the rest
    are scored beside them. Chips whose kernels keep up with the stream have no constant for a
    score.
    """
    chip, catalogue = rank.cluster.chip, rank.catalogue
    efficiency = catalogue.value("serving.decode", "kv_stream_efficiency")
    hbm = catalogue.value(chip, "hbm_bandwidth") * efficiency
    has_engines = catalogue.has(chip, "dma_bandwidth")
    engines = catalogue.value(chip, "dma_bandwidth") if has_engines else hbm
    streamed_s = rank.kv_bytes_on_rank() / (min(hbm, engines) / rank.per_chip)
    heads = min(rank.query_heads, rank.kv_heads * rank.overhead("decode_score_heads"))
    scored_s = rank.attention_layers * heads * rank.overhead("decode_score")
    return max(streamed_s, scored_s)


def windows_of(rank: RankShare) -> tuple[int, float]:
    """Return the mean window of layers that have one, and their share of the attention layers.

    Neuron's programs read whole caches, so there is none.
    """
    layers = [layer for layer in rank.model.each_layer if layer.mixer == "attention"]
    windows = [layer.window for layer in layers if layer.window]
    if not windows or chip_family(rank.cluster.chip, rank.catalogue).is_neuron:
        return 0, 0.0
    return round(sum(windows) / len(windows)), len(windows) / len(layers)


def decode_request_s(rank: RankShare) -> float:
    """Return the time of one decoding request besides its cached tokens, in all layers [s].

    The attention kernel takes some time for each pair of a sequence and a key-value head. Layers
    without attention read and write their state.
    """
    heads = max(1.0, rank.model.kv_heads / rank.ranks)
    return rank.attention_layers * heads * _pair_s(rank) + _state_s(rank)


def _pair_s(rank: RankShare) -> float:
    """Time of one sequence and key-value head in the attention kernel of decode [s]."""
    engine_s = rank.overhead("decode_pair")
    if engine_s:
        return engine_s
    how = {"ranks_per_chip": rank.per_chip, "catalogue": rank.catalogue}
    one_request_s, none_s = (
        decode_attention(rank.cluster.chip, requests, 0, 1, 1, **how).seconds  # type: ignore[arg-type]
        for requests in (1, 0)
    )
    return float(one_request_s - none_s)


def _state_s(rank: RankShare) -> float:
    """Time of reading and writing the states of one request on one rank, in all layers [s]."""
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    moved = 2 * STATE_BYTES * mixer.state / rank.ranks
    seconds = rank.pass_s(moved)
    return float((rank.model.layers - rank.attention_layers) * seconds)


def scan_token_s(rank: RankShare) -> float:
    """Return the time of a prompt's token in the scans of all layers with a state [s].

    The kernel processes the prompt chunk by chunk, for one head of the rank after the other.
    """
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    heads = mixer.state / SCAN_STATE / rank.ranks
    chunks_s = (rank.model.layers - rank.attention_layers) * heads * rank.overhead("scan_chunk")
    return float(chunks_s / SCAN_TOKENS)


def prefill_square_s(rank: RankShare) -> float:
    """Return the time of attention of a prompt's token to one earlier token, in all layers [s]."""
    heads, keys = rank.query_heads, rank.kv_heads
    shape = AttentionShape(1, LONG_TOKENS, heads, keys, rank.model.head_dim)
    seconds = attention_s(
        rank.cluster.chip, shape, ranks_per_chip=rank.per_chip, catalogue=rank.catalogue
    )
    return float(rank.attention_layers * seconds / (0.5 * LONG_TOKENS**2))
