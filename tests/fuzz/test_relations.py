"""Relations between answers that hold whatever the numbers are, in cases drawn by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.option_sweep import answer
from tests.fuzz.sweep_bases import write_files

QUICK, WIDE = range(2), range(120)
SHAPES = ("ring:6", "torus:4x4", "torus:2x3x2", "mesh:5", "switch:8", "clos:16:8", "clos:32:8:2")
OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")
ROUNDING = 1 + 1e-9
CHOICE = 0.1
"""Share of its time by which a collective may get slower when its links get faster: NCCL chooses
between rings and trees by figures of its own, and may change to the slower."""
MACHINE = """
chip: {{like: h100}}
scale_up: {{shape: switch, size: 8, bandwidth: {scale_up}GB/s, latency: {hop}ns}}
domains: 4
scale_out: {{bandwidth_per_chip: {scale_out}GB/s, latency: {climb}ns, radix: 64}}
"""
BUCKETS = 1.001
"""Factor by which overlap may slow a step of a tiny model: gradients then go bucket by bucket, each
with a latency of its own, which a few layers cannot hide."""
POLICIES = ("threshold", "forecast", "oracle", "clock")


@pytest.fixture(autouse=True)
def _in_a_folder_of_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)


def document(*words: str) -> Mapping[str, Any]:
    """Return the JSON of a command, which must succeed."""
    outcome = answer(words)
    assert outcome["status"] == "ok", (words, outcome["message"])
    result: Mapping[str, Any] = outcome["document"]
    return result


def check_collective(seed: int) -> None:
    """Faster links or lower latencies never slow a collective, and more bytes never speed it."""
    rng = random.Random(seed)
    call = ("collective", rng.choice(OPERATIONS), rng.choice(SHAPES))
    size, rate, hop = (
        rng.choice((1, 999, 65536, 2**24)),
        rng.choice((1, 50)),
        rng.choice((10, 3000)),
    )

    def row(size: int, rate: int, hop: int, algorithm: str) -> Mapping[str, Any]:
        links = (f"--bandwidth={rate}GB/s", f"--latency={hop}ns")
        how = (f"--size={size}B", f"--algorithm={algorithm}")
        first: Mapping[str, Any] = document(*call, *how, *links)["rows"][0]
        return first

    best = row(size, rate, hop, "best")
    name = str(best["algorithm"])
    assert row(size, 2 * rate, hop, name)["time_s"] <= best["time_s"]
    assert row(size, rate, hop // 2, name)["time_s"] <= best["time_s"]
    assert row(2 * size, rate, hop, name)["time_s"] >= best["time_s"]
    assert row(size, 2 * rate, hop, "best")["time_s"] <= best["time_s"]


def check_training(seed: int) -> None:
    """A faster or closer network never slows a training step."""
    rng = random.Random(seed)
    numbers = {
        "scale_up": rng.choice((100, 450)), "hop": rng.choice((400, 2000)),
        "scale_out": rng.choice((5, 50)), "climb": rng.choice((3000, 20000)),
    }  # fmt: skip
    plan = (
        f"--tp={rng.choice((1, 2, 4))}", f"--pp={rng.choice((1, 2))}", "--global-batch=64",
        f"--zero={rng.randrange(4)}", f"--overlap={rng.choice(('none', 'dp', 'all'))}",
        f"--level={rng.choice(('auto', 'collective'))}",
    )  # fmt: skip

    def step(**changes: int) -> Mapping[str, Any]:
        Path("machine.yaml").write_text(MACHINE.format(**{**numbers, **changes}))
        return document("train", "--model=config.json", "--cluster=machine.yaml", *plan)

    usual = step()
    exposed_s = sum(usual["breakdown_s"][f"exposed_{axis}"] for axis in ("tp", "dp", "pp"))
    most_s = (usual["iteration_s"] + CHOICE * exposed_s) * ROUNDING
    for name in ("scale_up", "scale_out"):
        assert step(**{name: 2 * numbers[name]})["iteration_s"] <= most_s, (name, numbers, plan)
    for name in ("hop", "climb"):
        assert step(**{name: numbers[name] // 2})["iteration_s"] <= most_s, (name, numbers, plan)


def check_plans(seed: int) -> None:
    """More overlap slows no step, nor does less to compute again; a batch shares its ends."""
    rng = random.Random(seed)
    machine = rng.choice(("trn2.48xlarge:2", "dgx-h100:4", "trn1.32xlarge"))
    degrees = (f"--tp={rng.choice((1, 2))}", f"--pp={rng.choice((1, 2, 4))}", "--seq=1024")
    call = ("train", "--model=config.json", f"--cluster={machine}", *degrees)
    usual = {"overlap": "dp", "recompute": "selective", "global-batch": 256}

    def step(**changes: Any) -> Mapping[str, Any]:
        stated = {**usual, **{name.replace("_", "-"): value for name, value in changes.items()}}
        return document(*call, *(f"--{name}={value}" for name, value in stated.items()))

    first = step()
    none, whole = (float(step(overlap=name)["iteration_s"]) for name in ("none", "all"))
    assert whole <= first["iteration_s"] * ROUNDING
    assert first["iteration_s"] <= none * BUCKETS
    again = step(recompute="full")
    assert again["iteration_s"] >= first["iteration_s"] / ROUNDING
    assert again["memory_bytes"]["total"] <= first["memory_bytes"]["total"]
    assert 1 <= step(global_batch=512)["iteration_s"] / first["iteration_s"] <= 2 * ROUNDING


def check_serving(seed: int) -> None:
    """A longer prompt never has an earlier first token on an idle replica."""
    rng = random.Random(seed)
    machine, prompt = rng.choice(("trn2.48xlarge", "dgx-h100")), rng.choice((64, 500, 3000))
    call = ("serve", "--model=config.json", f"--cluster={machine}", "--requests=poisson:0.01")
    first_s = [
        document(*call, "--count=10", "--output=9", f"--prompt={tokens}")["ttft_s"]["p50"]
        for tokens in (prompt, 2 * prompt)
    ]
    assert first_s[0] <= first_s[1]


def check_fleet(seed: int) -> None:
    """Price scales with revenue, a seed changes no run without chance, and units never lose one."""
    rng = random.Random(seed)
    units, rate = rng.choice((4, 8)), rng.choice((0.5, 0.7, 1.0))
    call = (
        *("fleet", "--demand=demand.csv", "--days=0.2", "--start-day=1", "--failures=off"),
        *(f"--unit-rate={rate}", f"--policy={rng.choice(POLICIES)}", "--no-compare"),
    )
    smaller, wider = (f"--cluster=trn2-ultraserver:{number}" for number in (units, units + 2))
    run, other = (
        document(*call, smaller, "--token-price=2"),
        document(*call, smaller, "--token-price=4"),
    )
    assert other["revenue_usd"] == pytest.approx(2 * run["revenue_usd"], rel=1e-12)
    assert document(*call, smaller, "--seed=3")["served_tokens"] == run["served_tokens"]
    larger = document(*call, wider)
    assert larger["capacity_requests_per_s"] >= run["capacity_requests_per_s"]
    assert larger["slo_attainment"] >= run["slo_attainment"] / ROUNDING


@pytest.mark.parametrize("seed", QUICK)
def test_a_collective_follows_its_links_and_bytes(seed: int) -> None:
    check_collective(seed)


@pytest.mark.parametrize("seed", QUICK)
def test_a_training_step_follows_its_plan(seed: int) -> None:
    check_plans(seed)


@pytest.mark.parametrize("seed", QUICK)
def test_a_first_token_follows_its_prompt(seed: int) -> None:
    check_serving(seed)


def test_a_fleet_follows_its_price_and_its_size() -> None:
    check_fleet(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", [check_collective, check_training, check_plans, check_serving, check_fleet]
)
def test_the_same_relations_hold_widely(check: Any) -> None:
    for seed in WIDE:
        check(seed)
