"""The command ``plan``: its keys, files and refusals."""

import json
import shlex

import pandas as pd
import pytest

import cluster_sim as cs
from experiments.cli.commands.plan import _print_sizes
from experiments.reports.plan import ALWAYS, table
from experiments.reports.run_record import read_record
from tests.support.commands import document_of, printed_by, refusal_of
from tests.support.refusals import refused
from tests.support.small_models import SMALL_CONFIG, config_file
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.program.breakdown import PARTS

KEYS = {
    "model", "cluster", "chips", "ranks", "parameters", "global_batch", "seq", "candidates",
    "fitting", "estimated", "bounded", "simulated", "rows", "agreement", "next_estimate_s", "train",
    "build_s", "simulate_s", "pruned", "oversized", "overlapped_s", "interval",
    "objective", "cost_usd", "energy_joules", "usd_per_million_tokens", "price_basis",
    "power_basis", "remarks",
}  # fmt: skip
MEGATRON = "--tensor-model-parallel-size 8 --seq-length 1024 --recompute-activations "


@pytest.fixture
def question(tmp_path):
    """Words of a model and the cluster that runs it."""
    model = config_file(tmp_path / "tiny.json", SMALL_CONFIG)
    return f"--model {model} --cluster trn2.48xlarge"


@pytest.fixture
def line(question):
    return f"plan {question} --global-batch 32 --seq 1024 --recompute selective"


@pytest.fixture
def few(line):
    """A search that is smaller still, where another would show nothing more."""
    return f"{line} --vpp 1 --microbatch 1 --finalists 4"


def test_json_has_every_key(line):
    document = document_of(line, "--top=3")
    assert set(document) == KEYS
    assert document["fitting"] == document["estimated"] + document["bounded"] > 20
    assert 6 < document["estimated"] < document["fitting"]
    left_out = sum(document["pruned"].values()) + document["oversized"]
    assert document["candidates"] == left_out + document["fitting"]
    assert len(document["rows"]) == 3
    assert document["simulated"] == document["agreement"]["plans"] == 6
    assert set(document["rows"][0]) >= {*PLAN_FIELDS, "estimate_s", "iteration_s", "memory_bytes"}
    for place, one in enumerate(document["rows"], start=1):
        assert one["rank"] == place
        assert one["tp"] * one["pp"] * one["dp"] * one["cp"] == document["ranks"] == 16
        assert set(one["breakdown_s"]) == set(PARTS)
        error = one["estimate_s"] / one["iteration_s"] - 1
        assert one["estimate_error"] == pytest.approx(error)
        memory = one["memory_bytes"]
        parts = sum(size for name, size in memory.items() if name not in ("total", "capacity"))
        assert memory["total"] == parts <= memory["capacity"]
    assert document["next_estimate_s"] >= document["rows"][0]["estimate_s"]


def test_the_first_plan_has_the_interval_of_train_that_states_as_much(few, other_plans):
    document = document_of(few, "--top=1")
    assert "Framework not stated: predicted as neuronx" in printed_by(few, "--top=1")
    words = shlex.split(document["train"])[1:]
    for name in ("--framework", "--overlap", "--precision", "--attention", "--ranks-per-chip"):
        at = words.index(name)
        del words[at : at + 2]
    step = document_of(words)
    for end in ("low", "high"):
        assert document["interval"][end] == pytest.approx(step["interval"][end])
    stated = document_of(few, "--top=1", "--framework=neuronx")
    assert stated["interval"]["high"] < document["interval"]["high"]


@pytest.mark.parametrize("stated", [
    ["--pp=2", "--variant=trn2.hbm_bandwidth=short-note"],
    ["--lora-rank=8", "--lora-on=attention", "--cluster=two.yaml"],
    ["--train-only=mlp"],
])  # fmt: skip
def test_the_train_command_that_it_tells_gives_the_same_time(stated, few, tmp_path, monkeypatch):
    links = "shape: switch, size: 16, bandwidth: 100 GB/s, latency: 1 us"
    (tmp_path / "two.yaml").write_text(f"chip: {{like: trn2}}\nscale_up: {{{links}}}\n")
    monkeypatch.chdir(tmp_path)
    document = document_of(few, "--top=1", *stated)
    words = shlex.split(document["train"])
    assert words[:2] == ["cluster-sim", "train"]
    again, first = document_of(words[1:]), document["rows"][0]
    assert all(again[name] == first[name] for name in ("iteration_s", "breakdown_s"))


@pytest.mark.parametrize(("words", "message"), [
    ("--best=FOLDER", "cannot write FOLDER: it is no file"),
    ("--best=FOLDER/plan.yaml --rank=9", "--rank 9: 4 plans are simulated"),
    ("--each=banana", "a plan has no 'banana'"),
])  # fmt: skip
def test_what_follows_the_search_is_refused_before_it(words, message, few, tmp_path, monkeypatch):
    monkeypatch.setattr("workloads.search.search.candidates", None)  # no search is begun
    refusal = refusal_of(few, *words.replace("FOLDER", str(tmp_path)).split())
    assert message.replace("FOLDER", str(tmp_path)) in refusal


def test_the_plan_of_each_cluster_has_its_command(few):
    beside = printed_by(few.replace("trn2.48xlarge", "trn2.48xlarge,dgx-h100"))
    for name in ("trn2.48xlarge", "dgx-h100"):
        (shown,) = (text for text in beside.splitlines() if text.startswith(f"Run that of {name}"))
        assert f"--cluster {name} --tp " in shown


def test_the_table_shows_estimates_beside_simulations(few):
    lines = printed_by(few, "--top=4", "--quiet").splitlines()
    start = next(place for place, line in enumerate(lines) if line.split()[:1] == ["tp"])
    assert lines[start].split()[: len(ALWAYS)] == ["tp", "pp", "dp", "mb"]
    heads = {"estimate", "simulated", "error", "MFU", "memory", "compute"}
    assert heads <= {word for line in lines for word in line.split()}
    assert [line.split()[0] for line in lines[start + 1 : start + 5]] == ["1", "2", "3", "4"]
    rest = "\n".join(lines[start + 5 :])
    for words in (
        "rank correlation (Kendall's tau)", "plans that divide model, batch and cluster",
        "left out: ", "Run the first: cluster-sim train --model",
    ):  # fmt: skip
        assert words in rest


def test_shares_of_a_plan_have_a_column_for_each_part_of_the_step():
    """Without one of them a row's shares would not sum to 100 %."""
    search = cs.search_plans("gpt2", "trn2.48xlarge", 16, finalists=2, tp=2, quiet=True)
    heads, rows = table(search, 2)
    first = heads.index("memory") + 1
    for row in rows:
        assert sum(float(share.rstrip("%")) for share in row[first:]) == pytest.approx(100, abs=0.4)


def test_a_field_that_no_plan_varies_is_named(line):
    sentence = "All plans that fit have precision bf16, so --each precision compares nothing: ask"
    printed = " ".join(printed_by(line, "--each=precision", "--quiet").split())
    assert sentence in printed
    assert "compares nothing" not in printed_by(line, "--each=precision", "--precision=bf16")


def test_one_plan_of_each_division(line):
    rows = document_of(line, "--each=tp, pp", "--top=20")["rows"]
    divisions = [(one["tp"], one["pp"]) for one in rows]
    assert len(set(divisions)) == len(divisions) == 12


def test_a_run_directory_holds_rows_and_pictures(few, tmp_path):
    out = tmp_path / "run"
    document = document_of(few, "--top=3", "--tp=4", f"--out={out}")
    frame, every = pd.read_csv(out / "metrics.csv"), pd.read_csv(out / "estimates.csv")
    assert frame["rank"].tolist() == [1, 2, 3]
    assert set(frame["tp"]) == {4}
    written = json.loads((out / "results.json").read_text())
    assert written["rows"][0]["iteration_s"] == frame["iteration_s"][0]
    assert read_record(out)["inputs"]["global_batch"] == 32
    assert len(every) == document["fitting"]
    assert every["estimate_s"].is_monotonic_increasing
    for picture in ("plans.png", "pareto.png"):
        assert (out / picture).stat().st_size > 10_000


def test_the_best_plan_is_a_file_that_train_reads(few, question, tmp_path):
    file = tmp_path / "best.yaml"
    first = document_of(few, "--pp=2", "--top=1", f"--best={file}")["rows"][0]
    assert document_of(f"train {question} --plan {file}")["iteration_s"] == first["iteration_s"]
    text = printed_by(few, "--pp=2", "--top=2", f"--with={file}")
    assert "\n1, yours" in text
    assert "that fit: the fastest." in " ".join(text.split())


def test_the_best_plan_is_written_for_another_tool(few, question, tmp_path):
    plain, few = few, f"{few} --lnc 2 --top 1 --zero 1"
    document = document_of(few, f"--write=nxd:{tmp_path}/new/")
    file = tmp_path / "new" / "nxd.yaml"
    assert document["written"]["file"] == str(file)
    again = document_of(f"train {question} --plan {file} --recompute selective")
    if document["written"]["rank"] == 1:
        assert again["iteration_s"] == document["rows"][0]["iteration_s"]
    for words, message in (
        (("--write=nxd:.", "--rank=9"), "--rank 9: 4 plans are simulated"),
        (("--rank=2",), "State one of them"),
        (("--write=megatron",), "framework megatron-core does not train on trn2"),
        (
            (f"--write=nxd:{file.parent}",),
            f"{file} exists already. To replace it, name it: --write",
        ),
    ):
        assert message in refusal_of(few, *words)
    first = file.read_text()
    file.write_text("of somebody else")
    best = tmp_path / "best.yaml"
    assert "logical core" in refusal_of(plain, f"--write=nxd:{file}", f"--best={best}")
    assert (file.read_text(), best.exists()) == ("of somebody else", False)
    document_of(few, f"--write=nxd:{file}", f"--best={best}")
    assert (file.read_text(), best.exists()) == (first, True)


def test_stated_fields_that_change_nothing_are_named(line):
    line += " --top 1 --finalists 2 --etp 1 --pp 1 --bucket 20MB"
    document = document_of(line)
    assert document["without_effect"] == {"etp": "the model has no experts"}
    assert {row["bucket_bytes"] for row in document["rows"]} == {20_000_000}
    assert "--etp changes nothing here: the model has no experts." in printed_by(line)


def test_a_plan_of_ones_own_stands_beside_the_others(few, tmp_path):
    out = tmp_path / "run"
    text = printed_by(few, "--with=--tp 8 --zero 3", "--top=2", f"--out={out}")
    document = json.loads((out / "results.json").read_text())
    mine, first = document["own"], document["rows"][0]
    assert (mine["tp"], mine["dp"], mine["zero"], mine["framework"]) == (8, 2, 3, "axlearn")
    assert mine["loss"] == mine["iteration_s"] / first["iteration_s"] - 1 > 0
    assert mine["differs"]["tp"] == {"own": 8, "first": first["tp"]}
    assert mine["changed_s"] < mine["iteration_s"]
    assert set(mine["change"]) <= {*PLAN_FIELDS}
    *_, last = pd.read_csv(out / "metrics.csv").to_dict("records")
    assert last["own"]
    assert last["iteration_s"] == pytest.approx(mine["iteration_s"])
    assert "Your plan is number" in (out / "report.html").read_text()
    place = f"{mine['rank']} of {document['fitting']} that fit: {mine['loss']:.1%} slower"
    text = " ".join(text.split())
    assert f"Your plan is number {place} than the first" in text
    assert f"{mine['rank']}, yours" in text
    assert f": {1 - mine['changed_s'] / mine['iteration_s']:.1%} less." in text


def test_fewer_domains_are_named_where_all_divide_worse():
    """Of 11 servers all divide a batch of 88, and one of 64 only by eleven stages of a pipeline."""
    line = "plan --model llama-3.1-8b --top 1 --finalists 1 --cluster trn2.48xlarge:11 "
    line += "--vpp 1 --microbatch 1"
    uneven, even = (document_of(line, f"--global-batch={batch}") for batch in (64, 88))
    assert "fewer" not in even
    assert uneven["fewer"]["cluster"] == "trn2.48xlarge:10"
    assert uneven["fewer"]["iteration_s"] < 0.97 * uneven["rows"][0]["iteration_s"]
    shown = printed_by(line, "--global-batch=64", "--quiet")
    assert "11 scale-up domains divide into few shapes: on" in shown


def test_a_plan_of_a_tool_for_other_chips_states_the_batch_of_all(few, tmp_path):
    """Megatron-LM runs on GPUs; its degrees are compared on Trainium all the same."""
    (path := tmp_path / "megatron.txt").write_text(MEGATRON + "--global-batch-size 32\n")
    few = few.replace("--global-batch 32", "")
    document = document_of(few, "--top=1", f"--with={path}")
    mine = document["own"]
    assert (mine["tp"], mine["framework"]) == (8, "neuronx")
    assert {mine["global_batch"], document["rows"][0]["global_batch"]} == {32}
    refusal = refusal_of(few, "--top=1", "--with=tp=8,pp=2")
    assert "'tp=8,pp=2' is neither a file nor options. Write options as '--tp 8" in refusal
    refusal = refusal_of(few, "--top=1", "--with=--tp 8")
    assert "--global-batch is not stated: plans are compared for one batch" in refusal


def test_plans_for_some_chips_of_a_server_are_those_that_train_runs(few):
    document = document_of(few, "--top=1", "--chips=4", "--with=--tp 2")
    assert (document["chips"], document["ranks"], document["own"]["dp"]) == (4, 4, 2)
    words = shlex.split(document["train"])
    assert words[words.index("--chips") + 1] == "4"
    step = document_of(words[1:])
    assert step["iteration_s"] == pytest.approx(document["rows"][0]["iteration_s"])
    assert step["cost_usd"] == pytest.approx(document["cost_usd"])
    assert "chips 17 must be a whole number from 1 to the 16" in refusal_of(few, "--chips=17")


def test_a_deadline_takes_the_fewest_units_that_meet_it(question, capsys):
    few = f"plan {question} --seq 1024 --vpp 1 --microbatch 1 --tp 4 --top 1 --tokens 10G"
    one = document_of(few, "--global-batch=96")["job"]
    document = document_of(few, "--global-batch=96", f"--days={one['days'] / 2.5}")
    sizes = document["sizes"]
    days = {row["units"]: row["days"] for row in sizes["rows"]}
    assert document["cluster"] == f"trn2.48xlarge:{sizes['fewest']}"
    assert days[sizes["fewest"]] <= sizes["days"] < days[sizes["next_smaller"]]
    assert document["job"]["days"] == pytest.approx(days[sizes["fewest"]])
    upper = {row["units"]: row["days_high"] for row in sizes["rows"]}
    assert upper[sizes["sure"]] <= sizes["days"] < upper[sizes["fewest"]]
    shape = {"seq": 1024, "vpp": 1, "microbatch": 1, "tp": 4, "finalists": 2, "quiet": True}
    length = {"tokens": 1e10, "days": sizes["days"]}
    python = cs.search_sizes(question.split()[1], "trn2.48xlarge", 96, **length, **shape)
    assert json.loads(json.dumps(python.document())) == sizes
    assert python.search.finalists[0].plan.ranks == document["ranks"]
    _print_sizes(sizes | {"next_smaller": 0})
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{sizes['fewest']} of trn2.48xlarge ({document['chips']} chips) train on 10 G" in shown
    assert f"by the prediction, {sizes['sure']} (" in shown
    assert f"Between 0 and {sizes['fewest']} no number divides the batch and the layers" in shown
    _print_sizes(sizes | {"untried": (9, 70)})
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Only {len(days)} numbers were tried: 9 to 70 may do as well. Name a number" in shown


def test_a_budget_takes_the_units_that_train_most_for_it(question, capsys):
    shape = {"seq": 1024, "vpp": 1, "microbatch": 1, "tp": 4}
    flags = [f"--{name}={value}" for name, value in shape.items()]
    spent = ("--global-batch=96", "--budget=2k", "--days=2")
    document = document_of(f"plan {question} --top 1", *flags, *spent)
    sizes, job = document["sizes"], document["job"]
    tokens = {row["units"]: row["tokens"] for row in sizes["rows"]}
    assert len(tokens) > 1
    assert job["tokens"] == tokens[sizes["fewest"]] == max(tokens.values())
    assert job["cost_usd"] <= 2000.002
    assert job["days"] <= 2
    name, few = question.split()[1], {"finalists": 2, "quiet": True}
    python = cs.search_sizes(name, "trn2.48xlarge", 96, budget="2k", days=2, **few, **shape)
    assert json.loads(json.dumps(python.document())) == sizes
    _print_sizes(sizes)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"({document['chips']} chips) train most for at most 2,000 USD within 2 days." in shown
    refused("state tokens or budget", cs.search_sizes, name, "trn2.48xlarge", 96, days=2)


CLUSTER = "experiments/validation/clusters/a100-roce-4x200g.yaml"


@pytest.mark.parametrize(("stated", "reason"), [
    ("--global-batch=32", "--days 3 is the time of a whole job: state --tokens or --budget too."),
    ("--tokens=1T", "state --global-batch too."),
    ("--tokens=1e18 --global-batch=32 --cluster=trn2.48xlarge:2", "on 2 of trn2.48xlarge. A"),
    ("--tokens=1T --global-batch=32 --objective=energy", "--objective energy may choose plans"),
    ("--tokens=1T --global-batch=32 --with=--tp=2", "--with is for one size of the cluster"),
    ("--tokens=1e18 --global-batch=32 --cluster=rainier:128", "of trn2-ultraserver. "),
    ("--tokens=1T --global-batch=32 --cluster=" + CLUSTER, f"{CLUSTER} is a whole cluster"),
])  # fmt: skip
def test_a_deadline_that_cannot_be_answered_is_refused(stated, reason, question):
    few = f"plan {question} --seq 1024 --vpp 1 --microbatch 1 --tp 4 --days 3"
    assert reason in refusal_of(few, *stated.split())
