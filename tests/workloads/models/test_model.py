"""Models from config.json: published counts and FLOPs, precisions of weights, and refused files."""

import json
from typing import Any

import pytest

from tests.support.refusals import refused
from tests.support.small_decoders import SMALL, small
from topologies.support.errors import InputError
from workloads.models.huggingface import (
    LARGEST_CONFIG_BYTES,
    from_config,
    from_fields,
    model,
    models,
    named,
)
from workloads.models.model import (
    expert_parameters,
    forward_flops,
    index_size,
    keys_seen,
    training_flops,
)

PUBLISHED = {
    "deepseek-v2": 235_741_434_880, "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200, "deepseek-v4-flash": 284_332_240_471,
    "deepseek-v4-pro": 1_572_997_201_763, "gemma-2-27b": 27_227_128_320,
    "gemma-3-27b": 27_009_346_304,
    "gemma-3n-e2b": 4_435_182_688, "gemma-3n-e4b": 6_835_235_568, "gemma-4-e2b": 4_628_569_344,
    "gemma-4-e4b": 7_463_013_376, "glm-4.5": 352_797_829_120,
    "glm-4.5-air": 106_852_251_264,
    "gpt-neox-20b": 20_554_567_680, "gpt-oss-120b": 116_829_156_672, "gpt-oss-20b": 20_914_757_184,
    "gpt2": 124_439_808, "gpt3-175b": 174_604_259_328, "kimi-k2": 1_026_408_232_448,
    "llama-2-13b": 13_015_864_320, "llama-2-70b": 68_976_648_192, "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800, "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248, "llama-3.2-1b": 1_235_814_400, "llama-4-scout": 107_769_861_120,
    "minimax-m2": 228_689_764_864, "mistral-7b": 7_241_732_096,
    "mistral-small-2409": 22_247_282_688, "mistral-small-24b": 23_572_403_200,
    "mixtral-8x22b": 140_630_071_296, "mixtral-8x7b": 46_702_792_704,
    "nemotron-3-nano-30b-a3b": 31_577_937_344, "phi-4": 14_659_507_200,
    "qwen1.5-moe-a2.7b": 14_315_784_192, "qwen2-72b": 72_706_203_648, "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512,
    "qwen3-14b": 14_768_307_200, "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624, "qwen3-32b": 32_762_123_264, "qwen3-8b": 8_190_735_360,
    "qwen3-coder-480b-a35b": 480_154_875_392, "qwen3-next-80b-a3b": 79_674_391_296,
    "trinity-large": 398_635_286_016, "trinity-mini": 26_123_974_400,
    "trinity-nano": 6_120_003_328,
}  # fmt: skip
"""As the model hub counts them; GPT-3 by its paper's sizes, Trinity, DeepSeek-V4 and
the small models of Gemma by their classes in transformers 5.24. Counts that include scales of
weights agree within a ten-millionth."""
ROUNDED = {
    "deepseek-v3.2": 671e9, "falcon-h1-7b": 7.586e9, "gemma-3-12b": 11.77e9,
    "gemma-4-26b-a4b": 25.2e9, "gemma-4-31b": 30.7e9, "glm-5": 744e9, "glm-5.2": 744e9,
    "glm-5.3-flash": 313e9,  # by its class in transformers, and 320 with its head by NVIDIA's guide
    "granite-4.0-h-small": 32.2e9, "kimi-k3": 2.78e12, "kimi-linear-48b-a3b": 49.12e9,
    "llama-4-maverick": 400e9, "minimax-m3": 427e9, "ministral-3-14b": 13.5e9,
    "nemotron-3-super-120b-a12b": 120.6e9, "nemotron-3-ultra-550b-a55b": 550e9,
    "nemotron-h-56b": 56e9, "qwen3-0.6b": 0.6e9, "qwen3-1.7b": 1.7e9, "qwen3.5-122b-a10b": 122e9,
    "qwen3.5-27b": 27e9, "qwen3.5-2b": 1.9e9,  # 4.5 GB in 16 bits less a tower of 0.33 billion
    "qwen3.5-35b-a3b": 35e9, "qwen3.5-397b-a17b": 397e9, "qwen3.5-4b": 4.2e9, "qwen3.5-9b": 9e9,
}  # fmt: skip
"""As the names and cards of their publishers say, without towers for images."""


def config(**changes: Any) -> dict[str, Any]:
    return {**SMALL, "num_key_value_heads": 2, **changes}


@pytest.mark.parametrize("name", models())
def test_parameters_are_the_published_ones(name):
    published = ROUNDED.get(name) or PUBLISHED[name]
    near = 0.015 if name in ROUNDED else 1e-7
    assert named(name).parameters == pytest.approx(published, rel=near)
    assert not [part for part in named(name).left_out if "understood" in part]


def test_published_counts_with_a_prediction_head_are_exact():
    """The hub counts the head, DeepSeek's with copies of the embedding and the output layer."""
    glm, deepseek = (named(name).with_prediction_heads(1) for name in ("glm-5", "deepseek-v3.2"))
    assert glm.parameters == 753_864_139_008
    assert deepseek.parameters + 2 * deepseek.embedding_parameters == 685_355_329_792
    # That of GLM-5.2 has an indexer of its own, where a layer like the last one shares one.
    shared = named("glm-5.2").with_prediction_heads(1)
    indexer = sum(index_size(shared.of_kind(shared.each_layer[0])))
    assert shared.parameters + indexer == 753_329_940_480
    assert named("glm-5.3-flash").with_prediction_heads(1).parameters == pytest.approx(320e9, 0.005)


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "Qwen/Qwen3-32B", "Llama-3.1-8B-Instruct",
                                  "google/gemma-4-E4B-it"])  # fmt: skip
def test_names_of_the_hub_are_names_of_shipped_models(name):
    assert named(name).parameters in PUBLISHED.values()


def test_fields_that_are_null_count_as_absent():
    assert from_fields(config(num_key_value_heads=None), "a").kv_heads == 4
    assert from_fields(config(head_dim=None), "a").head_dim == 16
    # The architecture stands in for a missing type.
    fields = config(architectures=["LlamaForCausalLM"])
    del fields["model_type"]
    assert from_fields(fields, "a") == from_fields(config(), "a")


@pytest.mark.parametrize(("changes", "message"), [
    ({"model_type": "lama"}, "its config lacks rms_norm_eps, hidden_act. Did you mean"),
    ({"model_type": "lama", "hidden_size": None}, "lacks hidden_size, rms_norm_eps"),
    ({"num_hidden_layers": 10**9}, "1,000,000,000 layers, and at most 10,000"),
    ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder beside its decoder"),
    ({"quantization_config": {"load_in_8bit": True}}, "'none stated' with 8 bits"),
    ({"hidden_size": None}, "the config has no hidden_size"),
    ({"num_attention_heads": None}, "the config has no num_attention_heads"),
    ({"intermediate_size": None}, "the config has no intermediate_size"),
    ({"hidden_size": 0}, "hidden_size is '0'; it must be a whole number from 1"),
    ({"hidden_size": "64"}, "hidden_size is '64'; it must be a whole number"),
    ({"hidden_size": True}, "hidden_size is 'True'"),
    ({"hidden_size": 10**12}, "hidden_size is '1000000000000'"),
    ({"hidden_size": 65}, "65 is not a multiple of num_attention_heads 4"),
    ({"num_key_value_heads": 3}, "4 heads are not a multiple of its 3"),
    ({"num_local_experts": 8, "num_experts_per_tok": 9}, "visits 9 experts of only 8"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be true or false"),
])  # fmt: skip
def test_a_bad_field_is_named(changes, message):
    refused(message, from_fields, config(**changes), "x")


@pytest.mark.parametrize(("content", "message"), [
    (b'{"model_type": "llama", ', "is not JSON"),
    (b'{"hidden_size": 8, "hidden_size": 16}', "hidden_size appears twice"),
    (b"\x00\xff\xfe nonsense", "is not JSON"),
    (b"[" * 100_000, "is not JSON"),
    (b"[1, 2]", "holds no JSON object"),
    (b" " * (LARGEST_CONFIG_BYTES + 1), "is over the limit of 16 MiB"),
])  # fmt: skip
def test_a_bad_file_is_one_line(tmp_path, content, message):
    (path := tmp_path / "config.json").write_bytes(content)
    refused(message, from_config, path)


def test_a_model_is_a_name_a_file_or_a_directory(tmp_path, monkeypatch):
    (folder := tmp_path / "my-model").mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    assert model(str(folder)) == model(str(folder / "config.json"))
    assert model(str(folder)).name == "my-model"
    assert model("llama-3.1-8b") == named("llama-3.1-8b")
    refused(r"Did you mean llama-3.1-405b\?", model, "llama-3.1-450b")
    refused("there is no such file", model, str(tmp_path / "other.json"))
    monkeypatch.chdir(folder)
    refused("unknown model ''", model, "")


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3"])
def test_twice_the_active_weights_and_attention(name):
    model = named(name)
    tied = model.vocab * model.hidden * model.tied_embeddings
    unvisited = model.experts.count - model.experts.per_token if model.experts else 0
    idle = model.moe_layers * unvisited * expert_parameters(model) if unvisited else 0
    weights = model.parameters - idle - model.embedding_parameters + tied
    attention = 2 * (model.query_width + model.value_width) * model.layers * keys_seen(model, 2048)
    assert forward_flops(model, 2048) == pytest.approx(2 * weights + attention, rel=2e-3)


def test_megatron_formula():
    """96 B s l h² (1 + s / 6h + V / 16 l h) with recomputation (arXiv 2104.04473): 72 without."""
    gpt = named("gpt3-175b")
    batch, s, layers, h, v = 7, 2048, gpt.layers, gpt.hidden, gpt.vocab
    flops_expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    flops = training_flops(gpt, s, batch * s, causal=False)
    assert flops == pytest.approx(flops_expected, rel=1e-12)


def test_a_window_bounds_the_keys():
    mistral = named("mistral-7b")
    assert keys_seen(mistral, 4096) == 2048.5
    assert keys_seen(mistral, 8192) == (4096 * 4097 / 2 + 4096 * 4096) / 8192
    assert keys_seen(mistral, 8192, causal=False) == 4096


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


def experts(bits: int, kind: str, **more: Any) -> dict[str, Any]:
    """Weights alone, of all products but those of attention."""
    one = {**group(bits, kind)["config_groups"]["group_0"], "input_activations": None}
    more |= {"config_groups": {"group_0": one}, "ignore": ["re:.*self_attn.*"]}
    return {**group(bits, kind), **more}


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
    "moonshotai/Kimi-K3": (
        experts(4, "float", format="mxfp4-pack-quantized"), "mxfp4",
    ),
    "moonshotai/Kimi-K2.5": (experts(4, "int", format="pack-quantized"), "int4"),
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


@pytest.mark.parametrize(("name", "content", "message"), [
    ("hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4"}}, None),
    ("quantize_config.json", {"bits": 4, "group_size": 128}, "'quantize_config.json' with 4"),
    ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, "'quant_config.json' with 4 bits"),
])  # fmt: skip
def test_files_beside_a_config_count(tmp_path, name, content, message):
    (path := tmp_path / "config.json").write_text(json.dumps(SMALL))
    assert from_config(path).precision == "bf16"
    (tmp_path / name).write_text(json.dumps(content))
    if message is None:
        assert from_config(path).precision == "fp4"
    else:
        refused(message, from_config, path)
    path.write_text(json.dumps({**SMALL, "quantization_config": BLOCKS}))
    assert from_config(path).precision == "fp8"
