"""Several clusters in one command: rows as of each alone, one table, picture and refusal."""

from __future__ import annotations

import json
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
    rows = answer(capsys, *REDUCE, "trn2.48xlarge,p5.48xlarge,ring:4")["rows"]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "refused"]
    assert "ring:4" in rows[-1]["why"]
    assert run([*STEP, "--cluster=trn2.48xlarge,ring:8"]) == 0
    printed = capsys.readouterr().out
    assert "ring:8: " in printed
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (REDUCE, "are both missing"),
        ((*REDUCE, "ring:8", "--cluster=ring:8"), "are both given"),
        ((*REDUCE, "ring:8,ring:8"), "stands twice"),
        ((*REDUCE, "ring:8,"), "empty name"),
        ((*REDUCE, "ring:2,ring:4"), "ring:2 needs the bandwidth"),
        ((*REDUCE, "ring:8,mesh:8", "--sensitivity"), "for one cluster"),
        ((*STEP, "--cluster=trn2.48xlarge,dgx-h100", "--explain"), "for one cluster"),
        ((*STEP, "--cluster=ring:8,mesh:8"), "ring:8"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_too_many_and_files_with_commas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="the limit is 20"):
        cluster_names(",".join(f"ring:{n}" for n in range(2, 30)))
    monkeypatch.chdir(tmp_path)
    Path("a,b.yaml").write_text("")
    assert cluster_names("a,b.yaml") == ["a,b.yaml"]
