"""The command ``train``: its keys, files and refusals."""

import pandas as pd
import pytest

from tests.support.commands import document_of, printed_by, refusal_of
from tests.support.small_models import SMALL_CONFIG, config_file
from workloads.training.program.breakdown import PARTS

KEYS = {
    "ranks", "chips", "parameters", "iteration_s", "tokens_per_s", "tokens_per_s_per_chip",
    "model_flops_per_s_per_chip", "mfu", "hfu", "memory_bytes", "breakdown_s", "overlapped_s",
    "level", "engine", "ops", "build_s", "simulate_s", "peak_rss_bytes", "provenance",
}  # fmt: skip


@pytest.fixture
def question(tmp_path):
    model = config_file(tmp_path / "config.json", SMALL_CONFIG)
    return f"train --model {model} --cluster trn2.48xlarge"


@pytest.fixture
def line(question):
    return f"{question} --tp 4 --pp 2 --seq 1024"


def test_clusters_side_by_side_have_one_batch(question):
    """The largest default of any where none is stated: 16 microbatches of 16 ranks, of 8 before."""
    beside = document_of(f"{question},dgx-h100 --tp 1 --seq 1024 --microbatch 1")
    assert {row["plan"]["global_batch"] for row in beside["rows"]} == {256}
    assert "256 sequences on all clusters" in beside["batches"]
    assert "(trn2.48xlarge 256, dgx-h100 128)" in beside["batches"]
    stated = document_of(f"{question},dgx-h100 --tp 1 --seq 1024 --global-batch 64")
    assert "batches" not in stated
    assert {row["plan"]["global_batch"] for row in stated["rows"]} == {64}


def test_json_has_every_key_and_unfolded_ranks_the_same_times(line, other_plans):
    document = document_of(line)
    assert set(document) >= {*KEYS, "assumed", "remarks"}
    assert set(document["assumed"]) >= {"framework", "microbatch", "sequence_parallel", "vpp"}
    assert set(document["breakdown_s"]) == set(PARTS)
    assert (document["ranks"], document["chips"], document["folded"]) == (16, 16, True)
    whole = document_of(line, "--unfolded")
    assert (document["simulated_ranks"], whole["simulated_ranks"]) == (2, 16)
    assert all(document[name] == whole[name] for name in ("iteration_s", "breakdown_s"))


def test_a_run_directory_holds_trace_metrics_figures_and_the_measured_step(line, tmp_path):
    out = tmp_path / "run"
    printed = printed_by(line, "--explain", "--global-batch=8", "--compare=3s", f"--out={out}")
    for words in ("2 of 16 ranks, which stand for all equal", "attention.qkv", "gemm_sustained"):
        assert words in printed
    names = {path.name for path in out.iterdir()}
    wanted = {"trace.parquet", "metrics.csv", "step_time_breakdown.png", "timeline.png", "run.json"}
    assert names >= wanted
    metrics = pd.read_csv(out / "metrics.csv").set_index("metric")["value"]
    assert float(metrics["iteration_s"]) > 0
    assert set(pd.read_parquet(out / "trace.parquet")["count"]) == {8}
    rows = pd.read_csv(out / "compared.csv").set_index("run")["step_s"]
    assert rows["measured"] == 3.0 > rows["predicted"]
    page = (out / "report.html").read_text()
    assert "Measured step, as typed" in page
    assert "The measured step is" in page
    assert "Framework not stated: predicted as neuronx" in page


def test_an_option_without_effect_is_named(line):
    line += " --cp-exchange all-gather"
    assert "--cp-exchange changes nothing here: cp is 1.\n" in printed_by(line)
    assert document_of(line)["without_effect"] == {"cp_exchange": "cp is 1"}


def test_options_go_before_the_plans_file(question, tmp_path):
    (file := tmp_path / "plan.yaml").write_text("tp: 2\nseq: 1024\npp: 2\n")
    assert document_of(question, f"--plan={file}", "--tp=8")["plan"]["tp"] == 8


def test_what_follows_from_the_time_has_its_factor():
    """Price and energy rise with the time and rates fall, each by what its end is away."""
    line = "train --model=gpt2 --cluster=trn2.48xlarge --tp=4"
    document = document_of(line)
    ends = document["interval"]
    sooner, later = (ends[end] / document["iteration_s"] for end in ("low", "high"))
    for name in ("cost_usd", "usd_per_million_tokens", "energy_joules"):
        assert ends[name]["low"] == pytest.approx(document[name] * sooner)
        assert ends[name]["high"] == pytest.approx(document[name] * later)
    for name in ("tokens_per_s", "mfu"):
        assert ends[name]["low"] == pytest.approx(document[name] / later)
        assert ends[name]["high"] == pytest.approx(document[name] / sooner)
    assert printed_by(line).count("80 %:") == 4


def test_the_range_of_a_price_is_in_that_of_its_step():
    step = document_of("train --model gpt2 --cluster dgx-a100-40gb")  # 15.92 to 31.6 USD/h
    ends, usd = step["interval"]["cost_usd"], step["cost_usd"]
    assert ends["low"] < 15.92 / 21.9576 * usd
    assert ends["high"] > 31.6 / 21.9576 * usd
    assert "price_ends" not in step


@pytest.mark.parametrize(("more", "framework"), [
    ("", "neuronx"),
    ("--framework axlearn", "axlearn"),
    ("--cluster dgx-h100:2", "torchtitan"),
    ("--cluster dgx-h100:2 --no-compiled", "torchtitan:eager"),
    ("--cluster dgx-h100:2 --framework fsdp", "fsdp"),
])  # fmt: skip
def test_a_plan_of_another_tool_names_the_framework(question, tmp_path, more, framework):
    """An option takes precedence; on chips of another vendor it is left out, which is said."""
    plan = tmp_path / "job.toml"
    plan.write_text("[parallelism]\ntensor_parallel_degree = 4\n[compile]\nenable = true\n")
    line = (f"{question} --seq 1024 --plan {plan}", *more.split())
    assert document_of(*line)["framework"] == framework
    sentence = "torchtitan's framework torchtitan does not train on trn2"
    assert (sentence in " ".join(printed_by(*line).split())) is (more == "")


def test_a_slow_cable_says_what_it_hit_and_an_idle_adapter_that_it_hit_nothing(line):
    line += " --dp 2 --overlap dp"
    faults = ["--fault=cable:0-1@0s:slow=1/4", "--fault=adapter:3@0s:slow=1/2"]
    printed = printed_by(line, *faults)
    idle = "--fault adapter:3 changes nothing here: no collective of this step crosses it."
    assert idle in printed
    head = "collectives that cross a fault"
    rows = [" ".join(each.split()) for each in printed.partition(head)[2].splitlines()]
    assert rows[0] == "groups calls without it with it"
    assert rows[1].startswith("tp all-gather of 2 MiB 1 of 4 ")
    assert "Collectives of several kinds" not in printed
    document = document_of(line, *faults)
    assert document["level"] == "collective"
    assert document["undisturbed_s"] < document["iteration_s"]
    first = document["slowed_collectives"][0]
    assert (first["groups"], first["of_groups"]) == (1, 4)
    assert first["usual_s"] < first["time_s"]
    # Down the columns lie both the transfers between stages and the replicas.
    columns = (f"--fault=cable:{ends}@0s:slow=1/10" for ends in ("0-4", "0-12"))
    assert "Collectives of several kinds cross the fault" in printed_by(line, *columns)


@pytest.mark.slow
def test_the_plan_stays_while_numbers_move():
    """A searched plan with fields that follow from its framework, moved one number at a time."""
    line = "train --model llama-3.1-8b --cluster p5.48xlarge --framework fsdp"
    document = document_of(f"{line} --recompute selective --seq 8192 --sensitivity")
    moved = {row["input"]: row["elasticity"] for row in document["sensitivity"]}
    assert -1 < moved["kernels.h100.gemm_sustained"] < -0.4


@pytest.mark.parametrize(("text", "why"), [
    ("tp: 0", "tp is 0"),
    ("tp: 1.5", "tp is 1.5"),
    ("order: 5", "order"),
    ("stage_layers: 3", "stage_layers sum to 3, but gpt2 has 12 layers"),
    ("stage_layers: [x]", "stage_layers is 'x'"),
    ("schedule: 7", "schedule is '7'; it must be one of gpipe"),
    ("tps: 8", "a plan has no 'tps'. Did you mean tp?"),
    ("!!python/object/apply:os.system ['true']", "is not YAML"),
    ("", "holds no fields"),
    ("{}", "holds no fields"),
])  # fmt: skip
def test_a_mistaken_file_of_a_plan_is_refused_in_one_line(text, why, tmp_path):
    (file := tmp_path / "plan.yaml").write_text(text)
    assert why in refusal_of(f"train --model=gpt2 --cluster=p5.48xlarge --plan={file}")


def test_layers_of_the_only_chunk_may_be_stated(tmp_path):
    (file := tmp_path / "plan.yaml").write_text("stage_layers: 12\n")
    line = "train --model=gpt2 --cluster=p5.48xlarge"
    times_s = [document_of(line, *more)["iteration_s"] for more in ((), (f"--plan={file}",))]
    assert times_s[0] == times_s[1]


def test_a_measured_step_of_one_cluster_is_carried_over_to_others():
    """Each other step is as far from its prediction as the measured one, as sure as a ratio is."""
    line = "train --model=llama-3.1-8b --tp=8 --global-batch=32 --compare=3s"
    machines = "dgx-h100,dgx-h100:2,dgx-a100"
    one, two, other = document_of(line, f"--cluster={machines}")["rows"]
    factor = one["compared"]["measured_s"] / one["iteration_s"]
    widths = []
    for row in (two, other):
        there = row["by_measured"]
        assert there["measured_on"] == "dgx-h100"
        assert there["iteration_s"] == pytest.approx(factor * row["iteration_s"], rel=1e-12)
        assert there["low"] < there["iteration_s"] < there["high"]
        widths.append(there["high"] / there["low"])
    assert widths[0] < widths[1]  # chips of another kind share fewer errors
    assert "as the one measured on dgx-h100, it takes" in two["remarks"][-1]
    several = f"--cluster={machines}"
    for words in (f"{line},2s {several}", f"{line.replace('--global-batch=32', '')} {several}"):
        assert "it is one step, measured on the first" in refusal_of(words)
