"""Reader of a decoder's feed-forward part, dense or with experts, from the fields of a config."""

from __future__ import annotations

from typing import Any

from workloads.models.attention_fields import BIAS, HIDDEN, depth
from workloads.models.fields import Reader
from workloads.models.parts import Experts

FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_config.ffn_hidden_size")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
GATED = ("silu", "swish", "swiglu", "geglu", "reglu")
"""Activations that have a gate unless a family says otherwise."""
COUNT = (
    "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts",
    "ffn_config.moe_num_experts", "num_routed_experts",
)  # fmt: skip
PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk",
    "moe_k", "ffn_config.moe_top_k", "num_selected_experts",
)  # fmt: skip
EXPERT_FFN = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", *FFN)
SHARED_FFN = ("shared_intermediate_size", "moe_shared_expert_intermediate_size")
SHARED_GATED = "shared_expert_intermediate_size"
"""Field of the width of Qwen's shared expert, whose output is weighted by a learned gate."""
SHARED_COUNT = (
    "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert",
)  # fmt: skip


def feed_forward(read: Reader) -> dict[str, Any]:
    """Read the inner width, gate and biases, and the experts of a mixture."""
    activation = str(read.value(*ACTIVATION) or "").lower()
    gated = any(word in activation for word in GATED) or read.flag("use_glu")
    bias = not read.flag("no_bias") if read.has("no_bias") else read.flag("mlp_bias", *BIAS)
    mixture = experts(read)
    return {
        "ffn": _inner(read, sparse=mixture is not None),
        "gated_mlp": gated,
        "mlp_bias": bias,
        "experts": mixture,
    }


def _inner(read: Reader, *, sparse: bool) -> int:
    """Inner width of the dense feed-forward part; 0 for a model that has none."""
    if read.has("mamba_version") and not read.has("num_attention_heads"):
        return 0
    hidden = read.count(*HIDDEN)
    ratio = read.number("expansion_ratio", 4.0)
    widths = ("intermediate_size_mlp", *FFN) if sparse else FFN
    shared = read.count(*SHARED_FFN, default=0, least=0)
    if not sparse and shared and read.count(*COUNT, default=0, least=0) == 0:
        return shared  # Granite's hybrids without experts have only their shared part
    inner = first_count(read, widths, round(ratio * hidden))
    if read.flag("block_auto_adjust_ff_dim"):  # LFM2 rounds two thirds of it up
        multiple = read.count("block_multiple_of", default=256)
        inner = int(read.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = -(-inner // multiple) * multiple
    return inner


def experts(read: Reader) -> Experts | None:
    """Return the experts of the layers that have some; None for a model with one or none."""
    count = first_count(read, COUNT, 0)
    if count <= 1:
        return None
    ffn = first_count(read, EXPERT_FFN, None)
    shared = read.count(*SHARED_FFN, default=0, least=0)
    gated = read.count(SHARED_GATED, default=0, least=0)
    if not shared and not gated:
        shared = ffn * first_count(read, SHARED_COUNT, 0)
    return Experts(
        count=count,
        per_token=first_count(read, PER_TOKEN, None),
        ffn=ffn,
        shared_ffn=shared or gated,
        shared_gate=gated > 0,
        dense_layers=dense_layers(read),
        router_bias=read.value("topk_method") == "noaux_tc"
        or read.flag("use_routing_bias", "moe_router_enable_expert_bias", "router_bias"),
        bias=read.flag("expert_bias"),
    )


def first_count(read: Reader, names: tuple[str, ...], default: int | None) -> int:
    """Return a count, which some families list for each layer: then that of the first layer."""
    value = read.value(*names)
    if isinstance(value, list) and value:
        name = next(field for field in names if read.has(field))
        return Reader({name: value[0]}, read.name).count(name)
    return read.count(*names, default=default, least=0)


def dense_layers(read: Reader) -> int:
    """Count the leading layers without experts."""
    names = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    return min(read.count(*names, default=0, least=0), depth(read))


def has_experts(read: Reader, layer: int) -> bool:
    """Return whether a layer of a mixture has experts, by a list of layers or a period."""
    listed = read.value("mlp_layer_types")
    if isinstance(listed, list):
        return layer < len(listed) and listed[layer] == "sparse"
    if layer < dense_layers(read) or layer in read.items("mlp_only_layers"):
        return False
    chosen = read.value("moe_layers")
    if isinstance(chosen, list):
        return layer in chosen
    frequency = read.value("moe_layer_freq")
    if isinstance(frequency, list):
        return layer < len(frequency) and bool(frequency[layer])
    period = read.count("expert_layer_period", default=1)
    if layer % period != read.count("expert_layer_offset", default=0, least=0) % period:
        return False
    step = read.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    if (layer + 1) % step:
        return False
    return layer % read.count("moe_layer_freq", "moe_layer_interval", default=1) == 0
