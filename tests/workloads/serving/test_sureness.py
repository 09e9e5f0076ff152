"""Intervals of a served replica: first tokens, later tokens, the rate and its price."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from workloads.confidence.interval import Interval
from workloads.serving.deployment import rate_ends

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
