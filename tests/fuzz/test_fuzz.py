"""Some minutes of the fuzzer, and random plans and collectives against what always holds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from experiments.cli.main import run
from experiments.sweeps.outcome import run_row
from tests.fuzz.__main__ import ROOT, failures
from tests.fuzz.cases import draw, from_json

SECONDS = float(os.environ.get("FUZZ_SECONDS", "120"))
SEED = int(os.environ.get("FUZZ_SEED", str(random.SystemRandom().randrange(2**31))))
LINKS = ("--bandwidth=50GB/s", "--latency=1us")


def answer(*arguments: str) -> tuple[str, Any]:
    """Return status and document of a command, or its message where it was refused."""
    outcome = run_row(run, [*arguments, "--json", "--quiet"])
    assert outcome["status"] in ("ok", "refused"), (arguments, outcome["message"])
    return outcome["status"], outcome["document"] or outcome["message"]


@pytest.mark.slow
def test_no_mutated_input_leads_to_a_wrong_outcome() -> None:
    wrong = [f"{seed}: {fault}" for seed, fault in failures(SECONDS, SEED) if fault]
    assert not wrong, "\n".join(wrong[:20])


def test_a_case_is_made_again_from_its_seed_and_from_its_file() -> None:
    from experiments.cli.program import PROGRAM

    options = {name: PROGRAM.parameters(name) for name in PROGRAM.commands}
    assert draw(7, options) == draw(7, options)
    assert from_json(draw(7, options).as_json()) == draw(7, options)


OPERATIONS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "permute")
SHAPES = ("ring:6", "torus:2x3", "torus:4x4", "mesh:5", "switch:8", "clos:16:8", "clos:12:8:2")


@pytest.mark.slow
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    operation=st.sampled_from(OPERATIONS),
    shape=st.sampled_from(SHAPES),
    size=st.integers(1, 2**28),
    data=st.data(),
)
def test_a_random_collective_keeps_its_bounds_on_both_engines(
    operation: str, shape: str, size: int, data: st.DataObject
) -> None:
    call = ("collective", operation, shape, f"--size={size}B", *LINKS)
    status, document = answer(*call, "--algorithm=best")
    if status == "refused":
        return
    (row,) = document["rows"]
    assert row["time_s"] >= row["lower_bound_s"] * (1 - 1e-9)
    algorithm = data.draw(st.sampled_from(("auto", str(row["algorithm"]))))
    rows = [
        answer(*call, f"--algorithm={algorithm}", f"--engine={engine}")[1]["rows"][0]
        for engine in ("fast", "reference")
    ]
    assert rows[0]["time_s"] == rows[1]["time_s"]
    faster = (*call[:4], "--bandwidth=100GB/s", "--latency=1us", f"--algorithm={row['algorithm']}")
    assert answer(*faster)[1]["rows"][0]["time_s"] <= row["time_s"]


DEGREES = st.sampled_from((1, 2, 4))


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    tp=DEGREES,
    pp=DEGREES,
    zero=st.integers(0, 3),
    schedule=st.sampled_from(("gpipe", "1f1b", "interleaved", "zero-bubble")),
    recompute=st.sampled_from(("none", "selective", "full")),
    overlap=st.sampled_from(("none", "dp", "all")),
    microbatches=st.integers(1, 6),
    cluster=st.sampled_from(("trn2.48xlarge", "dgx-h100", "trn2-ultraserver")),
)
def test_a_random_plan_keeps_its_sums_and_is_the_same_however_it_is_run(
    tmp_path_factory: pytest.TempPathFactory,
    tp: int,
    pp: int,
    zero: int,
    schedule: str,
    recompute: str,
    overlap: str,
    microbatches: int,
    cluster: str,
) -> None:
    from tests.fuzz.seeds import CONFIG

    config = tmp_path_factory.mktemp("model") / "config.json"
    config.write_bytes(CONFIG)
    chips = {"trn2.48xlarge": 16, "dgx-h100": 8, "trn2-ultraserver": 64}[cluster]
    batch = chips // (tp * pp) * microbatches
    call = (
        *("train", f"--model={config}", f"--cluster={cluster}", f"--tp={tp}", f"--pp={pp}"),
        *(f"--zero={zero}", f"--schedule={schedule}", f"--recompute={recompute}"),
        *(f"--overlap={overlap}", f"--global-batch={batch}", "--seq=512"),
        *(("--vpp=2",) if schedule == "interleaved" else ()),
    )
    status, document = answer(*call)
    if status == "refused":
        return
    parts = document["breakdown_s"]
    assert sum(parts.values()) == pytest.approx(document["iteration_s"], rel=1e-9)
    assert min(parts.values()) >= 0
    assert 0 < document["mfu"] <= document["hfu"] * (1 + 1e-9) <= 1 + 1e-9
    memory = document["memory_bytes"]
    assert memory["total"] <= memory["capacity"]
    if chips <= 16:
        status, unfolded = answer(*call, "--unfolded")
        if status == "ok":
            assert unfolded["iteration_s"] == document["iteration_s"]
    if chips == 8:
        _, slow = answer(*call, "--engine=reference")
        assert slow["iteration_s"] == document["iteration_s"]


STUDY = """
command: collective
fixed: {op: all-reduce, algorithm: ring, bandwidth: 100GB/s, latency: 1us}
grid:
  cluster: [ring:2, ring:3, ring:4, ring:5, ring:6, ring:7]
  size: [1KiB, 2KiB, 3KiB, 4KiB, 5KiB]
"""


@pytest.mark.slow
def test_a_sweep_that_is_killed_again_and_again_gives_the_table_of_an_undisturbed_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "study.yaml").write_text(STUDY)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start(out: str) -> subprocess.Popen[bytes]:
        words = ["sweep", "study.yaml", "--workers=2", f"--out={out}", "--quiet", "--json"]
        code = "import sys; from experiments.cli.main import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", code, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
        )

    rng = random.Random(SEED)
    for _ in range(4):
        child = start("killed")
        time.sleep(rng.uniform(0.5, 6.0))
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert start("killed").wait(timeout=300) == 0
    assert start("whole").wait(timeout=300) == 0
    tables = [pd.read_csv(tmp_path / out / "results.csv") for out in ("killed", "whole")]
    timed = [name for name in tables[0].columns if name.endswith(("build_s", "simulate_s"))]
    assert len(tables[0]) == 30
    pd.testing.assert_frame_equal(*[table.drop(columns=timed) for table in tables])
    assert not list(tmp_path.rglob("*.part"))
