"""Neuron's programs: all-reduces and overhead of prompts, scores of decode, long tables."""

from __future__ import annotations

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import profile
from workloads.serving.profile import prompt_overhead_s
from workloads.serving.rank.share import RankShare
from workloads.serving.rank.times import reduces_s


def test_prompts_of_trainium_wait_for_all_reduces_of_their_size() -> None:
    """A prompt of 128 tokens takes the library's time of 1 MiB on 32 ranks, decode its floor."""
    machine, tokens = cluster("trn1.32xlarge"), np.array([1.0, 128.0])
    rank = RankShare(named("llama-3.1-8b"), machine, 16, "bf16", shipped_catalogue())
    (one, short), (one_of_decode, as_decode) = (
        reduces_s(rank, tokens, "serving.trainium", prompts=of) for of in (True, False)
    )
    group = Group(machine, np.arange(16), 2)
    library_ps = duration_ps(CollectiveCall("all-reduce", group, 2**20))
    assert short == pytest.approx(64 * library_ps * 1e-12)
    assert short > as_decode
    assert one == one_of_decode


def test_query_heads_of_one_key_value_head_are_scored_as_two_at_most() -> None:
    """On 8 and 24 ranks Llama-3.1-8B has 4 and 2 query heads beside one key-value head."""
    eight, wide = (
        profile(named("llama-3.1-8b"), cluster("inf2.48xlarge"), tp=chips) for chips in (4, 12)
    )
    assert eight.decode_kv_s == pytest.approx(32 * 2 * 2.3e-9)
    assert eight.decode_kv_s == wide.decode_kv_s
    whole_heads = profile(named("llama-2-7b"), cluster("inf2.48xlarge"), tp=4)
    assert whole_heads.decode_kv_s == pytest.approx(32 * 4 * 2.3e-9)


def test_the_overhead_of_a_prompt_grows_with_the_width_up_to_that_of_large_models() -> None:
    catalogue = shipped_catalogue()
    for chip, name, each_layer in (
        ("trn1", "llama-3.1-8b", 0.155e-9 * 4096),
        ("trn2", "llama-3.1-8b", 0.1e-9 * 4096),
        ("trn2", "llama-3.1-405b", 0.49e-6),
        ("trn2", "qwen3-235b-a22b", 0.49e-6),
    ):
        model = named(name)
        overhead_s = prompt_overhead_s(model, chip, catalogue)
        assert overhead_s == pytest.approx(model.layers * each_layer), (chip, name)


def test_more_tokens_than_a_table_has_take_proportionally_longer() -> None:
    replica = profile(named("llama-3.1-8b"), cluster("inf2.48xlarge"), tp=4)
    most = float(replica.tokens[-1])
    assert replica.prompt_linear(1.5 * most) == pytest.approx(1.5 * replica.prompt_linear(most))
