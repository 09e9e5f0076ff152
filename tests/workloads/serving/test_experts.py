"""Experts of a replica: what decode fetches, blocks of prompts, groups of ranks."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import Batching, Requests, profile, serve
from workloads.serving.batching import engine_numbers
from workloads.serving.rank import times
from workloads.serving.rank.share import RankShare

TRN2, SHIPPED = cluster("trn2.48xlarge"), shipped_catalogue()


def test_decode_fetches_the_experts_of_each_token_until_all_are_fetched():
    sparse = named("qwen3-235b-a22b")
    rank = RankShare(sparse, TRN2, 16, "bf16", SHIPPED)
    some, tokens = sparse.experts, np.array([1.0, 2.0, 16.0, 32.0])
    fetched = times.experts_s(rank, tokens)
    row = SHIPPED.entry("serving.trn2", "expert_token")
    without_fetch = SHIPPED.with_rows([row._replace(exact=Fraction(1, 10**30), low=None)])
    free = times.experts_s(RankShare(sparse, TRN2, 16, "bf16", without_fetch), tokens)
    once = SHIPPED.value("serving.trn2", "expert_token")
    last = some.count / some.per_token - 1
    assert fetched - free == pytest.approx(once * np.array([0, 1, last, last]), abs=1e-12)


def test_a_prompt_has_a_block_an_expert_however_short_it_is():
    rank = RankShare(named("qwen3-235b-a22b"), TRN2, 16, "bf16", SHIPPED)
    # ceil((T k - 127) / 512) + 127 of 128 experts, at most one for each routed token.
    tokens = np.array([8.0, 64.0, 128.0, 512.0, 4096.0])
    assert times.expert_blocks(rank, tokens).tolist() == [64, 128, 129, 135, 191]
    few = replace(rank, ep=32)
    assert times.expert_blocks(few, tokens).tolist() == [4, 4, 5, 11, 67]


def test_prompts_run_experts_by_blocks_and_decode_does_not():
    sparse = named("qwen3-235b-a22b")
    rank = RankShare(sparse, TRN2, 16, "bf16", SHIPPED)
    tokens = np.array([63.0, 64.0, 4096.0])
    decode, prompts = times.products_s(rank, tokens), times.products_s(rank, tokens, prompts=True)
    assert prompts[0] == decode[0]
    blocks_s = 94 * times.expert_blocks(rank, tokens) * times.block_s(rank)
    dense = prompts[1:] - blocks_s[1:]
    assert (dense > 0).all()
    assert (dense < decode[1:]).all()
    replica = profile(sparse, TRN2)
    of_prompts, of_decode = (
        times.reduces_s(rank, tokens, "serving.trainium", prompts=of)[1] for of in (True, False)
    )
    added_s = prompts[1] - decode[1] + of_prompts - of_decode
    assert replica.prompt_linear(64) - replica.linear(64) == pytest.approx(added_s)
    plain = RankShare(named("llama-3.1-8b"), TRN2, 16, "bf16", SHIPPED)
    assert (times.products_s(plain, tokens, prompts=True) == times.products_s(plain, tokens)).all()


def test_a_shared_expert_adds_a_gated_mlp_to_every_token():
    sparse, tokens = named("deepseek-v3"), np.array([1.0, 64.0, 4096.0])
    rank = RankShare(sparse, TRN2, 16, "bf16", SHIPPED)
    routed = replace(rank, model=replace(sparse, experts=replace(sparse.experts, shared_ffn=0)))
    added_s = times.experts_s(rank, tokens) - times.experts_s(routed, tokens)
    assert (added_s > 0).all()
    assert added_s == pytest.approx(times.mlp_s(rank, tokens, sparse.experts.shared_ffn))


def test_a_hidden_state_of_the_experts_takes_a_product_before_and_one_after_them():
    sparse, tokens = named("qwen3-235b-a22b"), np.array([1.0, 64.0, 4096.0])
    as_wide = replace(sparse, experts=replace(sparse.experts, latent=sparse.hidden))
    apart, usual = (RankShare(each, TRN2, 16, "bf16", SHIPPED) for each in (as_wide, sparse))
    product_s = apart.alone.product_s(tokens, sparse.hidden, sparse.hidden)
    added_s = times.experts_s(apart, tokens) - times.experts_s(usual, tokens)
    assert added_s == pytest.approx(2 * product_s)


def test_mixed_iterations_pay_for_blocks_once():
    """Two prompts that share an iteration share its blocks; decode alone has none."""
    replica = profile(named("qwen3-235b-a22b"), TRN2)
    both = Requests(np.zeros(2), np.array([100, 100]), np.array([2, 2]))
    served = serve(replica, both, Batching(4, 512))
    prompts_s = replica.prompt_linear(200) + 2 * replica.prefill_extra_s(100, 0)
    assert served.first_token_s[1] == pytest.approx(prompts_s)
    assert served.end_s[1] - served.first_token_s[1] == pytest.approx(replica.decode_s(2, 200))


def test_a_host_issues_the_layers_of_experts_of_prompts_on_gpus():
    mixture, server = named("deepseek-v3"), cluster("dgx-h200")
    replica = profile(mixture, server, precision="fp8")
    names = ("expert_layer_host", "layer_host")
    routed_s, dense_s = (SHIPPED.value("serving.gpu", name) for name in names)
    floor_s = 58 * routed_s + 3 * dense_s
    assert replica.prompt_linear(128) == pytest.approx(floor_s)
    assert floor_s > replica.linear(128)
    assert replica.prompt_linear(8192) == replica.linear(8192) > floor_s
    assert replica.decode_s(1, 0) < floor_s
    dense = profile(named("llama-3.1-70b"), server, precision="fp8")
    assert dense.prompt_linear(128) == pytest.approx(80 * dense_s)
    assert dense.prompt_linear(4096) == dense.linear(4096) > 80 * dense_s


SPARSE = cs.model("qwen3-235b-a22b")


@pytest.mark.parametrize("tokens", [4, 16, 64])
def test_the_busiest_group_is_as_busy_as_drawn_routing_makes_it(tokens):
    some, groups, rng = SPARSE.experts, 8, np.random.default_rng(1)
    each = some.count // groups
    drawn = np.zeros((400, 2))
    for trial in drawn:
        chosen = np.argsort(rng.random((tokens, some.count)), axis=1)[:, : some.per_token]
        touched = np.unique(chosen) // each
        trial[:] = np.bincount(touched).max(), np.bincount(chosen.ravel() // each).max()
    of_touched, of_rows = times.busiest_group(some, np.array([float(tokens)]), groups)
    assert of_touched[0] == pytest.approx(drawn[:, 0].mean(), rel=0.1)
    assert of_rows[0] == pytest.approx(drawn[:, 1].mean(), rel=0.1)


def test_scales_of_blocks_lengthen_each_product_beside_the_experts():
    """Six products of each of 61 layers take 22 ns more for each token beyond 1,024."""
    model, machine = cs.model("deepseek-v3"), cs.cluster("dgx-b200")
    slow = SHIPPED.with_variants({"serving.gpu.block_scale_token": "tensorrt-llm-1.2"})
    plain = profile(model, machine, tp=8, precision="fp8")
    scaled = profile(model, machine, tp=8, precision="fp8", catalogue=slow)
    at = plain.tokens
    added_s = 61 * 6 * 22e-9 * np.maximum(at - 1024, 0)
    assert scaled.linear_s - plain.linear_s == pytest.approx(added_s)


def test_captured_prompts_take_the_host_no_time():
    """Up to 512 tokens vLLM replays graphs; beyond, 36 layers wait 0.7 ms each for the host."""
    model, machine = cs.model("gpt-oss-120b"), cs.cluster("dgx-b200")
    of_vllm = engine_numbers(SHIPPED, "vllm")
    served = profile(model, machine, tp=8, catalogue=of_vllm)
    assert served.prompt_linear(512) == served.linear(512) < 36 * 0.7e-3
    assert served.prompt_linear(513) == pytest.approx(36 * 0.7e-3)
    eager = profile(model, machine, tp=8, catalogue=engine_numbers(SHIPPED, "sglang"))
    assert eager.prompt_linear(128) == pytest.approx(36 * 0.7e-3)


def test_small_kernels_are_those_that_a_model_has():
    """4 a layer beside attention, 4 more with experts, two of a shared one, two norms of heads."""
    launched, none = SHIPPED.value("kernels.b200", "launch"), np.zeros(1)
    attention_s = SHIPPED.value("serving.gpu", "attention_floor")
    for name, layers, kernels in (
        ("deepseek-v3", 61, 61 * 4 + 58 * 4),
        ("gpt-oss-120b", 36, 36 * (4 + 2)),
        ("qwen3-235b-a22b", 94, 94 * (4 + 2 + 2)),
        ("qwen3-32b", 64, 64 * 6),
    ):
        rank = RankShare(cs.model(name), cs.cluster("dgx-b200"), 8, "bf16", SHIPPED)
        expected_s = kernels * launched + layers * attention_s
        assert times.small_kernels_s(rank, none, "serving.gpu")[0] == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("groups", "tokens", "measured_s"), [(1, 1024, 599e-6), (8, 1024, 601e-6), (8, 16384, 5147e-6)]
)
def test_reading_and_computing_experts_add_up(groups, tokens, measured_s):
    """DeepSeek-V3 in fp8 on eight H200 by vLLM 0.19, even routing (aiconfigurator)."""
    rank = RankShare(cs.model("deepseek-v3"), cs.cluster("dgx-h200"), 8, "fp8", SHIPPED, ep=groups)
    sizes = np.array([1.0, float(tokens)])
    routed_s = times.experts_s(rank, sizes) - times.mlp_s(rank, sizes, 2048)
    assert routed_s[1] == pytest.approx(measured_s, rel=0.3)
    assert routed_s[1] > routed_s[0]
