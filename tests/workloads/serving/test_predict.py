"""Published benchmarks predicted, and how sure the times and rates of a replica are."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from experiments.validation.predictions.serving import benchmark, static_batch
from tests.support.toy_serving import toy_replica
from tools.fit_serving import Point, fit
from topologies.clusters.names import cluster
from workloads.confidence.interval import Interval
from workloads.models.huggingface import named
from workloads.serving import Batching, Profile, profile
from workloads.serving.deployment import rate_ends

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


LOAD = ("--count=20", "--prompt=256", "--output=32", "--tp=8")


@given(st.floats(1, 1e4), st.floats(0, 1), st.floats(1, 10), st.floats(1.01, 4))
def test_a_rate_lies_between_its_ends_and_never_exceeds_what_is_asked(
    rate: float, busy: float, more: float, factor: float
) -> None:
    ends = rate_ends(rate, busy, rate * more, Interval(1 / factor, factor))
    assert ends["low"] <= rate <= ends["high"]
    assert ends["high"] <= rate * more * (1 + 1e-12)
    if busy * factor <= 1:
        assert ends["low"] == rate


def test_first_tokens_have_residuals_of_their_own() -> None:
    served = cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", count=20, output=32, tp=8)
    later = served.tpot_interval
    assert later is not None
    assert served.interval.basis.startswith("first tokens")
    assert later.basis.startswith("serving")
    assert later.low < served.tpot_s["p50"] < later.high
    ends = served.tokens_per_s_interval
    assert ends["low"] <= served.tokens_per_s <= ends["high"]


def test_a_single_token_has_no_interval_of_later_ones() -> None:
    served = cs.serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", count=5, output=1, tp=8)
    assert served.tpot_interval is None


@pytest.mark.parametrize("rate", ["1", "500"])
def test_serve_prints_the_ends_of_what_follows(
    rate: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["serve", "--model=llama-3.1-8b", "--cluster=trn2.48xlarge"]
    line = [*command, f"--requests=poisson:{rate}", *LOAD, "--quiet"]
    assert run(line) == 0
    text = capsys.readouterr().out
    assert "TTFTs between" in text
    assert "TPOTs between" in text
    assert run([*line, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    price, tokens = (
        document[f"{name}_interval"] for name in ("usd_per_million_tokens", "tokens_per_s")
    )
    for ends, name in ((price, "usd_per_million_tokens"), (tokens, "tokens_per_s")):
        assert ends["low"] <= document[name] * (1 + 1e-12)
        assert ends["high"] >= document[name] * (1 - 1e-12)
    saturated = tokens["high"] > 1.05 * tokens["low"]
    assert saturated == (rate == "500")
