"""Recurrent states of requests on GPUs, and groups of ranks that divide the requests."""

from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.serving import Profile, profile
from workloads.serving.batching import Batching, engine_batching, engine_numbers
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import decode_request_s, exchange_s, scan_token_s
from workloads.serving.replica import closed_loop
from workloads.serving.requests import Requests

H200 = cs.cluster("dgx-h200")
HYBRID = cs.model("qwen3.5-35b-a3b")


def of_engine(engine: str) -> Profile:
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
    served = closed_loop(small, requests, 12, Batching(12, 8192, reserved=1.0))
    assert served.batch_mean == pytest.approx(3, abs=0.1)
    with pytest.raises(cs.InputError, match=f"a request of {each + 20:,} tokens does not fit"):
        closed_loop(
            replace(small, kv_budget_bytes=each * replica.kv_bytes_per_token),
            Requests(np.zeros(1), np.full(1, 60), np.full(1, 60)),
            1,
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
    served = closed_loop(replace(apart, most_requests=4), requests, 12, Batching(12, 8192))
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
