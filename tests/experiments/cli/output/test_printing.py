"""Tables are as wide as the terminal, of several clusters too, and print nothing impossible."""

import ast
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import experiments
import experiments.cli
from experiments.cli.output.printing import interval_frame, print_paragraphs, print_table
from experiments.cli.output.side_by_side import _of_one_batch, cluster_names
from experiments.reports.certainty import value_at
from experiments.reports.formatting import Column
from experiments.reports.result_checks import check_results
from tests.support.commands import document_of, printed_by, refusal_of
from tests.support.refusals import refused

HEADS = ["name", "algorithm bandwidth", "lower bound", "semantics", "what it rests on", "status"]
ROWS = [
    ["all-reduce", "183.2 GB/s", "11.6 ms", "proven", "links and memory of every chip", "ok"],
    ["all-to-all-of-everything", "1.2 GB/s", "9.9 us", "not-checked", "links", "unsupported"],
]


def printed(monkeypatch, capsys, width, *table):
    monkeypatch.setenv("COLUMNS", str(width))
    print_table(*table)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_no_wider_than_the_terminal_and_breaks_no_word(width, monkeypatch, capsys):
    lines = printed(monkeypatch, capsys, width, "A table", HEADS, ROWS)
    assert max(len(line) for line in lines) <= width
    words = {word for line in lines for word in line.split()}
    assert words >= {word for row in [HEADS, *ROWS] for cell in row for word in cell.split()}


@pytest.mark.parametrize(("width", "heads", "row", "lines"), [
    # Names stand at the foot of the heading, and cells at the top of a row.
    (20, ["name", "what it is", "time"], ["a ring", "of every chip", "1 s"],
     ["        what", "name    it is   time", "a ring  of       1 s", "        every",
      "        chip"]),
    # Columns that do not fit follow under the first.
    (20, ["row", "first", "second"], ["a", "12345678", "87654321"],
     ["row     first", "a    12345678", "row    second", "a    87654321"]),
    # A word that is longer than the terminal is cut, a number stays beside its unit.
    (10, ["source"], ["x" * 8 + "y" * 8], ["source", "xxxxxxxxyy", "yyyyyy"]),
    (30, ["size", "what the number means"], ["1.5 GB/s", "a rate of every link"],
     ["          what the number", "size      means", "1.5 GB/s  a rate of every link"]),
])  # fmt: skip
def test_words_of_a_table_stand_in_their_places(width, heads, row, lines, monkeypatch, capsys):
    assert printed(monkeypatch, capsys, width, "", heads, [row]) == lines


def test_a_paragraph_stands_indented_below_its_heading(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "20")
    print_paragraphs("Numbers", [("trn2.peak 667 TFLOP/s", "[ND] dense, and sparse no more")])
    text = "Numbers\ntrn2.peak 667\nTFLOP/s\n    [ND] dense, and\n    sparse no more\n"
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(("document", "message"), [
    ({"mfu": 221.7}, "mfu is 221.7 and must lie between 0 and 1"),
    ({"rows": [{"hfu": -0.37}]}, "hfu is -0.37"),
    ({"rows": ({"mfu": math.nan},)}, "mfu is nan"),
    ({"slo_attainment": 1.5}, "slo_attainment is 1.5"),
    ({"iteration_s": -1.0}, "iteration_s is -1 and must not be below 0"),
    ({"iteration_s": math.nan}, "iteration_s is nan and must be a finite number"),
    ({"ttft_s": {"p50": math.inf}}, "ttft_s is inf"),
    ({"memory_bytes": {"total": np.int64(-3)}}, "memory_bytes is -3"),
    ({"rows": [{"energy_joules": np.array([1.0, -2.0])}]}, "energy_joules is -2"),
    ({"time_s": 1.0, "lower_bound_s": 1.1}, "time_s is 1 and must not be below lower_bound_s"),
    ({"interval": {"low": 2.0, "high": 1.0}}, "low is 2 and must not be above high"),
    ({"iteration_s": 2.0, "breakdown_s": {"compute": 1.0, "bubble": 0.5}},
     "breakdown_s sums to 1.5 and must sum to iteration_s of 2"),
])  # fmt: skip
def test_impossible_results_are_refused(document, message):
    refused(message, check_results, document)


def test_possible_results_pass():
    check_results({"mfu": 0.5, "hfu": None, "error": -3.0, "rows": [{"p99": math.nan}], "n": 7})
    check_results({"errors": {"ttft_s": -0.4}, "margin_usd": -5.0, "disturbance_change_s": -1e-3})
    check_results({"time_s": 1.0, "lower_bound_s": 1.0, "low": 0.9, "high": 1.1})
    check_results({"iteration_s": 0.3, "breakdown_s": {"compute": 0.1, "bubble": 0.2}})


def test_every_command_answers_through_the_check():
    """A module of a command prints its document by ``call.answer``, or checks it itself."""
    folder = Path(experiments.cli.__file__).parent
    modules = sorted(folder.rglob("*.py"))
    names = {
        str(path.relative_to(folder)): {
            node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)
        }
        for path in modules
    }
    printing = {path for path in names if "print_json" in names[path]}
    assert printing == {"commands/sweep.py", "options/inputs.py"}
    for path in printing:
        assert "check_results" in names[path], path


def test_intervals_go_by_the_names_of_their_columns():
    ends = {"low": 1.0, "high": 3.0}
    document = {
        "cost": 2.0,
        "hours": 2.5,
        "interval": {"basis": "runs", "cost": ends, "hours": ends},
    }
    frame = interval_frame(document, Column("cost", "  money"))
    assert frame.to_numpy().tolist() == [
        ["money", "cost", 1.0, 2.0, 3.0], ["hours", "hours", 1.0, 2.5, 3.0]
    ]  # fmt: skip


REDUCE = "collective all-reduce --size=1MiB,64MiB --ranks=8"
JOB = "run-job --model=llama-3.1-8b --cluster=p5.48xlarge:4 --tp=2 --global-batch=64 --runs=2"
PER_MILLION = "usd_per_million_tokens"
STEP = "train --model=llama-3.1-8b --tp=8 --global-batch=32"
SERVE = "serve --model=llama-3.1-8b --tp=4 --requests=poisson:2 --count=50"
PLAN = (
    "plan --model=llama-3.1-8b --global-batch=32 --finalists=2 --pp=1 --microbatch=1 --zero=1 "
    "--recompute=selective"
)
CLUSTERS = ("trn2.48xlarge", "dgx-h100")


@pytest.mark.parametrize(("usual", "batch", "asked_again"), [
    ((512, 384), 1536, ["a", "b"]),  # the least that both divide
    ((512, 509), 512, ["b"]),  # which would be too many
    ((256, 256), None, []),
])  # fmt: skip
def test_one_batch_is_one_that_all_divide(usual, batch, asked_again):
    asked_for = []

    def answer(name, size):
        asked_for.append((name, size))
        return {"plan": {"global_batch": size}}

    rows = [
        {"cluster": name, "status": "ok", "plan": {"global_batch": size}}
        for name, size in zip("ab", usual, strict=True)
    ]
    alike, sentence = _of_one_batch(rows, answer)
    assert asked_for == [(name, batch) for name in asked_again]
    assert {row["plan"]["global_batch"] for row in alike} == {batch or 256}
    assert (f"{batch:,} sequences on all clusters" in sentence) if batch else not sentence


BOTH = f"--cluster={','.join(CLUSTERS)}"
OWN = ("build_s", "simulate_s", "peak_rss_bytes", "status", "why", "cluster")


def steady(rows):
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows]


def test_collectives_are_those_of_each_cluster_alone():
    both = document_of(REDUCE, BOTH)["rows"]
    alone = [row for name in CLUSTERS for row in document_of(REDUCE, name)["rows"]]
    assert [row["cluster"] for row in both] == [name for name in CLUSTERS for _ in range(2)]
    assert steady(both) == steady(alone)
    assert {row["ranks"] for row in both} == {8}
    rows = document_of(REDUCE, "trn2.48xlarge,p5.48xlarge,trn2.3xlarge")["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "refused"]
    assert "trn2.3xlarge" in rows[-1]["why"]


@pytest.mark.parametrize("line", [STEP, SERVE])
def test_steps_and_requests_are_those_of_each_cluster_alone(line):
    both = document_of(line, BOTH, "--price-basis=spot")
    alone = [document_of(line, f"--cluster={name}", "--price-basis=spot") for name in CLUSTERS]
    assert steady(both["rows"]) == steady(alone)
    if line == STEP:
        assert both["interval"] == alone[0]["interval"]
        return
    first, later, price = both["ratios"]
    assert first["number"] == "the median time to first token"
    assert first["ratio"] == alone[1]["ttft_s"]["p50"] / alone[0]["ttft_s"]["p50"]
    assert later["number"] == "the median time per output token"
    assert price["number"] == "the price of a million tokens"


@pytest.mark.parametrize(("line", "clusters", "figure", "says"), [
    (REDUCE, CLUSTERS, "busbw.png", "of the first"),
    (STEP, (*CLUSTERS, "trn2.3xlarge"), "steps.png", "trn2.3xlarge: "),
    (f"{STEP} --tokens=1T", CLUSTERS, "steps.png", "length of the job"),
    (SERVE, CLUSTERS, "report.html", "time per output token, median"),
])  # fmt: skip
def test_a_run_directory_has_one_picture_of_all(tmp_path, line, clusters, figure, says):
    out = tmp_path / "both"
    assert says in printed_by(line, f"--cluster={','.join(clusters)}", f"--out={out}")
    assert (out / figure).stat().st_size > 1000
    assert set(pd.read_csv(out / "metrics.csv")["cluster"]) == set(CLUSTERS)


def test_too_many_and_files_with_commas(tmp_path, monkeypatch):
    refused("the limit is 20", cluster_names, ",".join(f"ring:{n}" for n in range(2, 30)))
    monkeypatch.chdir(tmp_path)
    Path("a,b.yaml").write_text("")
    assert cluster_names("a,b.yaml") == ["a,b.yaml"]


def test_the_first_plan_of_each_cluster_is_that_of_a_search_alone(tmp_path):
    both = document_of(PLAN, f"{BOTH},trn1.2xlarge", f"--out={tmp_path}/a")
    for name, row in zip(CLUSTERS, both["rows"], strict=False):
        alone = document_of(PLAN, f"--cluster={name}")
        first = alone["rows"][0]
        assert row["iteration_s"] == first["iteration_s"]
        assert row["interval"]["low"] == alone["interval"]["low"]
        assert all(row["plan"][field] == first[field] for field in ("tp", "pp", "dp", "zero"))
    assert both["rows"][2]["status"] == "refused"
    assert len(pd.read_csv(tmp_path / "a" / "metrics.csv")) == 2
    page = (tmp_path / "a" / "report.html").read_text()
    assert "the best plan on each of 3 clusters" in page
    assert "Memory of a rank" not in page  # which would be that of the first cluster alone
    printed = " ".join(printed_by(PLAN, BOTH).split())
    assert f"dgx-h100 has {both['ratios'][0]['ratio']:.3g} times the tokens a second" in printed


def test_other_ways_to_pay_price_the_same_answer():
    line = f"{STEP} --cluster=p5.48xlarge --tokens=1T"
    two, spot = (
        document_of(line, f"--price-basis={ways}") for ways in ("on-demand,spot,owned", "spot")
    )
    other = two["other_prices"]
    assert list(other) == ["spot", "owned"]
    assert other["spot"]["price_basis"] == spot["price_basis"] != two["price_basis"]
    for place in ("usd_per_million_tokens", "job.cost_usd"):
        assert other["spot"][place] == pytest.approx(value_at(spot, place), rel=1e-12)
        parent, _, name = place.rpartition(".")
        ends = (value_at(spot, parent) if parent else spot)["interval"][name]
        assert other["spot"]["interval"][place] == pytest.approx(ends, rel=1e-9)
        width, owned = (other[way]["interval"][place] for way in ("spot", "owned"))
        assert owned["high"] / owned["low"] > width["high"] / width["low"]  # its price has a range
    printed = printed_by(line, "--price-basis=on-demand,spot")
    assert (
        f"Price spot: {spot['usd_per_million_tokens']:.4g} USD a million tokens (80 %:" in printed
    )
    assert "other_prices" not in spot
    plans = printed_by(f"{PLAN} --cluster=p5.48xlarge --price-basis=on-demand,spot")
    assert plans.index("Price of the first plan: ") < plans.index("Price spot: ")
    for more, why in (
        (f"{line} --price-basis=spot,spot", "one appears twice"),
        (f"{line} --price-basis=spot,reserved", "no such price of p5.48xlarge"),
        (f"{STEP} {BOTH} --price-basis=spot,owned", "several are for one cluster"),
        (f"{STEP} --cluster=p5.48xlarge --budget=1M --price-basis=spot,owned", "--budget buys as"),
        (f"{JOB} --budget=1M --price-basis=spot,owned", "--budget buys as"),
    ):
        assert why in refusal_of(more)


def test_a_job_of_weeks_is_priced_by_each_way_to_pay():
    two = document_of(JOB, "--tokens=50B", "--price-basis=capacity-block,owned")
    owned = document_of(JOB, "--tokens=50B", "--price-basis=owned")
    assert two["price_basis"].startswith("p5.48xlarge price 41.528 USD/h")
    other, ends_alone = two["other_prices"]["owned"], owned["interval"]
    for place, name in (("job.cost_usd", "cost_usd"), (PER_MILLION, PER_MILLION)):
        assert other[place] == pytest.approx(owned[name], rel=1e-12)
        ends = other["interval"][place]
        # Of a sample of all inputs there, by squares of the parts here.
        assert [ends["low"], ends["high"]] == pytest.approx([*ends_alone[name].values()], rel=0.1)


def test_prices_are_of_one_kind_unless_chosen():
    line = f"{STEP} --cluster=trn2.48xlarge,p5.48xlarge"
    both, chosen = (document_of(line), document_of(line, "--variant=trn2.48xlarge.price=spot"))
    both_named = r"trn2\.48xlarge price 35\.76 USD/h .* p5\.48xlarge price 41\.528 USD/h"
    assert re.search(f"All prices are by Capacity Block: {both_named}", both["prices"])
    assert "41.528" in both["rows"][1]["price_basis"]
    assert "prices" not in chosen
    assert "55.04" in chosen["rows"][1]["price_basis"]
    assert document_of(STEP, "--cluster=trn2.48xlarge,mi300x-platform")["prices"] == (
        "Ratios of prices are in part those of different kinds of price: trn2.48xlarge by Capacity "
        "Block, mi300x-platform on demand."
    )
