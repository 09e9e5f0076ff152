"""One rank's part of a model in service: matrix products, all-reduces, attention, cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cluster_sim.collectives import Group, duration_ps
from topologies.catalogue import Catalogue
from topologies.clusters import Cluster
from workloads.kernel_times import attention_s, elementwise_s, gemm_s
from workloads.model import Model, attention_parameters, expert_parameters

FloatArray = npt.NDArray[np.float64]
PS_PER_S = 1e12
WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
"""Of one weight, by precision."""
KV_BYTES = 2.0
"""Of one cached element: keys and values stay in bf16."""
LARGE_BYTES = 2**28
SMALL_BYTES = 2**15
RANKS_PER_CHIP = {"trn1": 2, "trn2": 4, "trn3": 4}
"""Logical cores that serve; one elsewhere."""


@dataclass(frozen=True)
class RankShare:
    """One rank's part of a model that is split over so many chips.

    Attributes
    ----------
    model : Model
    cluster : Cluster
    chips : int
        Of the replica.
    precision : str
        Of weights and products.
    book : Catalogue
    """

    model: Model
    cluster: Cluster
    chips: int
    precision: str
    book: Catalogue

    @property
    def per_chip(self) -> int:
        """Ranks on a chip."""
        return RANKS_PER_CHIP.get(self.cluster.chip, 1)

    @property
    def ranks(self) -> int:
        """Ranks of the replica."""
        return self.chips * self.per_chip

    @property
    def kv_heads(self) -> float:
        """KV heads on a rank: replicated where there are more ranks than heads."""
        return max(1.0, self.model.kv_heads / self.ranks)

    def _gemm_s(self, m: FloatArray, n: float, k: int) -> FloatArray:
        seconds = gemm_s(
            self.cluster.chip,
            np.maximum(m, 1),
            max(1, round(n)),
            max(1, k),
            precision=self.precision,
            ranks_per_chip=self.per_chip,
            parts=self.book,
        )
        return np.asarray(seconds, float)

    def products_s(self, tokens: FloatArray) -> FloatArray:
        """All matrix products of an iteration; the output layer runs for one token a request."""
        model, ranks = self.model, self.ranks
        if model.latent:
            width = _latent_columns(model) / ranks
            attention = self._gemm_s(tokens, width, model.hidden)
        else:
            qkv = model.query_width / ranks + 2 * self.kv_heads * model.head_dim
            attention = self._gemm_s(tokens, qkv, model.hidden) + self._gemm_s(
                tokens, model.hidden, round(model.value_width / ranks)
            )
        dense = self._mlp_s(tokens, model.ffn)
        layers = model.layers * attention + (model.layers - model.moe_layers) * dense
        if model.experts and model.moe_layers:
            layers = layers + model.moe_layers * self._experts_s(tokens)
        head = self._gemm_s(np.minimum(tokens, 256.0), model.vocab / ranks, model.hidden)
        return np.asarray(layers + head)

    def _mlp_s(self, tokens: FloatArray, ffn: int) -> FloatArray:
        up = (2 if self.model.gated_mlp else 1) * ffn / self.ranks
        first = self._gemm_s(tokens, up, self.model.hidden)
        return first + self._gemm_s(tokens, self.model.hidden, round(ffn / self.ranks))

    def _experts_s(self, tokens: FloatArray) -> FloatArray:
        """Grouped products of the experts that balanced routing touches, and the shared one.

        A grouped kernel streams the weights of every touched expert once, or computes all rows as
        fast as one product of that many rows, whichever takes longer.
        """
        some = self.model.experts
        if some is None:
            return np.zeros_like(tokens)
        touched = some.count * (1 - (1 - some.per_token / some.count) ** tokens)
        element = WEIGHT_BYTES[self.precision]
        weights = touched * expert_parameters(self.model) / self.ranks * element
        streamed = elementwise_s(
            self.cluster.chip, weights, ranks_per_chip=self.per_chip, parts=self.book
        )
        computed = self._mlp_s(tokens * some.per_token, some.ffn)
        routed = np.maximum(np.asarray(streamed, float), computed)
        shared = self._mlp_s(tokens, some.shared_ffn) if some.shared_ffn else np.zeros_like(tokens)
        return np.asarray(routed + shared)

    def reduces_s(self, tokens: FloatArray, family: str) -> FloatArray:
        """Two all-reduces a layer: a floor, and the rate of a large message between the chips."""
        if self.ranks == 1:
            return np.zeros_like(tokens)
        group = Group(self.cluster, np.arange(self.chips))
        if self.book.has(family, "all_reduce_floor"):
            floor_s = self.book.value(family, "all_reduce_floor")
        else:
            floor_s = duration_ps("all-reduce", group, SMALL_BYTES) / PS_PER_S
        large_s = 0.0
        if self.chips > 1:
            large_s = duration_ps("all-reduce", group, LARGE_BYTES) / PS_PER_S
        size = tokens * self.model.hidden * 2.0
        once = floor_s + size * large_s / LARGE_BYTES
        return np.asarray(2 * self.model.layers * once)

    def decode_kv_s(self) -> float:
        """Streaming one cached token of one request on one rank, all layers [s]."""
        share = self.book.value(self.cluster.chip, "hbm_bandwidth") / self.per_chip
        per_rank = self.kv_bytes_per_token() / self.ranks
        return per_rank / (share * self.book.value("serving.decode", "kv_stream_efficiency"))

    def prefill_square_s(self) -> float:
        """Attention of a prompt token per token before it, all layers [s]."""
        seq = 16_384
        heads = max(1, round(self.model.heads / self.ranks))
        seconds = attention_s(
            self.cluster.chip,
            1,
            seq,
            heads,
            max(1, round(self.kv_heads)),
            self.model.head_dim,
            ranks_per_chip=self.per_chip,
            parts=self.book,
        )
        return float(self.model.layers * seconds / (0.5 * seq**2))

    def kv_bytes_per_token(self) -> float:
        """Of all ranks together [B]; ranks that share a head divide its sequence (flash decoding).

        516 kB for Llama-3.1-405B, 328 kB for the 70B. Latent caches are one for all heads.
        """
        model = self.model
        if model.latent:
            width = model.latent.kv_rank + model.latent.rope_dim
            return float(model.layers * width * KV_BYTES)
        return float(2 * model.layers * model.kv_heads * model.head_dim * KV_BYTES)


def _latent_columns(model: Model) -> float:
    """Columns of all attention projections as if they were one product from the hidden width."""
    return attention_parameters(model) / model.hidden
