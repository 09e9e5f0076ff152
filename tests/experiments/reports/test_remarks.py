"""Remarks on a training step: when each is made, and what it says."""

from __future__ import annotations

import json

import pytest

from experiments.cli.main import run as run_line
from experiments.reports.remarks import differing, remarks, remarks_entry
from workloads.front import train
from workloads.training.plan.plan import ParallelPlan


def test_an_ordinary_step_has_no_remarks_and_no_entries() -> None:
    step = train("llama-3.1-8b", "trn2.48xlarge", tp=8, global_batch=64)
    assert (remarks(step), remarks_entry(step)) == ([], {})


def test_a_searched_plan_is_named_with_the_next_best() -> None:
    step = train("llama-3.1-70b", "p5.48xlarge:8")
    found, after, batch = remarks(step)
    assert f"tp {step.plan.tp}, pp {step.plan.pp}, dp {step.plan.dp}" in found
    assert "the best by its estimate" in found
    assert after.startswith("The next best (")
    assert after.endswith("of the next 5 tie with this one, within the error of a ratio.")
    assert batch == "Global batch not stated: 64 sequences, one a chip up to 64 M tokens."
    entry = remarks_entry(step)["searched"]
    assert entry["best"]["dp"] == step.plan.dp
    assert [other["ratio"] >= 1 for other in entry["next"]] == [True] * 5


def test_a_stated_batch_is_not_named() -> None:
    step = train("llama-3.1-70b", "p5.48xlarge:8", global_batch=128)
    assert not any("Global batch" in line for line in remarks(step))


def test_a_batch_larger_than_any_published_one_is_named() -> None:
    plan = {"tp": 8, "pp": 4, "dp": 32, "seq": 8192}
    assert remarks(train("llama-3.1-70b", "p5.48xlarge:128", **plan, global_batch=512)) == []
    (line,) = remarks(train("llama-3.1-70b", "p5.48xlarge:128", **plan, global_batch=8192))
    assert line == (
        "A step has 67 M tokens; published runs have up to 64 M. State a smaller --global-batch."
    )


def test_plans_differ_in_what_a_reader_can_set() -> None:
    plan = ParallelPlan(tp=8, dp=2, global_batch=4)
    assert differing(plan, ParallelPlan(tp=4, dp=4, global_batch=4)) == {"tp": 8, "dp": 2}
    assert differing(plan, plan) == {}


def test_the_command_prints_a_faster_plan_once_and_runs_the_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """ZeRO-1 on Trn1 has an optimizer of a fixed time, which gpt2's step mostly is."""
    line = ["train", "--model", "gpt2", "--cluster", "trn1.32xlarge", "--quiet"]
    assert run_line(line) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.count("By its estimate another plan takes 8") == 1
    assert run_line([*line, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["plan"]["dp"] == 32
    assert document["searched"]["default_ratio"] > 4
    assert document["searched"]["best"]["zero"] == 0
    assert run_line([*line, "--json", "--zero", "0", "--microbatch", "8"]) == 0
    assert not {"remarks", "searched"} & json.loads(capsys.readouterr().out).keys()


def test_clusters_side_by_side_have_the_plan_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    line = "train --model llama-3.1-70b --cluster trn2-ultraserver,p5.48xlarge:8 --quiet"
    assert run_line(line.split()) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name in ("trn2-ultraserver", "p5.48xlarge:8"):
        assert f"{name}: No degree of parallelism was stated" in text
