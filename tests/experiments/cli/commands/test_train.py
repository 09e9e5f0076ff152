"""The command ``train``: its keys, files and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli.main import app
from experiments.cli.main import run as run_line
from tests.support.small_models import SMALL_CONFIG, config_file
from workloads.training.program.breakdown import PARTS

KEYS = {
    "ranks", "chips", "parameters", "iteration_s", "tokens_per_s", "tokens_per_s_per_chip",
    "model_flops_per_s_per_chip", "mfu", "hfu", "memory_bytes", "breakdown_s", "overlapped_s",
    "level", "engine", "ops", "build_s", "simulate_s", "peak_rss_bytes", "provenance",
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A small model's config.json."""
    return config_file(tmp_path / "config.json", SMALL_CONFIG)


def run(*arguments: str) -> int:
    """Run the command alone; mistakes are raised."""
    status = app(["train", *arguments], standalone_mode=False)
    return status if isinstance(status, int) else 0


def arguments(config: str, *more: str) -> list[str]:
    """Arguments of a small run."""
    return ["--model", config, "--cluster", "trn2.48xlarge", "--tp", "4", "--pp", "2", *more]


def test_json_has_every_key(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*arguments(config, "--seq", "1024", "--json"))
    document = json.loads(capsys.readouterr().out)
    assert set(document) >= KEYS
    assert set(document["breakdown_s"]) == set(PARTS)
    assert sum(document["breakdown_s"].values()) == pytest.approx(
        document["iteration_s"], rel=1e-12
    )
    memory = document["memory_bytes"]
    parts = sum(size for name, size in memory.items() if name not in ("total", "capacity"))
    assert memory["total"] == parts
    assert (document["ranks"], document["chips"], document["folded"]) == (16, 16, True)


def test_the_page_of_a_compared_step_has_the_measured_one(config: str, tmp_path: Path) -> None:
    run(*arguments(config, "--seq", "1024", "--compare", "3s", "--out", str(tmp_path / "out")))
    rows = pd.read_csv(tmp_path / "out" / "compared.csv").set_index("run")["step_s"]
    assert rows["measured"] == 3.0
    assert rows["predicted"] < 3.0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Measured step, as typed" in page
    assert "The measured step is" in page


def test_an_option_without_effect_is_named(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    stated = arguments(config, "--seq", "1024", "--cp-exchange", "all-gather")
    run(*stated)
    assert "--cp-exchange changes nothing here: cp is 1.\n" in capsys.readouterr().out
    run(*stated, "--json")
    assert json.loads(capsys.readouterr().out)["without_effect"] == {"cp_exchange": "cp is 1"}


def test_the_table_says_what_was_folded(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*arguments(config, "--seq", "1024", "--explain"))
    printed = capsys.readouterr().out
    assert "2 of 16 ranks, which stand for all equal ones" in printed
    assert "attention.qkv" in printed
    assert "gemm_sustained" in printed


def test_unfolded_runs_all_ranks(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    both = []
    for more in ([], ["--unfolded"]):
        run(*arguments(config, "--seq", "1024", "--json", *more))
        both.append(json.loads(capsys.readouterr().out))
    assert [one["simulated_ranks"] for one in both] == [2, 16]
    assert both[0]["iteration_s"] == both[1]["iteration_s"]
    assert both[0]["breakdown_s"] == both[1]["breakdown_s"]


def test_a_run_directory_holds_trace_metrics_and_figures(config: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(*arguments(config, "--seq", "1024", "--global-batch", "8", "--out", str(out)))
    names = {path.name for path in out.iterdir()}
    wanted = {"trace.parquet", "metrics.csv", "step_time_breakdown.png", "timeline.png", "run.json"}
    assert names >= wanted
    metrics = pd.read_csv(out / "metrics.csv").set_index("metric")["value"]
    assert float(metrics["iteration_s"]) > 0
    assert set(pd.read_parquet(out / "trace.parquet")["count"]) == {8}


def test_options_go_before_the_plans_file(
    config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("tp: 2\nseq: 1024\npp: 2\n")
    arguments = ["--model", config, "--cluster", "trn2.48xlarge", "--plan", str(file), "--json"]
    run(*arguments, "--tp", "8")
    assert json.loads(capsys.readouterr().out)["memory_bytes"]["weights"] < 2 * 2**26


def test_what_follows_from_the_time_has_its_factor(capsys: pytest.CaptureFixture[str]) -> None:
    """Price and energy rise with the time and rates fall, each by what its end is away."""
    line = ["--model=gpt2", "--cluster=trn2.48xlarge", "--tp=4", "--quiet"]
    assert run(*line, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    ends = document["interval"]
    time_s = document["iteration_s"]
    sooner, later = ends["low"] / time_s, ends["high"] / time_s
    for name in ("cost_usd", "usd_per_million_tokens", "energy_joules"):
        assert ends[name]["low"] == pytest.approx(document[name] * sooner)
        assert ends[name]["high"] == pytest.approx(document[name] * later)
    for name in ("tokens_per_s", "mfu"):
        assert ends[name]["low"] == pytest.approx(document[name] / later)
        assert ends[name]["high"] == pytest.approx(document[name] / sooner)
    assert run(*line) == 0
    shown = capsys.readouterr().out
    assert shown.count("80 %:") == 4


@pytest.mark.parametrize(
    ("more", "framework", "sentence"),
    [
        ([], "neuronx", "torchtitan's framework torchtitan does not train on trn2"),
        (["--framework", "axlearn"], "axlearn", ""),
        (["--cluster", "dgx-h100:2"], "torchtitan", ""),
        (["--cluster", "dgx-h100:2", "--no-compiled"], "torchtitan:eager", ""),
        (["--cluster", "dgx-h100:2", "--framework", "fsdp"], "fsdp", ""),
    ],
)
def test_a_plan_of_another_tool_names_the_framework(
    config: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    framework: str,
    sentence: str,
) -> None:
    """An option takes precedence; on chips of another vendor it is left out, which is said."""
    plan = tmp_path / "job.toml"
    plan.write_text("[parallelism]\ntensor_parallel_degree = 4\n[compile]\nenable = true\n")
    words = ["--model", config, "--cluster", "trn2.48xlarge", "--seq", "1024", "--plan", str(plan)]
    run(*words, *more, "--json")
    assert json.loads(capsys.readouterr().out)["framework"] == framework
    run(*words, *more)
    printed = " ".join(capsys.readouterr().out.split())
    assert (sentence in printed) if sentence else ("does not train on" not in printed)


def test_a_slow_cable_says_what_it_hit_and_an_idle_adapter_that_it_hit_nothing(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = arguments(config, "--seq", "1024", "--dp", "2", "--overlap", "dp")
    faults = ["--fault", "cable:0-1@0s:slow=1/4", "--fault", "adapter:3@0s:slow=1/2"]
    run(*line, *faults)
    printed = capsys.readouterr().out
    assert (
        "--fault adapter:3 changes nothing here: no collective of this step crosses it." in printed
    )
    head = "collectives that cross a fault"
    rows = [" ".join(each.split()) for each in printed.partition(head)[2].splitlines()]
    assert rows[0] == "groups calls without it with it"
    assert rows[1].startswith("tp all-gather of 2 MiB 1 of 4 ")
    assert "Collectives of several kinds" not in printed
    run(*line, *faults, "--json")
    document = json.loads(capsys.readouterr().out)
    assert document["level"] == "collective"
    assert document["undisturbed_s"] < document["iteration_s"]
    first = document["slowed_collectives"][0]
    assert (first["groups"], first["of_groups"]) == (1, 4)
    assert first["usual_s"] < first["time_s"]
    # Down the columns lie both the transfers between stages and the replicas.
    run(*line, "--fault", "cable:0-4@0s:slow=1/10", "--fault", "cable:0-12@0s:slow=1/10")
    assert "Collectives of several kinds cross the fault" in capsys.readouterr().out


@pytest.mark.slow
def test_the_plan_stays_while_numbers_move(capsys: pytest.CaptureFixture[str]) -> None:
    """A searched plan with fields that follow from its framework, moved one number at a time."""
    line = ["--model", "llama-3.1-8b", "--cluster", "p5.48xlarge", "--framework", "fsdp"]
    run(*line, "--recompute", "selective", "--seq", "8192", "--sensitivity", "--json", "--quiet")
    document = json.loads(capsys.readouterr().out)
    moved = {row["input"]: row["elasticity"] for row in document["sensitivity"]}
    assert -1 < moved["kernels.h100.gemm_sustained"] < -0.4


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tp: 0", "tp is 0"),
        ("tp: 1.5", "tp is 1.5"),
        ("order: 5", "order"),
        ("stage_layers: 3", "stage_layers sum to 3, but gpt2 has 12 layers"),
        ("stage_layers: [x]", "stage_layers is 'x'"),
        ("schedule: 7", "schedule is '7'; it must be one of gpipe"),
        ("tps: 8", "a plan has no 'tps'. Did you mean tp?"),
        ("!!python/object/apply:os.system ['true']", "is not YAML"),
        ("", "holds no fields"),
    ],
)
def test_a_mistaken_file_of_a_plan_is_refused_in_one_line(
    line: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(line)
    assert run_line(["train", "--model=gpt2", "--cluster=p5.48xlarge", f"--plan={file}"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert why in printed.err


def test_layers_of_the_only_chunk_may_be_stated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text("stage_layers: 12\n")
    times = []
    for more in ((), (f"--plan={file}",)):
        run("--model=gpt2", "--cluster=p5.48xlarge", "--json", *more)
        times.append(json.loads(capsys.readouterr().out)["iteration_s"])
    assert times[0] == times[1]
