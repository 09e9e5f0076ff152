"""Families of decoders: published parameter counts, kinds of layers, and parts left out."""

import json
import re
from pathlib import Path

import pytest

from tests.support.small_decoders import SMALL, small
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models import layer_fields
from workloads.models.huggingface import SHIPPED, families, from_fields, named
from workloads.models.model import Layer, all_attention_flops, forward_flops, keys_seen
from workloads.serving import profile
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan

HUB = json.loads((Path(__file__).parent / "data" / "hub_models.json").read_text())
"""Fields and numbers of parameters of public models, without vision towers and layers that predict
several tokens. ``source`` is the document in which the number was read."""


@pytest.mark.parametrize("repository", HUB)
def test_parameters_are_the_published_ones(repository):
    row = HUB[repository]
    model = from_fields(row["config"], repository)
    assert model.parameters == pytest.approx(row["parameters"], rel=1e-3)
    assert not [part for part in model.left_out if "understood" in part]


def test_most_counts_are_exact_and_each_names_the_document_it_was_read_in():
    counts = [from_fields(row["config"], name).parameters for name, row in HUB.items()]
    exact = [count == row["parameters"] for count, row in zip(counts, HUB.values(), strict=True)]
    assert sum(exact) >= 62
    short = {name: row["source"] for name, row in HUB.items() if len(row["source"].split()) < 4}
    assert short == {}
    assert len({row["config"]["model_type"] for row in HUB.values()}) >= 45


def test_an_unknown_family_with_the_usual_fields_is_read_by_them():
    fields = {"model_type": "brand_new", "hidden_act": "silu", "rms_norm_eps": 1e-5}
    assert small(**fields).parameters == small().parameters
    (beyond,) = small(**fields).left_out
    assert beyond.startswith("what architecture brand_new, which is unknown, has beyond its fields")
    assert "gated feed-forward parts, 2 RMS norms" in beyond
    assert not small().left_out


def test_a_family_states_only_fields_that_the_reader_asks_for():
    """A misspelt fact would change nothing, and no answer would say so."""
    fields = set(re.findall(r'"(\w+)"', Path(layer_fields.__file__).read_text()))
    absent = {(kind, name) for kind, family in families().items() for name in family.absent}
    assert {fact for fact in absent if fact[1] not in fields} == set()


def test_windows_alternate_as_gemma_2_has_them():
    model = small(model_type="gemma2", hidden_act="gelu", sliding_window=16, head_dim=16)
    assert [layer.window for layer in model.each_layer] == [16, 0, 16, 0]
    assert named("llama-3.1-8b").kinds == (Layer(),)
    local, full = (model.of_kind(kind) for kind in model.kinds)
    assert keys_seen(local, 64) < keys_seen(full, 64) == 32.5
    widths = 2 * 2 * 64
    assert all_attention_flops(model, 64) == 2 * widths * (keys_seen(local, 64) + 32.5)


@pytest.mark.parametrize(
    ("fields", "windows"),
    [
        ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}, "8080"),
        ({"sliding_window": 8, "sliding_window_pattern": 4}, "8880"),
        ({"sliding_window": 8, "sliding_window_pattern": "LG"}, "8080"),
        ({"sliding_window": 8, "use_sliding_window": False}, "0000"),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, "0008"),
    ],
)
def test_windows_by_layer(fields, windows):
    assert "".join(str(layer.window) for layer in small(**fields).each_layer) == windows


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
          "intermediate_size_mlp": 96}, [False, True, False, True]),
        ({"num_local_experts": 4, "num_experts_per_tok": 1,
          "mlp_layer_types": ["dense", "sparse", "sparse"]}, [False, True, True, False]),
    ],
)  # fmt: skip
def test_layers_with_experts(fields, layers):
    model = small(**fields)
    assert [layer.experts for layer in model.each_layer] == layers
    assert model.moe_layers == sum(layers)
    assert (model.experts.count, model.experts.ffn) == (4, 128)
    assert model.ffn == fields.get("intermediate_size_mlp", 128)


@pytest.mark.parametrize("listed", ["full_attention", 3, [1] * 10_001])
def test_a_list_of_layers_is_a_list_of_no_great_length(listed):
    with pytest.raises(InputError, match=r"attn_type_list is .*; give a list\."):
        small(model_type="minimax", attn_type_list=listed)


def test_layers_of_one_part_each():
    model = small(
        model_type="nemotron_h", hybrid_override_pattern="M*-M", ssm_state_size=8,
        mamba_num_heads=4, mamba_head_dim=16, num_hidden_layers=4, mlp_hidden_act="relu2",
    )  # fmt: skip
    state = Layer("recurrence", mlp=False)
    assert model.each_layer == (state, Layer(mlp=False), Layer("none"), state)


def test_layers_of_kimi_linear_are_counted_from_one():
    model = named("kimi-linear-48b-a3b")
    whole = [place for place, layer in enumerate(model.each_layer, 1) if layer.mixer == "attention"]
    assert whole == [4, 8, 12, 16, 20, 24, 27]
    assert model.recurrence.state == 32 * 128 * 128


def test_the_gates_of_kimi_are_factored_or_whole():
    """A gate of rank r for d columns has r (hidden + d) weights, a whole one hidden · d."""
    gate = {"num_heads": 4, "head_dim": 16, "kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    factored, whole = (
        small(model_type="kimi_linear", linear_attn_config={**gate, "use_full_rank_gate": flag})
        for flag in (False, True)
    )
    assert factored.recurrence.products == 2 * whole.recurrence.products == 2 * 16 * 64
    assert whole.recurrence.columns - factored.recurrence.columns == 64 - 16


def test_structures_that_would_be_timed_wrongly_are_refused():
    for field in ("altup_num_inputs", "hc_mult", "hidden_size_per_layer_input"):
        with pytest.raises(InputError, match=rf"\({field}\), which is not modelled"):
            small(**{field: 512})
    for name in ("google/gemma-3n-E4B-it", "gemma-4-E2B", "deepseek-v4-flash"):
        with pytest.raises(InputError, match=r"has .*which is not modelled\. Use one of"):
            named(name)


def test_towers_and_further_predictions_are_left_out_by_name():
    decoder = {**SMALL, "num_nextn_predict_layers": 2}
    fields = {"model_type": "llava", "text_config": decoder, "vision_config": {"hidden_size": 8}}
    model = from_fields(fields, "seeing")
    assert model.left_out == ("vision tower", "2 multi-token prediction layers")
    assert model.parameters == small().parameters
    assert model.with_prediction_heads(2).left_out == ("vision tower",)


def test_a_model_without_attention_is_linear_in_the_sequence_and_not_served():
    mamba = from_fields(HUB["state-spaces/mamba-2.8b-hf"]["config"], "mamba")
    assert forward_flops(mamba, 1024) == forward_flops(mamba, 65536)
    assert forward_flops(mamba, 1024) / mamba.parameters == pytest.approx(2, rel=0.05)
    with pytest.raises(InputError, match="cannot serve mamba: all its mixers are mamba layers,"):
        profile(mamba, cluster("trn2.48xlarge"))


def test_a_state_space_mixer_has_a_convolution_of_four_by_default():
    jamba = {"model_type": "jamba", "attn_layer_period": 4, "mamba_d_state": 8}
    assert small(**jamba) == small(**jamba, mamba_d_conv=4) != small(**jamba, mamba_d_conv=5)


def test_only_layers_with_attention_hold_a_cache():
    hybrid = from_fields(HUB["Qwen/Qwen3-Next-80B-A3B-Instruct"]["config"], "hybrid")
    served = profile(hybrid, cluster("trn2.48xlarge"))
    attention = sum(layer.mixer == "attention" for layer in hybrid.each_layer)
    assert attention == hybrid.layers // 4
    assert served.kv_bytes_per_token == 2 * 2 * attention * hybrid.kv_heads * hybrid.head_dim
    assert served.decode_request_s > 0


PLAN = ParallelPlan(
    tp=2, dp=4, pp=2, global_batch=16, seq=256, sequence_parallel=True, overlap="all"
)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "gemma2", "sliding_window": 16, "head_dim": 16},
        {"model_type": "cohere", "layer_norm_eps": 1e-5},
        {"model_type": "jamba", "attn_layer_period": 4, "mamba_d_state": 8, "mamba_d_conv": 4},
        {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1]},
        {"num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2},
    ],
)
def test_a_step_of_every_kind_of_layer_runs(fields):
    step = iteration(small(**fields), cluster("trn2.48xlarge"), PLAN)
    assert sum(step.breakdown_s.values()) == pytest.approx(step.iteration_s)


def test_parallel_halves_talk_once_a_layer():
    halves = {"hidden_act": "silu", "layer_norm_eps": 1e-5, "model_type": "neox_like"}
    serial_s, parallel_s = (
        iteration(small(**halves, **more), cluster("trn2.48xlarge"), PLAN).breakdown_s["exposed_tp"]
        for more in ({}, {"use_parallel_residual": True})
    )
    assert parallel_s < 0.75 * serial_s


def test_families_that_are_counted_wrong_are_refused_by_name():
    with pytest.raises(InputError, match=r"'jetmoe' has experts of attention, which is not modell"):
        small(model_type="jetmoe", num_local_experts=8, num_experts_per_tok=2)
    with pytest.raises(InputError, match="'bert_generation' has the layers of an encoder"):
        small(model_type="bert-generation")


def test_persimmon_and_fuyu_have_biases_everywhere():
    fields = {"hidden_act": "relu2", "hidden_size": 4096, "intermediate_size": 16384,
              "num_attention_heads": 64, "num_hidden_layers": 36, "vocab_size": 262_144,
              "qk_layernorm": True, "layer_norm_eps": 1e-5}  # fmt: skip
    persimmon = from_fields({**fields, "model_type": "persimmon"}, "persimmon")
    # By hand: 36 layers of 201,380,096, two embeddings, a final norm; norms of heads have a bias.
    assert persimmon.parameters == pytest.approx(9_397_175_296, rel=1e-6)
    images = {"model_type": "fuyu", "num_channels": 3, "patch_size": 30}
    inner = {**fields, "model_type": "persimmon", "layer_norm_eps": None}
    for fuyu in ({**fields, **images}, {**images, "text_config": inner}):
        model = from_fields(fuyu, "fuyu")
        assert (model.parameters, model.left_out) == (persimmon.parameters, ("patch embedding",))


def test_gemma_3_leaves_out_what_its_class_fills_in():
    four = HUB["google/gemma-3-4b-text"]["config"]
    model = from_fields({"model_type": "gemma3", "text_config": four}, "gemma-3-4b")
    assert (model.vocab, model.heads, model.kv_heads, model.head_dim) == (262_208, 8, 4, 256)


def test_fields_that_nobody_reads_are_named():
    """A made-up family is simulated as what its known fields say; the others are not in silence."""
    llama = json.loads((SHIPPED / "llama-3.1-8b.json").read_text())
    off = {"mlp_depth": 0, "use_mixer": False, "extra": None, "rope_scaling": {"factor": 8.0}}
    assert from_fields({**llama, **off}, "mine").left_out == ()
    mine = {**llama, "model_type": "deepmlp", "mlp_depth": 3, "bos_token_id": 1, "mixer": "fft"}
    assert from_fields(mine, "mine").left_out[:-1] == (
        "the field mixer, which is not understood",
        "the field mlp_depth, which is not understood",
    )
