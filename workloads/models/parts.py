"""Parts of models: experts, latent attention, recurrent mixers, and kinds of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mixer = Literal["attention", "recurrence", "none"]


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: feed-forward parts of which each token visits a few."""

    count: int  # routed experts of a layer
    per_token: int  # routed experts that a token visits
    ffn: int  # inner width of one expert
    shared_ffn: int = 0  # inner width of the shared expert, which every token visits; 0 for none
    shared_gate: bool = False  # whether the shared expert's output is weighted by a learned gate
    dense_layers: int = 0  # number of leading layers that have a dense feed-forward part instead
    # Whether the router adds one learned number for each expert to its scores
    router_bias: bool = False
    bias: bool = False  # whether the products of an expert have biases


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA) of DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""

    query_rank: int  # width of the compressed query; 0 if queries are not compressed
    # Width of the compressed keys and values, which a cache stores with ``rope_dim`` columns
    kv_rank: int
    # nope_dim, rope_dim, value_dim: widths of a head: of the parts of its keys without and with
    # position, and of its values
    nope_dim: int
    rope_dim: int
    value_dim: int
    # index_heads, index_dim: heads of the indexer that selects the keys of sparse attention, and
    # their width; 0 for none
    index_heads: int = 0
    index_dim: int = 0


@dataclass(frozen=True)
class Recurrence:
    """A mixer with a state of fixed size: a state-space model or linear attention."""

    name: str  # ``mamba``, ``mamba2``, ``lightning``, ``gated-delta`` or ``short-convolution``
    columns: int  # columns of the projections from the hidden width
    inner: int  # rows of the projection back to the hidden width
    products: int = 0  # weights of further matrix products within the mixer
    other: int = 0  # parameters that no product multiplies: convolutions, decays, norms, biases
    state: int = 0  # elements of the state that one token updates and reads


@dataclass(frozen=True)
class Layer:
    """A kind of layer, in a model whose layers may differ."""

    mixer: Mixer = "attention"  # ("attention", "recurrence", "none"): part that mixes tokens
    window: int = 0  # largest number of keys that a query sees; 0 for all keys before it
    experts: bool = False  # whether the feed-forward part has experts
    mlp: bool = True  # whether there is a feed-forward part
