"""The Model: the shape of a transformer, and its exact parameter counts.

A frozen description that :mod:`workloads.models.huggingface` reads from a ``config.json``;
everything else that is known of a model (FLOPs, activations, caches) is a function of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from topologies.errors import InputError


@dataclass(frozen=True)
class Experts:
    """Feed-forward layers of which each token visits a few.

    Attributes
    ----------
    count : int
        Routed experts of a layer.
    per_token : int
        Routed experts that a token visits.
    ffn : int
        Inner width of one expert.
    shared_ffn : int
        Inner width of what every token visits besides, 0 for none.
    shared_gate : bool
        Whether the shared expert's output is weighted by a learned gate.
    dense_layers : int
        Leading layers that have a dense feed-forward part instead.
    router_bias : bool
        Whether the router corrects its scores by one learned number an expert.
    """

    count: int
    per_token: int
    ffn: int
    shared_ffn: int = 0
    shared_gate: bool = False
    dense_layers: int = 0
    router_bias: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA) of DeepSeek-V2 (arXiv 2405.04434, section 2.1).

    Attributes
    ----------
    query_rank : int
        Width of the compressed query, 0 where queries are not compressed.
    kv_rank : int
        Width of the compressed keys and values: what a cache holds, with ``rope_dim``.
    nope_dim, rope_dim, value_dim : int
        Widths of a head: the part of keys without and with position, and the values.
    """

    query_rank: int
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    Attributes
    ----------
    name : str
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab : int
        ``ffn`` is the inner width of a dense feed-forward part.
    gated_mlp : bool
        Whether the feed-forward part has a gate beside its up-projection (SwiGLU).
    tied_embeddings : bool
        Whether the output layer is the embedding.
    positions : int
        Learned positions, 0 for none (rotary).
    norm : {"rms", "layer"}
        RMSNorm has a scale; LayerNorm a scale and a shift.
    qkv_bias, output_bias, mlp_bias : bool
        Which projections have a bias.
    qk_norm : bool
        Whether queries and keys are normalised head by head.
    window : int
        Keys that a query sees at most, 0 for all before it.
    dropout : bool
        Whether masks of dropout are kept for the backward pass.
    experts : Experts or None
    latent : LatentAttention or None
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    gated_mlp: bool = True
    tied_embeddings: bool = False
    positions: int = 0
    norm: Literal["rms", "layer"] = "rms"
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: int = 0
    dropout: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        sizes = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
        for field in sizes:
            if getattr(self, field) < 1:
                raise InputError(
                    f"model {self.name}: {field} is {getattr(self, field)}; at least 1."
                )
        if self.heads % self.kv_heads:
            raise InputError(
                f"model {self.name}: {self.heads} heads are not a multiple of its "
                f"{self.kv_heads} key-value heads. Correct the config."
            )
        if self.experts and self.experts.per_token > self.experts.count:
            raise InputError(
                f"model {self.name}: a token visits {self.experts.per_token} experts of only "
                f"{self.experts.count}. Correct the config."
            )

    @property
    def query_width(self) -> int:
        """Columns of all queries together."""
        if self.latent:
            return self.heads * (self.latent.nope_dim + self.latent.rope_dim)
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of the attention's output before its projection."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def moe_layers(self) -> int:
        """Layers with experts."""
        return max(0, self.layers - self.experts.dense_layers) if self.experts else 0

    @property
    def norm_parameters(self) -> int:
        """Of one norm over the hidden width."""
        return self.hidden * (2 if self.norm == "layer" else 1)

    @property
    def embedding_parameters(self) -> int:
        """Of the input embedding and the learned positions."""
        return (self.vocab + self.positions) * self.hidden

    @property
    def head_parameters(self) -> int:
        """Of the output layer beyond what it shares with the embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters: embedding, layers, final norm, output layer.

        Examples
        --------
        >>> from workloads.models.huggingface import named
        >>> named("llama-3.1-405b").parameters
        405853388800
        """
        dense = self.layers - self.moe_layers
        return (
            self.embedding_parameters
            + dense * layer_parameters(self, moe=False)
            + self.moe_layers * layer_parameters(self, moe=bool(self.experts))
            + self.norm_parameters
            + self.head_parameters
        )

    @property
    def active_parameters(self) -> int:
        """Those that one token passes through: of routed experts only the visited ones."""
        if not self.experts:
            return self.parameters
        idle = self.experts.count - self.experts.per_token
        return self.parameters - self.moe_layers * idle * expert_parameters(self)


def attention_parameters(model: Model) -> int:
    """Parameters of one layer's attention: projections, biases, norms of queries and keys."""
    h = model.hidden
    if model.latent:
        return _latent_parameters(model, model.latent)
    kv = model.kv_heads * model.head_dim
    weights = h * (2 * model.query_width + 2 * kv)
    biases = (model.query_width + 2 * kv) * model.qkv_bias + h * model.output_bias
    return weights + biases + 2 * model.head_dim * model.qk_norm


def _latent_parameters(model: Model, mla: LatentAttention) -> int:
    """Down- and up-projections of queries and of keys with values, two norms, output."""
    h, q = model.hidden, model.query_width
    query = h * mla.query_rank + mla.query_rank + mla.query_rank * q if mla.query_rank else h * q
    down = h * (mla.kv_rank + mla.rope_dim) + mla.kv_rank
    up = mla.kv_rank * model.heads * (mla.nope_dim + mla.value_dim)
    return query + down + up + model.value_width * h


def expert_parameters(model: Model) -> int:
    """Parameters of one routed expert."""
    return (3 if model.gated_mlp else 2) * model.hidden * model.experts.ffn if model.experts else 0


def mlp_parameters(model: Model, *, moe: bool) -> int:
    """Parameters of one layer's feed-forward part, dense or with experts and router."""
    h, matrices = model.hidden, 3 if model.gated_mlp else 2
    if not moe or model.experts is None:
        return matrices * h * model.ffn + (model.ffn * (matrices - 1) + h) * model.mlp_bias
    some = model.experts
    routed = some.count * expert_parameters(model)
    shared = matrices * h * some.shared_ffn + h * some.shared_gate
    return routed + shared + some.count * h + some.count * some.router_bias


def layer_parameters(model: Model, *, moe: bool) -> int:
    """Parameters of one layer: attention, feed-forward part and two norms."""
    mlp = mlp_parameters(model, moe=moe)
    return attention_parameters(model) + mlp + 2 * model.norm_parameters
