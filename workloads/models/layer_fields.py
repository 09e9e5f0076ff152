"""Reader of layers that differ: windows, experts in some, state-space mixers between attention."""

from __future__ import annotations

import math
from typing import Any

from topologies.errors import InputError
from workloads.models.attention_fields import HEAD_DIM, HEADS, HIDDEN, depth
from workloads.models.feed_forward_fields import COUNT, dense_layers, first_count, has_experts
from workloads.models.fields import Reader
from workloads.models.parts import Layer, Mixer, Recurrence

WINDOW = ("sliding_window", "attention_chunk_size", "sliding_window_size", "window_size")
WINDOWED = ("sliding_attention", "chunked_attention", "local", "sliding_window_attention")
RECURRENT = ("linear_attention", "mamba", "conv", "recurrent", "lightning_attention", "mamba2")
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
        layout = tuple(_lettered(read, letter) for letter in letters)
        return {"layers": len(layout), "layout": layout, "recurrence": recurrence(read)}
    if read.has("mamba_version") and not read.has("num_attention_heads"):
        return {"mixer": "recurrence", "recurrence": recurrence(read)}
    sparse = first_count(read, COUNT, 0) > 1
    layout = _layer_by_layer(read, sparse=sparse)
    mixes = any(layer.mixer == "recurrence" for layer in layout)
    from_first_sparse = [sparse and layer >= dense_layers(read) for layer in range(len(layout))]
    regular = [layer.experts for layer in layout] == from_first_sparse
    if regular and not mixes and len({layer.window for layer in layout}) == 1:
        # Layers differ in no more than leading dense ones, which ``Experts.dense_layers`` counts.
        return {"window": layout[0].window}
    return {"layout": layout, "recurrence": recurrence(read) if mixes else None}


def _layer_by_layer(read: Reader, *, sparse: bool) -> tuple[Layer, ...]:
    """Kind of each layer; only where ``sparse`` may a layer have experts."""
    window = _window(read)
    return tuple(
        Layer(
            mixer := _mixer(read, layer),
            window if mixer == "attention" and _is_windowed(read, layer) else 0,
            experts=sparse and has_experts(read, layer),
        )
        for layer in range(depth(read))
    )


def _lettered(read: Reader, letter: str) -> Layer:
    """Kind of layer that a letter stands for."""
    if letter not in LETTERS:
        raise InputError(
            f"model {read.name}: hybrid_override_pattern has {letter!r}; it may have "
            f"{', '.join(LETTERS)}."
        )
    return LETTERS[letter]


def _window(read: Reader) -> int:
    """Largest number of keys that a query of a windowed layer sees; 0 for no window."""
    if read.has("use_sliding_window") and not read.flag("use_sliding_window"):
        return 0
    return read.count(*WINDOW, default=0, least=0)


def _is_windowed(read: Reader, layer: int) -> bool:
    """Return whether the attention of a layer has the window that the model states."""
    kinds = read.items(*TYPES)
    if kinds:
        return layer < len(kinds) and kinds[layer] in WINDOWED
    pattern = read.value("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:
        return pattern[layer % len(pattern)] == "L"
    if pattern is not None:
        return (layer + 1) % read.count("sliding_window_pattern", "_sliding_window_pattern") > 0
    if read.flag("use_sliding_window") and read.has("max_window_layers"):
        return layer >= read.count("max_window_layers", least=0)
    return True


def _mixer(read: Reader, layer: int) -> Mixer:
    """Mixer of a layer, by a list of kinds, a list of attention layers, or a period of them."""
    kinds = read.items(*TYPES)
    if kinds and layer < len(kinds):
        return "recurrence" if kinds[layer] in RECURRENT else "attention"
    listed = read.items("attn_type_list")
    if listed:
        return "attention" if layer < len(listed) and listed[layer] == 1 else "recurrence"
    if read.has("attn_layer_indices"):
        return "attention" if layer in read.items("attn_layer_indices") else "recurrence"
    if read.has("full_attn_idxs"):
        return "attention" if layer in read.items("full_attn_idxs") else "recurrence"
    if read.has("attn_layer_period"):
        period = read.count("attn_layer_period")
        offset = read.count("attn_layer_offset", default=0, least=0)
        return "attention" if layer % period == offset % period else "recurrence"
    if read.has("full_attention_interval"):
        return "recurrence" if (layer + 1) % read.count("full_attention_interval") else "attention"
    return "attention"


STATE = ("state_size", "ssm_state_size", "mamba_d_state")
KERNEL = ("conv_kernel", "mamba_d_conv", "conv_kernel_size")
EXPAND = ("expand", "mamba_expand")


def recurrence(read: Reader) -> Recurrence:
    """Return the mixer of the layers without attention.

    Raises InputError for a config without the sizes of any known mixer.
    """
    if read.has("linear_num_value_heads"):
        return _gated_delta(read)
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
    rank = read.value("time_step_rank", "mamba_dt_rank")
    rank = math.ceil(hidden / 16) if rank in (None, "auto") else int(rank)
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
    other += 3 * heads + inner + (columns + hidden) * bias
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


def _short_convolution(read: Reader) -> Recurrence:
    """Sizes of a gated convolution over a few tokens, as LFM2 has it."""
    hidden, kernel = read.count(*HIDDEN), read.count("conv_L_cache")
    other = hidden * kernel + 5 * hidden * read.flag("conv_bias")
    return Recurrence("short-convolution", 3 * hidden, hidden, 0, other, hidden * kernel)
