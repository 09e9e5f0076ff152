"""``Model``: architecture of a decoder-only transformer, its exact parameter counts, its FLOPs.

Layers that differ are listed in ``Model.layout``, and costed as models of their kind each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

from topologies.support import display
from topologies.support.errors import InputError

Number = TypeVar("Number", int, float)
Mixer = Literal["attention", "recurrence", "both", "none"]
ATTENTION, RECURRENCE = ("attention", "both"), ("recurrence", "both")
"""Mixers with attention, and with a state; ``both`` has them side by side on one input."""
Keys = Literal["last", "selected", "shared"]
"""Which keys a query of a window sees: the last ones, those that the layer's own indexer selects,
or those that an earlier layer's selected."""
OF_HEADS = ("heads", "head_dim", "kv_heads", "kv_products", "summaries")
"""Attributes of a layer's heads; of the first three, 0 stands for the model's."""
PREDICTION = "multi-token prediction layer"
"""Name of prediction heads in ``Model.left_out``, where a checkpoint has them."""


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
    # Width to which a product brings the hidden state before it goes to routed experts, and from
    # which another one brings the sum of their results back (LatentMoE, arXiv 2512.20848); 0 if
    # experts take the hidden state
    latent: int = 0
    idle: int = 0  # experts of the router that return their input


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


@dataclass(frozen=True)
class Indexer:
    """Part of a layer that scores all keys of a query and selects those that attention reads.

    It is the lightning indexer of DeepSeek Sparse Attention (DeepSeek-V3.2-Exp, section 2.1):
    weighted sums over its heads of products with one key a token, the largest of which count.
    """

    heads: int
    dim: int  # width of a head, and of the key that a cache stores for each token
    weighs: bool = True  # whether heads have weights for one sum; else each selects by itself
    tokens: int = 1  # tokens that one of its keys sums up, see ``Summaries``
    pooled: bool = False  # whether such a key is the mean of those of its tokens, as in GLM-5.3

    @property
    def columns(self) -> int:
        """Columns of the products of the hidden state: a token's key, and weights of the heads."""
        return self.dim * (1 if self.tokens == 1 or self.pooled else 4) + self.heads * self.weighs


@dataclass(frozen=True)
class LowRank:
    """Low-rank queries and output of DeepSeek-V4's attention, whose one key is its value too."""

    queries: int  # width of the compressed query
    groups: int  # groups of heads, each of which has a product of its own to the next width
    output: int  # width of one group's result, of which one product makes the layer's


@dataclass(frozen=True)
class Summaries:
    """Keys that sum up several tokens each, beside the last keys (DeepSeek-V4, section 2.3)."""

    tokens: int
    most: int = 0  # number that the layer's indexer selects for a query; 0 for all
    overlap: bool = False  # whether one also sums up the tokens of the one before it


@dataclass(frozen=True)
class LayerInput:
    """Embedding that each layer has of its own: the per-layer embeddings of Gemma 3n and Gemma 4.

    Columns of a table and a projection of the model's embedding are added and, in the layer, gated
    by a product of the hidden state, and brought to its width by another one.
    """

    width: int  # columns of one layer
    vocab: int  # tokens of the table


@dataclass(frozen=True)
class Streams:
    """Copies of the hidden state, of which layers read and write mixtures.

    They are alternating updates, with learned augmented residuals (Gemma 3n; arXiv 2301.13310,
    2411.07501), or hyper-connections (DeepSeek-V4; arXiv 2409.19606).
    """

    count: int
    columns: int  # columns of one layer's products with a hidden state, for what it mixes
    vectors: int  # one layer's parameters that no product multiplies
    # Hidden states that one layer reads or writes more often than a layer without copies
    passes: int
    ends: int = 0  # weights of products that make copies before the first layer and merge them


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

    mixer: Mixer = "attention"  # part that mixes tokens
    window: int = 0  # largest number of keys that a query sees; 0 for all keys before it
    keys: Keys = "last"  # which ones they are
    experts: bool = False  # whether the feed-forward part has experts
    mlp: bool = True  # whether there is a feed-forward part
    heads: int = 0  # query heads; 0 for the model's
    head_dim: int = 0  # width of a head; 0 for the model's
    kv_heads: int = 0  # key-value heads; 0 for the model's
    # Projections to keys and values: 2, 1 that gives both, or 0 if both are an earlier layer's
    kv_products: int = 2
    summaries: Summaries | None = None  # keys of several tokens beside those of the window
    ffn: int = 0  # inner width of a dense feed-forward part; 0 for the model's


@dataclass(frozen=True)
class Model:
    """Architecture of a decoder-only transformer.

    Attributes
    ----------
    name : str
    layers : int
        Number of layers.
    hidden : int
        Width of the hidden state.
    heads, kv_heads : int
        Query heads and key-value heads of a layer.
    head_dim : int
        Width of a head; the mean of keys and values where they differ.
    ffn : int
        Inner width of the dense feed-forward part; 0 if no layer has one.
    vocab : int
        Tokens of the vocabulary.
    gated_mlp : bool
        Whether the feed-forward part has a gate beside its up-projection (SwiGLU).
    tied_embeddings : bool
        Whether the output layer is the embedding.
    positions : int
        Number of learned positions; 0 for none (rotary, ALiBi).
    norm : {"rms", "layer", "plain"}
        RMSNorm has a scale, LayerNorm a scale and a shift, a plain norm no parameters.
    kv_products : {2, 1, 0}
        Projections to keys and values of a layer: one for each; one that gives keys and, without
        norm and position, values; or none in a layer that reads those of an earlier one.
    qkv_bias, output_bias, mlp_bias : bool
        Whether the projections to queries, keys and values, of attention's output, and of the
        feed-forward part have a bias.
    qk_norm : bool
        Whether queries and keys are normalised head by head.
    window : int
        Largest number of keys that a query sees; 0 for all keys before it.
    keys : {"last", "selected", "shared"}
        Which ones they are: the last ones, those that the layer's indexer selects, or those that
        the indexer of an earlier layer selected.
    dropout : bool
        Whether masks of dropout are kept for the backward pass.
    experts : Experts or None
    latent : LatentAttention or None
    indexer : Indexer or None
        Indexer of layers that select keys.
    recurrence : Recurrence or None
        Mixer of layers without attention.
    low_rank : LowRank or None
    summaries : Summaries or None
    layer_input : LayerInput or None
    streams : Streams or None
    layout : tuple of Layer
        Kind of every layer, in order. It is empty if all layers are alike, apart from leading ones
        without experts that ``experts.dense_layers`` counts.
    mixer : {"attention", "recurrence", "both", "none"}
        Mixer of all layers if ``layout`` is empty.
    parallel : bool
        Whether attention and the feed-forward part work in parallel on one input
        (arXiv 2204.02311, section 2).
    norms : int
        Norms over the hidden width of a layer with both parts: 2, one before each; 1 that parallel
        parts share; or 4, before and after each.
    qk_norm_wide : bool
        Whether queries and keys are normalised with a scale for every column of every head.
    attention_gate, head_gate : bool
        Whether a projection gates attention's output: one as wide as the heads' values, or one
        with a column for each head.
    sinks : bool
        Whether each head has a learned score that belongs to no key (an attention sink).
    final_norm, embedding_norm : bool
        Whether there is a norm after the layers, and after the embedding.
    embedding_width : int
        Width of the embedding if projections lead from and to another hidden width, else 0.
    head_bias : bool
        Whether the output layer has a bias.
    precision : str
        Precision of the stored weights; ``"mxfp4"`` and
        ``"int4"`` are those of routed experts alone, beside which
        others have 16 bits (gpt-oss, Kimi), or fp8 in ``"fp8-mxfp4"`` (DeepSeek-V4).
    prediction_heads : int
        Last ones of the layers that each predict one token more, see :meth:`with_prediction_heads`.
    left_out : tuple of str
        Parts of the checkpoint that are not part of this model, such as a vision tower.
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
    norm: Literal["rms", "layer", "plain"] = "rms"
    kv_products: int = 2
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    window: int = 0
    keys: Keys = "last"
    dropout: bool = False
    experts: Experts | None = None
    latent: LatentAttention | None = None
    indexer: Indexer | None = None
    recurrence: Recurrence | None = None
    low_rank: LowRank | None = None
    summaries: Summaries | None = None
    layer_input: LayerInput | None = None
    streams: Streams | None = None
    layout: tuple[Layer, ...] = ()
    mixer: Mixer = "attention"
    parallel: bool = False
    norms: int = 2
    qk_norm_wide: bool = False
    attention_gate: bool = False
    head_gate: bool = False
    sinks: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    embedding_width: int = 0
    head_bias: bool = False
    precision: str = "bf16"
    prediction_heads: int = 0
    left_out: tuple[str, ...] = ()

    @property
    def _facts(self) -> dict[str, object]:
        return {"parameters": f"{self.parameters:,}", **display.stated_fields(self)}

    def __repr__(self) -> str:
        sizes = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")
        facts = {name: getattr(self, name) for name in sizes}
        parameters = f"{self.parameters:,}"
        return display.line("Model", {"name": self.name, "parameters": parameters, **facts})

    def _repr_html_(self) -> str:
        return display.table(self.name, self._facts)

    def __post_init__(self) -> None:
        for field in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab"):
            if getattr(self, field) < 1:
                raise InputError(
                    f"model {self.name}: {field} is {getattr(self, field)}; at least 1."
                )
        wrong = ""
        if self.heads % self.kv_heads:
            wrong = f"{self.heads} heads are not a multiple of its {self.kv_heads} key-value heads"
        elif self.experts and self.experts.per_token > self.experts.count:
            wrong = f"a token visits {self.experts.per_token} experts of only {self.experts.count}"
        elif self.layout and len(self.layout) != self.layers:
            kinds = f"the config lists {len(self.layout)} kinds of layers"
            wrong = f"{kinds} for {self.layers} layers"
        if wrong:
            raise InputError(f"model {self.name}: {wrong}. Correct the config.")

    @cached_property
    def each_layer(self) -> tuple[Layer, ...]:
        """Kind of every layer, in order."""
        if self.layout:
            return self.layout
        plain = Layer(
            self.mixer, self.window, self.keys, mlp=self.ffn > 0, kv_products=self.kv_products
        )
        if self.experts is None:
            return (plain,) * self.layers
        dense = min(self.layers, self.experts.dense_layers)
        return (plain,) * dense + (replace(plain, experts=True, mlp=True),) * (self.layers - dense)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """Kinds of layers that occur, in the order of their first layer."""
        return tuple(dict.fromkeys(self.each_layer))

    @cached_property
    def _of_kinds(self) -> dict[Layer, Model]:
        return {}

    def of_kind(self, kind: Layer) -> Model:
        """Return the model with all layers of one kind, by which such a layer is costed."""
        model = self._of_kinds.get(kind)
        if model is None:
            model = self._of_kinds[kind] = self._with_one_kind(kind)
        return model

    def over_layers(self, each: Callable[[Model, bool], Number]) -> Number:
        """Sum over all layers what a function gives for one, and for whether it has experts."""
        counts = Counter(self.each_layer)
        return sum(counts[kind] * each(self.of_kind(kind), kind.experts) for kind in counts)

    @cached_property
    def by_heads(self) -> tuple[Model, ...]:
        """Models of the attention layers with alike heads, for each kind of heads that occurs."""
        heads: dict[tuple[object, ...], list[Layer]] = {}
        for layer in self.each_layer:
            if layer.mixer in ATTENTION:
                alike = tuple(getattr(layer, name) for name in OF_HEADS)
                heads.setdefault(alike, []).append(layer)
        if len(heads) <= 1:
            return (self,)
        return tuple(
            replace(
                self, layers=len(some), layout=tuple(some), prediction_heads=0,
                **self._heads_of(some[0]),
            )
            for some in heads.values()
        )  # fmt: skip

    def _heads_of(self, kind: Layer) -> dict[str, Any]:
        return {name: getattr(kind, name) or getattr(self, name) for name in OF_HEADS[:3]} | {
            name: getattr(kind, name) for name in OF_HEADS[3:]
        }

    def _with_one_kind(self, kind: Layer) -> Model:
        sparse = self.experts if kind.experts else None
        return replace(
            self,
            layout=(),
            mixer=kind.mixer,
            window=kind.window,
            keys=kind.keys,
            **self._heads_of(kind),
            indexer=self.indexer if kind.keys == "selected" else None,
            ffn=(kind.ffn or self.ffn) if kind.mlp else 0,
            experts=replace(sparse, dense_layers=0) if sparse else None,
        )

    def with_prediction_heads(self, count: int) -> Model:
        """Return the model with further layers that each predict one token more.

        Multi-token prediction as DeepSeek-V3 trains it (arXiv 2412.19437, section 2.2) and
        Megatron-Core runs it: behind the last layer, each head has norms of its input and of the
        next token's embedding, a projection from both to the hidden width, a layer like the last
        one, a norm, and logits and a loss by the model's own output layer.
        """
        if count < 0 or self.prediction_heads:
            raise InputError(
                f"model {self.name}: {count} prediction heads beside the {self.prediction_heads} "
                "that it has. Use 1 or more for a model without any."
            )
        layout = (*self.each_layer, *self.each_layer[-1:] * count)
        kept = tuple(words for words in self.left_out if PREDICTION not in words or not count)
        more = {"layers": self.layers + count, "layout": layout, "left_out": kept}
        return replace(self, prediction_heads=count, **more) if count else self  # type: ignore[arg-type]

    @property
    def prediction_parameters(self) -> int:
        """Parameters of prediction heads beside their layers: projections and norms."""
        return self.prediction_heads * (2 * self.hidden**2 + 3 * self.norm_parameters)

    @property
    def query_width(self) -> int:
        """Columns of the queries of all heads."""
        if self.latent:
            return self.heads * (self.latent.nope_dim + self.latent.rope_dim)
        return self.heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Columns of attention's output before its projection."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def key_columns(self) -> int:
        """Columns of keys and values, and of what summaries of several tokens are made of."""
        series = 1 + self.summaries.overlap if self.summaries else 0
        return (self.kv_products * self.kv_heads + 2 * series) * self.head_dim

    @property
    def latent_width(self) -> float:
        """Width of a head where all heads read the cache as it lies: mean of keys and values."""
        if self.latent is None:
            return self.head_dim
        return self.latent.kv_rank + self.latent.rope_dim / 2

    @property
    def moe_layers(self) -> int:
        """Number of layers with experts."""
        return sum(layer.experts for layer in self.each_layer)

    @property
    def most_stages(self) -> int:
        """Largest number of pipeline stages: 1 where layers read what the first layers made."""
        reads = self.layer_input or any(not layer.kv_products for layer in self.each_layer)
        return 1 if reads else self.layers

    @property
    def dense_columns(self) -> int:
        """Inner columns of the dense feed-forward parts of all layers."""
        dense = [layer for layer in self.each_layer if layer.mlp and not layer.experts]
        return sum(layer.ffn or self.ffn for layer in dense)

    @property
    def expert_hidden(self) -> int:
        """Width of what routed experts take and return."""
        return (self.experts and self.experts.latent) or self.hidden

    @property
    def norm_parameters(self) -> int:
        """Parameters of one norm over the hidden width."""
        return self.hidden * {"layer": 2, "rms": 1, "plain": 0}[self.norm]

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: embedding, learned positions, projection, norm."""
        width = self.embedding_width or self.hidden
        projection = self.embedding_width * self.hidden
        norm = self.norm_parameters * self.embedding_norm
        size = self.vocab * width + self.positions * self.hidden + projection + norm
        if inputs := self.layer_input:
            size += self.layers * inputs.width * (inputs.vocab + self.hidden) + inputs.width
        return size + (self.streams.ends if self.streams else 0)

    @property
    def head_parameters(self) -> int:
        """Parameters of the output layer beyond those that it shares with the embedding."""
        width = self.embedding_width or self.hidden
        output = 0 if self.tied_embeddings else self.vocab * width
        return output + self.embedding_width * self.hidden + self.vocab * self.head_bias

    @property
    def parameters(self) -> int:
        """Number of parameters of embedding, layers, final norm and output layer.

        Examples
        --------
        >>> from workloads.models.huggingface import named
        >>> named("llama-3.1-405b").parameters
        405853388800
        """
        layers = self.over_layers(lambda model, moe: layer_parameters(model, moe=moe))
        norm = self.norm_parameters * self.final_norm
        ends = self.embedding_parameters + self.head_parameters + self.prediction_parameters
        return ends + layers + norm


class Size(NamedTuple):
    """Numbers of parameters of a part of a layer."""

    weights: int  # those of matrix products
    vectors: int  # all others: biases, norms, decays


def mixer_size(model: Model) -> Size:
    """Count the parameters of one layer's mixer: projections, biases, norms of queries and keys."""
    h, q, mixer, latent = model.hidden, model.query_width, model.recurrence, model.latent
    if model.mixer == "none":
        return Size(0, 0)
    state = Size(0, 0)
    if model.mixer in RECURRENCE and mixer:
        state = Size(h * (mixer.columns + mixer.inner) + mixer.products, mixer.other)
    if model.mixer == "recurrence":
        return state
    index, output = index_size(model), model.value_width * h
    if latent:
        rank = latent.query_rank
        down = h * (latent.kv_rank + latent.rope_dim)
        up = latent.kv_rank * model.heads * (latent.nope_dim + latent.value_dim)
        weights = ((h + q) * rank if rank else h * q) + down + up
        weights += output * (1 + model.attention_gate)
        vectors = rank + latent.kv_rank + index.vectors
        return Size(weights + index.weights + state.weights, vectors + state.vectors)
    kv, both = model.kv_heads * model.head_dim, model.key_columns
    if low := model.low_rank:
        weights = low.queries * (h + q) + h * both + low.output * (q + low.groups * h)
        summed = model.summaries.tokens * (both - kv) // 2 + kv if model.summaries else 0
        vectors = low.queries + kv + summed + model.heads * model.sinks
        return Size(weights + index.weights, vectors + index.vectors)
    heads = 1 + (model.kv_products > 0)
    weights = h * (q * (1 + model.attention_gate) + both + model.heads * model.head_gate) + output
    biases = (q + both) * model.qkv_bias + h * model.output_bias
    norms = heads * model.head_dim * model.qk_norm + (q + kv) * model.qk_norm_wide
    vectors = biases + norms + model.heads * model.sinks + index.vectors
    return Size(weights + index.weights + state.weights, vectors + state.vectors)


def index_size(model: Model) -> Size:
    """Count the parameters of one layer's indexer: queries, key and its LayerNorm, head weights."""
    index = model.indexer
    if index is None or model.keys != "selected":
        return Size(0, 0)
    rank = model.latent.query_rank if model.latent else model.low_rank and model.low_rank.queries
    queries = (rank or model.hidden) * index.heads * index.dim
    vectors = 2 if index.tokens == 1 or index.pooled else 1 + 2 * index.tokens  # places in a sum
    return Size(queries + model.hidden * index.columns, vectors * index.dim)


def expert_parameters(model: Model) -> int:
    """Count the parameters of one routed expert."""
    return sum(_expert_size(model))


def _expert_size(model: Model) -> Size:
    if model.experts is None:
        return Size(0, 0)
    matrices, ffn = 3 if model.gated_mlp else 2, model.experts.ffn
    biases = (ffn * (matrices - 1) + model.expert_hidden) * model.experts.bias
    return Size(matrices * model.expert_hidden * ffn, biases)


def mlp_size(model: Model, *, moe: bool, visited: bool = False) -> Size:
    """Count a layer's feed-forward parameters, with all experts or those ``visited``."""
    h, matrices, experts = model.hidden, 3 if model.gated_mlp else 2, model.experts
    if not moe or experts is None:
        biases = (model.ffn * (matrices - 1) + h) * model.mlp_bias
        return Size(matrices * h * model.ffn, biases if model.ffn else 0)
    one, count = _expert_size(model), experts.per_token if visited else experts.count
    shared = matrices * h * experts.shared_ffn + h * experts.shared_gate
    routed = experts.count + experts.idle
    weights = count * one.weights + shared + routed * h + 2 * h * experts.latent
    return Size(weights, count * one.vectors + routed * experts.router_bias)


def beside_size(model: Model) -> Size:
    """Count one layer's parameters for an embedding of its own and copies of the hidden state."""
    inputs, streams = model.layer_input, model.streams
    columns = 2 * inputs.width if inputs else 0
    norms = model.norm_parameters if inputs else 0
    if streams:
        columns, norms = columns + streams.columns, norms + streams.vectors
    return Size(model.hidden * columns, norms)


def layer_norms(model: Model, *, moe: bool) -> int:
    """Count the norms over the hidden width in one layer: half as many if it has one part only."""
    parts = (model.mixer != "none") + bool(model.ffn or (moe and model.experts))
    return -(-model.norms * parts // 2)


def layer_parameters(model: Model, *, moe: bool) -> int:
    """Count the parameters of one layer: mixer, feed-forward part and norms."""
    norms = layer_norms(model, moe=moe) * model.norm_parameters + sum(beside_size(model))
    return sum(mixer_size(model)) + sum(mlp_size(model, moe=moe)) + norms


# Floating-point operations that a model needs: the numerator of MFU.
# Only matrix products count, with two operations for a multiplication and an addition. Attention
# scores are *causal* by default: scores above the diagonal are not needed, so they are not counted,
# whether a kernel skips or computes them. ``causal=False`` counts the whole square, as the
# definition of MFU in arXiv 2204.02311 (appendix B) does; it gives a larger MFU for the same time.

BACKWARD = 2  # matrix products of the backward pass for each one of the forward pass: two gradients


def keys_seen(model: Model, seq: int, *, causal: bool = True) -> float:
    """Return the number of keys that a query sees, in the mean over the positions of a sequence."""
    seen = _mean_keys(min(seq, model.window or seq), seq, causal=causal)
    if some := model.summaries:
        most = min(seq, some.most * some.tokens or seq)
        seen += _mean_keys(most, seq, causal=causal) / some.tokens
    return seen


def _mean_keys(most: int, seq: int, *, causal: bool) -> float:
    """Mean over the positions of a sequence of the keys before each, of which ``most`` count."""
    return (most * (most + 1) / 2 + (seq - most) * most) / seq if causal else float(most)


def keys_scored(model: Model, seq: int, *, selected: bool = False, causal: bool = True) -> float:
    """Return the mean number of keys of a query that an indexer scores, or of those selected."""
    each, most = model.indexer.tokens if model.indexer else 1, model.window
    if model.summaries:
        most = model.summaries.most * each
    return _mean_keys(min(seq, most) if selected else seq, seq, causal=causal) / each


def index_flops(model: Model, seq: int, *, selected: bool = False, causal: bool = True) -> float:
    """FLOPs of the scores that one layer's indexer gives all keys of a query, or those selected."""
    if model.indexer is None or model.keys != "selected":
        return 0.0
    width = model.indexer.heads * model.indexer.dim
    return 2 * width * keys_scored(model, seq, selected=selected, causal=causal)


def attention_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """FLOPs of the scores and weighted sums of one layer, for the forward pass of one token."""
    # A recurrent mixer updates each element of its state and reads it: a product and a sum each.
    state = model.recurrence.state if model.mixer in RECURRENCE and model.recurrence else 0
    if model.mixer not in ATTENTION:
        return 4.0 * state
    widths = model.query_width + model.value_width
    index = index_flops(model, seq, causal=causal)
    return 2 * widths * keys_seen(model, seq, causal=causal) + index + 4.0 * state


def all_attention_flops(model: Model, seq: int) -> float:
    """FLOPs of the scores and weighted sums of all layers, for the forward pass of one token."""
    return model.over_layers(lambda one, _: attention_flops(one, seq))


def layer_flops(model: Model, seq: int, *, moe: bool, causal: bool = True) -> float:
    """FLOPs of one layer for the forward pass of one token: two for each weight, and attention."""
    weights = mixer_size(model).weights + mlp_size(model, moe=moe, visited=True).weights
    weights += beside_size(model).weights
    return 2 * weights + attention_flops(model, seq, causal=causal)


def forward_flops(model: Model, seq: int, *, causal: bool = True) -> float:
    """FLOPs of the whole model for the forward pass of one token, with the output layer."""
    # There are about two for each parameter, and attention besides:
    layers = model.over_layers(lambda one, moe: layer_flops(one, seq, moe=moe, causal=causal))
    return layers + output_flops(model)


def output_flops(model: Model) -> float:
    """FLOPs of a token outside of layers: the output layer, for each prediction head again."""
    # A head also projects its input and an embedding to the hidden width.
    heads, hidden = model.prediction_heads, model.hidden
    inputs = model.layers * model.layer_input.width if model.layer_input else 0
    columns = (1 + heads) * model.vocab + inputs
    ends = model.streams.ends if model.streams else 0
    return 2 * columns * hidden + 4 * heads * hidden * hidden + 2 * ends


def training_flops(model: Model, seq: int, tokens: int, *, causal: bool = True) -> float:
    """FLOPs of one optimizer step over ``tokens``, without recomputation."""
    # Returns three times the forward pass (arXiv 2001.08361, section 2.1), but for scores of an
    # indexer: only those of selected keys have gradients (DeepSeek-V3.2-Exp, section 2.1.1).
    idle = sum(
        index_flops(model.of_kind(kind), seq, causal=causal)
        - index_flops(model.of_kind(kind), seq, selected=True, causal=causal)
        for kind in model.each_layer
    )
    forward = forward_flops(model, seq, causal=causal)
    return ((1 + BACKWARD) * forward - BACKWARD * idle) * tokens
