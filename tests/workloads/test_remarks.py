"""Remarks on a training step: when each is made, and what it says."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.commands import document_of, printed_by
from topologies.clusters.names import cluster
from workloads.front import train
from workloads.remarks import CHECKS, Checked, remarks_entry
from workloads.training.plan.plan import ParallelPlan


def test_a_step_over_chips_of_trainium_names_what_would_measure_its_unexplained_part():
    (sentence,) = train("llama-3.1-8b", "trn2.48xlarge", tp=4, global_batch=64).remarks
    assert "one measured step of your own over several chips, without ZeRO-3" in sentence


def test_an_eager_host_is_said_to_issue_more_than_is_timed():
    """Two passes over 16 layers of 149 operations in 48 us each, for each of four microbatches."""
    how: dict[str, Any] = {"tp": 4, "global_batch": 4, "seq": 512}
    eager, compiled = (
        train("llama-3.2-1b", "trn2.3xlarge", runtime=runtime, microbatch=1, **how).remarks
        for runtime in ("eager", "compiled")
    )
    (sentence,) = [each for each in eager if each.startswith("Eager")]
    assert re.search(r"in 48 us each, about 149 in a pass .* 915\.5 ms", sentence)
    assert not any("Eager" in each for each in compiled)


def test_stages_that_share_a_domain_are_named_with_what_is_faster():
    """A third UltraServer for two stages halves the adapters of what lies in it."""
    odd, even = (train("gpt2", f"trn2-ultraserver:{n}", tp=2, pp=2) for n in (3, 4))
    (sentence,) = [each for each in odd.remarks if each.startswith("Two stages share")]
    other = train("gpt2", "trn2-ultraserver:3", tp=2, pp=2, order=("tp", "cp", "pp", "dp"))
    gain = other.tokens_per_s / odd.tokens_per_s - 1
    assert f"with --order tp-cp-pp-dp the job trains on {gain:.1%} more tokens" in sentence
    assert not [each for each in even.remarks if each.startswith("Two stages share")]


def test_a_searched_plan_is_named_with_the_next_best():
    step = train("llama-3.1-70b", "p5.48xlarge:8")
    chosen, after, batch = step.remarks
    assert f"tp {step.plan.tp}, pp {step.plan.pp}, dp {step.plan.dp}" in chosen
    assert "the best by its estimate of those that leave 5% of a rank's memory free: tp" in chosen
    assert after.startswith("The next best (")
    assert re.search(r"\. (None|\d|All) of the next 5 (is|are) too close for two pred", after)
    assert batch == "Global batch not stated: 64 sequences, one a chip up to 64 M tokens."
    entry = remarks_entry(step)["searched"]
    assert entry["best"]["dp"] == step.plan.dp
    assert [other["ratio"] >= 1 for other in entry["next"]] == [True] * 5


def test_a_searched_plan_names_a_framework_that_its_degrees_alone_would_not_have():
    adapted = {"lora_rank": 16, "global_batch": 16}
    searched = train("llama-3.1-70b", "p5.48xlarge", **adapted)
    chosen = searched.remarks[0]
    assert chosen.endswith("selective, LoRA of rank 16 on all matrices, framework transformers.")
    fields = {"tp": searched.plan.tp, "zero": searched.plan.zero, **adapted}
    named = train("llama-3.1-70b", "p5.48xlarge", **fields, framework="transformers")
    assert named.time_s == searched.time_s != train("llama-3.1-70b", "p5.48xlarge", **fields).time_s


def test_a_batch_larger_than_any_published_one_is_named():
    plan = {"tp": 8, "pp": 4, "dp": 32, "seq": 8192}
    assert train("llama-3.1-70b", "p5.48xlarge:128", **plan, global_batch=512).remarks == []
    line, *_ = train("llama-3.1-70b", "p5.48xlarge:128", **plan, global_batch=8192).remarks
    most = "published runs have up to 64 M. State a smaller --global-batch."
    assert line == f"A step has 67 M tokens; {most}"


def checked(**changes: Any) -> list[str]:
    """Remarks on a step that passes all checks, with some parts of it changed."""
    plan = ParallelPlan(tp=8, dp=2, global_batch=16)
    whole = {"compute": 0.9, "scheduling": 0.1}
    parts = (plan, cluster("trn2.48xlarge"), memory(50e9), 1.0, whole, 0.5)
    answer = replace(Checked(*parts), **changes)  # type: ignore[arg-type]
    return [sentence for check in CHECKS for sentence in check(answer)]


def memory(total: float, **changes: Any) -> Any:
    kept = {"least": 40e9, "capacity": 100e9, "fits": True, "tight": False, **changes}
    return SimpleNamespace(total=total, roomy=total <= 0.95 * kept["capacity"], **kept)


@pytest.mark.parametrize(("changes", "message"), [
    ({"memory": memory(95.1e9)}, "Memory is 95.1% full: 95.1 GB of 100 GB a rank, and"),
    ({"memory": memory(120e9, tight=True)}, "The plan fits only if the training stack"),
    ({"memory": memory(120e9, fits=False)}, "The plan does not fit and was run all the same"),
    ({"breakdown_s": {"scheduling": 0.11}}, "11% of the step is time that no mechanism"),
    ({"hfu": 0.9}, "A chip computes 600 TFLOP/s in the mean, and trn2 keeps 588 in bf16"),
    ({"plan": ParallelPlan(tp=2, dp=16, ranks_per_chip=2, global_batch=16)},
     "The plan has 2 ranks a chip; programs on trn2 have 1 or 4 or 8."),
    ({"plan": ParallelPlan(tp=3, ranks_per_chip=4, global_batch=1)},
     "Work for 3 of the chip's 4 ranks: price"),
    ({"plan": ParallelPlan(tp=6, dp=3, global_batch=3)},
     "Groups of tp 6 do not divide the 16 ranks of a scale-up domain"),
    ({"plan": ParallelPlan(dp=16, global_batch=16000)}, "A step has 66 M tokens; published"),
])  # fmt: skip
def test_each_check_says_what_is_wrong(changes, message):
    (sentence,) = checked(**changes)
    assert sentence.startswith(message)


@pytest.mark.parametrize("changes", [
    {"memory": memory(95e9)},
    {"breakdown_s": {"scheduling": 0.1}},
    {"hfu": 0.88},
    {"plan": ParallelPlan(tp=4, dp=16, ranks_per_chip=4, global_batch=16)},
    {"plan": ParallelPlan(tp=16, dp=2, global_batch=2)},
    {},
])  # fmt: skip
def test_values_just_within_a_limit_pass(changes):
    assert checked(**changes) == []


def test_the_first_plan_of_a_search_is_checked(tmp_path):
    line = "plan --model=llama-3.1-70b --cluster=p5.48xlarge:2 --global-batch=16 --top=1 --seq=4096"
    printed = printed_by(line, f"--out={tmp_path}/run")
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    memory_bytes = document["rows"][0]["memory_bytes"]
    assert memory_bytes["total"] > 0.95 * memory_bytes["capacity"]
    (sentence,) = document["remarks"]
    assert sentence.startswith("Memory is 9")
    assert sentence in (tmp_path / "run" / "report.html").read_text()
    assert f"Of the first plan: {sentence}" in " ".join(printed.split())


@pytest.mark.slow
def test_the_command_prints_a_faster_plan_once_and_runs_the_default(tmp_path):
    """ZeRO-1 over several servers of Trn1 has a fixed time, which gpt2's step mostly is."""
    line = "train --model gpt2 --cluster trn1.32xlarge:8"
    text = " ".join(printed_by(line, f"--out={tmp_path / 'run'}").split())
    assert text.count("By an estimate, another plan takes 8") == 1
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert document["plan"]["dp"] == 256
    assert document["searched"]["default_ratio"] > 4
    assert document["searched"]["best"]["zero"] == 0
    stated = document_of(line, "--zero=0", "--microbatch=8")
    assert "searched" not in stated
    assert not any("By an estimate" in remark for remark in stated["remarks"])


@pytest.mark.slow
def test_clusters_side_by_side_have_the_plan_of_each():
    line = "train --model llama-3.1-70b --cluster trn2.48xlarge:8,p5.48xlarge:2"
    text = " ".join(printed_by(line).split())
    for name in ("trn2.48xlarge:8", "p5.48xlarge:2"):
        assert f"{name}: No degree of parallelism was stated" in text
