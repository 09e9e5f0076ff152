"""FLOPs of models against published formulas."""

from __future__ import annotations

from dataclasses import replace

import pytest

from workloads.models.huggingface import named
from workloads.models.model import (
    expert_parameters,
    forward_flops,
    keys_seen,
    layer_flops,
    training_flops,
)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3"])
def test_twice_the_active_weights_and_attention(name: str) -> None:
    model = named(name)
    tied = model.vocab * model.hidden * model.tied_embeddings
    unvisited = model.experts.count - model.experts.per_token if model.experts else 0
    idle = model.moe_layers * unvisited * expert_parameters(model) if unvisited else 0
    weights = model.parameters - idle - model.embedding_parameters + tied
    attention = 2 * (model.query_width + model.value_width) * model.layers * keys_seen(model, 2048)
    assert forward_flops(model, 2048) == pytest.approx(2 * weights + attention, rel=2e-3)


def test_full_attention_is_the_formula_of_the_definition_of_mfu() -> None:
    gpt = replace(named("gpt3-175b"), qkv_bias=False, output_bias=False, mlp_bias=False)
    weights = gpt.layers * 12 * gpt.hidden**2 + gpt.vocab * gpt.hidden
    attention = 12 * gpt.layers * gpt.heads * gpt.head_dim * 2048
    flops_expected = training_flops(gpt, 2048, 1, causal=False)
    assert flops_expected == 6 * weights + attention


def test_megatron_formula() -> None:
    """96 B s l h² (1 + s / 6h + V / 16 l h) with recomputation (arXiv 2104.04473): 72 without."""
    gpt = named("gpt3-175b")
    batch, s, layers, h, v = 7, 2048, gpt.layers, gpt.hidden, gpt.vocab
    flops_expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert training_flops(gpt, s, batch * s, causal=False) == pytest.approx(
        flops_expected, rel=1e-12
    )


def test_a_window_bounds_the_keys() -> None:
    mistral = named("mistral-7b")
    assert keys_seen(mistral, 4096) == 2048.5
    assert keys_seen(mistral, 8192) == (4096 * 4097 / 2 + 4096 * 4096) / 8192
    assert keys_seen(mistral, 8192, causal=False) == 4096


def test_experts_cost_as_many_as_are_visited() -> None:
    mixtral = named("mixtral-8x7b")
    dense = replace(mixtral, experts=None)
    router = 2 * 8 * mixtral.hidden
    more = layer_flops(mixtral, 1024, moe=True) - layer_flops(dense, 1024, moe=False)
    assert more == 2 * 3 * mixtral.hidden * mixtral.ffn + router
