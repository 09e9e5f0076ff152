"""Facts about families of models that no field of their config states.

Sizes, biases, norms, windows and experts are read from fields, whatever the family is called. Two
things are not in the file: the defaults of the family's config class for fields that a file leaves
out (``absent``), and choices that are fixed in the family's code (``fixed``). A family that needs
neither has no row here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BIASED: Mapping[str, Any] = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
GPT: Mapping[str, Any] = {"gated_mlp": False, "norm": "layer"}
COHERE: Mapping[str, Any] = {"gated_mlp": True, "norm": "rms", "parallel": True, "norms": 1}


@dataclass(frozen=True)
class Family:
    """Properties of a family of models that its code decides and no field states."""

    # Values of config fields that a file may leave out
    absent: Mapping[str, Any] = field(default_factory=dict)
    # Attributes of :class:`~workloads.models.model.Model` that hold whatever the fields say
    fixed: Mapping[str, Any] = field(default_factory=dict)


def _family(absent: Mapping[str, Any] | None = None, **fixed: Any) -> Family:
    return Family(absent or {}, fixed)


TIED = {"tie_word_embeddings": True}
SWIGLU = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
LLAMA = _family(SWIGLU)
QWEN2 = _family(SWIGLU, qkv_bias=True)
QWEN3 = _family(SWIGLU, qk_norm=True)
DEEPSEEK = _family({**SWIGLU, "moe_shared_width": "each"})
GEMMA = _family({**TIED, "rms_norm_eps": 1e-6}, gated_mlp=True)
GEMMA2_WINDOWS = {"sliding_window": 4096, "sliding_window_pattern": 2}
GEMMA3_TEXT = {
    **TIED, "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "sliding_window_pattern": 6, "rms_norm_eps": 1e-6,
}  # fmt: skip
GEMMA3 = _family(GEMMA3_TEXT, gated_mlp=True, norms=4, qk_norm=True)
PERSIMMON = _family({"qk_layernorm": True}, **GPT, **BIASED)
MAMBA = {**TIED, "rms_norm_eps": 1e-5, "use_conv_bias": True, "mamba_version": 1}
MAMBA2 = {"mamba_version": 2, "rms_norm_eps": 1e-5}
LLAMA4_TEXT = {
    **SWIGLU, "interleave_moe_layer_step": 1, "attention_chunk_size": 8192,
    "sliding_window_pattern": 4, "n_shared_experts": 1, "num_experts_per_tok": 1,
}  # fmt: skip
HYBRID_DELTA = {
    **SWIGLU, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    "apertus": _family(
        {"hidden_act": "xielu", "rms_norm_eps": 1e-5}, gated_mlp=False, qk_norm=True
    ),
    "arcee": _family({"rms_norm_eps": 1e-5}, gated_mlp=False),
    "baichuan": LLAMA,
    "bamba": _family({**SWIGLU, **MAMBA2, "mamba_expand": 2, "attn_layer_indices": []}),
    "biogpt": _family({**TIED, "learned_positions": True, "position_offset": 2}, **GPT, **BIASED),
    "bitnet": _family(TIED, gated_mlp=True),
    "bloom": _family(TIED, **GPT, **BIASED, embedding_norm=True),
    "chatglm": _family({"add_qkv_bias": False, "rmsnorm": True}, gated_mlp=True, norm="rms"),
    "codegen": _family(**GPT, mlp_bias=True, head_bias=True, parallel=True, norms=1),
    "cohere": _family(
        {**TIED, "qk_norm_shape": "wide"}, gated_mlp=True, norm="rms", parallel=True, norms=1
    ),
    "cohere2": _family({**TIED, "sliding_window_pattern": 4}, **COHERE),
    "dbrx": _family({"tie_word_embeddings": False}, gated_mlp=True, norm="rms"),
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "dots1": QWEN3,
    "ernie4_5": _family({**SWIGLU, **TIED}),
    "ernie4_5_moe": _family({**SWIGLU, **TIED}),
    "exaone": _family({"rms_norm_eps": 1e-5}, gated_mlp=True),
    "exaone4": QWEN3,
    "falcon": _family({**TIED, "parallel_attn": True}, **GPT),
    "falcon_h1": _family({**SWIGLU, **MAMBA2, "mamba_rms_norm": False}),
    "falcon_mamba": _family({**MAMBA, "tie_word_embeddings": False}),
    "fuyu": PERSIMMON,
    "gemma": GEMMA,
    "gemma2": _family({**TIED, **GEMMA2_WINDOWS, "rms_norm_eps": 1e-6}, gated_mlp=True, norms=4),
    "gemma3": GEMMA3,
    "gemma3_text": GEMMA3,
    "glm": _family(SWIGLU, output_bias=False),
    "glm4": _family(SWIGLU, output_bias=False, norms=4),
    "glm4_moe": _family(SWIGLU, output_bias=False),
    "glm_moe_dsa": DEEPSEEK,
    "got": QWEN2,
    "gpt2": _family({**TIED, "learned_positions": True}, **GPT, **BIASED),
    "gpt_bigcode": _family(
        {**TIED, "multi_query": True, "learned_positions": True}, **GPT, **BIASED
    ),
    "gpt_neo": _family({**TIED, "learned_positions": True}, **GPT, output_bias=True, mlp_bias=True),
    "gpt_neox": _family(
        {"attention_bias": True, "use_parallel_residual": True}, **GPT, mlp_bias=True, norms=2
    ),
    "gpt_oss": _family(
        {
            **SWIGLU,
            "attention_bias": True,
            "sliding_window": 128,
            "sliding_window_pattern": 2,
            "expert_bias": True,
            "router_bias": True,
        },
        sinks=True,
    ),
    "gptj": _family(**GPT, mlp_bias=True, head_bias=True, parallel=True, norms=1),
    "granite": LLAMA,
    "granitemoe": LLAMA,
    "granitemoehybrid": _family({**SWIGLU, **MAMBA2, **TIED}),
    "granitemoeshared": LLAMA,
    "hunyuan_v1_dense": _family({**SWIGLU, **TIED}, qk_norm=True),
    "hunyuan_v1_moe": _family({**SWIGLU, **TIED}, qk_norm=True),
    "internlm2": LLAMA,
    "jamba": _family({**SWIGLU, "mamba_version": 1, "mamba_conv_bias": True, "mamba_norms": True}),
    "kimi_k2": DEEPSEEK,
    "kimi_linear": _family({**SWIGLU, "router_bias": True}),
    "lfm2": _family(
        {**TIED, "hidden_act": "silu", "block_auto_adjust_ff_dim": True}, qk_norm=True, norm="rms"
    ),
    "llama": LLAMA,
    "llama4": _family(LLAMA4_TEXT, qk_norm=False),
    "llama4_text": _family(LLAMA4_TEXT, qk_norm=False),
    "mamba": _family(MAMBA),
    "mamba2": _family({**MAMBA2, "tie_word_embeddings": False}),
    "minicpm3": LLAMA,
    "minimax": LLAMA,
    "minimax_m2": _family(SWIGLU, qk_norm_wide=True),
    "minimax_text_01": LLAMA,
    "ministral": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "mpt": _family({**TIED, "no_bias": True, "expansion_ratio": 4}, gated_mlp=False, norm="rms"),
    "nemotron": _family(gated_mlp=False, norm="layer"),
    "nemotron_h": _family({**MAMBA2, "one_part_a_layer": True}, gated_mlp=False),
    "olmo": _family({"hidden_act": "silu"}, norm="plain"),
    "olmo2": _family(SWIGLU, qk_norm_wide=True),
    "olmo3": _family({**SWIGLU, "sliding_window_pattern": 4}, qk_norm_wide=True),
    "olmoe": _family(SWIGLU, qk_norm_wide=True),
    "open_llama": _family({**SWIGLU, "shared_input_output_embedding": True}, embedding_norm=True),
    "opt": _family(
        {**TIED, "learned_positions": True, "position_offset": 2, "enable_bias": True}, **GPT
    ),
    "orion": _family({"hidden_act": "silu"}, norm="layer"),
    "persimmon": PERSIMMON,
    "phi": _family(**GPT, **BIASED, head_bias=True, parallel=True, norms=1),
    "phi3": LLAMA,
    "phi3small": _family(TIED, **BIASED, gated_mlp=True, norm="layer"),
    "phimoe": _family(
        {"hidden_act": "silu", "attention_bias": True, "lm_head_bias": True}, norm="layer"
    ),
    "qwen2": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": QWEN2,
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_5_text": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_moe": QWEN3,
    "qwen3_next": _family(HYBRID_DELTA, qk_norm=True, attention_gate=True),
    "qwen3_vl_moe_text": QWEN3,
    "qwen3_vl_text": QWEN3,
    "seed_oss": _family({**SWIGLU, "attention_bias": True, "attention_out_bias": False}),
    "smollm3": _family({**SWIGLU, **TIED}),
    "solar": LLAMA,
    "stablelm": _family({"hidden_act": "silu", "qk_norm_shape": "wide"}, norm="layer"),
    "starcoder2": _family(
        {**TIED, "use_bias": True, "norm_epsilon": 1e-5}, gated_mlp=False, norm="layer"
    ),
    "vaultgemma": _family({**TIED, **GEMMA2_WINDOWS, "rms_norm_eps": 1e-6}, gated_mlp=True),
}
"""Families with facts of their own, by ``model_type``."""
