"""The commands ``validate``, ``calibrate`` and ``report``: status, JSON, run directories."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.cli.commands.validate import MOST_PRINTED
from experiments.cli.main import run
from experiments.reports.run_directory import run_directory

ROWS = (
    "collective,cluster,chips,size_bytes,time_s,table\n"
    "all-reduce,dgx-h100,8,1048576,2.5e-5,mine\n"
    "all-reduce,dgx-h100,x,1048576,2.5e-5,mine\n"
)
SUMMARY = {
    "rows",
    "ok",
    "unsupported",
    "infeasible",
    "oversized",
    "median_abs_error",
    "mean_abs_error",
    "p90_abs_error",
    "bias",
    "kendall_tau",
    "coverage",
    "median_half_width",
}


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(ROWS)
    return path


def test_a_file_that_can_be_read_exits_0_and_keeps_every_row(rows, capsys):
    assert run(["validate", "--file", str(rows), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["summary"]) == SUMMARY
    good, bad = document["rows"]
    assert good["status"] == "ok"
    assert good["table"] == "mine"
    assert good["error"] == pytest.approx(good["predicted"] / good["published"] - 1)
    assert good["provenance"]["efficiency"] == "derived"
    assert bad["status"] == "unsupported"
    assert "line 3" in bad["why"]
    assert "chips 'x'" in bad["why"]


def test_a_table_inside_its_tolerance_exits_0(capsys):
    assert run(["validate", "--table", "attention"]) == 0
    shown = capsys.readouterr().out
    assert "constant" in shown
    assert "Apache-2.0" in shown


def test_a_table_outside_its_tolerance_exits_1(capsys, monkeypatch):
    from dataclasses import replace

    from experiments.validation.reading import rows

    strict = replace(rows.table("attention"), median_tolerance=0.001)
    monkeypatch.setattr(rows, "table", lambda name: strict)
    assert run(["validate", "--table", "attention", "--json"]) == 1
    assert "over the tolerance of 0.1%" in capsys.readouterr().err


def test_a_run_directory_holds_rows_summary_and_scatter(rows, tmp_path):
    out = tmp_path / "out"
    assert run(["validate", "--file", str(rows), "--out", str(out), "--json"]) == 0
    names = {path.name for path in out.iterdir()}
    assert {"run.json", "summary.csv", "rows_rows.csv", "rows_scatter.png"} <= names


NCCL = (
    "all_reduce_perf -g 8\n# size time(us) algbw busbw\n"
    "1024 20 0.05 0.09\n1048576 45 23.3 40.8\n1073741824 5000 214.7 375.8\n"
)


def test_calibrate_prints_an_overlay(tmp_path, capsys):
    log = tmp_path / "log.txt"
    log.write_text(NCCL)
    assert run(["calibrate", str(log), "--cluster", "dgx-h100"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0].startswith("part,quantity")
    assert [line.split(",")[:2] for line in lines[1:]] == [
        ["nccl.h100", "launch"],
        ["nccl.h100", "in_switch_efficiency"],
    ]
    assert "3 measurements" in captured.err


def test_calibrate_writes_and_describes(tmp_path, capsys):
    log, overlay = tmp_path / "log.txt", tmp_path / "mine.csv"
    log.write_text(NCCL)
    arguments = [str(log), "--cluster", "dgx-h100", "--overlay", str(overlay), "--json"]
    assert run(["calibrate", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    (group,) = document["groups"]
    assert group["median_abs_error"] <= group["median_abs_error_before"]
    assert overlay.read_text().count("\n") == 3


def test_the_summary_comes_first_and_long_tables_show_their_furthest_rows(capsys):
    assert run(["validate", "--table", "attention"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Errors of predictions")
    before, _, rows = shown.partition("attention: predicted beside published")
    assert "rows that are furthest off" in " ".join(rows.split())
    assert "Source:" in before
    assert rows.count(" ok\n") == MOST_PRINTED
    assert len(re.findall(r"\d (?:us|ms) +[\d.]+ (?:us|ms)", rows)) == MOST_PRINTED


@pytest.mark.parametrize("cell", ["0", "1e-400", "-1", "x", ""])
@pytest.mark.parametrize("kind", ["training", "collective"])
def test_one_bad_cell_never_ends_the_command(kind, cell, tmp_path, capsys):
    header, row = ROW_OF[kind].splitlines()
    for place, column in enumerate(header.split(",")):
        cells = row.split(",")
        cells[place] = cell
        path = tmp_path / "rows.csv"
        path.write_text(f"{header}\n{','.join(cells)}\n")
        status = run(["validate", "--file", str(path), "--json", "--quiet"])
        answered = capsys.readouterr()
        assert status in (0, 2), (column, answered.err)
        if cell == "1e-400" and column not in TEXTS:
            (read,) = json.loads(answered.out)["rows"]
            assert (read["status"], read[column]) == ("unsupported", cell)


TEXTS = ("cluster", "precision", "collective")
ROW_OF = {
    "training": "cluster,chips,layers,hidden,ffn,heads,kv_heads,vocab,seq,tp,pp,dp,cp,ep,zero,"
    "microbatch,global_batch,precision,iteration_s\n"
    "dgx-h100,8,2,512,2048,8,8,1000,256,2,1,4,1,1,1,1,8,bf16,0.01\n",
    "collective": "collective,cluster,chips,ranks,size_bytes,time_s\n"
    "all-reduce,dgx-h100,8,8,1048576,0.00005\n",
}


def test_residuals_that_cannot_be_written_are_refused_before_any_row_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("predicted")

    monkeypatch.setattr("experiments.validation.validate.validate_each", never)
    assert run(["validate", f"--residuals={tmp_path}"]) == 2
    assert "it is no file. Choose another name." in capsys.readouterr().err


def test_the_page_is_built_again_and_its_place_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with run_directory(tmp_path / "out", command="x", inputs={}):
        pass
    (tmp_path / "out" / "report.html").unlink()
    assert run(["report", str(tmp_path / "out")]) == 0
    page = tmp_path / "out" / "report.html"
    assert capsys.readouterr().out.strip() == str(page)
    assert run(["report", str(tmp_path / "out"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"report": str(page), "report_bytes": page.stat().st_size}
