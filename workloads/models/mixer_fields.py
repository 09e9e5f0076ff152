"""Reader of state-space mixers and linear attention from the fields of a config."""

from __future__ import annotations

import math

from topologies.errors import InputError
from workloads.models.attention_fields import HEAD_DIM, HEADS, HIDDEN
from workloads.models.fields import Reader
from workloads.models.parts import Recurrence

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
