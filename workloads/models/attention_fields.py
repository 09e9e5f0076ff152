"""Reader of a decoder's sizes and of its attention from the fields of a config."""

from __future__ import annotations

from typing import Any

from topologies.errors import InputError
from workloads.models.fields import Reader
from workloads.models.parts import LatentAttention

HIDDEN = ("hidden_size", "n_embd", "d_model")
MOST_LAYERS = 10_000
"""Largest number of layers of a model."""
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
        "norm": "rms" if read.has(*RMS) else "layer",
        "tied_embeddings": read.flag(
            "shared_input_output_embedding", "tie_word_embeddings", "tie_embeddings"
        ),
        "head_bias": read.flag("lm_head_bias"),
        "embedding_width": narrow if narrow != hidden else 0,
        "positions": _positions(read) if learned else 0,
        "final_norm": read.flag("do_layer_norm_before", default=True),
        "dropout": read.dropout(
            "attention_dropout", "hidden_dropout", "resid_pdrop", "attn_pdrop", "dropout"
        ),
    }
    return {**fields, **_halves(read)}


def depth(read: Reader) -> int:
    """Count the layers, from the list of their kinds if the config has no number."""
    letters = read.value("hybrid_override_pattern")
    listed = letters if isinstance(letters, str) else read.items("layers_block_type")
    layers = read.count(*LAYERS, default=len(listed) or None)
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


def _halves(read: Reader) -> dict[str, Any]:
    """Fields of layers whose attention and feed-forward part work in parallel, and their norms."""
    if read.flag("new_decoder_architecture"):
        return {"parallel": True, "norms": read.count("num_ln_in_parallel_attn", default=2)}
    if read.flag("parallel_attn", "use_parallel_residual"):
        return {"parallel": True, "norms": read.count("parallel_norms", default=1)}
    return {}


def attention(read: Reader) -> dict[str, Any]:
    """Read heads, their width, biases and norms; latent attention where keys are compressed."""
    if not read.has(*HEADS) or (read.has("mamba_version") and not read.has(HEADS[0])):
        return _recurrent_heads(read)
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
        "head_dim": read.count(*HEAD_DIM, default=max(1, hidden // heads)),
        "qk_norm": normalised and not wide,
        "qk_norm_wide": normalised and wide,
        "qkv_bias": _bias(
            read, "attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias",
        ),
        "output_bias": _bias(read, "attention_out_bias", "attention_bias"),
    }  # fmt: skip
    if read.has("kv_lora_rank"):
        fields |= _latent(read)
    return fields


def _recurrent_heads(read: Reader) -> dict[str, Any]:
    """Heads of a model without attention, which tensor parallelism divides."""
    inner = read.count("intermediate_size", default=2 * read.count(*HIDDEN))
    heads = read.count("num_heads", default=inner)
    return {"heads": heads, "kv_heads": heads, "head_dim": max(1, inner // heads)}


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
    return read.count(*KV_HEADS, default=heads)


def _latent(read: Reader) -> dict[str, Any]:
    """Fields of latent attention, whose heads have keys and values of their own."""
    latent = LatentAttention(
        query_rank=read.count("q_lora_rank", default=0, least=0),
        kv_rank=read.count("kv_lora_rank"),
        nope_dim=read.count("qk_nope_head_dim"),
        rope_dim=read.count("qk_rope_head_dim"),
        value_dim=read.count("v_head_dim", default=read.count("qk_nope_head_dim")),
        index_heads=read.count("index_n_heads", default=0, least=0),
        index_dim=read.count("index_head_dim", default=0, least=0),
    )
    width = latent.nope_dim + latent.rope_dim
    return {"latent": latent, "head_dim": width, "kv_heads": read.count(*HEADS)}
