"""The serve command: what each way to serve faster adds to the answer, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.main import run

QUICK = ("serve", "--model=llama-3.1-8b", "--cluster=trn2.48xlarge", "--tp=4", "--quiet")
LOAD = ("--requests=poisson:2", "--count=60")


def answer(capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    assert run([*QUICK, *LOAD, *more, "--json"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def test_price_and_energy_are_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(capsys)
    hours = document["requests"] / document["requests_per_s"] / 3600
    assert document["cost_usd"] == pytest.approx(35.7608 / 16 * 4 * hours, rel=0.01)
    tokens = document["tokens_per_s"] * hours * 3600
    assert document["usd_per_million_tokens"] == pytest.approx(document["cost_usd"] * 1e6 / tokens)
    assert document["energy_joules"] > 0


def test_each_way_is_faster_and_tells_of_itself(capsys: pytest.CaptureFixture[str]) -> None:
    plain = answer(capsys)
    cached = answer(capsys, "--prefix-cache=60%")
    assert cached["prefix_hit_share"] == pytest.approx(0.6, abs=0.01)
    assert cached["ttft_s"]["p50"] < plain["ttft_s"]["p50"]
    cold = answer(capsys, "--prefix-cache=60%:cold")
    assert cold["prefix_hit_share"] < cached["prefix_hit_share"]
    guessed = answer(capsys, "--speculate=4:0.8:llama-3.2-1b")
    assert guessed["speculation"]["expected_tokens_per_pass"] == pytest.approx(3.3616)
    assert guessed["tpot_s"]["p50"] < plain["tpot_s"]["p50"]
    apart = answer(capsys, "--disaggregate=1:3")
    assert apart["chips"] == 4 * plain["chips"]
    assert apart["itl_s"]["p99"] < plain["itl_s"]["p99"]
    assert 0 < apart["prefill_utilisation"] < 1
    assert apart["kv_transfer_s"]["n"] == plain["requests"]
    assert not {"prefix_hit_share", "speculation", "prefill_replicas"} & set(plain)


def test_all_of_them_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    more = ("--prefix-cache=50%", "--speculate=3:0.7", "--disaggregate=2:2")
    document = answer(capsys, *more)
    assert {"prefix_hit_share", "speculation", "prefill_replicas"} <= set(document)
    assert run([*QUICK, *LOAD, *more, f"--out={tmp_path / 'run'}"]) == 0
    shown = capsys.readouterr().out
    for word in ("prefix cache", "tokens of a pass", "prefill replicas", "KV transfer", "price"):
        assert word in shown
    assert (tmp_path / "run" / "latency.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--prefix-cache=all", "--prefix-cache 'all'"),
        ("--prefix-cache=trace", "needs --requests FILE"),
        ("--speculate=4", "two numbers"),
        ("--speculate=4:0.5:no-such-model", "unknown model"),
        ("--speculate=4:0.5:llama-3.1-405b", "GB"),
        ("--disaggregate=1", "write 1:3"),
        ("--disaggregate=3:3", "take 24 chips"),
        ("--disaggregate=0:3", "use 1 to"),
        ("--precision=mxfp4", "cannot serve in mxfp4 on trn2"),
    ],
)
def test_mistakes_are_one_line(more: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*QUICK, *LOAD, more]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
