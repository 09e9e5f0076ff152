"""Recurrent states of requests on GPUs: their reading, their memory, and scans of prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.serving import Profile, profile
from workloads.serving.batching import Batching, engine_numbers
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import decode_request_s, scan_token_s
from workloads.serving.replica import closed_loop
from workloads.serving.requests import Requests

H200 = cs.cluster("dgx-h200")
HYBRID = cs.model("qwen3.5-35b-a3b")


def of_engine(engine: str) -> Profile:
    """The replica of a hybrid on one H200 by an engine."""
    return profile(HYBRID, H200, tp=1, catalogue=engine_numbers(shipped_catalogue(), engine))


def test_states_are_read_at_the_rate_of_memory() -> None:
    """Aiconfigurator's kernels read and write states at 0.7 to 0.9 of it (SGLang, vLLM)."""
    rank = RankShare(HYBRID, H200, 1, "bf16", shipped_catalogue())
    assert rank.state_bytes == 4 * 30 * 32 * 128 * 128
    attention = decode_request_s(RankShare(cs.model("qwen3-8b"), H200, 1, "bf16", rank.catalogue))
    seconds = decode_request_s(rank) - attention * rank.attention_layers * 2 / (36 * 8)
    shortest_s = 2 * rank.state_bytes / rank.catalogue.value("h200", "hbm_bandwidth")
    assert 0.7 < shortest_s / seconds < 0.9


@pytest.mark.parametrize(("engine", "token_ns"), [("vllm", 0.94), ("sglang", 3.1)])
def test_scans_of_prompts_take_what_the_kernels_of_an_engine_do(
    engine: str, token_ns: float
) -> None:
    catalogue = engine_numbers(shipped_catalogue(), engine)
    seconds = scan_token_s(RankShare(HYBRID, H200, 1, "bf16", catalogue))
    assert seconds == pytest.approx(30 * 32 * token_ns * 1e-9, rel=0.02)


def test_states_share_the_memory_of_the_cache() -> None:
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


def test_sglang_keeps_states_in_a_memory_of_their_own() -> None:
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
