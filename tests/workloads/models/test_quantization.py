"""The precision of stored weights, as published configs state it, is used or refused."""

import json
from typing import Any

import pytest

from tests.support.small_decoders import SMALL, small
from topologies.errors import InputError
from workloads.models.huggingface import from_config, from_fields


def group(bits: int, kind: str, **more: Any) -> dict[str, Any]:
    """Weights and inputs of compressed-tensors in one group."""
    weights = {
        "actorder": None, "dynamic": False, "group_size": None, "num_bits": bits,
        "strategy": "channel", "symmetric": True, "type": kind,
    }  # fmt: skip
    inputs = {**weights, "dynamic": True, "strategy": "token"}
    one = {"input_activations": inputs, "output_activations": None, "weights": weights}
    return {
        "config_groups": {"group_0": {**one, "targets": ["Linear"]}}, "ignore": ["lm_head"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors", **more,
    }  # fmt: skip


def quark(*types: str) -> dict[str, Any]:
    """AMD Quark's config, with a list where weights are quantized in stages."""
    stages = [{"dtype": name, "is_dynamic": False, "qscheme": "per_tensor"} for name in types]
    weight = stages[0] if len(stages) == 1 else stages
    whole = {"bias": None, "input_tensors": {"dtype": "fp8_e4m3"}, "weight": weight}
    by_layer = {"layer_quant_config": {}, "layer_type_quant_config": {}}
    return {
        "exclude": ["lm_head"],
        "global_quant_config": whole,
        "quant_method": "quark",
        **by_layer,
    }


def torchao(name: str) -> dict[str, Any]:
    """Config of torchao 0.10 and later."""
    kind = {"default": {"_data": {"set_inductor_config": True}, "_type": name, "_version": 1}}
    return {"modules_to_not_convert": None, "quant_method": "torchao", "quant_type": kind}


MODELOPT = {"quant_method": "modelopt", "producer": {"name": "modelopt"}, "ignore": ["lm_head"]}
BLOCKS = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
          "weight_block_size": [128, 128]}  # fmt: skip
FOUR_BITS = {
    "_load_in_4bit": True, "_load_in_8bit": False, "bnb_4bit_quant_type": "nf4",
    "load_in_4bit": True, "load_in_8bit": False, "quant_method": "bitsandbytes",
}  # fmt: skip
GPTQ = {"damp_percent": 0.1, "desc_act": True, "group_size": 128, "quant_method": "gptq"}
SPARSE = {"format": "sparse-24-bitmask", "sparsity_structure": "2:4", "targets": ["Linear"]}

USED = {
    "deepseek-ai/DeepSeek-V3": (BLOCKS, "fp8"),
    "MiniMaxAI/MiniMax-M2": ({**BLOCKS, "fmt": "float8_e4m3fn"}, "fp8"),
    "meta-llama/Llama-3.1-405B-FP8": (
        {"activation_scale_ub": 1200.0, "quant_method": "fbgemm_fp8",
         "modules_to_not_convert": ["model.layers.0.mlp.down_proj"]}, "fp8",
    ),
    "RedHatAI/Llama-3.3-70B-FP8-dynamic": (group(8, "float", format="float-quantized"), "fp8"),
    "RedHatAI/Llama-3.1-8B-NVFP4": (group(4, "float", format="nvfp4-pack-quantized"), "fp4"),
    "openai/gpt-oss-120b": (
        {"modules_to_not_convert": ["model.layers.*.self_attn"], "quant_method": "mxfp4"}, "mxfp4",
    ),
    "nvidia/Llama-3.1-8B-FP8": (
        {**MODELOPT, "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, "fp8",
    ),
    "nvidia/DeepSeek-R1-0528-NVFP4": ({**group(4, "float"), **MODELOPT}, "fp4"),
    "amd/Llama-3.1-70B-FP8-KV": (quark("fp8_e4m3"), "fp8"),
    "amd/Llama-3.1-405B-MXFP4": (quark("fp4"), "fp4"),
    "pytorch/Phi-4-mini-FP8": (torchao("Float8DynamicActivationFloat8WeightConfig"), "fp8"),
    "torchao 0.7": ({"quant_method": "torchao", "quant_type": "float8_weight_only"}, "fp8"),
    "ISTA-DASLab FP-Quant": ({"quant_method": "fp_quant", "forward_dtype": "nvfp4"}, "fp4"),
}  # fmt: skip
"""Quantization of published models whose weights are floats, and what is used of it."""

REFUSED = {
    "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8": ({**GPTQ, "bits": 8}, "'gptq' with 8 bits is"),
    "Qwen/Qwen2.5-7B-Instruct-AWQ": (
        {"bits": 4, "group_size": 128, "quant_method": "awq", "version": "gemm",
         "zero_point": True}, "'awq' with 4 bits",
    ),
    "unsloth/Llama-3.2-1B-bnb-4bit": (FOUR_BITS, "'bitsandbytes' with 4 bits"),
    "bitsandbytes LLM.int8()": (
        {**FOUR_BITS, "load_in_4bit": False, "load_in_8bit": True}, "'bitsandbytes' with 8 bits",
    ),
    "RedHatAI w8a8": (group(8, "int", format="int-quantized"), r"'compressed-tensors' \(8-bit int"),
    "RedHatAI/Sparse-Llama-3.1-8B-2of4": (
        {"quant_method": "compressed-tensors", "sparsity_config": SPARSE}, "sparse weights",
    ),
    "amd w4a8": (quark("fp8_e4m3", "int4"), r"\(fp8_e4m3, int4\)"),
    "pytorch/Qwen3-8B-INT4": (torchao("Int4WeightOnlyConfig"), "Int4WeightOnlyConfig"),
    "torchao int8": ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, "int8_weight"),
    "HQQ": (
        {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}},
        "'hqq' with 4 bits",
    ),
    "Intel AutoRound": (
        {"bits": 4, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"},
        "'auto-round' with 4 bits",
    ),
    "ExLlamaV2": ({"quant_method": "exl2", "bits": 5.0, "head_bits": 6}, "'exl2' with 5.0 bits"),
    "no method": ({"weird": True}, "'none stated' is"),
}  # fmt: skip
"""Quantization of published models that is not modelled, and how the message names it."""


@pytest.mark.parametrize(("stated", "precision"), USED.values(), ids=USED)
def test_floats_are_used(stated, precision):
    assert small(quantization_config=stated).precision == precision


@pytest.mark.parametrize(("stated", "message"), REFUSED.values(), ids=REFUSED)
def test_all_else_is_refused_by_name(stated, message):
    with pytest.raises(InputError, match=message) as raised:
        small(quantization_config=stated)
    assert "Remove quantization_config to cost the model in bf16" in str(raised.value)


def test_a_null_in_the_decoder_does_not_hide_what_the_whole_model_states():
    decoder = {**SMALL, "quantization_config": None}
    whole = {"model_type": "llava", "text_config": decoder, "quantization_config": BLOCKS}
    assert from_fields(whole, "seeing").precision == "fp8"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, None),
        ("quantize_config.json", {"bits": 4, "group_size": 128}, "'quantize_config.json' with 4"),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, "'quant_config.json' with 4 bits"),
    ],
)
def test_files_beside_a_config_count(tmp_path, name, content, message):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    assert from_config(path).precision == "bf16"
    (tmp_path / name).write_text(json.dumps(content))
    if message is None:
        assert from_config(path).precision == "fp4"
    else:
        with pytest.raises(InputError, match=message):
            from_config(path)
    path.write_text(json.dumps({**SMALL, "quantization_config": BLOCKS}))
    assert from_config(path).precision == "fp8"
