"""``RankShare``: one rank's share of a served model, and times of the kernels that it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.support.arrays import FloatArray
from workloads.kernels.precision import Format, served_formats
from workloads.kernels.times import elementwise, gemm
from workloads.models.model import ATTENTION, RECURRENCE, Model

WITH_SCALES = ("fp8", "mxfp8", "fp4", "mxfp4")
"""Precisions of products whose checkpoints come with scales for a cache in fp8; for others keys and
values stay in 16 bits."""
SCALED = 1 + 4 / 128
"""Bytes of a cached element in fp8 with its share of a scale of 128 (FlashMLA, DeepGEMM)."""
SHORTEST = 128
"""Side of a product that is so small that its time is that of its launches."""
STATE_BYTES = 4.0
"""Bytes of one element of a recurrent state, which is stored in 32 bits."""
MEASURED_WITH_QUANTISATION = ("fp8", "mxfp8")
"""Precisions whose measured products include a kernel that quantises the activations."""


@dataclass(frozen=True)
class RankShare:
    """One rank's share of a model that is divided among the chips of a replica."""

    model: Model
    cluster: Cluster
    chips: int
    precision: str
    catalogue: Catalogue
    cores: int = 0  # logical cores of the replica, each of which runs a rank; 0 for all
    # Groups of ranks that divide the experts, on Trainium only while prompts run. The ranks of a
    # group divide each expert's width
    ep: int = 1
    cache_precision: str | None = None  # where it is stated, see :attr:`cached_as`
    memory_share: float | None = None  # of the chip's memory for weights and cache, where stated
    of_free: bool = False  # whether it is one of what weights leave (free_gpu_memory_fraction)
    of_experts: bool = False  # whether products are those of routed experts, see :attr:`experts`
    # Groups of ranks that divide the requests; each has the whole model but the routed experts,
    # which all of them divide
    attention_dp: int = 1

    @cached_property
    def alone(self) -> RankShare:
        """The share of a group that divides the requests: of all but routed experts."""
        dp = self.attention_dp
        return self if dp == 1 else replace(self, chips=self.chips // dp, ep=1, attention_dp=1)

    @cached_property
    def format(self) -> Format:
        """Formats of the weights and products of this part of the model."""
        others, experts = served_formats(
            self.precision, self.model.precision, self.cluster.chip, self.catalogue
        )
        return experts if self.of_experts else others

    @cached_property
    def experts(self) -> RankShare:
        """The share of routed experts alone, whose weights may have a format of their own."""
        return replace(self, of_experts=True)

    @property
    def weights_text(self) -> str:
        """Sentence on how weights are held, where not all in the precision of their products."""
        experts, others = self.experts.format, self.format
        weights, products = experts.weights, experts.products
        stored = self.precision.rpartition("-")[2]  # those of experts, where others differ
        if weights != stored:
            return (
                f"Weights that the checkpoint has in {stored} are widened to {weights} "
                f"when they are loaded, as {self.cluster.chip} has no products with them."
            )
        if others == experts and weights == products:
            return ""
        parts = "All weights" if others.weights == weights else "Weights of routed experts"
        rest = "" if others.weights == weights else f"; all others are in {others.weights}"
        return (
            f"{parts} lie in memory in {weights}, and products with them are in {products}{rest}."
        )

    @property
    def per_chip(self) -> int:
        """Return the logical cores of a chip, each of which can run a rank."""
        return chip_family(self.cluster.chip, self.catalogue).ranks_per_chip

    @property
    def part(self) -> dict[str, Any]:
        """Arguments of kernel times that say which part of a chip, with which numbers, runs it."""
        return {"ranks_per_chip": self.per_chip, "catalogue": self.catalogue}

    @property
    def ranks(self) -> int:
        """Ranks of the replica."""
        return self.cores or self.chips * self.per_chip

    @cached_property
    def by_heads(self) -> tuple[RankShare, ...]:
        """Shares of the attention layers with alike heads, as if there were no other layers."""
        models = self.model.by_heads
        return (self,) if len(models) == 1 else tuple(replace(self, model=one) for one in models)

    @property
    def attention_layers(self) -> int:
        """Layers with attention."""
        return sum(layer.mixer in ATTENTION for layer in self.model.each_layer)

    @property
    def recurrent_layers(self) -> int:
        """Layers that keep a state."""
        return sum(layer.mixer in RECURRENCE for layer in self.model.each_layer)

    @property
    def state_bytes(self) -> float:
        """Size of the states of one request in all layers of all ranks [B]."""
        mixer = self.model.recurrence
        return STATE_BYTES * mixer.state * self.recurrent_layers if mixer else 0.0

    @property
    def kept_state_bytes(self) -> float:
        """Memory for a request's states and the copies that an engine has room for [B]."""
        mixer = self.model.recurrence
        delta = mixer is not None and mixer.name == "gated-delta"
        return self.overhead("delta_states" if delta else "request_states") * self.state_bytes

    @property
    def dense_layers(self) -> int:
        """Layers with a feed-forward part without experts."""
        return sum(layer.mlp and not layer.experts for layer in self.model.each_layer)

    @property
    def parts(self) -> int:
        """Mixers and feed-forward parts of all layers, whose results the ranks sum."""
        mixers = sum(layer.mixer != "none" for layer in self.model.each_layer)
        return mixers + self.dense_layers + self.model.moe_layers

    @property
    def index_layers(self) -> int:
        """Layers with an indexer, which selects the keys that attention reads."""
        return sum(layer.keys == "selected" for layer in self.model.each_layer)

    def overhead(self, quantity: str) -> float:
        """Return a constant of the serving engine: the chip's, or its family's; 0 without any."""
        family = chip_family(self.cluster.chip, self.catalogue).serving
        parts = (f"serving.{self.cluster.chip}", family)
        described = next((part for part in parts if self.catalogue.has(part, quantity)), None)
        return self.catalogue.value(described, quantity) if described else 0.0

    @property
    def query_heads(self) -> int:
        """Query heads on a rank; engines pad heads that the ranks do not divide."""
        return math.ceil(self.model.heads / self.ranks)

    @property
    def kv_heads(self) -> int:
        """Key-value heads on a rank; with fewer heads than ranks, several ranks hold the same."""
        return self.query_heads if self.one_each else math.ceil(self.model.kv_heads / self.ranks)

    @property
    def one_each(self) -> bool:
        """Return whether each query head has a key-value head of its own, as Neuron makes them."""
        # Where neither ranks nor these heads divide the other: ``CONVERT_TO_MHA`` of its gqa.py.
        heads = self.model.kv_heads
        neuron = chip_family(self.cluster.chip, self.catalogue).is_neuron
        return neuron and heads % self.ranks > 0 and self.ranks % heads > 0

    @property
    def divides_sequences(self) -> bool:
        """Return whether ranks with the same key-value head divide its sequence."""
        return self.overhead("flash_decoding") > 0

    def product_s(self, m: FloatArray, n: float, k: int) -> FloatArray:
        """Return the time of products (m, k) × (k, n), without quantising their inputs [s]."""
        # Engines quantise in the kernel before, so the measured time of such a launch is
        # subtracted.
        products = self.format.products
        sides = np.maximum(m, 1), max(1, round(n)), max(1, k)
        seconds = self._launched_s(*sides, self.format)
        if products not in MEASURED_WITH_QUANTISATION:
            return seconds
        shortest = np.ones(1), SHORTEST, SHORTEST
        added_s = self._launched_s(*shortest, products) - self._launched_s(*shortest, "bf16")
        return np.asarray(seconds - np.maximum(added_s, 0.0))

    def _launched_s(self, m: FloatArray, n: int, k: int, precision: str | Format) -> FloatArray:
        seconds = gemm(self.cluster.chip, m, n, k, precision=precision, **self.part).seconds
        return np.asarray(seconds, float)

    def pass_s(self, moved_bytes: FloatArray | float) -> FloatArray:
        """Return the time of kernels that move ``moved_bytes`` through memory [s]."""
        seconds = elementwise(self.cluster.chip, moved_bytes, **self.part).seconds
        return np.asarray(seconds, float)

    @property
    def cached_as(self) -> str:
        """Precision of cached keys and values."""
        return self.cache_precision or ("fp8" if self.format.products in WITH_SCALES else "bf16")

    def kv_bytes_on_rank(self) -> float:
        """Return the size of one cached token on one rank, in all layers [B]."""
        # All heads share a latent cache and the keys of an indexer, so every rank holds the whole.
        index, each = 0.0, self.model.indexer.tokens if self.model.indexer else 1
        if self.index_layers:
            index = self.index_layers * self.index_key_bytes / each
        # Layers that read the cache of an earlier one have none.
        # Those of a window beside layers with summaries keep that alone, see ``window_bytes``.
        cached = [part for part in self.by_heads if part.model.kv_products]
        if self.window_bytes:
            cached = [part for part in cached if part.model.summaries]
        return index + sum(part.attention_layers * part.layer_kv_bytes for part in cached)

    @property
    def layer_kv_bytes(self) -> float:
        """Size of the keys and values of one cached token on one rank in one layer [B]."""
        model, element = self.model, 1.0 if self.cached_as == "fp8" else 2.0
        if model.latent and self.cached_as == "fp8" and model.indexer:
            # FlashMLA's kernels for selected keys leave the part with position in 16 bits.
            return SCALED * model.latent.kv_rank + 2.0 * model.latent.rope_dim
        if model.latent:
            return (model.latent.kv_rank + model.latent.rope_dim) * element
        if model.low_rank:
            return model.head_dim * element / (model.summaries.tokens if model.summaries else 1)
        divided = self.divides_sequences and not self.one_each
        heads = model.kv_heads / self.ranks if divided else self.kv_heads
        return 2 * heads * model.head_dim * element

    @property
    def window_bytes(self) -> float:
        """Size of the last keys of one request, beside summaries, on all ranks [B]."""
        layers = [layer for layer in self.model.each_layer if layer.mixer in ATTENTION]
        if not any(layer.summaries for layer in layers):
            return 0.0
        element = 1.0 if self.cached_as == "fp8" else 2.0
        return self.ranks * sum(layer.window for layer in layers) * self.model.head_dim * element

    @property
    def index_key_bytes(self) -> float:
        """Size of the key that an indexer caches of one token in one layer, in fp8 [B]."""
        return SCALED * self.model.indexer.dim if self.model.indexer else 0.0

    def kv_bytes_per_token(self) -> float:
        """Return the size of one cached token on all ranks together [B]."""
        # 516 kB for Llama-3.1-405B and 328 kB for the 70B if every head is held once.
        return self.ranks * self.kv_bytes_on_rank()
