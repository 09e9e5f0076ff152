"""Published benchmarks predicted: static batches, bursts, drawn lengths, fitted overheads."""

from __future__ import annotations

import pytest

from experiments.validation.predictions.serving import benchmark, static_batch
from tests.support.toy_serving import toy_replica
from tools.fit_serving import Point, fit
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import Batching, Profile, profile

TRN2 = cluster("trn2.48xlarge")


def test_overheads_are_recovered_from_points_that_they_made() -> None:
    sizes = [(named(name), 10_240, 1500) for name in ("llama-3.1-405b", "llama-3.1-70b")]
    points = [
        Point(model, prompt, out, ttft_s, tpot_s)
        for model, prompt, out in sizes
        for replica in [profile(model, TRN2)]
        for ttft_s, tpot_s in [(replica.prefill_s(prompt), replica.decode_s(1, prompt + out // 2))]
    ]
    catalogue, fitted = TRN2.catalogue, fit(points, TRN2)
    assert catalogue is not None
    stated = [
        catalogue.value("serving.trn2", name)
        for name in ("iteration_overhead", "prompt_token_layer")
    ]
    overheads = [fitted.iteration_s, fitted.prompt_token_layer_s]
    assert overheads == pytest.approx(stated, rel=0.01)


def test_a_static_batch_by_hand() -> None:
    """Two prompts of 10 in one program: 3 s. Two more tokens: 1.2 s, and 0.01 s a cached token."""
    once = static_batch(toy_replica(), 10, 3, 2, ())
    assert once.ttft_s == pytest.approx(3.0)
    assert once.tpot_s == pytest.approx(1.2 + 0.01 * 2 * 11.5)
    assert once.tokens_per_s == pytest.approx(2 * 3 / (3.0 + 2 * once.tpot_s))


def test_a_benchmark_counts_its_first_burst() -> None:
    """Four users at once: the last prompt of the burst has waited for the three before it."""
    replica, batching = toy_replica(), Batching(4)
    alone = replica.prefill_s(50)
    first_burst = benchmark(replica, (50, 1), 1.0, 1, batching)
    assert first_burst.ttft_s == pytest.approx(alone * (1 + 2 + 3 + 4) / 4)


def test_drawn_lengths_leave_lockstep(served_70b: Profile) -> None:
    batching = Batching(16, 8192)
    equal = benchmark(served_70b, (4000, 200), 1.0, 10, batching)
    drawn = benchmark(served_70b, (4000, 200), 0.8, 10, batching)
    assert drawn.ttft_s < 0.7 * equal.ttft_s
    assert drawn.tpot_s == pytest.approx(equal.tpot_s, rel=0.25)
    assert drawn == benchmark(served_70b, (4000, 200), 0.8, 10, batching)
