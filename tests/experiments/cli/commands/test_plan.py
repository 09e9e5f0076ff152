"""The command ``plan``: its keys, files and refusals."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.main import run as run_line
from experiments.reports.plan import ALWAYS, table
from experiments.reports.run_record import read_record
from tests.support.small_models import SMALL_CONFIG, config_file
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.program.breakdown import PARTS

KEYS = {
    "model", "cluster", "chips", "ranks", "parameters", "global_batch", "seq", "candidates",
    "fitting", "estimated", "bounded", "simulated", "rows", "agreement", "next_estimate_s", "train",
    "build_s", "simulate_s", "pruned", "oversized", "overlapped_s", "interval",
    "objective", "cost_usd", "energy_joules", "usd_per_million_tokens", "price_basis",
    "power_basis",
}  # fmt: skip


@pytest.fixture
def command_line(tmp_path: Path) -> list[str]:
    """Arguments of a small search."""
    model = config_file(tmp_path / "tiny.json", SMALL_CONFIG)
    many = ["--model", model, "--cluster", "trn2.48xlarge", "--global-batch", "32"]
    return [*many, "--seq", "1024", "--recompute", "selective", "--quiet"]


@pytest.fixture
def few_plans(command_line: list[str]) -> list[str]:
    """Arguments of a search that is smaller still, where another would show nothing more."""
    return [*command_line, "--vpp", "1", "--microbatch", "1", "--finalists", "4"]


def run(*arguments: str) -> int:
    """Run the command as the command line does."""
    return run_line(["plan", *arguments])


def test_json_has_every_key(command_line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command_line, "--top", "3", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {*KEYS, "remarks"}
    assert document["fitting"] == document["estimated"] + document["bounded"] > 20
    assert 6 < document["estimated"] < document["fitting"]
    left_out = sum(document["pruned"].values()) + document["oversized"]
    assert document["candidates"] == left_out + document["fitting"]
    assert (len(document["rows"]), document["simulated"], document["agreement"]["plans"]) == (
        3,
        6,
        6,
    )
    assert set(document["rows"][0]) >= {*PLAN_FIELDS, "estimate_s", "iteration_s", "memory_bytes"}
    for place, one in enumerate(document["rows"], start=1):
        assert one["rank"] == place
        assert one["tp"] * one["pp"] * one["dp"] * one["cp"] == document["ranks"] == 16
        assert set(one["breakdown_s"]) == set(PARTS)
        assert sum(one["breakdown_s"].values()) == pytest.approx(one["iteration_s"], rel=1e-9)
        error = one["estimate_s"] / one["iteration_s"] - 1
        assert one["estimate_error"] == pytest.approx(error)
        memory = one["memory_bytes"]
        parts = sum(size for name, size in memory.items() if name not in ("total", "capacity"))
        assert memory["total"] == parts <= memory["capacity"]
    assert document["next_estimate_s"] >= document["rows"][0]["estimate_s"]


@pytest.mark.parametrize(
    "stated",
    [
        ["--pp", "2", "--variant=trn2.hbm_bandwidth=short-note"],
        ["--lora-rank", "8", "--lora-on", "attention", "--cluster=two.yaml"],
        ["--train-only=mlp"],
    ],
)
def test_the_train_command_that_it_tells_gives_the_same_time(
    stated: list[str],
    few_plans: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    links = "shape: switch, size: 16, bandwidth: 100 GB/s, latency: 1 us"
    (tmp_path / "two.yaml").write_text(f"chip: {{like: trn2}}\nscale_up: {{{links}}}\n")
    monkeypatch.chdir(tmp_path)
    assert run(*few_plans, "--top", "1", *stated, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    words = shlex.split(document["train"])
    assert words[:2] == ["cluster-sim", "train"]
    assert run_line(["train", *words[2:], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["iteration_s"] == document["rows"][0]["iteration_s"]
    assert again["breakdown_s"] == document["rows"][0]["breakdown_s"]


def test_the_table_shows_estimates_beside_simulations(
    few_plans: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*few_plans, "--top", "4") == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(place for place, line in enumerate(lines) if line.split()[:1] == ["tp"])
    assert lines[start].split()[: len(ALWAYS)] == ["tp", "pp", "dp", "mb"]
    heads = {"estimate", "simulated", "error", "MFU", "memory", "compute"}
    assert heads <= {word for line in lines for word in line.split()}
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["1", "2", "3", "4"]
    rest = "\n".join(lines[start + 5 :])
    assert "rank correlation (Kendall's tau)" in rest
    assert "plans that divide model, batch and cluster" in rest
    assert "left out: " in rest
    assert "Run the first: cluster-sim train --model" in rest


def test_shares_of_a_plan_have_a_column_for_each_part_of_the_step() -> None:
    """Without one of them a row's shares would not sum to 100 %."""
    search = cs.search_plans("gpt2", "trn2.48xlarge", 16, finalists=2, tp=2, quiet=True)
    heads, rows = table(search, 2)
    first = heads.index("memory") + 1
    for row in rows:
        assert sum(float(share.rstrip("%")) for share in row[first:]) == pytest.approx(100, abs=0.4)


def test_one_plan_of_each_division(
    command_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command_line, "--each", "tp, pp", "--json", "--top", "20") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    divisions = [(one["tp"], one["pp"]) for one in rows]
    assert len(set(divisions)) == len(divisions) == 12


def test_a_run_directory_holds_rows_and_picture(few_plans: list[str], tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(*few_plans, "--top", "3", "--tp", "4", "--out", str(out)) == 0
    frame = pd.read_csv(out / "metrics.csv")
    assert frame["rank"].tolist() == [1, 2, 3]
    assert set(frame["tp"]) == {4}
    assert (out / "plans.png").stat().st_size > 10_000
    document = json.loads((out / "results.json").read_text())
    assert document["rows"][0]["iteration_s"] == frame["iteration_s"][0]
    assert read_record(out)["inputs"]["global_batch"] == 32
    assert (out / "pareto.png").stat().st_size > 10_000
    every = pd.read_csv(out / "estimates.csv")
    assert (len(every), every["estimate_s"].is_monotonic_increasing) == (
        document["fitting"],
        True,
    )


def test_the_best_plan_is_a_file_that_train_reads(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "best.yaml"
    assert run(*few_plans, "--pp", "2", "--top", "1", "--best", str(file), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    again = [*few_plans[:4], "--plan", str(file), "--json", "--quiet"]
    assert run_line(["train", *again]) == 0
    assert json.loads(capsys.readouterr().out)["iteration_s"] == document["rows"][0]["iteration_s"]


def test_the_best_plan_is_written_for_another_tool(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = [*few_plans, "--lnc", "2", "--top", "1", "--zero", "1"]
    assert run(*few, "--write", f"nxd:{tmp_path}/new/", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    file = tmp_path / "new" / "nxd.yaml"
    assert document["written"]["file"] == str(file)
    again = [*few_plans[:4], "--plan", str(file), "--recompute", "selective", "--json"]
    assert run_line(["train", *again, "--quiet"]) == 0
    seconds = json.loads(capsys.readouterr().out)["iteration_s"]
    if document["written"]["rank"] == 1:
        assert seconds == document["rows"][0]["iteration_s"]
    assert run(*few, "--write", f"nxd:{tmp_path}", "--rank", "9") == 2
    assert "--rank 9: 4 plans were simulated" in capsys.readouterr().err
    assert run(*few, "--rank", "2") == 2
    assert "State one of them" in capsys.readouterr().err
    assert run(*few, "--write", "megatron") == 2
    assert "framework megatron-core does not train on trn2" in capsys.readouterr().err


def test_stated_fields_that_change_nothing_are_named(
    command_line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--top", "1", "--finalists", "2", "--etp", "1", "--pp", "1", "--bucket", "20MB"]
    assert run(*command_line, *quick, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["without_effect"] == {"etp": "the model has no experts"}
    assert {row["bucket_bytes"] for row in document["rows"]} == {20_000_000}
    assert run(*command_line, *quick) == 0
    assert "--etp changes nothing here: the model has no experts." in capsys.readouterr().out


def test_a_plan_of_ones_own_stands_beside_the_others(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated_plan = ["--with", "--tp 8 --zero 3", "--top", "2"]
    assert run(*few_plans, *stated_plan, "--out", str(tmp_path / "run")) == 0
    text = " ".join(capsys.readouterr().out.split())
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    mine, first = document["own"], document["rows"][0]
    assert (mine["tp"], mine["dp"], mine["zero"], mine["framework"]) == (8, 2, 3, "axlearn")
    assert mine["loss"] == mine["iteration_s"] / first["iteration_s"] - 1 > 0
    assert mine["differs"]["tp"] == {"own": 8, "first": first["tp"]}
    assert mine["changed_s"] < mine["iteration_s"]
    assert set(mine["change"]) <= {*PLAN_FIELDS}
    rows = pd.read_csv(tmp_path / "run" / "metrics.csv")
    assert rows["own"].tolist()[-1]
    assert rows["iteration_s"].tolist()[-1] == pytest.approx(mine["iteration_s"])
    assert "Your plan is number" in (tmp_path / "run" / "report.html").read_text()
    place = f"{mine['rank']} of {document['fitting']} that fit: {mine['loss']:.1%} slower"
    assert f"Your plan is number {place} than the first" in text
    assert f"{mine['rank']}, yours" in text


def test_fewer_domains_are_named_where_all_divide_worse(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 11 servers all divide a batch of 88, and one of 64 only by eleven stages of a pipeline."""
    line = ["--model", "llama-3.1-8b", "--top", "1", "--finalists", "1", "--quiet"]
    for batch, cluster in ((64, "trn2.48xlarge:10"), (88, None)):
        words = [*line, "--cluster", "trn2.48xlarge:11", "--global-batch", str(batch)]
        assert run(*words, "--json") == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer.get("fewer", {}).get("cluster") == cluster
        if cluster:
            assert answer["fewer"]["iteration_s"] < 0.9 * answer["rows"][0]["iteration_s"]
            assert run(*words) == 0
            assert "11 scale-up domains divide into few shapes: on" in capsys.readouterr().out


def test_a_plan_of_a_tool_for_other_chips_stands_beside_the_others(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Megatron-LM runs on GPUs; its degrees are compared on Trainium all the same."""
    path = tmp_path / "megatron.txt"
    path.write_text("--tensor-model-parallel-size 8 --seq-length 1024 --recompute-activations\n")
    assert run(*few_plans, "--top", "1", "--with", str(path), "--json") == 0
    mine = json.loads(capsys.readouterr().out)["own"]
    assert (mine["tp"], mine["framework"]) == (8, "neuronx")


def test_a_plan_of_ones_own_states_the_batch_of_all(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = few_plans.index("--global-batch")
    words = [*few_plans[:at], *few_plans[at + 2 :]]
    path = tmp_path / "megatron.txt"
    path.write_text(
        "--tensor-model-parallel-size 8 --seq-length 1024 --global-batch-size 32 "
        "--recompute-activations\n"
    )
    assert run(*words, "--top", "1", "--with", str(path), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {document["own"]["global_batch"], document["rows"][0]["global_batch"]} == {32}
    assert run(*words, "--top", "1", "--with", "--tp 8") == 2
    assert "--global-batch is not stated: plans are compared for one batch" in (
        capsys.readouterr().err
    )


def test_the_first_plan_as_ones_own_is_marked_in_the_table(
    few_plans: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    best = tmp_path / "best.yaml"
    assert run(*few_plans, "--top", "1", "--best", str(best)) == 0
    capsys.readouterr()
    assert run(*few_plans, "--top", "2", "--with", str(best)) == 0
    text = capsys.readouterr().out
    assert "\n1, yours" in text
    assert "that fit: the fastest." in " ".join(text.split())
