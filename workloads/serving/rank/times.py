"""Times of matrix products, attention, recurrent states and all-reduces on one rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from cluster_sim.schedule.table import PS_PER_S
from topologies.catalogue.catalogue import chip_family
from topologies.clusters.cluster import Cluster
from topologies.shapes.measures import scale_up_bytes_per_s
from topologies.support.arrays import FloatArray
from workloads.kernels.attention import decode_key_s, index_score_s, scattered
from workloads.kernels.precision import ELEMENT_BYTES
from workloads.kernels.times import AttentionShape, attention, decode_attention
from workloads.models.model import ATTENTION, Experts, expert_parameters
from workloads.serving.rank.share import RankShare


def mlp_s(rank: RankShare, tokens: FloatArray, ffn: int, hidden: int = 0) -> FloatArray:
    """Return the time of the products of one MLP of width ``ffn``, which all ranks divide [s]."""
    hidden = hidden or rank.model.hidden
    up = (2 if rank.model.gated_mlp else 1) * ffn / rank.ranks
    first = rank.product_s(tokens, up, hidden)
    return first + rank.product_s(tokens, hidden, round(ffn / rank.ranks))


def projections_s(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the time of the products around one layer's attention [s]."""
    # Every rank has the whole down-projections of latent attention.
    model = rank.model
    values = rank.query_heads * (model.value_width // model.heads)
    queries = rank.query_heads * (model.query_width // model.heads)
    if low := model.low_rank:  # every rank makes all keys
        rows = low.groups * low.output / rank.ranks
        down = rank.product_s(tokens, low.queries + model.key_columns, model.hidden)
        grouped = rank.product_s(tokens, rows, model.query_width // low.groups)
        sides = down + grouped + rank.product_s(tokens, model.hidden, round(rows))
        return sides + rank.product_s(tokens, queries, low.queries)
    output = rank.product_s(tokens, model.hidden, values)
    if not model.latent:
        qkv = (
            queries * (1 + model.attention_gate)
            + rank.query_heads * model.head_gate
            + model.kv_products * rank.kv_heads * model.head_dim
        )
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
    compressed = model.low_rank.queries if model.low_rank else compressed
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
    """Time of the grouped products of the experts that tokens are routed to [s]."""
    # A grouped kernel takes the longer of streaming every such expert's weights once, and computing
    # all rows. On GPUs both add to a start: weights are read for each tile of rows, and rows beyond
    # the first run at a share of one product's rate. All groups that divide experts wait for the
    # busiest. Neuron's decode loops over tokens and fetches each one's experts, until all are
    # fetched: a start, and some time for each row of an expert's matrices, however few columns a
    # rank holds.
    groups = 1 if rank.overhead("expert_block") else rank.ep
    touched, rows_of_experts = busiest_group(some, tokens, groups)
    element = ELEMENT_BYTES[rank.experts.format.weights]
    weights = touched * expert_parameters(rank.model) * groups / rank.ranks * element
    share, rate = rank.overhead("expert_stream"), rank.overhead("expert_rate") or 1.0
    hbm = rank.catalogue.value(rank.cluster.chip, "hbm_bandwidth")
    streamed = weights / (share * hbm) if share else rank.pass_s(weights)
    inner, width = some.ffn * groups, rank.model.expert_hidden
    computed, one = (
        mlp_s(rank.experts, rows, inner, width) for rows in (rows_of_experts, np.ones(1))
    )
    fused = rank.experts.format.products == "mxfp8"
    start_s = (fused and rank.overhead("fused_expert_layer")) or rank.overhead("expert_layer")
    skewed = groups ** rank.overhead("expert_skew")  # the busiest group has more than its share
    added = (computed - one) * skewed / rate if share else np.maximum(0.0, computed - streamed)
    routed = streamed + added + start_s
    looped = np.minimum(tokens, some.count / some.per_token)
    rows = some.per_token * width
    fetched_s = rank.overhead("expert_token") + rank.overhead("expert_row") * rows
    return np.asarray(routed + fetched_s * np.maximum(0.0, looped - 1))


def busiest_group(some: Experts, tokens: FloatArray, groups: int) -> tuple[FloatArray, FloatArray]:
    """Return the experts in use and the routed rows of the busiest group, in ``tokens``' shape."""
    # Routing is balanced and random, so both vary about their means as sums of independent choices;
    # the busiest of G groups exceeds the mean as the largest of G normal variates is expected to.
    held = some.count / groups
    chance = 1 - (1 - some.per_token / some.count) ** tokens
    above = expected_largest(groups)
    touched = held * chance + above * np.sqrt(held * chance * (1 - chance))
    mean = tokens * some.per_token / groups
    rows = mean + above * np.sqrt(mean * (1 - 1 / groups))
    return np.minimum(touched, held), np.minimum(rows, tokens * min(some.per_token, held))


@cache
def expected_largest(count: int) -> float:
    """Return the expected largest one of ``count`` independent standard normal variates."""
    at = np.linspace(-8.0, 8.0, 16_001)
    density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in at])
    return float(np.trapezoid(count * at * density * below ** (count - 1), at))


def expert_blocks(rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Return the blocks of one layer that each rank runs for a prompt's tokens, (sizes,)."""
    # Tokens are sorted by expert into blocks of ``EXPERT_BLOCK``, and programs compiled for the
    # worst routing: ``ceil((T k - (E - 1)) / B) + E - 1`` blocks for a rank's E experts
    # (``forward_blockwise`` of NxD 2.28; Neuron's guide to mixtures of experts). A rank holds a
    # part of all experts unless ``ep`` divides them, so that more chips leave it as many blocks.
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
    """Return the time of all matrix products of an iteration [s]."""
    # The output layer runs for one token of each request; prompts may run experts by blocks.
    model, alone, some = rank.model, rank.alone, tokens / rank.attention_dp
    layers = sum(part.attention_layers * projections_s(part, some) for part in alone.by_heads)
    widths = [
        layer.ffn or model.ffn for layer in model.each_layer if layer.mlp and not layer.experts
    ]
    for ffn in sorted(set(widths)):
        layers = layers + widths.count(ffn) * mlp_s(alone, some, ffn)
    if inputs := model.layer_input:
        columns = model.layers * inputs.width / alone.ranks  # of the projection of the embedding
        layers = layers + rank.product_s(some, columns, model.hidden)
        gate_s = rank.product_s(some, inputs.width, model.hidden)
        layers = layers + model.layers * (gate_s + rank.product_s(some, model.hidden, inputs.width))
    if streams := model.streams:
        layers = layers + model.layers * rank.product_s(some, streams.columns, model.hidden)
        layers = layers + rank.product_s(some, streams.ends / model.hidden, model.hidden)
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


INPUT_KERNELS = 3
"""Kernels with which a layer takes an embedding of its own: gate, norm and sum."""
SHARED_KERNELS, NORM_KERNELS = 2, 2
"""Kernels of a shared expert, of those of a layer with experts: its activation and its sum. Kernels
that normalise queries and keys head by head, beside those of any layer."""


def small_kernels_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time of the kernels between products, such as norms, and attention's start [s]."""
    model = rank.model
    each = rank.catalogue.value(family, "layer_kernels")
    count = rank.parts / 2 * each + rank.attention_layers * min(each, NORM_KERNELS * model.qk_norm)
    count += rank.index_layers * rank.overhead("index_kernels")
    count += INPUT_KERNELS * model.layers * (model.layer_input is not None)
    count += model.layers * model.streams.passes / 2 if model.streams else 0
    if model.experts:
        each = rank.catalogue.value(family, "expert_kernels")
        each -= min(each, SHARED_KERNELS) if not model.experts.shared_ffn else 0
        count += model.moe_layers * each
    passed = 2 * 2.0 * tokens / rank.attention_dp * model.hidden
    started_s = rank.attention_layers * rank.overhead("attention_floor")
    scaled = ELEMENT_BYTES[rank.format.products] < 2  # inputs are scaled before products
    layers = model.layers - model.moe_layers if scaled else model.layers
    started_s += layers * rank.overhead("scaled_layer_start" if scaled else "layer_start")
    started_s += (model.layers - layers) * rank.overhead("scaled_expert_start")
    if model.latent:
        started_s += (model.layers - layers) * rank.overhead("scaled_latent_start")
    return np.asarray(count * rank.pass_s(passed) + started_s)


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
    """Return the times of keys by what attention layers read and by what finds it."""
    # ``key_s``: a key in all layers; ``selected``: how much longer one takes that an indexer
    # selected; ``score_s``: the indexer's time for a key in one layer. A query with few more keys
    # than a layer selects is faster with all of them behind a mask, as DeepSeek runs short prompts
    # (DeepSeek-V3.2-Exp, section 2.3): the limit lies where both take as long. Engines without such
    # kernels (``masked_selection`` 0) always gather.
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


def _summarised(rank: RankShare, key_s: float, score_s: float) -> KeyTimes:
    """Times of keys in layers that read a window, and summaries of tokens if they have some."""
    # ``key_s``: a key in all layers; ``score_s``: an indexer's key in one layer. A window beside
    # selected summaries is added to the time of these, as a cached token has one limit.
    window, some = rank.model.each_layer[0].window, rank.model.summaries
    if some is None or not some.most:
        return KeyTimes(key_s / some.tokens if some else 0.0, window, key_s)
    most = some.most * some.tokens
    scores_s = rank.index_layers * score_s / some.tokens
    return KeyTimes(scores_s, most, key_s / some.tokens + window * key_s / most)


def decode_keys(rank: RankShare) -> KeyTimes:
    """Return the times of a cached token of one request on one rank."""
    return _all_layers([_decode_keys(part) for part in rank.by_heads])


def prefill_keys(rank: RankShare) -> KeyTimes:
    """Return the times of attention of a prompt's token to one earlier token."""
    return _all_layers([_prefill_keys(part) for part in rank.by_heads])


def _all_layers(times: Sequence[KeyTimes]) -> KeyTimes:
    """Times of keys in layers of several widths together; of their windows it is the mean."""
    most_s = sum(part.most_s for part in times)
    most = round(sum(part.most * part.most_s for part in times) / most_s) if most_s else 0
    return KeyTimes(sum(part.all_s for part in times), most, most_s)


def _decode_keys(rank: RankShare) -> KeyTimes:
    """Times of a cached token of one request on one rank, in layers with alike heads."""
    # A layer takes the longer of streaming a token's keys and values, and of scores with the query
    # heads, of which only some take longer than one: the rest are scored beside them. Chips whose
    # kernels keep up have no constant for a score. Neuron's programs read whole caches despite
    # windows.
    chip, catalogue, layers = rank.cluster.chip, rank.catalogue, rank.attention_layers
    efficiency = catalogue.value("serving.decode", "kv_stream_efficiency")
    hbm = catalogue.value(chip, "hbm_bandwidth") * efficiency
    has_engines = catalogue.has(chip, "dma_bandwidth")
    engines = catalogue.value(chip, "dma_bandwidth") if has_engines else hbm
    rate = min(hbm, engines) / rank.per_chip
    heads = min(rank.query_heads, rank.kv_heads * rank.overhead("decode_score_heads"))
    scored_s = layers * heads * rank.overhead("decode_score")
    latent, columns = rank.model.latent, 0.0
    if latent:
        columns = latent.kv_rank + 0.5 * latent.rope_dim
    if rank.model.low_rank:
        columns = rank.model.head_dim
    if columns:
        key_s = decode_key_s(chip, rank.query_heads, columns, selected=False, **rank.part)
        scored_s = layers * key_s
    each = rank.model.summaries.tokens if rank.model.summaries else 1
    key_s = max(layers * each * rank.layer_kv_bytes / rate, scored_s)
    windows = not chip_family(chip, catalogue).is_neuron
    index = rank.model.indexer
    if rank.model.low_rank:
        score_s = index_score_s(chip, index.heads, index.dim, **rank.part) if index else 0.0
        return _summarised(rank, key_s, max(score_s, rank.index_key_bytes / rate))
    if index is None:
        return key_times(rank, key_s, 1.0, 0.0, windows=windows)
    selected_s = decode_key_s(chip, rank.query_heads, rank.model.latent_width, **rank.part)
    scores_s, none_s = (
        index_score_s(chip, heads, index.dim, **rank.part) for heads in (index.heads, 0)
    )
    score_s = max(scores_s, rank.index_key_bytes / rate + none_s)
    return key_times(rank, key_s, selected_s * layers / key_s, score_s, windows=windows)


def _prefill_keys(rank: RankShare) -> KeyTimes:
    """Times of attention of a prompt's token to one earlier token, in layers with alike heads."""
    # Windows count as if whole: rates of gpt-oss at prompts of 32,000 tokens (gpustack_serving) are
    # below those without windows already.
    model, chip, heads = rank.model, rank.cluster.chip, rank.query_heads
    shape = AttentionShape(1, LONG_TOKENS, heads, rank.kv_heads, model.head_dim)
    seconds = attention(chip, shape, **rank.part).seconds
    all_s = float(rank.attention_layers * seconds / (0.5 * LONG_TOKENS**2))
    index = model.indexer
    if model.low_rank:
        score_s = index_score_s(chip, index.heads, index.dim, **rank.part) if index else 0.0
        return _summarised(rank, all_s, score_s)
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
    """Return the time of one decoding request besides its cached tokens, in all layers [s]."""
    # The kernel takes some time for each pair of a sequence and a key-value head. Layers without
    # attention read and write states of all requests in one kernel, whose start is no request's.
    heads = sum(
        part.attention_layers
        * max(1.0, part.kv_heads if part.one_each else part.model.kv_heads / rank.ranks)
        for part in rank.by_heads
    )
    moved = 2 * rank.state_bytes / rank.ranks
    states_s = float(rank.pass_s(2 * moved) - rank.pass_s(moved)) if moved else 0.0
    return heads * _pair_s(rank) + states_s


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


def scan_token_s(rank: RankShare) -> float:
    """Return the time of a prompt's token in the scans of all layers with a state [s]."""
    # The kernel processes the prompt chunk by chunk, for one head of the rank after the other.
    mixer = rank.model.recurrence
    if mixer is None:
        return 0.0
    heads = mixer.state / SCAN_STATE / rank.ranks
    chunks_s = rank.recurrent_layers * heads * rank.overhead("scan_chunk")
    return float(chunks_s / SCAN_TOKENS)


LARGE_BYTES, SMALL_BYTES = 2**28, 2**15
"""Sizes of all-reduces from which the rate and the latency of the runtime's library are taken."""
SIZES = 2.0 ** np.arange(15, 29)
"""Sizes of all-reduces over all ranks of a Trainium replica whose times are interpolated [B]."""
REPLICAS = 64
"""Number of replicas whose all-reduces are kept."""


def reduces_s(
    rank: RankShare, tokens: FloatArray, family: str, *, prompts: bool = False
) -> FloatArray:
    """Return the time of all-reduces over the ranks of the replica, one a part of a layer [s]."""
    # On Trainium they take a floor, fitted to decode, and those of prompts at least what the
    # runtime's library takes for their size over all ranks, where that was measured.
    if rank.attention_dp > 1:
        within = reduces_s(rank.alone, tokens / rank.attention_dp, family)
        routed = 1 - rank.model.moe_layers / rank.parts  # sums of experts are part of the exchange
        return within * routed + rank.model.moe_layers * exchange_s(rank, tokens, family)
    if rank.ranks == 1:
        return np.zeros_like(tokens)
    size = tokens * rank.model.hidden * 2.0
    large_s = _reduce_s(rank, LARGE_BYTES) / LARGE_BYTES * size
    floor_s = rank.overhead("all_reduce_floor")
    if rank.chips == 1:
        floor_s = rank.overhead("chip_all_reduce_floor") or floor_s
    if floor_s:
        once = floor_s + large_s
        if prompts and rank.overhead("sized_reduces"):
            once = np.maximum(once, library_reduce_s(rank, size))
    else:
        once = np.minimum(
            _reduce_s(rank, SMALL_BYTES) + large_s, direct_reduce_s(rank, size, family)
        )
    return np.asarray(rank.parts * once)


def _reduce_s(rank: RankShare, size: int) -> float:
    """Time of one all-reduce of the runtime's library between chips, or cores of one chip [s]."""
    group = Group(rank.cluster, np.arange(rank.chips))
    if rank.chips == 1:
        group = Group(rank.cluster, np.arange(1), rank.ranks)
    return duration_ps(CollectiveCall("all-reduce", group, size)) / PS_PER_S


def library_reduce_s(rank: RankShare, size: FloatArray) -> FloatArray:
    """Return the time of one all-reduce of the runtime's library over all ranks [s]."""
    # Interpolated between powers of two, in proportion to the size above them, and 0 below them,
    # which the floor of decode covers.
    times = _library_times_s(rank.cluster, rank.chips, rank.ranks)
    inside = np.exp(np.interp(np.log(size), np.log(SIZES), np.log(times)))
    longer = np.where(size > SIZES[-1], times[-1] * size / SIZES[-1], inside)
    return np.where(size < SIZES[0], 0.0, longer)


@lru_cache(REPLICAS)
def _library_times_s(cluster: Cluster, chips: int, ranks: int) -> FloatArray:
    """Times of all-reduces of ``SIZES`` over the first ranks of a cluster's first chips [s]."""
    # Between two algorithms of the library a longer one may take less; here it takes as much.
    group = Group(cluster, np.arange(chips), max(1, ranks // chips))
    calls = [CollectiveCall("all-reduce", group, int(size)) for size in SIZES]
    return np.maximum.accumulate([duration_ps(call) for call in calls]) / PS_PER_S


def exchange_s(rank: RankShare, tokens: FloatArray, family: str) -> FloatArray:
    """Return the time in which groups that divide the requests share one layer's tokens [s]."""
    # All ranks gather the tokens of all groups in the products' precision, and sum their results in
    # 16 bits, as TensorRT-LLM and SGLang do inside a server.
    element = ELEMENT_BYTES[rank.experts.format.products] + 2.0
    moved = (1 - 1 / rank.attention_dp) * tokens * rank.model.hidden * element
    port = scale_up_bytes_per_s(rank.cluster.shape) * rank.catalogue.value(family, "peer_rate")
    return np.asarray(2 * rank.catalogue.value(family, "one_step_floor") + moved / port)


def direct_reduce_s(rank: RankShare, size: FloatArray, family: str) -> FloatArray:
    """Return the time of one all-reduce as serving engines write it [s]."""
    # Every rank reads its peers' memory: all in one step, or its own share and then others' sums.
    port = scale_up_bytes_per_s(rank.cluster.shape) * rank.catalogue.value(family, "peer_rate")
    peers = rank.chips - 1
    one_step_s = rank.catalogue.value(family, "one_step_floor") + peers * size / port
    two = rank.catalogue.value(family, "two_step_floor") + 2 * peers / rank.chips * size / port
    return np.minimum(one_step_s, two)
