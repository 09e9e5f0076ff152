"""Several clusters in one command: rows as of each alone, one table, picture and refusal."""

import re
from pathlib import Path

import pandas as pd
import pytest

from experiments.cli.output.side_by_side import _of_one_batch, cluster_names
from tests.support.commands import document_of, printed_by
from topologies.errors import InputError

REDUCE = "collective all-reduce --size=1MiB,64MiB --ranks=8"
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
    assert (f"{batch:,} sequences everywhere" in sentence) if batch else not sentence


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
    (f"{STEP} --tokens=1T", CLUSTERS, "steps.png", "days of the job"),
    (SERVE, CLUSTERS, "report.html", "time per output token, median"),
])  # fmt: skip
def test_a_run_directory_has_one_picture_of_all(tmp_path, line, clusters, figure, says):
    out = tmp_path / "both"
    assert says in printed_by(line, f"--cluster={','.join(clusters)}", f"--out={out}")
    assert (out / figure).stat().st_size > 1000
    assert set(pd.read_csv(out / "metrics.csv")["cluster"]) == set(CLUSTERS)


def test_too_many_and_files_with_commas(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="the limit is 20"):
        cluster_names(",".join(f"ring:{n}" for n in range(2, 30)))
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


def test_prices_are_of_one_kind_unless_chosen():
    line = f"{STEP} --cluster=trn2.48xlarge,p5.48xlarge"
    both, chosen = document_of(line), document_of(line, "--variant=trn2.48xlarge.price=spot")
    both_named = r"trn2\.48xlarge price 35\.76 USD/h .* p5\.48xlarge price 41\.528 USD/h"
    assert re.search(f"All prices are by Capacity Block: {both_named}", both["prices"])
    assert "41.528" in both["rows"][1]["price_basis"]
    assert "prices" not in chosen
    assert "55.04" in chosen["rows"][1]["price_basis"]
    assert document_of(STEP, "--cluster=trn2.48xlarge,mi300x-platform")["prices"] == (
        "Ratios of prices are in part those of different kinds of price: trn2.48xlarge by Capacity "
        "Block, mi300x-platform on demand."
    )
