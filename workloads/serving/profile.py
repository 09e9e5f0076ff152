"""Time of one iteration of a replica: the kernels and collectives of training, plus overheads.

An iteration runs some tokens through all layers: one for each request that decodes, and a piece of
a prompt for each request that is prefilled. Its time is the sum of

- the matrix products of those tokens on one rank (:func:`workloads.kernels.times.gemm`), which
  stream the weights once;
- attention over the cached keys and values;
- two all-reduces in each layer over the tensor-parallel group, with a floor and a rate;
- an overhead for each iteration, and one for each prompt token and layer, because of which decode
  at batch 1 is two to six times slower than a pure roofline. They are rows of the catalogue's part
  ``serving.<family>``.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from topologies.catalogue.catalogue import Catalogue, chip_family, usable_hbm_bytes
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import FloatArray, distinct
from topologies.support.errors import InputError, check_choice
from workloads.kernels.precision import ELEMENT_BYTES, SERVING_CACHES
from workloads.models.model import ATTENTION, Model, expert_parameters
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import (
    EXPERT_BLOCK,
    KeyTimes,
    decode_keys,
    decode_request_s,
    prefill_keys,
    products_s,
    reduces_s,
    scan_token_s,
    small_kernels_s,
)

LNC1 = "lnc1"
"""Variant of a Trainium chip whose logical cores are single physical ones."""


def replica_share(
    model: Model,
    cluster: Cluster,
    tp: int | None,
    precision: str,
    catalogue: Catalogue,
    *,
    chips: int | None = None,
) -> RankShare:
    """Return one rank's part of a model in a replica of a tensor-parallel degree."""
    if not cluster.chip:
        raise InputError("nothing can be served on a cluster without chips; name a machine.")
    logical = chip_family(cluster.chip, catalogue).ranks_per_chip
    room = chips or cluster.chips_per_domain
    physical = catalogue.integer(cluster.chip, "cores", 1)
    if tp and logical < physical and tp == room * physical and (room == 1 or chips):
        catalogue = catalogue.with_variants({f"{cluster.chip}.ranks_per_chip": LNC1})
        return RankShare(model, cluster, room, precision, catalogue, tp)
    least = 1 if room == 1 else room + 1
    if tp and logical > 1 and (chips or room == 1) and least <= tp <= room * logical:
        return RankShare(model, cluster, -(-tp // logical), precision, catalogue, tp)
    return RankShare(model, cluster, _chips(model, cluster, tp), precision, catalogue)


def _chips(model: Model, cluster: Cluster, tp: int | None) -> int:
    """Number of chips of a replica; a degree above the chips of a domain counts logical cores."""
    if tp is None:
        return cluster.chips_per_server
    domain = cluster.chips_per_domain
    cores = chip_family(cluster.chip, cluster.catalogue).ranks_per_chip
    if not 1 <= tp <= domain * cores:
        also = f", or up to {domain * cores} cores" if cores > 1 else ""
        raise InputError(
            f"tp {tp}: a replica lies within one scale-up domain of {domain} chips. "
            f"Use 1 to {domain} chips{also}."
        )
    chips = tp if tp <= domain else tp // cores
    whole = tp <= domain or tp % cores == 0
    if not whole or (domain % chips and model.heads % chips):
        sizes = [str(size) for size in range(1, domain + 1) if domain % size == 0]
        raise InputError(
            f"tp {tp} divides neither the {model.heads} heads of {model.name} nor the {domain} "
            f"chips of a domain evenly. Use {', '.join(sizes)} chips."
        )
    return chips


def check_groups(rank: RankShare) -> None:
    """Refuse numbers of groups that do not divide the ranks, or the ranks and the experts."""
    some, ep, dp = rank.model.experts, rank.ep, rank.attention_dp
    neuron = chip_family(rank.cluster.chip, rank.catalogue).is_neuron
    if dp > 1 and (some is None or neuron or rank.ranks % dp):
        why = "has no experts to share" if some is None else f"has {rank.ranks} ranks to divide"
        if neuron:
            why = f"on {rank.cluster.chip} is served by Neuron's engine, which has no such groups"
        raise InputError(
            f"attention-dp {dp}: {rank.model.name} {why}. Use replicas of their own, or 1."
        )
    if ep == 1:
        return
    if some is None:
        raise InputError(f"ep {ep}: {rank.model.name} has no experts to divide. Use 1.")
    most = math.gcd(rank.ranks, some.count)
    if ep < 1 or most % ep:
        raise InputError(
            f"ep {ep}: groups must divide the {rank.ranks} ranks of the replica and the "
            f"{some.count} experts of {rank.model.name}. Use a divisor of {most}."
        )


MAX_TOKENS = 131_072
"""Most tokens of one iteration."""
MOST_REQUESTS = sys.maxsize
"""Requests of a replica without a memory for states alone."""
Tokens = TypeVar("Tokens", float, FloatArray)
"""Cached tokens of one iteration, or an array of those of several; times have the same type."""


@dataclass(frozen=True, eq=False)
class Profile:
    """Times and sizes of one replica."""

    name: str
    chips: int
    # (sizes,): numbers of tokens of an iteration for which ``linear_s`` is computed, ascending
    tokens: FloatArray
    linear_s: FloatArray  # (sizes,): matrix products, all-reduces and an iteration's overhead [s]
    # Attention time for each cached token of each decoding request, in layers that read all and in
    # indexers, which score all [s]
    decode_kv_s: float
    prefill_token_s: float  # overhead of each prompt token, over all layers [s]
    prefill_square_s: float  # attention time of a prompt token for each token before it [s]
    # weights_bytes, kv_bytes_per_token, kv_budget_bytes: weights, cache of a token, and room for
    # the cache, of the whole replica [B]
    weights_bytes: float
    kv_bytes_per_token: float
    kv_budget_bytes: float
    request_s: float = 0.0  # in network, tokenizer and scheduler, before the engine sees it [s]
    # Time of each decoding request that does not depend on its cached tokens, in attention and on
    # the host [s]
    decode_request_s: float = 0.0
    # (sizes,): times as in ``linear_s`` of an iteration with prompts, where they differ [s]
    prompt_linear_s: FloatArray | None = None
    expert_groups: int = 1
    precision: str = ""
    cache_precision: str = ""  # of cached keys and values
    raised_share: float = 0.0  # of memory, where the weights need more than an engine's usual share
    # Tokens that layers with windows or selected keys read of each request, and the attention time
    # for each of them [s]; 0 without such layers
    window_tokens: int = 0
    decode_window_s: float = 0.0
    # The same of a prompt token and those before it
    prefill_window_tokens: int = 0
    prefill_window_s: float = 0.0
    weights_text: str = ""  # sentence on how weights are held, if not in the products' precision
    state_bytes: float = 0.0  # memory that a request's recurrent states take from the cache [B]
    # Requests whose states fit where they have a memory of their own
    most_requests: int = MOST_REQUESTS
    # Rows of the attention kernel of prompts that one decoding request takes where it runs in that
    # kernel; 0 where it has its own
    mixed_rows: float = 0.0

    @cached_property
    def kv_tokens(self) -> int:
        """Tokens that the cache holds."""
        return int(self.kv_budget_bytes / self.kv_bytes_per_token)

    @cached_property
    def state_tokens(self) -> int:
        """Cached tokens in whose memory a request keeps its states."""
        return math.ceil(self.state_bytes / self.kv_bytes_per_token)

    def linear(self, tokens: float) -> float:
        """Time of an iteration of decode without attention [s]."""
        return self._between(tokens, prompts=False)

    def prompt_linear(self, tokens: float) -> float:
        """Time of an iteration with prompts without attention and prompt overheads [s]."""
        return self._between(tokens, prompts=True)

    def _between(self, tokens: float, *, prompts: bool) -> float:
        """Time between two sizes; above all of them in proportion to the tokens [s]."""
        # Batches have few sizes, each of which comes again and again.
        if (tokens, prompts) not in self._seconds_of:
            seconds = self.prompt_linear_s if prompts else None
            seconds = self.linear_s if seconds is None else seconds
            above = max(1.0, tokens / float(self.tokens[-1]))
            self._seconds_of[tokens, prompts] = above * float(
                np.interp(tokens, self.tokens, seconds)
            )
        return self._seconds_of[tokens, prompts]

    @cached_property
    def _seconds_of(self) -> dict[tuple[float, bool], float]:
        """Times between sizes asked before, by tokens and whether there are prompts [s]."""
        return {}

    def prefill_s(self, tokens: int, before: int = 0) -> float:
        """Time of an iteration with one prompt, or a piece of it after ``before`` tokens [s]."""
        return self.prompt_linear(tokens) + self.prefill_extra_s(tokens, before)

    def prefill_extra_s(self, tokens: int, before: int) -> float:
        """Time that a piece of a prompt adds to the linear part [s]."""
        most, most_s = self.prefill_window_tokens, self.prefill_window_s
        keys = KeyTimes(self.prefill_square_s, most, most_s)
        return self.prefill_token_s * tokens + keys.piece_s(tokens, before)

    def decode_s(self, requests: int, cached_tokens: Tokens) -> Tokens:
        """Time of a token for each of some requests, which have these cached tokens in all [s]."""
        return self.linear(requests) + self.attention_s(requests, cached_tokens)

    def attention_s(self, requests: int, cached_tokens: Tokens) -> Tokens:
        """Attention time of one token for each of some requests over all cached tokens [s]."""
        seconds = self.decode_request_s * requests + self.decode_kv_s * cached_tokens
        if not self.window_tokens:
            return seconds
        windowed: Tokens = np.minimum(cached_tokens, self.window_tokens * requests)
        return seconds + self.decode_window_s * windowed

    def mixed_attention_s(self, requests: int, cached_tokens: float) -> float:
        """Attention time of one token for each of some requests beside prompts [s]."""
        # A kernel that takes queries of any number runs whole blocks of rows of one query head, of
        # which a request that decodes has one, so that its block computes as much as a full one.
        padded_s = self.mixed_rows * self.prefill_square_s * cached_tokens
        return max(self.attention_s(requests, cached_tokens), padded_s)

    def growth_s(self, requests: int, cached_tokens: float, growing: float) -> float:
        """Time that ``growing`` more cached tokens add to a token for each of some requests [s]."""
        within = cached_tokens < self.window_tokens * requests
        return growing * (self.decode_kv_s + (self.decode_window_s if within else 0.0))


def profile(
    model: Model,
    cluster: Cluster,
    *,
    tp: int | None = None,
    precision: str | None = None,
    chips: int | None = None,
    catalogue: Catalogue | None = None,
    **shared: Any,
) -> Profile:
    """Return the times of a replica of a model on the first chips of a cluster."""
    if model.recurrence and all(layer.mixer not in ATTENTION for layer in model.each_layer):
        raise InputError(
            f"cannot serve {model.name}: all its mixers are {model.recurrence.name} layers, which "
            "keep a state and no keys and values. Use a model with some attention."
        )
    precision = precision or model.precision
    catalogue = catalogue or cluster.numbers
    rank = replica_share(model, cluster, tp, precision, catalogue, chips=chips)
    if shared.get("cache_precision"):
        check_choice("cache precision", shared["cache_precision"], SERVING_CACHES)
    rank = replace(rank, **shared)
    check_groups(rank)
    return _profile_of(rank)


def _profile_of(rank: RankShare) -> Profile:
    """Return the times and sizes of a replica from the share of one rank."""
    model, chip = rank.model, rank.cluster.chip
    experts = (
        model.moe_layers * model.experts.count * expert_parameters(model) if model.experts else 0
    )
    others = (model.parameters - experts) * ELEMENT_BYTES[rank.format.weights]
    copies = 2 if rank.ep > 1 and rank.overhead("expert_block") else 1  # divided again for prompts
    weights = (
        rank.attention_dp * others + copies * experts * ELEMENT_BYTES[rank.experts.format.weights]
    )
    tokens = _token_counts(rank)
    other_s = _other_than_products_s(rank, tokens)
    prompt_s = _other_than_products_s(rank, tokens, prompts=True)
    alone, share = rank.alone, 1 / rank.attention_dp  # prompts are divided evenly, as under load
    left, raised_share = _left_for_cache(model, weights, rank)
    divided = 1 - (rank.overhead("cache_share") or 1.0) if rank.state_bytes else 0.0
    decode, prefill = decode_keys(alone), prefill_keys(alone)
    return Profile(
        name=f"{model.name} on {rank.chips} x {chip}",
        expert_groups=rank.ep,
        precision=rank.experts.format.weights,
        cache_precision=rank.cached_as,
        raised_share=raised_share,
        weights_text=rank.weights_text,
        chips=rank.chips,
        tokens=tokens,
        linear_s=other_s + products_s(rank, tokens),
        prompt_linear_s=_issued_by_host(
            prompt_s + products_s(rank, tokens, prompts=True), rank, tokens
        ),
        decode_kv_s=share * decode.all_s,
        window_tokens=decode.most,
        decode_window_s=share * decode.most_s,
        decode_request_s=share * (decode_request_s(alone) + rank.overhead("request_iteration")),
        prefill_token_s=share * (prompt_overhead_s(rank) + scan_token_s(alone)),
        prefill_square_s=share * prefill.all_s,
        prefill_window_tokens=prefill.most,
        prefill_window_s=share * prefill.most_s,
        weights_bytes=weights,
        kv_bytes_per_token=alone.kv_bytes_per_token(),
        kv_budget_bytes=(1 - divided) * left,
        state_bytes=0.0 if divided else rank.state_bytes + alone.window_bytes,
        most_requests=int(divided * left / rank.kept_state_bytes) if divided else MOST_REQUESTS,
        request_s=rank.overhead("request_overhead"),
        mixed_rows=_mixed_rows(rank),
    )


def _mixed_rows(rank: RankShare) -> float:
    """Rows of the attention kernel of prompts that one decoding request takes beside prompts."""
    # Latent and windowed attention have kernels of their own.
    model, part = rank.model, chip_family(rank.cluster.chip, rank.catalogue).kernels
    windows = any(layer.window for layer in model.each_layer)
    if model.latent or windows or not rank.catalogue.has(part, "unpacked_rows"):
        return 0.0
    return rank.overhead("mixed_attention") * rank.catalogue.value(part, "unpacked_rows")


def prompt_overhead_s(rank: RankShare) -> float:
    """Overhead of a prompt token over all layers beside their kernels [s]."""
    # It grows with the hidden width, which every rank holds whole, from what narrow models take up
    # to what was measured of large ones, whose ranks divide the sequence. Layers with experts take
    # the latter, with which the constants of their blocks were fitted.
    model, most = rank.model, rank.overhead("prompt_token_layer")
    each_s = rank.overhead("prompt_token_width")
    if not each_s:
        return model.layers * most
    by_width = max(model.hidden * each_s, rank.overhead("prompt_token_least"))
    dense = model.layers - model.moe_layers
    return dense * min(most, by_width) + model.moe_layers * most


def _issued_by_host(seconds: FloatArray, rank: RankShare, tokens: FloatArray) -> FloatArray:
    """Raise times of iterations with prompts to those of a GPU's host, (sizes,) [s]."""
    # The host issues them kernel by kernel, and may take longer than the chip. Decode, and
    # iterations of ``graph_tokens`` at most, are captured as graphs, which take the host no time.
    fused = rank.experts.format.weights == "mxfp4"
    each_s = rank.overhead("fused_expert_layer_host" if fused else "expert_layer_host")
    dense = rank.model.layers - rank.model.moe_layers
    host_s = rank.model.moe_layers * each_s + dense * rank.overhead("layer_host")
    issued = tokens > rank.overhead("graph_tokens")
    return np.where(issued, np.maximum(seconds, host_s), seconds)


def _other_than_products_s(
    rank: RankShare, tokens: FloatArray, *, prompts: bool = False
) -> FloatArray:
    """Overhead of an iteration, its small kernels and its all-reduces, (sizes,) [s]."""
    family = chip_family(rank.cluster.chip, rank.catalogue).serving
    overhead = rank.overhead("iteration_overhead")
    if layers := rank.overhead("overhead_layers"):  # of a model that has all of it
        overhead *= min(1.0, rank.model.layers / layers)
    reduces = reduces_s(rank, tokens, family, prompts=prompts)
    return overhead + small_kernels_s(rank, tokens, family) + reduces


def _token_counts(rank: RankShare) -> FloatArray:
    """Numbers of tokens for which the time of an iteration is computed, ascending."""
    # Both sides of the jumps at which experts begin to run in whole blocks, and at which the host
    # begins to issue kernels, are among them.
    captured = rank.overhead("graph_tokens")
    tokens = np.append(np.rint(np.geomspace(1, MAX_TOKENS, 120)), [captured, captured + 1])
    if rank.model.experts:
        first = -(-EXPERT_BLOCK // rank.model.experts.per_token)
        tokens = np.append(tokens, [first - 1, first])
    return distinct(tokens[tokens >= 1])


def _left_for_cache(model: Model, weights: float, rank: RankShare) -> tuple[float, float]:
    """Memory that the weights leave to the cache [B], and the share of memory if it was raised."""
    chip, catalogue = rank.cluster.chip, rank.catalogue
    whole = rank.ranks / rank.per_chip * usable_hbm_bytes(chip, catalogue)
    usual = catalogue.entry(chip_family(chip, catalogue).serving, "memory_share")
    share, raised = rank.memory_share, 0.0
    if share is None or rank.of_free:
        share = usual.value
        # One that follows from the server's own rule, and nobody stated, may be raised by its user.
        if weights >= whole * share and usual.grade == "derived":
            share = raised = usual.high or share
    budget = whole * share
    if weights >= budget:
        degree, most, unit = rank.chips, rank.cluster.chips_per_domain, "chip"
        if rank.cores:  # --tp counts cores
            degree, most, unit = rank.cores, most * rank.per_chip, "core"
        held = f"1 {unit} holds" if degree == 1 else f"{degree} {unit}s hold"
        # Some weights are whole on each rank, and so a little more of them on more ranks.
        enough = degree * 2 ** math.ceil(math.log2(1.01 * weights / budget))
        more = f"more {unit}s, such as --tp {enough}"
        if enough > most:
            more = "a cluster of chips with more memory"
        least = math.ceil(100 * weights / whole) / 100
        if rank.memory_share is not None and not rank.of_free and least < 1:
            more = f"a --memory-share above {least:g}, or {more}"
        smaller = "a smaller precision, such as fp8, or " * (rank.precision == "bf16")
        raise InputError(
            f"{model.name} has {weights / 1e9:,.1f} GB of weights, {held} "
            f"{budget / 1e9:,.1f} GB; use {smaller}{more}."
        )
    # What weights, products and graphs leave free is what the engine's usual share makes of it.
    free = (rank.memory_share or usual.value) / usual.value if rank.of_free else 1.0
    return free * (budget - weights), raised


def forward_s(model: Model, cluster: Cluster, tokens: int) -> float:
    """Forward pass of a sequence in bf16 over a server, without engine overheads [s]."""
    if not cluster.chip:
        raise InputError(f"{cluster.name} has no chip; name a machine.")
    catalogue = cluster.numbers
    rank = RankShare(model, cluster, cluster.chips_per_server, "bf16", catalogue)
    size = np.array([float(tokens)])
    family = chip_family(cluster.chip, catalogue).serving
    attention = prefill_keys(rank).piece_s(tokens, 0)
    return float((products_s(rank, size) + reduces_s(rank, size, family))[0]) + attention
