"""The command ``run-job``: its keys, pictures, sweeps and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.main import run as run_line
from workloads.job import PARTS

STEP = ("--model=llama-3.1-8b", "--cluster=trn2.48xlarge:4", "--tp=4", "--global-batch=64")
QUICK = ("run-job", *STEP, "--days=20", "--runs=2", "--quiet")
KEYS = {
    "goodput", "breakdown", "failures_by_cause", "mtbf_s", "checkpoint_interval_s",
    "best_checkpoint_interval_s", "young_daly_interval_s", "spares", "tokens", "cost_usd",
    "energy_joules", "interval",
}  # fmt: skip


@pytest.fixture(scope="module")
def answered() -> dict[str, Any]:
    """Answer of one quick run."""
    return answer()


def answer(*more: str) -> dict[str, Any]:
    import contextlib
    import io

    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        assert run_line([*QUICK, *more, "--json"]) == 0
    read: dict[str, Any] = json.loads(text.getvalue())
    return read


def test_the_document_has_its_keys(answered: dict[str, Any]) -> None:
    assert set(answered) >= KEYS
    assert set(answered["breakdown"]) == set(PARTS)
    assert sum(answered["breakdown"].values()) == pytest.approx(1, abs=1e-12)
    assert answered["breakdown"]["useful"] == answered["goodput"]
    ends = answered["interval"]
    for name in ("iteration_s", "usd_per_million_tokens"):
        assert ends[name]["low"] < answered[name] < ends[name]["high"]
    assert ends["low"] <= answered["goodput"] <= ends["high"]
    assert ends["tokens"]["low"] < answered["tokens"] < ends["tokens"]["high"]


def test_tokens_and_price_follow_from_goodput(answered: dict[str, Any]) -> None:
    step_tokens = 64 * answered["plan"]["seq"]
    steps = answered["goodput"] * 20 * 86400 / answered["iteration_s"]
    assert answered["tokens"] == pytest.approx(steps * step_tokens)
    chips = answered["chips"] + answered["spare_chips"]
    hours = 20 * 24 * chips / 16
    assert answered["cost_usd"] == pytest.approx(35.7608 * hours, rel=0.01)


def test_sixty_four_chips_fail_as_often_as_their_part_of_llama_3(answered: dict[str, Any]) -> None:
    # Four servers of 16 chips: chips of 64, hosts of four, no more.
    assert 20 * 86400 < answered["mtbf_s"] < 60 * 86400
    assert answered["failures"] == pytest.approx(sum(answered["failures_by_cause"].values()))


def test_options_do_what_they_say() -> None:
    often = answer("--failures=20", "--checkpoint-interval=10min", "--spares=0", "--repair=2h")
    assert often["mtbf_s"] == pytest.approx(365.25 * 86400 / 20 / 64)
    assert (often["checkpoint_interval_s"], often["spares"]) == (600, 0)
    assert often["breakdown"]["waiting_for_spares"] > 0.02
    assert often["interval"]["basis"].endswith("as stated")
    spared = answer("--failures=20", "--checkpoint-interval=600s", "--spares=9", "--restart=30min")
    assert spared["breakdown"]["waiting_for_spares"] == 0
    assert spared["restart_s"] == 1800
    blocking = answer("--checkpoint=blocking", "--no-stragglers")
    assert blocking["checkpoint_stall_s"] == blocking["checkpoint_write_s"]
    assert blocking["breakdown"]["stragglers"] == 0
    never = answer("--failures=0", "--no-stragglers")
    assert (never["mtbf_s"], never["best_checkpoint_interval_s"]) == (None, None)
    assert never["goodput"] == 1


def test_adapters_are_small_checkpoints(answered: dict[str, Any]) -> None:
    assert answer("--lora-rank=16")["checkpoint_bytes"] < answered["checkpoint_bytes"] / 100


def test_the_plan_is_searched_where_no_degree_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["run-job", "--model=gpt2", "--cluster=trn2.48xlarge", "--runs=1", "--days=5", "--json"]
    assert run_line([*line, "--quiet"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert math.prod(plan[name] for name in ("tp", "pp", "dp", "cp")) == 16


def test_a_run_directory_has_pictures_and_tables(tmp_path: Path) -> None:
    out = tmp_path / "job"
    assert run_line([*QUICK, "--failures=20", f"--out={out}"]) == 0
    for name in ("timeline.png", "interval.png", "failures.png", "report.html"):
        assert (out / name).stat().st_size > 1000
    metrics = pd.read_csv(out / "metrics.csv").set_index("metric")["value"]
    assert float(metrics["interval.low"]) <= float(metrics["goodput"])
    assert float(metrics["tokens_interval.low"]) < float(metrics["tokens"])
    runs = pd.read_csv(out / "runs.csv")
    assert runs[list(PARTS)].sum(axis=1).to_numpy() == pytest.approx(1)
    timeline = pd.read_csv(out / "timeline.csv")
    assert timeline["day"].iloc[-1] == pytest.approx(20, abs=0.3)


@pytest.mark.slow
def test_a_study_runs_it(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    grid = "grid:\n  spares: ['0', '1']\n"
    fixed = "".join(
        f"  {word.removeprefix('--').replace('=', ': ')}\n"
        for word in (*STEP, "--days=20", "--runs=1")
    )
    study.write_text(f"command: run-job\nfixed:\n{fixed}  failures: 5\n{grid}")
    assert (
        run_line(["sweep", str(study), f"--out={tmp_path / 'out'}", "--workers=1", "--quiet"]) == 0
    )
    rows = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(rows["status"]) == ["ok", "ok"]


def test_python_gives_the_same(answered: dict[str, Any]) -> None:
    model, cluster = cs.model("llama-3.1-8b"), cs.cluster("trn2.48xlarge:4")
    step = cs.train(model, cluster, cs.Plan(tp=4, dp=16, global_batch=64))
    result = cs.run_job(step, days=20, runs=2)
    assert result.goodput == answered["goodput"]
    assert "goodput" in repr(result)
    assert result._repr_html_().startswith("<table>")
    assert len(result.frame()) == 4


def test_sensitivity_ranks_what_moves_the_goodput() -> None:
    """Longer stalls and rarer failures move it as they should; what no job reads is absent."""
    rows = {row["input"]: row for row in answer("--sensitivity")["sensitivity"]}
    assert rows["fleet.training.checkpoint_stall"]["elasticity"] < 0
    assert rows["failure.chip.mtbf"]["elasticity"] > 0
    assert rows["failure.chip.mtbf"]["change_low"] < 0 < rows["failure.chip.mtbf"]["change_high"]
    assert "job.restart.start" in rows
    assert not any(name.startswith("serving.") for name in rows)


@pytest.mark.slow
def test_train_and_plan_tell_the_same_job_of_a_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A step of a stated plan, so that all three are about one step."""
    plan = ("--tp=4", "--pp=1", "--microbatch=1", "--recompute=selective", "--zero=1", "--quiet")
    line = ("--model=llama-3.1-8b", "--cluster=trn2.48xlarge:4", "--global-batch=64", *plan)
    documents = {}
    for command in ("run-job", "train", "plan"):
        out = f"--out={tmp_path}/{command}"
        assert run_line([command, *line, "--tokens=1T", "--json", out]) == 0
        documents[command] = json.loads(capsys.readouterr().out)
        if command != "run-job":
            page = (tmp_path / command / "results.json").read_text()
            assert json.loads(page)["job"] == documents[command]["job"]
    whole = documents["run-job"]
    for command in ("train", "plan"):
        job = documents[command]["job"]
        shared = [name for name in job if name != "interval"]
        assert {name: job[name] for name in shared} == {name: whole[name] for name in shared}
        assert job["tokens"] == pytest.approx(1e12, rel=1e-3)
    assert documents["train"]["job"]["interval"]["days"] == whole["interval"]["days"]
    assert run_line(["train", *line, "--tokens=1T"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "tokens value length" in text
    assert f"spare chips, in price and energy {whole['spare_chips']}" in text


def test_clusters_side_by_side_have_the_job_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["train", "--model=llama-3.1-8b", "--tp=8", "--tokens=1T", "--quiet"]
    assert run_line([*line, "--cluster=trn2.48xlarge,p5.48xlarge"]) == 0
    assert "days of the job" in capsys.readouterr().out


def test_an_elastic_job_goes_on_and_one_that_is_not_says_what_that_would_give() -> None:
    often = ("--failures=600", "--checkpoint=peer", "--global-batch=512")
    waits = answer(*often)
    assert waits["elastic"] is False
    assert waits["breakdown"]["fewer_replicas"] == 0
    (note,) = waits["notes"]
    assert note.startswith("all replicas wait while a failed one is replaced; --elastic")
    goes_on = answer(*often, "--elastic")
    assert goes_on["elastic"] is True
    assert goes_on["breakdown"]["fewer_replicas"] > 0
    assert goes_on["goodput"] > waits["goodput"] + 0.01
    assert f"for a goodput of {goes_on['goodput']:.0%}"[:-2] in note
    assert sum(goes_on["breakdown"].values()) == pytest.approx(1, abs=1e-12)
    assert "notes" not in goes_on


def test_an_elastic_job_with_warm_spares_is_told_when_it_acts() -> None:
    warm = answer("--failures=30", "--checkpoint=peer", "--standby=warm", "--elastic")
    assert "--elastic has an effect only while no spare is ready" in warm["notes"][0]
