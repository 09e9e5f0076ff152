"""Experts of a replica: what decode fetches, blocks of prompts, groups of ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.serving import Batching, Requests, profile, serve
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import (
    block_s,
    expert_blocks,
    experts_s,
    mlp_s,
    products_s,
    reduces_s,
)

TRN2 = cluster("trn2.48xlarge")


def test_decode_fetches_the_experts_of_each_token_until_all_are_fetched() -> None:
    sparse = named("qwen3-235b-a22b")
    rank = RankShare(sparse, TRN2, 16, "bf16", shipped_catalogue())
    some, tokens = sparse.experts, np.array([1.0, 2.0, 16.0, 32.0])
    assert some is not None
    fetched = experts_s(rank, tokens)
    without_fetch = shipped_catalogue().with_rows(
        [
            shipped_catalogue()
            .entry("serving.trn2", "expert_token")
            ._replace(value=1e-30, low=None),
        ]
    )
    free = experts_s(RankShare(sparse, TRN2, 16, "bf16", without_fetch), tokens)
    once = shipped_catalogue().value("serving.trn2", "expert_token")
    last = some.count / some.per_token - 1
    assert fetched - free == pytest.approx(once * np.array([0, 1, last, last]), abs=1e-12)


def test_a_prompt_has_a_block_an_expert_however_short_it_is() -> None:
    rank = RankShare(named("qwen3-235b-a22b"), TRN2, 16, "bf16", shipped_catalogue())
    # ceil((T k - 127) / 512) + 127 of 128 experts, at most one for each routed token.
    tokens = np.array([8.0, 64.0, 128.0, 512.0, 4096.0])
    assert expert_blocks(rank, tokens).tolist() == [64, 128, 129, 135, 191]
    few = replace(rank, ep=32)
    assert expert_blocks(few, tokens).tolist() == [4, 4, 5, 11, 67]


def test_prompts_run_experts_by_blocks_and_decode_does_not() -> None:
    sparse = named("qwen3-235b-a22b")
    rank = RankShare(sparse, TRN2, 16, "bf16", shipped_catalogue())
    tokens = np.array([63.0, 64.0, 4096.0])
    decode, prompts = products_s(rank, tokens), products_s(rank, tokens, prompts=True)
    assert prompts[0] == decode[0]
    blocks_s = 94 * expert_blocks(rank, tokens) * block_s(rank)
    dense = prompts[1:] - blocks_s[1:]
    assert (dense > 0).all()
    assert (dense < decode[1:]).all()
    replica = profile(sparse, TRN2)
    reduces = [reduces_s(rank, tokens, "serving.trainium", prompts=of)[1] for of in (True, False)]
    added_s = prompts[1] - decode[1] + reduces[0] - reduces[1]
    assert replica.prompt_linear(64) - replica.linear(64) == pytest.approx(added_s)
    plain = RankShare(named("llama-3.1-8b"), TRN2, 16, "bf16", shipped_catalogue())
    assert (products_s(plain, tokens, prompts=True) == products_s(plain, tokens)).all()


def test_a_shared_expert_adds_a_gated_mlp_to_every_token() -> None:
    sparse, tokens = named("deepseek-v3"), np.array([1.0, 64.0, 4096.0])
    rank = RankShare(sparse, TRN2, 16, "bf16", shipped_catalogue())
    assert sparse.experts is not None
    routed = replace(rank, model=replace(sparse, experts=replace(sparse.experts, shared_ffn=0)))
    added_s = experts_s(rank, tokens) - experts_s(routed, tokens)
    assert (added_s > 0).all()
    assert added_s == pytest.approx(mlp_s(rank, tokens, sparse.experts.shared_ffn))


def test_a_hidden_state_of_the_experts_takes_a_product_before_and_one_after_them() -> None:
    sparse, tokens = named("qwen3-235b-a22b"), np.array([1.0, 64.0, 4096.0])
    assert sparse.experts is not None
    as_wide = replace(sparse, experts=replace(sparse.experts, latent=sparse.hidden))
    apart, usual = (
        RankShare(each, TRN2, 16, "bf16", shipped_catalogue()) for each in (as_wide, sparse)
    )
    product_s = apart.alone.product_s(tokens, sparse.hidden, sparse.hidden)
    added_s = experts_s(apart, tokens) - experts_s(usual, tokens)
    assert added_s == pytest.approx(2 * product_s)


def test_a_block_moves_the_whole_hidden_width_on_every_rank() -> None:
    """Only the products of a block shrink with more chips, so these hardly shorten prompts."""
    sparse, catalogue = named("deepseek-v3"), shipped_catalogue()
    few, many = (RankShare(sparse, TRN2, chips, "bf16", catalogue) for chips in (4, 16))
    rate = catalogue.value("serving.trn2", "expert_block_rate")
    shared = catalogue.value("serving.trn2", "expert_block") + 3 * 2 * 512 * 7168 / rate
    assert shared < block_s(many) < block_s(few) < 2 * block_s(many)


def test_groups_of_experts_shorten_prompts_and_take_memory() -> None:
    sparse = named("qwen3-235b-a22b")
    whole, grouped = profile(sparse, TRN2), profile(sparse, TRN2, ep=32)
    assert grouped.prefill_s(512) < 0.3 * whole.prefill_s(512)
    assert grouped.decode_s(4, 8000) == whole.decode_s(4, 8000)
    experts = 94 * 128 * 3 * 4096 * 1536 * 2
    assert grouped.weights_bytes - whole.weights_bytes == experts
    assert grouped.kv_budget_bytes == pytest.approx(whole.kv_budget_bytes - experts)


@pytest.mark.parametrize(
    ("model", "ep", "message"),
    [("qwen3-235b-a22b", 3, "divisor of 64"), ("llama-3.1-8b", 2, "no experts")],
)
def test_groups_of_experts_divide_ranks_and_experts(model: str, ep: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        profile(named(model), TRN2, ep=ep)


def test_mixed_iterations_pay_for_blocks_once() -> None:
    """Two prompts that share an iteration share its blocks; decode alone has none."""
    replica = profile(named("qwen3-235b-a22b"), TRN2)
    both = Requests(np.zeros(2), np.array([100, 100]), np.array([2, 2]))
    served = serve(replica, both, Batching(4, 512))
    assert served.first_token_s[1] == pytest.approx(
        replica.prompt_linear(200) + 2 * replica.prefill_extra_s(100, 0)
    )
    assert served.end_s[1] - served.first_token_s[1] == pytest.approx(replica.decode_s(2, 200))


def test_a_host_issues_the_layers_of_experts_of_prompts_on_gpus() -> None:
    mixture, server = named("deepseek-v3"), cluster("dgx-h200")
    replica = profile(mixture, server, precision="fp8")
    routed_s, dense_s = (
        shipped_catalogue().value("serving.gpu", name)
        for name in ("expert_layer_host", "layer_host")
    )
    floor_s = 58 * routed_s + 3 * dense_s
    assert replica.prompt_linear(128) == pytest.approx(floor_s)
    assert floor_s > replica.linear(128)
    assert replica.prompt_linear(8192) == replica.linear(8192) > floor_s
    assert replica.decode_s(1, 0) < floor_s
    dense = profile(named("llama-3.1-70b"), server, precision="fp8")
    assert dense.prompt_linear(128) == pytest.approx(80 * dense_s)
    assert dense.prompt_linear(4096) == dense.linear(4096) > 80 * dense_s
