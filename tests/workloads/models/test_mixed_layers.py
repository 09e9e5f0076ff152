"""Layers with attention and a state side by side, and layers of one part each."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.support.counted_layers import counted, product_flops
from tests.support.toy_training import TOY
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import from_fields, models, named
from workloads.models.model import Model, Recurrence, attention_flops, layer_flops, mixer_size
from workloads.serving.profile import profile
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import mixer_s, products_s
from workloads.training.iteration import iteration
from workloads.training.layers.adapters import trained_share
from workloads.training.layers.layer import backward, forward
from workloads.training.memory.memory import layer_activations
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import check_model

STATE = Recurrence("mamba", 3072, 1024, 0, 40, 65_536)
BOTH = replace(TOY, mixer="both", recurrence=STATE)
ALONE = [replace(BOTH, mixer=mixer) for mixer in ("attention", "recurrence")]


WINDOWED = {
    "model_type": "gemma4_text", "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1024,
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
    assert model.kinds[1].tied_values


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
