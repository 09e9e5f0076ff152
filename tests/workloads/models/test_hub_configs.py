"""Configs from the model hub have the parameter counts that are stated there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workloads.models.huggingface import model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "rope_type": "llama3"},
    "tie_word_embeddings": True,
    "vocab_size": 128256,
}
QWEN_MOE = {
    "architectures": ["Qwen2MoeForCausalLM"],
    "model_type": "qwen2_moe",
    "decoder_sparse_step": 1,
    "sliding_window": 65536,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA = {
    "architectures": ["GemmaForCausalLM"],
    "model_type": "gemma",
    "attention_bias": False,
    "head_dim": 256,
    "hidden_act": "gelu",
    "vocab_size": 256000,
}


def sizes(hidden: int, ffn: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


HUB = {
    "Llama-3.2-1B": ({**LLAMA, **sizes(2048, 8192, 16, 32, head_dim=64)}, 1_235_814_400),
    "Llama-3.2-3B": ({**LLAMA, **sizes(3072, 8192, 28, 24, head_dim=128)}, 3_212_749_824),
    "gemma-2b": ({**GEMMA, **sizes(2048, 16384, 18, 8, num_key_value_heads=1)}, 2_506_172_416),
    "gemma-7b": ({**GEMMA, **sizes(3072, 24576, 28, 16)}, 8_537_680_896),
    "Phi-3-mini-4k": (
        {
            "model_type": "phi3",
            **sizes(3072, 8192, 32, 32, num_key_value_heads=32),
            "resid_pdrop": 0.0,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
            "vocab_size": 32064,
        },
        3_821_079_552,
    ),
    "Qwen2-57B-A14B": (
        {
            **QWEN_MOE,
            **sizes(3584, 18944, 28, 28, num_key_value_heads=4),
            "moe_intermediate_size": 2560,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            "shared_expert_intermediate_size": 20480,
        },
        57_408_658_944,  # its card says 57.4 B; added up by hand
    ),
    "Qwen3-30B-A3B": (
        {
            "architectures": ["Qwen3MoeForCausalLM"],
            **sizes(2048, 6144, 48, 32, num_key_value_heads=4, head_dim=128),
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "model_type": "qwen3_moe",
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "vocab_size": 151936,
        },
        30_532_122_624,
    ),
    "DeepSeek-V2-Lite": (
        {
            "model_type": "deepseek_v2",
            **sizes(2048, 10944, 27, 16, num_key_value_heads=16),
            "first_k_dense_replace": 1,
            "kv_lora_rank": 512,
            "moe_intermediate_size": 1408,
            "moe_layer_freq": 1,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "num_experts_per_tok": 6,
            "q_lora_rank": None,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "topk_method": "greedy",
            "v_head_dim": 128,
            "vocab_size": 102400,
        },
        15_706_484_224,
    ),
    "gpt2-xl": (
        {
            "model_type": "gpt2",
            "n_ctx": 1024,
            "n_embd": 1600,
            "n_head": 25,
            "n_layer": 48,
            "n_positions": 1024,
            "vocab_size": 50257,
        },
        1_557_611_200,
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_a_config_has_the_parameters_that_the_hub_counts(name, tmp_path):
    fields, parameters = HUB[name]
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields), encoding="utf-8")
    read = model(str(folder))
    assert read.parameters == parameters
    assert read.name == name
