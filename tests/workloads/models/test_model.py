"""Models from config.json: published parameter counts and FLOPs, and files that are refused."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.small_decoders import SMALL
from topologies.errors import InputError
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
    "deepseek-v3": 671_026_419_200, "gemma-2-27b": 27_227_128_320, "gemma-3-27b": 27_009_346_304,
    "glm-4.5": 352_797_829_120, "glm-4.5-air": 106_852_251_264,
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
}  # fmt: skip
"""As the model hub counts them; GPT-3 by its paper's sizes. Counts that include scales of weights
agree within a ten-millionth."""
ROUNDED = {
    "deepseek-v3.2": 671e9, "falcon-h1-7b": 7.586e9, "gemma-3-12b": 11.77e9,
    "gemma-4-26b-a4b": 25.2e9, "gemma-4-31b": 30.7e9, "glm-5": 744e9, "glm-5.2": 744e9,
    "granite-4.0-h-small": 32.2e9, "kimi-k3": 2.78e12, "kimi-linear-48b-a3b": 49.12e9,
    "llama-4-maverick": 400e9, "minimax-m3": 427e9, "ministral-3-14b": 13.5e9,
    "nemotron-3-super-120b-a12b": 120.6e9, "nemotron-3-ultra-550b-a55b": 550e9,
    "nemotron-h-56b": 56e9, "qwen3.5-122b-a10b": 122e9, "qwen3.5-27b": 27e9,
    "qwen3.5-35b-a3b": 35e9, "qwen3.5-397b-a17b": 397e9, "qwen3.5-4b": 4.2e9, "qwen3.5-9b": 9e9,
    "trinity-large": 400e9, "trinity-mini": 26e9, "trinity-nano": 6e9,
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


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "Qwen/Qwen3-32B", "Llama-3.1-8B-Instruct"])
def test_names_of_the_hub_are_names_of_shipped_models(name):
    assert named(name).parameters in PUBLISHED.values()


def test_fields_that_are_null_count_as_absent():
    assert from_fields(config(num_key_value_heads=None), "a").kv_heads == 4
    assert from_fields(config(head_dim=None), "a").head_dim == 16
    # The architecture stands in for a missing type.
    fields = config(architectures=["LlamaForCausalLM"])
    del fields["model_type"]
    assert from_fields(fields, "a") == from_fields(config(), "a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
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
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; it must be true or false"),
    ],
)
def test_a_bad_field_is_named(changes, message):
    with pytest.raises(InputError, match=message):
        from_fields(config(**changes), "x")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model_type": "llama", ', "is not JSON"),
        (b'{"hidden_size": 8, "hidden_size": 16}', "hidden_size stands twice"),
        (b"\x00\xff\xfe nonsense", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1, 2]", "holds no JSON object"),
        (b" " * (LARGEST_CONFIG_BYTES + 1), "is over 1 MiB"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        from_config(path)
    assert "\n" not in str(caught.value)


def test_a_model_is_a_name_a_file_or_a_directory(tmp_path, monkeypatch):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    assert model(str(folder)) == model(str(folder / "config.json"))
    assert model(str(folder)).name == "my-model"
    assert model("llama-3.1-8b") == named("llama-3.1-8b")
    with pytest.raises(InputError, match=r"Did you mean llama-3.1-405b\?"):
        model("llama-3.1-450b")
    with pytest.raises(InputError, match="there is no such file"):
        model(str(tmp_path / "other.json"))
    monkeypatch.chdir(folder)
    with pytest.raises(InputError, match="unknown model ''"):
        model("")


def test_a_token_cannot_visit_more_experts_than_there_are():
    experts = named("mixtral-8x7b").experts
    with pytest.raises(InputError, match="visits 9 experts of only 8"):
        replace(named("mixtral-8x7b"), experts=replace(experts, per_token=9))


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
