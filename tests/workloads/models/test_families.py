"""Families of decoders: published parameter counts, and layers of one part or two."""

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.counted_layers import counted, product_flops
from tests.support.refusals import refused
from tests.support.small_decoders import SMALL, small
from tests.support.toy_training import SPARSE, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.support.errors import InputError
from workloads.models import huggingface, layer_fields
from workloads.models.huggingface import SHIPPED, families, from_fields, models, named
from workloads.models.model import (
    Layer,
    Model,
    Recurrence,
    all_attention_flops,
    attention_flops,
    forward_flops,
    index_flops,
    index_size,
    keys_seen,
    layer_flops,
    mixer_size,
)
from workloads.serving import profile
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import mixer_s, products_s
from workloads.training.iteration import iteration
from workloads.training.layers.adapters import trained_share
from workloads.training.layers.layer import (
    backward,
    embedding,
    embedding_backward,
    forward,
    output,
    output_backward,
)
from workloads.training.layers.mixers import attention_backward, attention_forward
from workloads.training.layers.steps import RankShapes
from workloads.training.memory.memory import layer_activations
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import check_model

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
    (windowed,) = small(**fields, sliding_window=8).left_out
    assert "read as layers, with windows in 4 of 4, with gated" in windowed


@pytest.mark.parametrize(("rows", "message"), [
    ([{"of": ["zebra", "okapi"]}, {"of": ["okapi"]}], "two rows of families.json are of okapi"),
    ([{"absent": {}}], "of"),
    ([{"of": ["zebra"], "absnt": {}}], "absnt"),
])  # fmt: skip
def test_a_row_of_families_without_effect_is_refused(monkeypatch, rows, message):
    monkeypatch.setattr(huggingface, "facts", lambda: {"families": rows})
    with pytest.raises((TypeError, ValueError), match=message):
        families.__wrapped__()


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


@pytest.mark.parametrize(("fields", "windows"), [
    ({"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}, "8080"),
    ({"sliding_window": 8, "sliding_window_pattern": 4}, "8880"),
    ({"sliding_window": 8, "sliding_window_pattern": "LG"}, "8080"),
    ({"sliding_window": 8, "use_sliding_window": False}, "0000"),
    ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3}, "0008"),
])  # fmt: skip
def test_windows_by_layer(fields, windows):
    assert "".join(str(layer.window) for layer in small(**fields).each_layer) == windows


@pytest.mark.parametrize(("fields", "layers"), [
    ({"num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2,
      "intermediate_size_mlp": 96}, [False, True, False, True]),
    ({"num_local_experts": 4, "num_experts_per_tok": 1,
      "mlp_layer_types": ["dense", "sparse", "sparse"]}, [False, True, True, False]),
])  # fmt: skip
def test_layers_with_experts(fields, layers):
    model = small(**fields)
    assert [layer.experts for layer in model.each_layer] == layers
    assert model.moe_layers == sum(layers)
    assert (model.experts.count, model.experts.ffn) == (4, 128)
    assert model.ffn == fields.get("intermediate_size_mlp", 128)


NO_EXPERTS = ({}, {"num_local_experts": 0})


def test_a_dense_layer_of_a_mixture_has_no_experts():
    dense, sparse = (SPARSE.of_kind(kind) for kind in SPARSE.kinds)
    assert (dense.experts, sparse.experts) == (None, replace(SPARSE.experts, dense_layers=0))
    # Granite's hybrids without experts have their shared part alone.
    assert {small(shared_intermediate_size=96, **none).ffn for none in NO_EXPERTS} == {96}


JAMBA = {"model_type": "jamba", "attn_layer_period": 4, "mamba_d_state": 8}


def test_a_state_space_mixer_has_the_usual_rank_and_a_convolution_of_four_by_default():
    assert small(**JAMBA, mamba_dt_rank="auto") == small(**JAMBA) == small(**JAMBA, mamba_dt_rank=4)
    assert small(**JAMBA) == small(**JAMBA, mamba_d_conv=4) != small(**JAMBA, mamba_d_conv=5)


def test_layers_of_one_part_each():
    model = small(
        model_type="nemotron_h", hybrid_override_pattern="M*-M", ssm_state_size=8,
        mamba_num_heads=4, mamba_head_dim=16, num_hidden_layers=4, mlp_hidden_act="relu2",
    )  # fmt: skip
    state = Layer("recurrence", mlp=False)
    assert model.each_layer == (state, Layer(mlp=False), Layer("none"), state)
    # A convolution of 4 with a bias; decay, skip and bias of the time of each head; and a norm.
    assert model.recurrence.other == 5 * (4 * 16 + 2 * 8) + 3 * 4 + 4 * 16


def test_biases_of_a_short_convolution_are_on_its_projections_too():
    layers = {"model_type": "lfm2", "layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
    plain, biased = (small(**layers, conv_bias=flag).recurrence.other for flag in (False, True))
    assert (plain, biased - plain) == (3 * 64, (3 + 1 + 1) * 64)


def test_layers_of_kimi_linear_are_counted_from_one():
    model = named("kimi-linear-48b-a3b")
    whole = [place for place, layer in enumerate(model.each_layer, 1) if layer.mixer == "attention"]
    assert whole == [4, 8, 12, 16, 20, 24, 27]
    assert model.recurrence.state == 32 * 128 * 128


def test_every_fourth_layer_of_glm_flash_attends_and_the_first_three_are_dense():
    model = named("zai-org/GLM-5.3-Flash")
    whole = [place for place, layer in enumerate(model.each_layer) if layer.mixer == "attention"]
    assert whole == list(range(3, 45, 4))
    assert [layer.experts for layer in model.each_layer].index(True) == 3
    assert model.recurrence.state == 64 * 128 * 128


def test_an_indexer_of_pooled_keys_scores_one_for_each_pool():
    model = named("glm-5.3-flash")
    pooled = model.of_kind(model.each_layer[3])
    each = replace(pooled, indexer=replace(pooled.indexer, tokens=1, pooled=False))
    assert (pooled.indexer.tokens, index_size(pooled)) == (16, index_size(each))
    assert 16 * index_flops(pooled, 4096) == index_flops(each, 4096)


def test_the_gates_of_kimi_are_factored_or_whole():
    """A gate of rank r for d columns has r (hidden + d) weights, a whole one hidden · d."""
    gate = {"num_heads": 4, "head_dim": 16, "kda_layers": [1, 2, 3], "full_attn_layers": [4]}
    factored, whole = (
        small(model_type="kimi_linear", linear_attn_config={**gate, "use_full_rank_gate": flag})
        for flag in (False, True)
    )
    assert factored.recurrence.products == 2 * whole.recurrence.products == 2 * 16 * 64
    assert whole.recurrence.columns - factored.recurrence.columns == 64 - 16


@pytest.mark.parametrize(("fields", "message"), [
    ({"gated_norm_rank": 4}, r"\(gated_norm_rank\), which is not modelled"),
    ({"model_type": "jetmoe", "num_local_experts": 8, "num_experts_per_tok": 2},
     "'jetmoe' has experts of attention, which is not modelled"),
    ({"model_type": "bert-generation"}, "'bert_generation' has the layers of an encoder"),
    *(({"model_type": "minimax", "attn_type_list": listed}, r"attn_type_list is .*; give a list\.")
      for listed in ("full_attention", 3, [1] * 10_001)),
    *(({**JAMBA, "mamba_dt_rank": rank}, "mamba_dt_rank is .*; it must be a whole number")
      for rank in ("x", [1], -1)),
    ({"per_layer_config": {"0": {"kv_lora_rank": 8}}},
     "per_layer_config has 'kv_lora_rank'; layers may differ in num_attention_heads, num_k"),
])  # fmt: skip
def test_structures_that_would_be_timed_wrongly_are_refused(fields, message):
    refused(message, small, **fields)


def test_towers_and_further_predictions_are_left_out_by_name():
    decoder = {**SMALL, "num_nextn_predict_layers": 2}
    fields = {"model_type": "llava", "text_config": decoder, "vision_config": {"hidden_size": 8}}
    model = from_fields(fields, "seeing")
    assert model.left_out == ("vision tower", "2 multi-token prediction layers")
    assert model.parameters == small().parameters
    assert model.with_prediction_heads(2).left_out == ("vision tower",)


@pytest.mark.parametrize(("part", "whole", "decoder", "tied"), [
    ("text_config", True, False, True), ("text_config", False, True, False),
    ("text_config", None, True, True), ("llm_config", False, True, True),
])  # fmt: skip
def test_a_model_in_transformers_ties_its_output_layer_and_others_their_decoder_s(
    part, whole, decoder, tied
):
    inner = {**SMALL, "tie_word_embeddings": decoder}
    model = from_fields({part: inner, "tie_word_embeddings": whole}, "seeing")
    assert model.tied_embeddings == tied


def test_the_thinker_of_an_omni_model_is_read_and_its_talker_left_out():
    thinker = {"text_config": SMALL, "audio_config": {"d_model": 8}}
    model = from_fields({"thinker_config": thinker, "talker_config": SMALL}, "omni")
    assert (model.parameters, model.left_out) == (small().parameters, ("audio tower", "talker"))


def test_what_a_quantization_leaves_and_attention_to_later_tokens_are_named():
    four = {"quant_method": "modelopt", "quant_algo": "NVFP4"}
    model = small(quantization_config={**four, "ignore": ["lm_head", "model.layers.0.self_attn*"]})
    assert [part.partition(",")[0] for part in model.left_out] == ["16 bits of attention"]
    assert small(quantization_config={**four, "ignore": ["lm_head"]}).left_out == ()
    assert small(use_bidirectional_attention="vision").left_out == ()
    assert small(use_bidirectional_attention="all").left_out == ("attention to later tokens",)


def test_a_model_without_attention_is_linear_in_the_sequence_and_not_served():
    mamba = from_fields(HUB["state-spaces/mamba-2.8b-hf"]["config"], "mamba")
    assert forward_flops(mamba, 1024) == forward_flops(mamba, 65536)
    assert forward_flops(mamba, 1024) / mamba.parameters == pytest.approx(2, rel=0.05)
    with pytest.raises(InputError, match="cannot serve mamba: all its mixers are mamba layers,"):
        profile(mamba, cluster("trn2.48xlarge"))


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


@pytest.mark.parametrize("fields", [
    {"model_type": "gemma2", "sliding_window": 16, "head_dim": 16},
    {"model_type": "cohere", "layer_norm_eps": 1e-5},
    {**JAMBA, "mamba_d_conv": 4},
    {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1]},
    {"num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2},
])  # fmt: skip
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


STATE = Recurrence("mamba", 3072, 1024, 0, 40, 65_536)
BOTH = replace(TOY, mixer="both", recurrence=STATE)
ALONE = [replace(BOTH, mixer=mixer) for mixer in ("attention", "recurrence")]

WINDOWED = {
    "model_type": "gemma3_text", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "num_hidden_layers": 6,
    "sliding_window": 128,
}  # fmt: skip
"""Five layers with a window, and one without, whose heads may be others."""
WITH_WIDE_HEADS = WINDOWED | {
    "global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
}  # fmt: skip


def share(model: Model) -> RankShare:
    return RankShare(model, cluster("dgx-h200"), 8, "bf16", shipped_catalogue())


def test_side_by_side_mixers_have_the_parameters_and_flops_of_both():
    sizes = [mixer_size(model) for model in ALONE]
    assert mixer_size(BOTH) == tuple(sum(part) for part in zip(*sizes, strict=True))
    assert attention_flops(BOTH, 512) == sum(attention_flops(model, 512) for model in ALONE)


@pytest.mark.parametrize("tp", [1, 4])
def test_side_by_side_mixers_do_the_work_of_both(tp):
    shapes = counted(BOTH, tp=tp)
    expected = 1024 / tp * (layer_flops(BOTH, 1024, moe=False) - attention_flops(BOTH, 1024))
    assert product_flops(list(forward(shapes))) == pytest.approx(expected, rel=1e-9)
    assert product_flops(list(backward(shapes))) == pytest.approx(2 * expected, rel=1e-9)


@pytest.mark.parametrize("within", [0, 4096])
def test_a_state_takes_its_projections_and_the_products_within(within):
    rank = share(replace(BOTH, recurrence=replace(STATE, products=within)))
    tokens, sides = np.array([64.0]), [(3072 / 8, TOY.hidden), (TOY.hidden, 1024 // 8)]
    sides += [(within / 1024 / 8, 1024)] * (within > 0)
    expected = sum(rank.product_s(tokens, *each) for each in sides)
    assert mixer_s(rank, tokens) == pytest.approx(expected)


def test_side_by_side_mixers_share_norm_gathering_and_reduction():
    for passed in (forward, backward):
        names = [Counter(step.name for step in passed(counted(m, tp=4))) for m in (BOTH, *ALONE)]
        both, attention, recurrence = names
        shared = {name for name in attention & recurrence if name.startswith("attention.")}
        assert "attention.norm" in shared or "attention.norm.data" in shared
        assert both == attention | recurrence
        assert all(both[name] == 1 for name in shared)


def test_side_by_side_mixers_keep_what_both_need():
    how = counted(BOTH).plan
    kept = [layer_activations(model, how) for model in (BOTH, *ALONE)]
    without_mixer = layer_activations(replace(BOTH, recurrence=None, mixer="recurrence"), how)
    assert kept[0] - without_mixer == sum(part - without_mixer for part in kept[1:])


def test_falcon_h1_is_read_and_served():
    falcon = named("falcon-h1-7b")
    assert falcon.left_out == ()
    rank = share(falcon)
    assert (rank.attention_layers, rank.recurrent_layers, rank.parts) == (44, 44, 88)
    assert rank.kv_bytes_per_token() == 8 * 44 * 2 * 128 * 2


@pytest.mark.parametrize("name", models())
def test_each_part_of_a_layer_is_reduced_once(name):
    rank = share(named(name))
    assert (rank.parts == 2 * rank.model.layers) == (not name.startswith("nemotron"))


def test_layers_of_one_part_are_counted_once():
    rank = share(named("nemotron-3-nano-30b-a3b"))
    assert (rank.attention_layers, rank.recurrent_layers, rank.dense_layers) == (6, 23, 0)
    assert (rank.model.moe_layers, rank.parts) == (23, 52)
    dense = share(named("nemotron-h-56b"))
    assert (dense.attention_layers, dense.recurrent_layers, dense.dense_layers) == (10, 54, 54)
    # At one token the weights of all ranks are streamed once, at no more than the memory's rate.
    seconds = float(products_s(dense, np.array([1.0]))[0])
    floor_s = 2 * dense.model.parameters / 8 / 4.8e12
    assert floor_s * 0.95 < seconds < 2 * floor_s


def test_global_heads_like_all_others_move_nothing():
    plain = from_fields(WINDOWED, "plain")
    stated = from_fields({**WINDOWED, "global_head_dim": 32, "num_global_key_value_heads": 4}, "s")
    assert stated.parameters == plain.parameters
    assert [len(model.by_heads) for model in (plain, stated)] == [1, 2]
    plan, where = ParallelPlan(tp=4, dp=4, global_batch=8, seq=512), cluster("trn2.48xlarge")
    assert iteration(plain, where, plan).time_s == iteration(stated, where, plan).time_s
    served, same = (profile(model, cluster("dgx-h100"), tp=2) for model in (plain, stated))
    names = ("decode_kv_s", "decode_window_s", "decode_request_s", "linear_s", "prefill_square_s")
    for name in (*names, "kv_bytes_per_token", "window_tokens"):
        assert getattr(served, name) == pytest.approx(getattr(same, name), rel=1e-12)


def test_wide_global_heads_and_tied_values_are_counted_where_they_are():
    """One layer has a key-value head of 64, whose one projection gives keys and values."""
    model, plain = from_fields(WITH_WIDE_HEADS, "wide"), from_fields(WINDOWED, "plain")
    before = 256 * 32 * (8 + 2 * 4 + 8) + 2 * 32
    assert model.parameters - plain.parameters == 256 * 64 * (8 + 1 + 8) + 2 * 64 - before
    rank = replace(share(model), chips=1)
    assert rank.kv_bytes_on_rank() == 2 * (5 * 2 * 4 * 32 + 2 * 64)
    longer = attention_flops(model.of_kind(model.kinds[1]), 512)
    assert longer == 2 * attention_flops(plain.of_kind(plain.kinds[1]), 512)
    # A key is rotated whether or not it is the value too, and one of another layer is not.
    tied, rotated = model.of_kind(model.kinds[1]), []
    for products in (0, tied.kv_products, 2):
        layer = replace(tied, kv_products=products)
        steps = attention_forward(RankShapes(layer, plan(), "h100", shipped_catalogue()))
        rotated += [step.seconds for step in steps if step.name == "attention.rotate"]
    assert rotated[0] < rotated[1] == rotated[2]


SHARING = WITH_WIDE_HEADS | {
    "attention_k_eq_v": False, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 3,
    "sliding_window_pattern": 2, "use_double_wide_mlp": True, "vocab_size_per_layer_input": 512,
}  # fmt: skip
"""Six layers of which every other has a window, and the last three read the keys of others."""


def test_layers_that_read_keys_of_others_and_embeddings_of_their_own_are_counted():
    model, plain = from_fields(SHARING, "e"), from_fields({**SHARING, **APART}, "plain")
    windowed, full = 256 * 2 * 4 * 32 + 32, 256 * 2 * 64 + 64  # products of keys, and their norm
    wider, inputs = 3 * 3 * 256 * 512, 6 * (2 * 256 * 16 + 256)
    table = 6 * 16 * (512 + 256) + 16
    assert model.parameters - plain.parameters == wider + inputs + table - windowed - 2 * full
    assert [layer.kv_products for layer in model.each_layer] == [2, 2, 2, 0, 0, 0]
    assert model.dense_columns == 3 * 512 + 3 * 1024
    kept, every = (replace(share(each), chips=1).kv_bytes_on_rank() for each in (model, plain))
    assert (kept, every) == (2 * 2 * (2 * 4 * 32 + 64), 2 * 2 * 3 * (4 * 32 + 64))


APART = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}


@pytest.mark.parametrize("tp", [1, 4])
def test_layers_with_embeddings_of_their_own_do_the_work_that_is_counted(tp):
    """Every rank has both products of such a layer, for its part of the sequence."""
    model = from_fields(SHARING, "e")
    for kind in model.kinds:
        shapes = counted(model.of_kind(kind), tp=tp)
        flops = layer_flops(shapes.model, 1024, moe=False) - attention_flops(shapes.model, 1024)
        heads = 1024 * 2 * 256 * 64 * 2 * (kind.kv_products > 0 and kind.head_dim > 0)
        expected = 1024 / tp * flops + heads * (1 - 1 / tp)  # of a head that all ranks have
        assert product_flops(list(forward(shapes))) == pytest.approx(expected, rel=1e-9)
        assert product_flops(list(backward(shapes))) == pytest.approx(2 * expected, rel=1e-9)
    ends = counted(model, tp=tp)
    expected = 2 * 1024 * 256 * 6 * 16 / tp
    assert product_flops(embedding(ends)) == pytest.approx(expected, rel=1e-9)
    assert product_flops(embedding_backward(ends)) == pytest.approx(2 * expected, rel=1e-9)


COPIES = SHARING | {
    "model_type": "gemma3n_text", "global_head_dim": None, "use_double_wide_mlp": False,
    "altup_num_inputs": 4, "laurel_rank": 8, "activation_sparsity_pattern": [0.95, 0, 0, 0, 0, 0],
    "intermediate_size": [512, 512, 512, 256, 256, 1024],
}  # fmt: skip
"""Layers that mix four copies of the hidden state, and of which some are narrower."""


def test_copies_of_the_hidden_state_are_counted_mixed_and_kept():
    model, single = (from_fields({**COPIES, **more}, "e") for more in ({}, {"altup_num_inputs": 1}))
    layer, ends = 256 * (4 + 2 * 8) + 4**2 + 4**3 + 3 * 256, 2 * 3 * 256**2
    assert model.parameters - single.parameters == 6 * layer + ends
    assert [each.ffn for each in model.each_layer] == [0, 0, 0, 256, 256, 1024]
    assert model.dense_columns == 3 * 512 + 2 * 256 + 1024
    # Three passes over the columns of one layer in six are less than a hidden state.
    assert model.streams.passes == 6 * 4 + 4 + 1
    for kind in model.kinds:
        steps = [counted(each.of_kind(kind)) for each in (model, single)]
        more = 2 * 1024 * 256 * (4 + 2 * 8)
        for passed, times in ((forward, 1), (backward, 2)):
            flops = [product_flops(list(passed(each))) for each in steps]
            assert flops[0] - flops[1] == pytest.approx(times * more, rel=1e-9)
    for passed, times in (
        (embedding, 1),
        (embedding_backward, 2),
        (output, 1),
        (output_backward, 2),
    ):
        flops = [product_flops(passed(counted(each))) for each in (model, single)]
        assert flops[0] - flops[1] == pytest.approx(times * 1024 * ends, rel=1e-6)
    how = counted(model).plan
    kept, once = (layer_activations(each.of_kind(each.kinds[0]), how) for each in (model, single))
    assert kept - once == 2 * 3 * 2 * 1024 * 256
    served, plain = (profile(each, cluster("dgx-h100")) for each in (model, single))
    assert served.linear_s.sum() > plain.linear_s.sum()


V4 = {
    "model_type": "deepseek_v4", "hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 1024,
    "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 64,
    "o_groups": 4, "o_lora_rank": 16, "sliding_window": 16, "compress_ratios": [0, 4, 128, 4, 0],
    "index_topk": 8, "index_n_heads": 4, "index_head_dim": 16, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "hc_mult": 4, "rms_norm_eps": 1e-6,
}  # fmt: skip
"""DeepSeek-V4's kinds of layers: a window alone, and beside keys of 4 or of 128 tokens."""


def test_keys_of_several_tokens_are_counted_and_seen_as_deepseek_has_them():
    model = from_fields(V4, "v4")
    last, fine, coarse = (model.of_kind(kind) for kind in model.kinds)
    kept = [layer.summaries for layer in model.each_layer]
    assert [summaries and summaries.tokens for summaries in kept] == [None, 4, 128, 4]
    # Queries, a key, and an output by groups; then two series, or one, of keys and their weights.
    plain = 256 * (64 + 32) + 64 * 256 + 16 * (256 + 4 * 256)
    index = 64 * 4 * 16 + 256 * (4 * 16 + 4)
    assert mixer_size(last) == (plain, 64 + 32 + 8)
    assert mixer_size(replace(last, sinks=False)) == (plain, 64 + 32)
    assert mixer_size(coarse) == (plain + 2 * 256 * 32, 64 + 32 + 8 + 32 + 128 * 32)
    summed = 4 * 2 * 32 + 32 + 16 * (1 + 2 * 4)
    assert mixer_size(fine) == (plain + 4 * 256 * 32 + index, 64 + 32 + 8 + summed)
    windowed = (16 * 17 / 2 + 1008 * 16) / 1024
    assert keys_seen(last, 1024) == windowed
    assert keys_seen(coarse, 1024) == windowed + 512.5 / 128
    assert keys_seen(fine, 1024) == windowed + (32 * 33 / 2 + 992 * 32) / 1024 / 4


@pytest.mark.parametrize("tp", [1, 4])
def test_low_rank_attention_divides_queries_and_groups_and_makes_all_keys_on_each_rank(tp):
    model = from_fields(V4, "v4")
    for kind in model.kinds:
        shapes = counted(model.of_kind(kind), tp=tp)
        divided = 64 * 256 + 16 * (256 + 4 * 256)
        whole = mixer_size(shapes.model).weights - divided
        expected = 2 * 1024 * (whole + divided / tp)
        assert product_flops(attention_forward(shapes)) == pytest.approx(expected, rel=1e-9)
        assert product_flops(attention_backward(shapes)) == pytest.approx(2 * expected, rel=1e-9)
    with pytest.raises(InputError, match=r"4 groups of heads of v4 are not divisible by tp 8"):
        check_model(ParallelPlan(tp=8, global_batch=8), model)
    with pytest.raises(
        InputError, match=r"cp 2: a key of v4 stands for tokens of several ranks.* cp 1\."
    ):
        check_model(ParallelPlan(cp=2, seq=512), model)
    with pytest.raises(InputError, match=r"sums up 8 tokens in layer 0; 4 and 128 are modelled"):
        from_fields({**V4, "compress_ratios": [8, 4, 4, 4]}, "v4")


@pytest.mark.parametrize(("name", "flops", "cache"), [
    ("deepseek-v4-pro", 0.27, 0.10), ("deepseek-v4-flash", 0.10, 0.07),
])  # fmt: skip
def test_a_million_tokens_cost_deepseek_v4_what_its_authors_say(name, flops, cache):
    """The model card states work and cache of a token at 1M tokens as shares of V3.2's."""
    old, new = named("deepseek-v3.2"), named(name)

    def at_a_million(model):
        more = 2**20 + 4096
        whole = forward_flops(model, more) * more - forward_flops(model, 2**20) * 2**20
        return whole / 4096

    assert at_a_million(new) / at_a_million(old) == pytest.approx(flops, abs=0.03)
    stored = [
        profile(model, cluster("p6-b300.48xlarge"), cache_precision="fp8", precision=precision)
        for model, precision in ((old, "fp8"), (new, None))
    ]
    assert stored[1].kv_bytes_per_token / stored[0].kv_bytes_per_token == pytest.approx(
        cache, abs=0.005
    )


def test_heads_are_others_in_layers_with_a_window():
    """MiMo-V2 has more key-value heads there, Step 3.5 more query heads and a gate of each."""
    mimo, step = (
        from_fields(HUB[name]["config"], name)
        for name in ("XiaomiMiMo/MiMo-V2-Flash", "stepfun-ai/Step-3.5-Flash")
    )
    heads = [(m.kv_heads, m.head_dim, m.layers) for m in mimo.by_heads]
    assert heads == [(4, 160, 9), (8, 160, 39)]
    assert [(m.heads, m.layers) for m in step.by_heads] == [(64, 12), (96, 33)]
    assert [layer.experts for layer in step.each_layer] == [False] * 3 + [True] * 42
    wide = step.of_kind(step.kinds[1])
    assert mixer_size(wide).weights == 4096 * (2 * 96 * 128 + 2 * 8 * 128 + 96)
    # A key of 192 columns and a value of 128 are as large as two of 160.
    assert share(mimo).kv_bytes_on_rank() == (192 + 128) * (9 + 39) * 2
    with pytest.raises(InputError, match=r"32 attention heads of .* are not divisible by tp 64"):
        check_model(ParallelPlan(tp=64, global_batch=64), step)
    for kind in step.kinds:
        shapes = counted(step.of_kind(kind), tp=2)
        expected = 1024 * mixer_size(shapes.model).weights  # two operations, on half of the weights
        assert product_flops(attention_forward(shapes)) == pytest.approx(expected, rel=1e-9)


def test_layers_of_longcat_are_two_and_a_third_of_its_choices_does_nothing():
    model = from_fields(HUB["meituan-longcat/LongCat-Flash-Chat"]["config"], "longcat")
    assert [layer.experts for layer in model.each_layer] == [True, False] * 28
    experts = model.experts
    assert (experts.per_token, experts.idle, experts.shared_ffn) == (8, 256, 12_288)
    # Its authors say that 27 billion parameters work for a token in the mean.
    assert forward_flops(model, 1) / 2e9 == pytest.approx(27, rel=0.05)


@pytest.mark.parametrize(("chip", "others", "experts"), [
    ("dgx-h200", ("fp8", "fp8"), ("mxfp4", "bf16")),
    ("dgx-a100", ("fp8", "bf16"), ("mxfp4", "bf16")),
    ("dgx-b200", ("fp8", "fp8"), ("mxfp4", "mxfp8")),
])  # fmt: skip
def test_experts_of_deepseek_v4_have_four_bits_beside_eight(chip, others, experts):
    model = named("deepseek-v4-flash")
    assert (model.precision, model.left_out) == ("fp8-mxfp4", ("1 multi-token prediction layer",))
    rank = replace(share(model), cluster=cluster(chip), precision=model.precision)
    assert (rank.format[:2], rank.experts.format[:2]) == (others, experts)
    assert profile(model, rank.cluster).weights_bytes < 0.55 * model.parameters + 8e9


@pytest.mark.parametrize(("chip", "weights"), [("dgx-h200", "int4"), ("trn2.48xlarge", "bf16")])
def test_experts_of_integers_are_widened_within_the_product_or_when_they_are_loaded(chip, weights):
    rank = replace(
        share(replace(SPARSE, precision="int4")), cluster=cluster(chip), precision="int4"
    )
    assert rank.experts.format == (weights, "bf16", True)
    assert rank.format == ("bf16", "bf16", True)


def test_heads_that_a_config_states_for_each_layer_are_read():
    stated = {"01": {"head_dim": 32, "num_key_value_heads": 1}, "03": {"num_attention_heads": 8}}
    model = small(per_layer_config=stated)
    assert [(layer.heads, layer.head_dim, layer.kv_heads) for layer in model.each_layer] == [
        (0, 0, 0), (0, 32, 1), (0, 0, 0), (8, 0, 0),
    ]  # fmt: skip


def test_layers_that_a_search_found_have_parts_and_widths_of_their_own():
    """Llama-Nemotron's widths are two thirds of a multiple, in whole 256."""
    whole = {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 12.0}}
    blocks = [
        whole,
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 5.25}},
        {**whole, "ffn": {"no_op": True}},
    ]
    fields = {"intermediate_size": None, "num_key_value_heads": None, "num_hidden_layers": 3}
    model = small(model_type="nemotron-nas", block_configs=blocks, **fields)
    parts = [(layer.mixer, layer.kv_heads, layer.mlp, layer.ffn) for layer in model.each_layer]
    assert parts[:2] == [("attention", 2, True, 512), ("none", 0, True, 256)]
    assert parts[2][:3] == ("attention", 2, False)
    attention, norm = 64 * 16 * (4 + 2 + 2 + 4), 64
    expected = 2 * (attention + norm) + 3 * 64 * (512 + 256) + 2 * norm + norm
    assert model.parameters == expected + 2 * model.vocab * 64
    blocks[0] = {"attention": {"replace_with_linear": True}}
    message = r"attention\.replace_with_linear of layer 0 is not modelled"
    refused(message, small, model_type="nemotron-nas", block_configs=blocks, **fields)


def test_every_sixth_layer_of_ling_3_has_attention_to_all_keys():
    model = from_fields(HUB["inclusionAI/defaults-of-bailing_hybrid"]["config"], "ling")
    whole = [place for place, layer in enumerate(model.each_layer, 1) if layer.mixer == "attention"]
    assert whole == [6, 12, 18, 24, 30, 36, 42]
    assert (model.recurrence.columns, model.recurrence.products) == (5 * 32 * 128 + 32, 0)


def test_a_pipeline_sends_all_copies_of_the_hidden_state():
    plan, where = ParallelPlan(pp=2, dp=8, global_batch=16, seq=512), cluster("trn2.48xlarge")
    once, four = (
        iteration(from_fields({**V4, "hc_mult": count}, "v4"), where, plan) for count in (1, 4)
    )
    sent = [step.program.steps for step in (once, four)]
    sizes = [{x.size_bytes for x in steps if x.name == "forward.send"} for steps in sent]
    assert sizes == [{2 * 512 * 256}, {4 * 2 * 512 * 256}]


def test_layers_that_read_keys_of_others_are_no_slower_and_stay_in_one_stage():
    narrow = {**SHARING, "use_double_wide_mlp": False}
    sharing, apart = (
        from_fields({**narrow, **more}, "e") for more in ({}, {"num_kv_shared_layers": 0})
    )
    plan, where = ParallelPlan(tp=4, dp=4, global_batch=8, seq=512), cluster("trn2.48xlarge")
    assert iteration(sharing, where, plan).time_s < iteration(apart, where, plan).time_s
    fewer, every = (profile(model, cluster("dgx-h100"), tp=2) for model in (sharing, apart))
    assert fewer.kv_bytes_per_token < every.kv_bytes_per_token
    assert fewer.linear_s.sum() < every.linear_s.sum()
    with pytest.raises(InputError, match=r"pp 2: layers of e read .* first layers, .* Use pp 1\."):
        check_model(ParallelPlan(pp=2), sharing)
    assert (sharing.most_stages, small().most_stages) == (1, 4)


def test_cross_layer_attention_shares_keys_by_twos():
    shared = small(use_cla=True, cla_share_factor=2)
    assert [layer.kv_products for layer in shared.each_layer] == [2, 0, 2, 0]
    assert small(use_cla=False, cla_share_factor=2).parameters == small().parameters


def test_gemma_4_has_its_dense_part_beside_its_experts():
    experts = named("gemma-4-26b-a4b").experts
    assert (experts.count, experts.per_token) == (128, 8)
    assert (experts.ffn, experts.shared_ffn) == (704, 2112)


def test_adapters_are_counted_by_the_heads_of_each_layer():
    """The layer with heads of 64 has wider products, and no projection of values to adapt."""
    model, plan = from_fields(WITH_WIDE_HEADS, "wide"), ParallelPlan(lora_rank=8)
    mlp = 3 * (256 + 512)
    windowed = 2 * (256 + 8 * 32) + 2 * (256 + 4 * 32) + mlp
    full = 2 * (256 + 8 * 64) + (256 + 64) + mlp
    assert trained_share(model, plan, 0).dense == 8 * (5 * windowed + full)
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "num_global_key_value_heads": 3}
    three = from_fields({**WITH_WIDE_HEADS, **heads}, "three")
    with pytest.raises(InputError, match="tp 2 neither divides the 3 key-value heads of three"):
        check_model(ParallelPlan(tp=2), three)


def test_a_ring_of_context_parallelism_keeps_the_window():
    """No rank computes more of its own keys than a window has, so a ring is as fast as a gather."""
    model, machine = named("gemma-4-31b"), cluster("dgx-h100:2")
    ring, gathered = (
        iteration(model, machine, plan, allow_oversized=True).breakdown_s["compute"]
        for way in ("ring", "all-gather")
        for plan in [ParallelPlan(tp=8, cp=2, seq=32768, cp_exchange=way)]
    )
    assert gathered < ring < 1.1 * gathered
