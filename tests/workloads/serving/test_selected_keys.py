"""Serving of models whose layers select the keys of attention, or keep states of requests."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from tests.support.examples import examples
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.attention import index_score_s
from workloads.models.huggingface import from_fields, named
from workloads.serving import Requests, serve
from workloads.serving.batching import Batching, engine_batching, engine_numbers
from workloads.serving.profile import profile
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import (
    decode_keys,
    decode_request_s,
    exchange_s,
    index_s,
    projections_s,
    scan_token_s,
)

V32 = named("deepseek-v3.2")
DENSE = replace(V32, window=0, keys="last", indexer=None)
"""The same model without its selection, as DeepSeek-V3 is."""
MACHINES = ("dgx-a100", "dgx-h200", "dgx-b200", "trn2.48xlarge")


def shallow(model, **changes):
    """The model with six layers, which fits any machine of the test."""
    return replace(model, layers=6, **changes)


def served(model, machine="dgx-h200", engine=""):
    precision = "bf16" if machine == "dgx-a100" else "fp8"
    numbers = shipped_catalogue()
    if engine:
        numbers = numbers.with_variants({"serving.gpu.masked_selection": engine})
    return profile(model, cluster(machine), precision=precision, catalogue=numbers)


@pytest.mark.parametrize("machine", MACHINES)
def test_short_contexts_cost_the_dense_attention_and_the_indexer(machine):
    model, context = shallow(V32), 2000
    sparse, dense = served(model, machine), served(shallow(DENSE), machine)
    rank = RankShare(model, cluster(machine), 1, "fp8", shipped_catalogue())
    how = {"ranks_per_chip": rank.per_chip, "catalogue": rank.catalogue}
    scores = 6 * index_score_s(rank.cluster.chip, 64, 128, **how)
    more = sparse.prefill_extra_s(context, 0) - dense.prefill_extra_s(context, 0)
    assert more == pytest.approx(scores * context**2 / 2, rel=1e-6)
    assert sparse.linear(64) > dense.linear(64)


def module_s(model, numbers, cached):
    """Time of one layer's attention for 128 requests on one of 8 ranks, without reductions [s]."""
    rank = RankShare(model, cluster("dgx-h200"), 8, "fp8", numbers, cache_precision="fp8")
    tokens, keys = np.array([128.0]), decode_keys(rank)
    attention = keys.all_s * cached + keys.most_s * min(cached, keys.most)
    products = float((projections_s(rank, tokens) + index_s(rank, tokens))[0])
    kernels = 6 + rank.overhead("index_kernels") * (model.indexer is not None)
    small = kernels * float(rank.pass_s(4 * tokens * model.hidden)[0])
    return products + small + (128 * attention + 128 * decode_request_s(rank)) / model.layers


@pytest.mark.parametrize(
    ("cached", "measured"),
    [(8192, 1.07), (16_384, 0.75), (32_768, 0.52), (65_536, 0.38), (131_072, 0.30)],
)
def test_selection_pays_from_the_measured_length_on(cached, measured):
    """Modules of DeepSeek-V3.2 over V3 by vLLM 0.24 on H200 (aiconfigurator), 16 heads, FP8."""
    numbers = shipped_catalogue().with_variants({"serving.gpu.masked_selection": "vllm"})
    ratio = module_s(V32, numbers, cached) / module_s(DENSE, numbers, cached)
    assert ratio == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize(
    ("machine", "key_s"), [("h100", 55e-12), ("h200", 36e-12), ("b200", 22e-12)]
)
def test_decode_scores_every_cached_key(machine, key_s):
    """As measured from 65,536 to 131,072 tokens by vLLM 0.24 [s]."""
    replica = served(shallow(V32), f"dgx-{machine}")
    assert replica.decode_kv_s / 6 == pytest.approx(key_s, rel=0.08)


def test_a_token_of_the_cache_has_its_index_key():
    ranks = 8
    assert served(V32).kv_bytes_per_token == ranks * 61 * (512 + 16 + 128 + 128 + 4)
    plain = profile(V32, cluster("dgx-h200"), precision="fp8", cache_precision="bf16")
    assert plain.kv_bytes_per_token == ranks * 61 * (2 * 576 + 132)


def test_engines_without_a_masked_kernel_gather_short_prompts():
    with_mask, gathers = served(V32), served(V32, engine="vllm")
    for context in (1000, 4096, 32_768):
        assert gathers.prefill_s(context) >= with_mask.prefill_s(context)
    assert gathers.prefill_window_tokens == 2048 < with_mask.prefill_window_tokens
    same = gathers.prefill_window_s * 2048 / (with_mask.prefill_window_s)
    assert same == pytest.approx(with_mask.prefill_window_tokens, rel=1e-3)


@examples(50)
@given(st.integers(0, 30_000), st.integers(1, 30_000), st.integers(1, 30_000))
def test_pieces_of_a_prompt_cost_the_whole(before, first, second):
    replica = served(V32)
    pieces = replica.prefill_extra_s(first, before)
    pieces += replica.prefill_extra_s(second, before + first)
    assert pieces == pytest.approx(replica.prefill_extra_s(first + second, before), rel=1e-9)


def test_growth_of_a_cache_is_the_slope_of_attention():
    replica = served(V32)
    for cached in (100, 10_000, 100_000):
        step = replica.attention_s(4, 4 * cached + 4.0) - replica.attention_s(4, 4.0 * cached)
        assert replica.growth_s(4, 4 * cached, 4) == pytest.approx(step, rel=1e-6)


def test_shared_indexers_are_run_once():
    """GLM-5.2 runs one for four layers, all of which read selected keys."""
    fields = {
        **{"model_type": "glm_moe_dsa", "hidden_act": "silu", "rms_norm_eps": 1e-5},
        **{"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000},
        **{"num_hidden_layers": 8, "num_attention_heads": 8, "q_lora_rank": 64, "kv_lora_rank": 64},
        **{"qk_nope_head_dim": 24, "qk_rope_head_dim": 8, "v_head_dim": 32, "index_topk": 128},
        **{"index_n_heads": 4, "index_head_dim": 16},
    }
    each = from_fields(fields, "each")
    listed = from_fields(
        {**fields, "indexer_types": ["full"] * 3 + ["shared"] * 3 + ["full", "shared"]}, "listed"
    )
    period = {"index_topk_freq": 4, "index_skip_topk_offset": 3}
    assert from_fields({**fields, **period}, "listed") == listed
    assert [layer.keys for layer in listed.each_layer].count("shared") == 4
    assert {layer.window for layer in listed.each_layer} == {128}
    one = 64 * 4 * 16 + 256 * (16 + 4) + 2 * 16
    assert each.parameters - listed.parameters == 4 * one
    machine, shipped = cluster("dgx-h200"), shipped_catalogue()
    ranks = [RankShare(model, machine, 8, "fp8", shipped) for model in (each, listed)]
    assert [rank.index_layers for rank in ranks] == [8, 4]
    tokens = np.array([1.0, 1000.0])
    assert np.array_equal(index_s(ranks[0], tokens), index_s(ranks[1], tokens))
    assert ranks[0].kv_bytes_on_rank() - ranks[1].kv_bytes_on_rank() == 4 * (16 + 0.5)


H200 = cs.cluster("dgx-h200")
HYBRID = cs.model("qwen3.5-35b-a3b")


def of_engine(engine):
    """The replica of a hybrid on one H200 by an engine."""
    return profile(HYBRID, H200, tp=1, catalogue=engine_numbers(shipped_catalogue(), engine))


def test_states_are_read_at_the_rate_of_memory():
    """Aiconfigurator's kernels read and write states at 0.7 to 0.9 of it (SGLang, vLLM)."""
    rank = RankShare(HYBRID, H200, 1, "bf16", shipped_catalogue())
    assert rank.state_bytes == 4 * 30 * 32 * 128 * 128
    attention = decode_request_s(RankShare(cs.model("qwen3-8b"), H200, 1, "bf16", rank.catalogue))
    seconds = decode_request_s(rank) - attention * rank.attention_layers * 2 / (36 * 8)
    shortest_s = 2 * rank.state_bytes / rank.catalogue.value("h200", "hbm_bandwidth")
    assert 0.7 < shortest_s / seconds < 0.9


@pytest.mark.parametrize(("engine", "token_ns"), [("vllm", 0.94), ("sglang", 3.1)])
def test_scans_of_prompts_take_what_the_kernels_of_an_engine_do(engine, token_ns):
    catalogue = engine_numbers(shipped_catalogue(), engine)
    seconds = scan_token_s(RankShare(HYBRID, H200, 1, "bf16", catalogue))
    assert seconds == pytest.approx(30 * 32 * token_ns * 1e-9, rel=0.02)


def test_states_share_the_memory_of_the_cache():
    """With room for the states and tokens of three requests, three decode at once."""
    replica = of_engine("vllm")
    each = 100 + replica.state_tokens
    assert replica.state_tokens * replica.kv_bytes_per_token >= replica.state_bytes > 0
    small = replace(replica, kv_budget_bytes=3.5 * each * replica.kv_bytes_per_token)
    requests = Requests(np.zeros(12), np.full(12, 50), np.full(12, 50))
    served = serve(small, requests, Batching(12, 8192, reserved=1.0), users=12)
    assert served.batch_mean == pytest.approx(3, abs=0.1)
    with pytest.raises(cs.InputError, match=f"a request of {each + 20:,} tokens does not fit"):
        serve(
            replace(small, kv_budget_bytes=each * replica.kv_bytes_per_token),
            Requests(np.zeros(1), np.full(1, 60), np.full(1, 60)),
            users=1,
        )


def test_sglang_keeps_states_in_a_memory_of_their_own():
    """Five copies of a gated delta rule's and three of Mamba's states, in 0.9 / 1.9 of memory."""
    shared, apart = of_engine("vllm"), of_engine("sglang")
    assert apart.kv_budget_bytes == pytest.approx(0.526 * shared.kv_budget_bytes)
    assert apart.state_tokens == 0
    states = 0.474 * shared.kv_budget_bytes / (4 * 30 * 32 * 128 * 128)
    assert apart.most_requests == int(states / 5)
    mamba = cs.model("nemotron-3-nano-30b-a3b")
    rank = RankShare(mamba, H200, 1, "bf16", engine_numbers(shipped_catalogue(), "sglang"))
    assert rank.kept_state_bytes == 3 * rank.state_bytes
    requests = Requests(np.zeros(12), np.full(12, 50), np.full(12, 50))
    served = serve(replace(apart, most_requests=4), requests, Batching(12, 8192), users=12)
    assert served.batch_mean == pytest.approx(4, abs=0.1)


DEEPSEEK, SERVER = cs.model("deepseek-v3"), cs.cluster("dgx-h200")


def test_each_group_holds_all_but_the_routed_experts():
    together, apart = (
        profile(DEEPSEEK, SERVER, precision="fp8", attention_dp=groups) for groups in (1, 8)
    )
    experts = 58 * 256 * 3 * 7168 * 2048
    others = DEEPSEEK.parameters - experts
    assert together.weights_bytes == pytest.approx(experts + others)
    assert apart.weights_bytes == pytest.approx(experts + 8 * others)
    # Every rank held the whole latent cache of every request; now one group does.
    assert apart.kv_bytes_per_token == pytest.approx(together.kv_bytes_per_token / 8)


def test_a_group_projects_its_share_of_the_tokens_by_itself():
    rank = RankShare(DEEPSEEK, SERVER, 8, "fp8", shipped_catalogue(), attention_dp=4)
    assert rank.alone == RankShare(DEEPSEEK, SERVER, 2, "fp8", shipped_catalogue())


def test_an_exchange_moves_what_the_other_groups_hold():
    rank = RankShare(DEEPSEEK, SERVER, 8, "fp8", shipped_catalogue(), attention_dp=8)
    few, many = exchange_s(rank, np.array([0.0, 8000.0]), "serving.gpu")
    assert few == pytest.approx(2 * 5.4e-6)
    assert many - few == pytest.approx(7 / 8 * 8000 * 7168 * 3 / (450e9 * 0.78))


@pytest.mark.parametrize(("engine", "tokens"), [("vllm", 4 * 512), ("sglang", 512)])
def test_every_group_has_slots_and_but_for_sglang_tokens_of_its_own(engine, tokens):
    batching = engine_batching(SERVER, engine, 64, chunk_tokens=512).of_groups(4)
    assert (batching.slots, batching.chunk_tokens) == (4 * 64, tokens)


def test_all_heads_of_a_latent_cache_are_bound_by_their_arithmetic():
    """128 heads on one rank compute longer than they read; 16 of them read longer."""
    words = {"precision": "fp8", "cache_precision": "bf16"}
    alone, divided = (profile(DEEPSEEK, SERVER, attention_dp=groups, **words) for groups in (8, 1))
    flops = 2 * 128 * (576 + 512)  # scores with 576 columns, sums with 512
    assert alone.decode_kv_s == pytest.approx(61 * flops / (0.667 * 989.4e12) / 8, rel=1e-3)
    assert divided.decode_kv_s == pytest.approx(61 * 1152 / (0.8 * 4.8e12), rel=1e-3)
