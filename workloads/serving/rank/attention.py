"""Times of attention and of recurrent states on one rank, for decode and for prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from topologies.catalogue.catalogue import chip_family
from workloads.kernels.attention import decode_key_s, index_score_s, scattered
from workloads.kernels.times import AttentionShape, attention_s, decode_attention
from workloads.models.model import ATTENTION
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


class KeyTimes(NamedTuple):
    """Times of one query's attention to the keys before it, in all layers of a rank."""

    all_s: float  # time of each key, in layers that read all and in indexers, which score all [s]
    most: int  # keys that a query reads in the other layers, in their mean; 0 without such layers
    most_s: float  # time of each of these keys [s]

    def piece_s(self, tokens: int, before: int) -> float:
        """Time of the queries of a piece of a prompt after ``before`` tokens [s]."""
        seconds = self.all_s * (tokens * (before + 0.5 * tokens))
        if not self.most:
            return seconds
        within = max(0, min(tokens, self.most - before))  # tokens that see all before them
        read = within * (before + 0.5 * within) + (tokens - within) * self.most
        return seconds + self.most_s * read


def key_times(
    rank: RankShare, key_s: float, selected: float, score_s: float, *, windows: bool
) -> KeyTimes:
    """Return the times of keys by what attention layers read and by what finds it.

    ``key_s`` is the time of a key in all layers, if all read it, ``selected`` by how much longer a
    key takes that an indexer selected, and ``score_s`` the indexer's time for a key in one layer. A
    query with few more keys than a layer selects is faster with all of them behind a mask, as
    DeepSeek runs short prompts (DeepSeek-V3.2-Exp, section 2.3): then the limit lies where both
    take as long. Engines without such kernels (``masked_selection`` 0) gather the keys always. Only
    with ``windows`` do windows of last keys shorten the time.
    """
    layers = [layer for layer in rank.model.each_layer if layer.mixer in ATTENTION]
    masked, selected = rank.overhead("masked_selection"), max(1.0, selected)
    limits = [
        layer.window if layer.keys == "last" or not masked else round(layer.window * selected)
        for layer in layers
        if layer.window and (windows or layer.keys != "last")
    ]
    share = len(limits) / len(layers)
    most = round(sum(limits) / len(limits)) if limits else 0
    gathered = 1.0 if masked or not rank.model.indexer else selected
    all_s = (1 - share) * key_s + rank.index_layers * score_s
    return KeyTimes(all_s, most, share * key_s * gathered)


def decode_keys(rank: RankShare) -> KeyTimes:
    """Return the times of a cached token of one request on one rank.

    In a layer it is the longer one of streaming the token's keys and values, and of computing
    scores with the query heads. Of the heads that share a key-value head only some take longer than
    one: the rest are scored beside them. Chips whose kernels keep up with the stream have no
    constant for a score. Neuron's programs read whole caches despite windows.
    """
    chip, catalogue, layers = rank.cluster.chip, rank.catalogue, rank.attention_layers
    efficiency = catalogue.value("serving.decode", "kv_stream_efficiency")
    hbm = catalogue.value(chip, "hbm_bandwidth") * efficiency
    has_engines = catalogue.has(chip, "dma_bandwidth")
    engines = catalogue.value(chip, "dma_bandwidth") if has_engines else hbm
    rate = min(hbm, engines) / rank.per_chip
    heads = min(rank.query_heads, rank.kv_heads * rank.overhead("decode_score_heads"))
    scored_s = layers * heads * rank.overhead("decode_score")
    if latent := rank.model.latent:
        columns = latent.kv_rank + 0.5 * latent.rope_dim
        key_s = decode_key_s(chip, rank.query_heads, columns, selected=False, **rank.part)
        scored_s = layers * key_s
    key_s = max(layers * rank.layer_kv_bytes / rate, scored_s)
    windows = not chip_family(chip, catalogue).is_neuron
    index = rank.model.indexer
    if index is None:
        return key_times(rank, key_s, 1.0, 0.0, windows=windows)
    selected_s = decode_key_s(chip, rank.query_heads, rank.model.latent_width, **rank.part)
    scores_s, none_s = (
        index_score_s(chip, heads, index.dim, **rank.part) for heads in (index.heads, 0)
    )
    score_s = max(scores_s, rank.index_key_bytes / rate + none_s)
    return key_times(rank, key_s, selected_s * layers / key_s, score_s, windows=windows)


def prefill_keys(rank: RankShare) -> KeyTimes:
    """Return the times of attention of a prompt's token to one earlier token.

    Windows of last keys count as if they were whole: rates of gpt-oss at prompts of 32,000 tokens
    (gpustack_serving) are below those without windows already.
    """
    model, chip, heads = rank.model, rank.cluster.chip, rank.query_heads
    shape = AttentionShape(1, LONG_TOKENS, heads, rank.kv_heads, model.head_dim)
    seconds = attention_s(chip, shape, **rank.part)
    all_s = float(rank.attention_layers * seconds / (0.5 * LONG_TOKENS**2))
    index = model.indexer
    if index is None:
        return key_times(rank, all_s, 1.0, 0.0, windows=False)
    window = max(layer.window for layer in model.each_layer if layer.keys != "last")
    shape = replace(shape, kv_seq=window, causal=False)
    longer = 1.0
    if model.latent:
        longer = scattered(chip, shape, heads, model.latent_width, **rank.part)
    score_s = index_score_s(chip, index.heads, index.dim, **rank.part)
    return key_times(rank, all_s, longer, score_s, windows=False)


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
    one_request_s, none_s = (
        decode_attention(rank.cluster.chip, requests, 0, 1, 1, **rank.part).seconds
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
    return float(rank.recurrent_layers * seconds)


def scan_token_s(rank: RankShare) -> float:
    """Return the time of a prompt's token in the scans of all layers with a state [s].

    The kernel processes the prompt chunk by chunk, for one head of the rank after the other.
    """
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    heads = mixer.state / SCAN_STATE / rank.ranks
    chunks_s = rank.recurrent_layers * heads * rank.overhead("scan_chunk")
    return float(chunks_s / SCAN_TOKENS)
