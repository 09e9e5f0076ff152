"""Reader of layers that differ: windows, experts in some, state-space mixers between attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from topologies.support.errors import InputError
from workloads.models.model import (
    ATTENTION,
    RECURRENCE,
    Experts,
    Indexer,
    Keys,
    LatentAttention,
    Layer,
    LayerInput,
    LowRank,
    Mixer,
    Recurrence,
    Streams,
    Summaries,
)
from workloads.models.reader import Reader, first_count

WINDOW = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
PATTERN = (
    "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers",
    "layer_switch",
)  # fmt: skip
WINDOWED = ("sliding_attention", "chunked_attention", "local", "sliding_window_attention")
RECURRENT = ("linear_attention", "mamba", "conv", "recurrent", "lightning_attention", "mamba2")
KIMI = "linear_attn_config"
"""Field of the linear attention between latent attention, as Kimi Linear has it."""
BLOCKS = "sparse_attention_config"
"""Field of the selection of whole blocks of keys, as MiniMax-M3 has it."""
LETTERS = {
    "M": Layer("recurrence", mlp=False),
    "*": Layer(mlp=False),
    "-": Layer("none"),
    "E": Layer("none", experts=True),
}
"""Nemotron-H's letters for layers, each of which has one part: a mixer, a feed-forward part."""
SPELLED = {
    "linear_attention": "M", "mamba": "M", "full_attention": "*", "attention": "*", "mlp": "-",
    "moe": "E",
}  # fmt: skip
"""Letters of the words that some configs have instead."""
TYPES = ("layer_types", "layers_block_type", "layer_type")
"""Fields that list the kind of every layer."""


def layers(read: Reader) -> dict[str, Any]:
    """Return the mixer, window and layout of the layers, as fields of a model."""
    letters = read.value("hybrid_override_pattern")
    if read.flag("one_part_a_layer") and read.has(*TYPES):
        letters = "".join(SPELLED.get(str(kind), "?") for kind in read.items(*TYPES))
    if isinstance(letters, str) and letters:
        unknown = next((letter for letter in letters if letter not in LETTERS), None)
        if unknown is not None:
            raise InputError(
                f"model {read.name}: hybrid_override_pattern has {unknown!r}; it may have "
                f"{', '.join(LETTERS)}."
            )
        layout = tuple(LETTERS[letter] for letter in letters)
        return {"layers": len(layout), "layout": layout, "recurrence": recurrence(read)}
    if read.has("mamba_version") and not read.has("num_attention_heads"):
        return {"mixer": "recurrence", "recurrence": recurrence(read)}
    sparse = first_count(read, COUNT, 0) > 1
    wide, kinds = _global_heads(read), []
    for layer in range(depth(read)):
        mixer, moe = _mixer(read, layer), sparse and has_experts(read, layer)
        window, keys = _keys_of(read, layer) if mixer in ATTENTION else (0, "last")
        others = wide if mixer in ATTENTION and not window else {}
        others = {**others, **_heads_of(read, layer, window), **_beyond_first(read, layer)}
        if read.has(NAS):
            others = _block(read, layer)
            mixer = others.pop("mixer")
        if read.has("o_lora_rank"):
            others = {"kv_products": 1, "summaries": _summaries(read, layer)}
            window, keys = _window(read), "last"
            keys = "selected" if others["summaries"] and others["summaries"].most else "last"
        kinds.append(Layer(mixer, window, keys, experts=moe, **others))
    layout = tuple(kinds)
    mixes = any(layer.mixer in RECURRENCE for layer in layout)
    if not mixes and read.items(*TYPES):  # sizes of mixers that no layer has say nothing
        read.has(*(name for name in read.fields if name.startswith("mamba_")))
    from_first_sparse = [sparse and layer >= dense_layers(read) for layer in range(len(layout))]
    regular = [layer.experts for layer in layout] == from_first_sparse
    fields: dict[str, Any] = {}
    if any(layer.keys != "last" for layer in layout):
        count = read.count("index_n_heads", f"{BLOCKS}.sparse_num_index_heads")
        width = read.count("index_head_dim", f"{BLOCKS}.sparse_index_dim")
        pool, weighs = read.count("index_kpool", default=1), not read.has(BLOCKS)
        finest = min((one.summaries.tokens for one in layout if one.summaries), default=pool)
        fields = {"indexer": Indexer(count, width, weighs, finest, pooled=pool > 1)}
    alike = len({replace(layer, experts=False) for layer in layout}) == 1
    if regular and not mixes and alike and not (wide or read.has("o_lora_rank")):
        # Layers differ in no more than leading dense ones, which ``Experts.dense_layers`` counts.
        return {"window": layout[0].window, "keys": layout[0].keys, **fields}
    return {"layout": layout, "recurrence": recurrence(read) if mixes else None, **fields}


def _keys_of(read: Reader, layer: int) -> tuple[int, Keys]:
    """Return the largest number of keys that a query of a layer sees, and which ones they are."""
    if read.has("index_topk"):
        # Layers of GLM-5.2 share indexers: by a list, or beyond some first ones by a period.
        kinds, period = read.items("indexer_types"), read.count("index_topk_freq", default=1)
        first = max(1, read.count("index_skip_topk_offset", default=1, least=0))
        selects = layer < first or (layer - first + 1) % period == 0
        selects = kinds[layer] == "full" if layer < len(kinds) else selects
        return read.count("index_topk"), "selected" if selects else "shared"
    blocks = read.items(f"{BLOCKS}.sparse_attention_freq")
    if layer < len(blocks) and blocks[layer]:
        count = read.count(f"{BLOCKS}.sparse_topk_blocks")
        return count * read.count(f"{BLOCKS}.sparse_block_size"), "selected"
    return (_window(read) if _is_windowed(read, layer) else 0), "last"


SUMMED = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens that one key sums up in layers of these kinds (DeepSeek-V4)."""


def _summaries(read: Reader, layer: int) -> Summaries | None:
    """Return the keys of several tokens that a layer has; None for a layer with a window alone."""
    ratios, kinds = read.items("compress_ratios"), read.items(*TYPES)
    kind = str(kinds[layer]) if layer < len(kinds) else ""
    ratio = read.count(f"compress_rates.{kind}", default=SUMMED.get(kind, 0), least=0)
    if layer < len(ratios):
        ratio = read.whole("compress_ratios", ratios[layer], least=0)
    if not ratio:
        return None
    if ratio not in SUMMED.values():
        raise InputError(
            f"model {read.name}: a key sums up {ratio} tokens in layer {layer}; 4 and 128 are "
            "modelled. Correct compress_ratios."
        )
    fine = ratio == SUMMED["compressed_sparse_attention"]
    return Summaries(ratio, read.count("index_topk") if fine else 0, overlap=fine)


OTHERS = "attention_other_setting"
"""Field of the heads of layers with a window, as Step 3.5 has it."""


OF_LAYER = {
    "num_attention_heads": "heads", "num_key_value_heads": "kv_heads", "head_dim": "head_dim",
}  # fmt: skip
"""Fields that ``per_layer_config`` may state for a layer, as transformers 5 writes them."""


def _heads_of(read: Reader, layer: int, window: int) -> dict[str, Any]:
    """Heads of a layer, where a list states them or layers with a window have others."""
    listed = read.items("num_attention_heads_per_layer")
    windowed = ("swa_num_attention_heads", "num_sliding_attention_heads")
    others = {
        "heads": (*windowed, f"{OTHERS}.num_attention_heads"),
        "kv_heads": ("swa_num_key_value_heads", f"{OTHERS}.num_attention_groups"),
    }
    counts = {name: read.count(*names, default=0) for name, names in others.items()}
    fields = counts if window else {}
    if window and read.has("swa_head_dim"):
        fields["head_dim"] = _head_dim(read, 0, ("swa_head_dim",), "swa_v_head_dim")
    if layer < len(listed):
        fields["heads"] = read.whole("heads", listed[layer])
    padded = (f"per_layer_config.{layer:0{digits}}" for digits in (1, 2, 3))
    differing = read.value(*padded)
    for name, value in differing.items() if isinstance(differing, Mapping) else ():
        if name not in OF_LAYER:
            raise InputError(
                f"model {read.name}: per_layer_config has {str(name)[:40]!r}; layers may differ in "
                f"{', '.join(OF_LAYER)}. Use a decoder whose layers do."
            )
        fields[OF_LAYER[name]] = read.whole(name, value)
    same = {"heads": read.count(*HEADS, default=0), "kv_heads": read.count(*KV_HEADS, default=0)}
    same["head_dim"] = _head_dim(read, 1)
    return {name: count for name, count in fields.items() if count and count != same[name]}


def _global_heads(read: Reader) -> dict[str, Any]:
    """Heads of layers without a window, where they are others than those of the rest (Gemma 4)."""
    if not read.has("global_head_dim"):
        return {}
    return {
        "head_dim": read.count("global_head_dim"),
        "kv_heads": read.count("num_global_key_value_heads", default=0, least=0),
        "kv_products": 2 - read.flag("attention_k_eq_v"),
    }


NAS = "block_configs"
"""Field of the parts and widths of every layer, as a search found them (Llama-Nemotron)."""


def _block(read: Reader, layer: int) -> dict[str, Any]:
    """Fields of a layer that ``block_configs`` states."""
    blocks = read.items(NAS)
    stated = blocks[layer] if layer < len(blocks) else None
    block = Reader(stated if isinstance(stated, Mapping) else {}, read.name)
    parts = ("attention.replace_with_linear", "ffn.replace_with_linear", "attention.window_length")
    for name in parts:
        if block.value(name):
            raise InputError(
                f"model {read.name}: {name} of layer {layer} is not modelled. "
                "Use a decoder without it."
            )
    width = math.ceil(int(2 * block.number("ffn.ffn_mult", 4.0) * read.count(*HIDDEN) / 3) / 256)
    fields: dict[str, Any] = {"mixer": "none", "mlp": not block.flag("ffn.no_op")}
    if not block.flag("attention.no_op"):
        group = block.count("attention.n_heads_in_group", default=1)
        fields |= {"mixer": "attention", "kv_heads": read.count(*HEADS) // group}
    return {**fields, "ffn": 256 * width}


def _beyond_first(read: Reader, layer: int) -> dict[str, Any]:
    """Fields of a layer that reads keys of an earlier one, or has a width of its own."""
    shared = layer >= depth(read) - read.count("num_kv_shared_layers", default=0, least=0)
    share = read.count("cla_share_factor", default=1)  # Hunyuan's cross-layer attention
    others: dict[str, Any] = {}
    if shared or (read.flag("use_cla") and layer % share):
        others = {"kv_products": 0}
    widths = read.value("intermediate_size")
    if isinstance(widths, list) and layer < len(widths) and widths[layer] != widths[0]:
        others["ffn"] = read.whole(FFN[0], widths[layer])
    if shared and read.flag("use_double_wide_mlp"):
        others["ffn"] = 2 * read.count(*FFN)
    return others


def _window(read: Reader) -> int:
    """Largest number of keys that a query of a windowed layer sees; 0 for no window."""
    if read.has("use_sliding_window") and not read.flag("use_sliding_window"):
        return 0
    return read.count(*WINDOW, default=0, least=0)


def _is_windowed(read: Reader, layer: int) -> bool:
    """Return whether the attention of a layer has the window that the model states."""
    kinds, pattern = read.items(*TYPES), read.value(*PATTERN)
    if listed := read.items("hybrid_layer_pattern"):  # MiMo-V2: 1 for a layer with a window
        return layer < len(listed) and bool(listed[layer])
    if kinds:
        return layer < len(kinds) and kinds[layer] in WINDOWED
    if isinstance(pattern, str) and pattern:
        return pattern[layer % len(pattern)] == "L"
    if pattern is not None:
        return (layer + 1) % read.count(*PATTERN) > 0
    if read.flag("use_sliding_window") and read.has("max_window_layers"):
        return layer >= read.count("max_window_layers", least=0)
    return True


def _mixer(read: Reader, layer: int) -> Mixer:
    """Mixer of a layer, by a list of kinds, a list of attention layers, or a period of them."""
    kinds = read.items(*TYPES)
    chosen = ("attn_layer_indices", "full_attn_idxs")
    if kinds and layer < len(kinds):
        attends = kinds[layer] not in RECURRENT
    elif read.has("mamba_d_ssm"):
        return "both"
    elif listed := read.items("attn_type_list"):
        attends = layer < len(listed) and listed[layer] == 1
    elif read.has(*chosen):
        attends = layer in read.items(*chosen)
    elif read.has("attn_layer_period"):
        period = read.count("attn_layer_period")
        offset = read.count("attn_layer_offset", default=0, least=0)
        attends = layer % period == offset % period
    elif read.has(KIMI):  # which counts its layers from 1
        attends = layer + 1 in read.items(f"{KIMI}.full_attn_layers")
    else:
        period = read.count("full_attention_interval", "layer_group_size", default=1)
        attends = (layer + 1) % period == 0
    return "attention" if attends else "recurrence"


STATE = ("state_size", "ssm_state_size", "mamba_d_state")
KERNEL = ("conv_kernel", "mamba_d_conv", "conv_kernel_size")
EXPAND = ("expand", "mamba_expand")


def recurrence(read: Reader) -> Recurrence:
    """Return the mixer of the layers without attention."""
    if read.has("linear_num_value_heads"):
        return _gated_delta(read)
    if read.has(KIMI, "linear_num_heads", "short_conv_kernel_size"):
        return _kimi_delta(read)
    if read.has("conv_L_cache"):
        return _short_convolution(read)
    version = read.count("mamba_version", default=2 if read.has("mamba_n_heads") else 1)
    if read.has(*STATE):
        return _mamba2(read) if version == 2 else _mamba(read)
    if read.has(*HEADS):
        return _lightning(read)
    raise InputError(f"model {read.name}: the config has no state_size for its mixers. Add it.")


def _mamba(read: Reader) -> Recurrence:
    """Sizes of a selective state-space mixer (arXiv 2312.00752, section 3.4)."""
    hidden, state = read.count(*HIDDEN), read.count(*STATE)
    inner = read.count(*EXPAND, default=2) * hidden
    if read.has("mamba_version") and not read.has("num_attention_heads"):
        inner = read.count("intermediate_size", default=inner)
    names = ("time_step_rank", "mamba_dt_rank")
    rank = math.ceil(hidden / 16) if read.value(*names) in (None, "auto") else read.count(*names)
    kernel, bias = read.count(*KERNEL, default=4), read.flag("use_bias", "mamba_proj_bias")
    other = inner * kernel + inner * read.flag("use_conv_bias", "mamba_conv_bias")
    other += inner + inner * state + inner  # bias of the time step, decay, skip
    other += (2 * inner + hidden) * bias
    other += (rank + 2 * state) * read.flag("mamba_norms")
    products = inner * (rank + 2 * state) + rank * inner
    return Recurrence("mamba", 2 * inner, inner, products, other, inner * state)


def _mamba2(read: Reader) -> Recurrence:
    """Sizes of a state-space mixer with one decay a head (arXiv 2405.21060, section 7)."""
    hidden, state = read.count(*HIDDEN), read.count(*STATE)
    heads = read.count("mamba_num_heads", "mamba_n_heads", "num_heads")
    width = read.value("mamba_head_dim", "mamba_d_head", "head_dim")
    if not isinstance(width, int):
        width = read.count(*EXPAND, default=2) * hidden // heads
    inner = heads * width
    groups = read.count("n_groups", "mamba_n_groups", default=1)
    convolved = inner + 2 * groups * state
    bias = read.flag("use_bias", "mamba_proj_bias")
    columns = inner + convolved + heads
    other = convolved * read.count(*KERNEL, default=4)
    other += convolved * read.flag("use_conv_bias", "mamba_conv_bias", default=True)
    other += 3 * heads + inner * read.flag("mamba_rms_norm", default=True)
    other += (columns + hidden) * bias
    return Recurrence("mamba2", columns, inner, 0, other, inner * state)


def _lightning(read: Reader) -> Recurrence:
    """Sizes of linear attention with an output gate and a norm (arXiv 2501.08313, section 2.2)."""
    width = read.count(*HEAD_DIM, default=read.count(*HIDDEN) // read.count(*HEADS))
    inner = read.count(*HEADS) * width
    return Recurrence("lightning", 4 * inner, inner, 0, inner, inner * width)


def _gated_delta(read: Reader) -> Recurrence:
    """Sizes of a gated delta rule (arXiv 2412.06464)."""
    key_width, value_width = read.count("linear_key_head_dim"), read.count("linear_value_head_dim")
    heads = read.count("linear_num_value_heads")
    keys = read.count("linear_num_key_heads") * key_width
    values = heads * value_width
    convolved = 2 * keys + values
    other = convolved * read.count("linear_conv_kernel_dim", default=4) + 2 * heads + value_width
    columns = convolved + values + 2 * heads
    return Recurrence("gated-delta", columns, values, 0, other, values * key_width)


def _kimi_delta(read: Reader) -> Recurrence:
    """Sizes of a delta rule with a decay for each column (arXiv 2510.26692, section 4)."""
    heads = read.count(f"{KIMI}.num_heads", "linear_num_heads", *HEADS)
    width = read.count(f"{KIMI}.head_dim", "linear_head_dim", *HEAD_DIM)
    kernels = "short_conv_kernel_size", "linear_conv_kernel_dim"
    inner, kernel = heads * width, read.count(f"{KIMI}.{kernels[0]}", *kernels, default=4)
    # The decay has a rank of one head's width, and so has the output gate unless it is whole. Both
    # are whole in Ling 3.
    whole = bool(read.value(f"{KIMI}.use_full_rank_gate")) + 2 * read.has("layer_group_size")
    columns = 3 * inner + heads + min(2, whole) * inner + max(0, 2 - whole) * width
    other = 3 * inner * kernel + heads + inner + width
    products = max(0, 2 - whole) * width * inner
    return Recurrence("gated-delta", columns, inner, products, other, inner * width)


def _short_convolution(read: Reader) -> Recurrence:
    """Sizes of a gated convolution over a few tokens, as LFM2 has it."""
    hidden, kernel = read.count(*HIDDEN), read.count("conv_L_cache")
    other = hidden * kernel + 5 * hidden * read.flag("conv_bias")
    return Recurrence("short-convolution", 3 * hidden, hidden, 0, other, hidden * kernel)


FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim", "ffn_config.ffn_hidden_size")
ACTIVATION = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
GATED = ("silu", "swish", "swiglu", "geglu", "reglu", "situ")
"""Activations that have a gate unless a family says otherwise."""
COUNT = (
    "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts",
    "ffn_config.moe_num_experts", "num_routed_experts",
)  # fmt: skip
PER_TOKEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk",
    "moe_k", "ffn_config.moe_top_k", "num_selected_experts", "top_k_experts",
)  # fmt: skip
EXPERT_FFN = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", *FFN)
ROUTER_BIAS = (
    "use_routing_bias", "use_moe_router_bias", "moe_router_enable_expert_bias", "use_expert_bias",
    "moe_use_aux_free", "router_bias",
)  # fmt: skip
SHARED_FFN = (
    "shared_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
)  # fmt: skip
SHARED_GATED = "shared_expert_intermediate_size"
"""Field of the width of Qwen's shared expert, whose output is weighted by a learned gate."""
SHARED_COUNT = (
    "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert",
)  # fmt: skip


def feed_forward(read: Reader) -> dict[str, Any]:
    """Read the inner width, gate and biases, and the experts of a mixture."""
    activation = str(read.value(*ACTIVATION) or "").lower()
    gated = read.flag("use_glu", "use_gated_activation")
    gated = gated or any(word in activation for word in GATED)
    bias = not read.flag("no_bias") if read.has("no_bias") else read.flag("mlp_bias", *BIAS)
    mixture = experts(read)
    return {
        "ffn": _inner(read, sparse=mixture is not None, gated=gated),
        "gated_mlp": gated,
        "mlp_bias": bias,
        "experts": mixture,
    }


def _inner(read: Reader, *, sparse: bool, gated: bool) -> int:
    """Inner width of the dense feed-forward part; 0 for a model that has none."""
    # Of models without a gate it is four times the hidden width where none is stated.
    if read.has("mamba_version") and not read.has("num_attention_heads"):
        return 0
    hidden = read.count(*HIDDEN)
    if read.has(NAS):
        return int(max(_block(read, layer)["ffn"] for layer in range(depth(read))))
    ratio = read.number("expansion_ratio", 4.0)
    widths = ("intermediate_size_mlp", "dense_intermediate_size", *FFN) if sparse else FFN
    shared = read.count(*SHARED_FFN, default=0, least=0)
    if not sparse and shared and read.count(*COUNT, default=0, least=0) == 0:
        read.has(*FFN)
        return shared  # Granite's hybrids without experts have only their shared part
    usual = not gated or sparse or read.has("expansion_ratio")
    inner = first_count(read, widths, round(ratio * hidden) if usual else None)
    if read.flag("block_auto_adjust_ff_dim"):  # LFM2 rounds two thirds of it up
        multiple = read.count("block_multiple_of", default=256)
        inner = int(read.number("block_ffn_dim_multiplier", 1.0) * int(2 * inner / 3))
        inner = -(-inner // multiple) * multiple
    return inner


def experts(read: Reader) -> Experts | None:
    """Return the experts of the layers that have some; None for a model with one or none."""
    count = first_count(read, COUNT, 0)
    if count <= 1:
        read.has(*PER_TOKEN[: read.has(*COUNT) * 9], "expert_layer_period", "expert_layer_offset")
        return None
    ffn = first_count(read, EXPERT_FFN, None)
    shared = read.count(*SHARED_FFN, default=0, least=0)
    gated = read.count(SHARED_GATED, default=0, least=0)
    if read.flag("enable_moe_block"):  # Gemma 4 has its dense part beside its experts
        shared = read.count(*FFN)
    elif not gated:
        shared = max(shared, ffn * first_count(read, SHARED_COUNT, 0))
    # Experts that return their input take an equal part of the choices.
    idle = read.count("zero_expert_num", default=0, least=0)
    per_token = max(1, round(first_count(read, PER_TOKEN, None) * count / (count + idle)))
    return Experts(
        count=count,
        per_token=per_token,
        idle=idle,
        ffn=ffn,
        shared_ffn=shared or gated,
        shared_gate=gated > 0,
        dense_layers=dense_layers(read),
        router_bias=read.value("topk_method") == "noaux_tc" or read.flag(*ROUTER_BIAS),
        bias=read.flag("expert_bias"),
        latent=read.count("moe_latent_size", "routed_expert_hidden_size", default=0, least=0),
    )


def dense_layers(read: Reader) -> int:
    """Count the leading layers without experts."""
    names = ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    return min(read.count(*names, default=0, least=0), depth(read))


def has_experts(read: Reader, layer: int) -> bool:
    """Return whether a layer of a mixture has experts, by a list of layers or a period."""
    listed = read.value("mlp_layer_types")
    if isinstance(listed, list):
        return layer < len(listed) and listed[layer] != "dense"
    if layer < dense_layers(read) or layer in read.items("mlp_only_layers"):
        return False
    chosen = read.value("moe_layers", "moe_layers_enum")
    if isinstance(chosen, str):
        return str(layer) in chosen.replace(" ", "").split(",")
    if isinstance(chosen, list):
        return layer in chosen
    frequency = read.value("moe_layer_freq")
    if isinstance(frequency, list):
        return layer < len(frequency) and bool(frequency[layer])
    period = read.count("expert_layer_period", default=1)
    if layer % period != read.count("expert_layer_offset", default=0, least=0) % period:
        return False
    if layer > read.count("moe_layer_end_index", default=layer, least=-1) >= 0:
        return False
    step = read.count("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    if (layer + 1) % step:
        return False
    return layer % read.count("moe_layer_freq", "moe_layer_interval", default=1) == 0


HIDDEN = ("hidden_size", "n_embd", "d_model")
MOST_LAYERS = 10_000  # largest number of layers of a model
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
    "attn_config.kv_n_heads", "n_kv_heads", "num_attention_groups",
)  # fmt: skip
HEAD_DIM = ("head_dim", "attention_head_dim", "kv_channels")
BIAS = ("use_bias", "add_bias_linear", "enable_bias", "bias")
"""Fields that give or deny all products of a layer a bias."""
RMS = ("rms_norm_eps", "rms_norm_epsilon", "rmsnorm")
"""Fields that only configs of models with RMSNorm have."""


def sizes(read: Reader) -> dict[str, Any]:
    """Read depth, widths, vocabulary, norms, and the embedding and output layers."""
    hidden = read.count(*HIDDEN)
    learned = read.flag("learned_positions")
    narrow = read.count("word_embed_proj_dim", default=hidden)
    fields: dict[str, Any] = {
        "layers": depth(read),
        "hidden": hidden,
        "vocab": read.count("padded_vocab_size", "vocab_size"),
        "norm": "rms" if read.value("norm_type") == "rms" or read.has(*RMS) else "layer",
        "tied_embeddings": read.flag(
            "shared_input_output_embedding",
            "tie_word_embeddings",
            "tie_embeddings",
            "tie_embedding",
            "use_embedding_sharing",
        ),
        "head_bias": read.flag("lm_head_bias"),
        "embedding_width": narrow if narrow != hidden else 0,
        "positions": _positions(read) if learned else 0,
        "final_norm": read.flag("do_layer_norm_before", default=True),
        "dropout": read.dropout(
            "attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "dropout"
        ),
    }
    # Attention and the feed-forward part may work in parallel.
    if read.flag("new_decoder_architecture"):
        norms = read.count("num_ln_in_parallel_attn", default=2)
        return {**fields, "parallel": True, "norms": norms}
    if read.flag("parallel_attn", "use_parallel_residual", "use_parallel_block"):
        return {**fields, "parallel": True, "norms": read.count("parallel_norms", default=1)}
    return fields


def depth(read: Reader) -> int:
    """Count the layers, from the list of their kinds if the config has no number."""
    letters = read.value("hybrid_override_pattern")
    listed = letters if isinstance(letters, str) else read.items("layers_block_type")
    layers = read.count(*LAYERS, default=len(listed) or None)
    layers *= read.count("attentions_a_layer", default=1)  # LongCat's layers have two each
    if layers > MOST_LAYERS:
        raise InputError(
            f"model {read.name}: {layers:,} layers, and at most {MOST_LAYERS:,} are simulated. "
            "Correct the config."
        )
    return layers


def _positions(read: Reader) -> int:
    """Number of learned positions, with those that a family reserves."""
    names = ("n_positions", "max_position_embeddings", "n_ctx")
    return read.count(*names) + read.count("position_offset", default=0)


def attention(read: Reader) -> dict[str, Any]:
    """Read heads, their width, biases and norms; latent attention where keys are compressed."""
    stateful = read.has(*STATE) and not read.has(*HEADS)
    if stateful or (read.has("mamba_version") and not read.has(HEADS[0])):
        # Heads of a model without attention are what tensor parallelism divides.
        inner = read.count("intermediate_size", default=2 * read.count(*HIDDEN))
        heads = read.count("num_heads", default=inner)
        return {"heads": heads, "kv_heads": heads, "head_dim": max(1, inner // heads)}
    hidden, heads = read.count(*HIDDEN), read.count(*HEADS)
    if not read.has(*HEAD_DIM) and hidden % heads and not read.has("kv_lora_rank"):
        raise InputError(
            f"model {read.name}: hidden_size {hidden} is not a multiple of "
            f"num_attention_heads {heads}. Correct the config or add head_dim."
        )
    normalised = read.flag("use_qk_norm", "qk_layernorm", "qk_norm")
    wide = read.value("qk_norm_shape") == "wide"
    fields: dict[str, Any] = {
        "heads": heads,
        "kv_heads": _kv_heads(read, heads),
        "head_dim": _head_dim(read, max(1, hidden // heads)),
        "head_gate": read.value("gating", "use_head_wise_attn_gate") in (True, "per-head"),
        "qk_norm": normalised and not wide,
        "qk_norm_wide": normalised and wide,
        "qkv_bias": _bias(
            read, "attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias",
        ),
        "output_bias": _bias(read, "attention_out_bias", "attention_bias"),
    }  # fmt: skip
    if read.has("kv_lora_rank"):
        fields |= _latent(read)
    if read.has("o_lora_rank"):
        sizes_of = [read.count(name) for name in ("q_lora_rank", "o_groups", "o_lora_rank")]
        fields |= {"low_rank": LowRank(*sizes_of), "kv_products": 1}
    return fields


def streams(read: Reader) -> Streams | None:
    """Return the copies of the hidden state that layers mix; None for a model without any."""
    count, hidden = read.count("altup_num_inputs", "hc_mult", default=1), read.count(*HIDDEN)
    if count == 1:
        return None
    if read.has("hc_mult"):
        # Weights for the input, the output and the copies of each of a layer's two parts come from
        # all copies. They are read for these weights and for the mixture, and again, and written,
        # where the part's result is added (section 2.2 of DeepSeek-V4's report).
        mixed = 2 * count + (0 if read.has("hc_magnitude") else count**2)  # Hy4 mixes no copies
        return Streams(
            count, 2 * count * mixed, 2 * (mixed + 3), 2 * (3 * count + 1), count**2 * hidden
        )
    rank = read.count("laurel_rank", default=0, least=0)
    # Predictions read and write all copies, and so do corrections; a low-rank sum stands beside
    # attention; and the layer's embedding goes to all copies but one. Layers that keep the largest
    # columns alone find their mean and deviation before.
    sparse = sum(1 for share in read.items("activation_sparsity_pattern") if share)
    columns = 3 * first_count(read, FFN, None) * sparse / depth(read)
    return Streams(
        count=count,
        columns=count + 2 * rank,
        vectors=count**2 + count**3 + 3 * hidden,
        passes=6 * count + 4 + math.ceil(columns / hidden),
        ends=2 * (count - 1) * hidden**2,
    )


def layer_input(read: Reader) -> LayerInput | None:
    """Return the embedding that each layer has of its own; None for a model without any."""
    width = read.count("hidden_size_per_layer_input", default=0, least=0)
    vocab = read.count("vocab_size_per_layer_input", "vocab_size", default=0, least=0)
    return LayerInput(width, vocab) if width else None


def _head_dim(
    read: Reader, usual: int, names: tuple[str, ...] = HEAD_DIM, of_values: str = "v_head_dim"
) -> int:
    """Width of a head: the mean of keys and values where they differ (MiMo-V2)."""
    # With it their products, scores, sums and caches are as large in all.
    width = read.count(*names, default=usual, least=0) or usual
    values = width if read.has("kv_lora_rank") else read.count(of_values, default=width)
    return (width + values) // 2


def _bias(read: Reader, *names: str) -> bool:
    """Return whether products have biases, by fields of their own or of the whole layer."""
    if read.has("no_bias"):
        return not read.flag("no_bias")
    return read.flag(*names, *BIAS)


def _kv_heads(read: Reader, heads: int) -> int:
    """Number of key-value heads: one for multi-query attention, by default as many as heads."""
    if read.flag("multi_query") and not read.flag("new_decoder_architecture"):
        return 1
    if read.has("multi_query_attention") and not read.flag("multi_query_attention"):
        return heads
    blocks = [_block(read, layer) for layer in range(depth(read)) if read.has(NAS)]
    usual = next((block["kv_heads"] for block in blocks if "kv_heads" in block), heads)
    return read.count(*KV_HEADS, default=usual)


def _latent(read: Reader) -> dict[str, Any]:
    """Fields of latent attention, whose heads have keys and values of their own."""
    latent = LatentAttention(
        query_rank=read.count("q_lora_rank", default=0, least=0),
        kv_rank=read.count("kv_lora_rank"),
        nope_dim=read.count("qk_nope_head_dim"),
        rope_dim=read.count("qk_rope_head_dim", default=0, least=0),
        value_dim=read.count("v_head_dim", default=read.count("qk_nope_head_dim")),
    )
    width = latent.nope_dim + latent.rope_dim
    gate = read.flag("mla_use_output_gate")
    return {
        "latent": latent, "head_dim": width, "kv_heads": read.count(*HEADS), "attention_gate": gate,
    }  # fmt: skip
