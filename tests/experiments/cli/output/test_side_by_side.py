"""Several clusters in one command: rows as of each alone, one table, picture and refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.cli.main import run
from experiments.cli.output.side_by_side import cluster_names
from topologies.errors import InputError

REDUCE = ("collective", "all-reduce", "--size=1MiB,64MiB", "--ranks=8", "--quiet")
STEP = ("train", "--model=llama-3.1-8b", "--tp=8", "--global-batch=32", "--quiet")
CLUSTERS = ("trn2.48xlarge", "dgx-h100")
MEASURED = ("build_s", "simulate_s", "peak_rss_bytes")


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run([*words, "--json"]) == 0
    read: dict[str, Any] = json.loads(capsys.readouterr().out)
    return read


def steady(row: dict[str, Any]) -> dict[str, Any]:
    more = (*MEASURED, "status", "why", "cluster")
    return {name: value for name, value in row.items() if name not in more}


def test_collectives_are_those_of_each_cluster_alone(capsys: pytest.CaptureFixture[str]) -> None:
    both = answer(capsys, *REDUCE, "--cluster", ",".join(CLUSTERS))["rows"]
    alone = [row for name in CLUSTERS for row in answer(capsys, *REDUCE, name)["rows"]]
    assert [row["cluster"] for row in both] == [name for name in CLUSTERS for _ in range(2)]
    assert [steady(row) for row in both] == [steady(row) for row in alone]
    assert {row["ranks"] for row in both} == {8}
    assert answer(capsys, *REDUCE, ",".join(CLUSTERS))["rows"][0]["time_s"] == both[0]["time_s"]


def test_steps_are_those_of_each_cluster_alone(capsys: pytest.CaptureFixture[str]) -> None:
    both = answer(capsys, *STEP, f"--cluster={','.join(CLUSTERS)}")
    alone = [answer(capsys, *STEP, f"--cluster={name}") for name in CLUSTERS]
    assert [steady(row) for row in both["rows"]] == [steady(row) for row in alone]
    assert both["interval"] == alone[0]["interval"]


def test_a_cluster_that_refuses_has_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answer(capsys, *REDUCE, "trn2.48xlarge,p5.48xlarge,trn2.3xlarge")["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "refused"]
    assert "trn2.3xlarge" in rows[-1]["why"]
    assert run([*STEP, "--cluster=trn2.48xlarge,trn2.3xlarge"]) == 0
    printed = capsys.readouterr().out
    assert "trn2.3xlarge: " in printed
    assert "MFU" in printed


def test_tables_compare_with_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*REDUCE, ",".join(CLUSTERS)]) == 0
    printed = capsys.readouterr().out
    assert "of the first" in printed
    assert printed.count("1 ×") >= 2


@pytest.mark.parametrize(
    ("words", "figure"), [((*REDUCE, ",".join(CLUSTERS)), "busbw"),
                          ((*STEP, f"--cluster={','.join(CLUSTERS)}"), "steps")],
)  # fmt: skip
def test_a_run_directory_has_one_picture_of_all(
    tmp_path: Path, words: tuple[str, ...], figure: str
) -> None:
    out = tmp_path / "both"
    assert run([*words, f"--out={out}"]) == 0
    assert (out / f"{figure}.png").stat().st_size > 1000
    assert set(pd.read_csv(out / "metrics.csv")["cluster"]) == set(CLUSTERS)


def test_too_many_and_files_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the limit is 20"):
        cluster_names(",".join(f"ring:{n}" for n in range(2, 30)))
    monkeypatch.chdir(tmp_path)
    Path("a,b.yaml").write_text("")
    assert cluster_names("a,b.yaml") == ["a,b.yaml"]


def test_the_first_plan_of_each_cluster_is_that_of_a_search_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = (
        "plan",
        "--model=llama-3.1-8b",
        "--global-batch=32",
        "--finalists=2",
        "--quiet",
        "--pp=1",
        "--microbatch=1",
        "--zero=1",
    )
    both = answer(
        capsys, *line, f"--cluster={','.join(CLUSTERS)},trn1.2xlarge", f"--out={tmp_path}/a"
    )
    for name, row in zip(CLUSTERS, both["rows"], strict=False):
        alone = answer(capsys, *line, f"--cluster={name}")
        first = alone["rows"][0]
        assert row["iteration_s"] == first["iteration_s"]
        assert row["interval"]["low"] == alone["interval"]["low"]
        assert {row["plan"][field] == first[field] for field in ("tp", "pp", "dp", "zero")} == {
            True
        }
    assert both["rows"][2]["status"] == "refused"
    assert len(pd.read_csv(tmp_path / "a" / "metrics.csv")) == 2
    page = (tmp_path / "a" / "report.html").read_text()
    assert "the best plan on each of 3 clusters" in page
    assert "Memory of a rank" not in page  # which would be that of the first cluster alone
    assert run([*line, f"--cluster={','.join(CLUSTERS)}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"dgx-h100 has {both['ratios'][0]['ratio']:.3g} times the tokens a second" in printed


def test_replicas_serve_the_same_requests(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    line = ("serve", "--model=llama-3.1-8b", "--tp=4", "--requests=poisson:2", "--count=50")
    both = answer(
        capsys, *line, "--quiet", f"--cluster={','.join(CLUSTERS)}", f"--out={tmp_path}/a"
    )
    alone = [answer(capsys, *line, "--quiet", f"--cluster={name}") for name in CLUSTERS]
    assert [steady(row) for row in both["rows"]] == [steady(row) for row in alone]
    (first, later) = both["ratios"]
    assert first["number"] == "the median time to first token"
    assert first["ratio"] == alone[1]["ttft_s"]["p50"] / alone[0]["ttft_s"]["p50"]
    assert later["number"] == "the median time per output token"
    assert run([*line, "--quiet", f"--cluster={','.join(CLUSTERS)}"]) == 0
    assert "time per output token, median" in capsys.readouterr().out
    page = (tmp_path / "a" / "report.html").read_text()
    assert "<title>dgx-h100" in page
    assert "times the median time" in page


def test_prices_are_of_one_kind_unless_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    line = (*STEP, "--cluster=trn2.48xlarge,p5.48xlarge")
    both = answer(capsys, *line)
    both_named = r"trn2\.48xlarge price 35\.76 USD/h .* p5\.48xlarge price 41\.528 USD/h"
    assert re.search(f"All prices are by Capacity Block: {both_named}", both["prices"])
    assert "41.528" in both["rows"][1]["price_basis"]
    chosen = answer(capsys, *line, "--variant=trn2.48xlarge.price=spot")
    assert "prices" not in chosen
    assert "55.04" in chosen["rows"][1]["price_basis"]
    apart = answer(capsys, *STEP, "--cluster=trn2.48xlarge,mi300x-platform")
    assert apart["prices"] == (
        "Ratios of prices are in part those of different kinds of price: trn2.48xlarge by Capacity "
        "Block, mi300x-platform on demand."
    )
