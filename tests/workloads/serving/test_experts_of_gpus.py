"""Groups of ranks that divide the experts of a mixture on GPUs."""

from __future__ import annotations

import numpy as np
import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from workloads.serving import profile
from workloads.serving.batching import engine_numbers
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import busiest_group, experts_s, mlp_s, small_kernels_s

DGX = cs.cluster("dgx-h100")
SPARSE = cs.model("qwen3-235b-a22b")


def test_one_group_touches_what_balanced_routing_does() -> None:
    some = SPARSE.experts
    assert some is not None
    tokens = np.array([1.0, 4.0, 64.0])
    touched, rows = busiest_group(some, tokens, 1)
    chance = 1 - (1 - some.per_token / some.count) ** tokens
    assert touched == pytest.approx(some.count * chance)
    assert rows == pytest.approx(tokens * some.per_token)


@pytest.mark.parametrize("tokens", [4, 16, 64])
def test_the_busiest_group_is_as_busy_as_drawn_routing_makes_it(tokens: int) -> None:
    some, groups, rng = SPARSE.experts, 8, np.random.default_rng(1)
    assert some is not None
    each = some.count // groups
    drawn = np.zeros((400, 2))
    for trial in drawn:
        chosen = np.argsort(rng.random((tokens, some.count)), axis=1)[:, : some.per_token]
        touched = np.unique(chosen) // each
        trial[:] = np.bincount(touched).max(), np.bincount(chosen.ravel() // each).max()
    of_touched, of_rows = busiest_group(some, np.array([float(tokens)]), groups)
    assert of_touched[0] == pytest.approx(drawn[:, 0].mean(), rel=0.1)
    assert of_rows[0] == pytest.approx(drawn[:, 1].mean(), rel=0.1)


def test_divided_experts_wait_for_the_busiest_rank_when_tokens_are_few() -> None:
    whole, divided = (profile(SPARSE, DGX, precision="fp8", ep=ep) for ep in (1, 8))
    assert 1.1 < divided.decode_s(4, 4000) / whole.decode_s(4, 4000) < 1.4
    assert divided.weights_bytes == whole.weights_bytes
    assert divided.kv_budget_bytes == whole.kv_budget_bytes


def test_scales_of_blocks_lengthen_each_product_beside_the_experts() -> None:
    """Six products of each of 61 layers take 22 ns more for each token beyond 1,024."""
    model, machine = cs.model("deepseek-v3"), cs.cluster("dgx-b200")
    slow = shipped_catalogue().with_variants({"serving.gpu.block_scale_token": "tensorrt-llm-1.2"})
    plain = profile(model, machine, tp=8, precision="fp8")
    scaled = profile(model, machine, tp=8, precision="fp8", catalogue=slow)
    at = plain.tokens
    added_s = 61 * 6 * 22e-9 * np.maximum(at - 1024, 0)
    assert scaled.linear_s - plain.linear_s == pytest.approx(added_s)


def test_captured_prompts_take_the_host_no_time() -> None:
    """Up to 512 tokens vLLM replays graphs; beyond, 36 layers wait 0.7 ms each for the host."""
    model, machine = cs.model("gpt-oss-120b"), cs.cluster("dgx-b200")
    of_vllm = engine_numbers(shipped_catalogue(), "vllm")
    served = profile(model, machine, tp=8, catalogue=of_vllm)
    assert served.prompt_linear(512) == served.linear(512) < 36 * 0.7e-3
    assert served.prompt_linear(513) == pytest.approx(36 * 0.7e-3)
    eager = profile(model, machine, tp=8, catalogue=engine_numbers(shipped_catalogue(), "sglang"))
    assert eager.prompt_linear(128) == pytest.approx(36 * 0.7e-3)


def test_small_kernels_are_those_that_a_model_has() -> None:
    """4 a layer beside attention, 4 more with experts, two of a shared one, two norms of heads."""
    launched, none = shipped_catalogue().value("kernels.b200", "launch"), np.zeros(1)
    attention_s = shipped_catalogue().value("serving.gpu", "attention_floor")
    for name, layers, kernels in (
        ("deepseek-v3", 61, 61 * 4 + 58 * 4),
        ("gpt-oss-120b", 36, 36 * (4 + 2)),
        ("qwen3-235b-a22b", 94, 94 * (4 + 2 + 2)),
        ("qwen3-32b", 64, 64 * 6),
    ):
        rank = RankShare(cs.model(name), cs.cluster("dgx-b200"), 8, "bf16", shipped_catalogue())
        expected_s = kernels * launched + layers * attention_s
        assert small_kernels_s(rank, none, "serving.gpu")[0] == pytest.approx(expected_s)


def test_experts_of_one_token_take_what_engines_measured() -> None:
    """Qwen3-30B-A3B in bf16 on one H100: 48 us by vLLM, 54 by SGLang (aiconfigurator)."""
    machine = cs.cluster("dgx-h100")
    rank = RankShare(cs.model("qwen3-30b-a3b"), machine, 1, "bf16", shipped_catalogue())
    assert experts_s(rank, np.ones(1))[0] == pytest.approx(51e-6, rel=0.15)


@pytest.mark.parametrize(
    ("groups", "tokens", "measured_s"), [(1, 1024, 599e-6), (8, 1024, 601e-6), (8, 16384, 5147e-6)]
)
def test_reading_and_computing_experts_add_up(groups: int, tokens: int, measured_s: float) -> None:
    """DeepSeek-V3 in fp8 on eight H200 by vLLM 0.19, even routing (aiconfigurator)."""
    rank = RankShare(
        cs.model("deepseek-v3"), cs.cluster("dgx-h200"), 8, "fp8", shipped_catalogue(), ep=groups
    )
    sizes = np.array([1.0, float(tokens)])
    routed_s = experts_s(rank, sizes) - mlp_s(rank, sizes, 2048)
    assert routed_s[1] == pytest.approx(measured_s, rel=0.3)
    assert routed_s[1] > routed_s[0]
