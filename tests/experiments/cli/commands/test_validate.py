"""The commands ``validate``, ``calibrate`` and ``report``: status, JSON, run directories."""

import json
import re
from dataclasses import replace

import pytest

from experiments.cli.commands.validate import MOST_PRINTED
from experiments.reports.run_directory import run_directory
from experiments.validation.reading import rows as reading
from tests.support.commands import document_of, ended, printed_by

ROWS = (
    "collective,cluster,chips,size_bytes,time_s,table\n"
    "all-reduce,dgx-h100,8,1048576,2.5e-5,mine\n"
    "all-reduce,dgx-h100,x,1048576,2.5e-5,mine\n"
)
SUMMARY = {
    "rows", "ok", "unsupported", "infeasible", "oversized", "median_abs_error", "mean_abs_error",
    "p90_abs_error", "bias", "kendall_tau", "coverage", "median_half_width",
}  # fmt: skip


def test_a_file_that_can_be_read_exits_0_and_keeps_every_row(tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    document = document_of(f"validate --file {tmp_path}/rows.csv --out {tmp_path}/out")
    assert set(document["summary"]) == SUMMARY
    good, bad = document["rows"]
    assert (good["status"], good["table"]) == ("ok", "mine")
    assert good["error"] == pytest.approx(good["predicted"] / good["published"] - 1)
    assert good["provenance"]["efficiency"] == "derived"
    assert bad["status"] == "unsupported"
    assert "line 3" in bad["why"]
    assert "chips 'x'" in bad["why"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"run.json", "summary.csv", "rows_rows.csv", "rows_scatter.png"} <= names


def test_the_summary_comes_first_and_long_tables_show_their_furthest_rows():
    shown = printed_by("validate --table attention")
    assert shown.startswith("Errors of predictions")
    assert "constant" in shown
    before, _, rows = shown.partition("attention: predicted beside published")
    assert "Source:" in before
    assert "Apache-2.0" in before
    assert "rows that are furthest off" in " ".join(rows.split())
    assert rows.count(" ok\n") == MOST_PRINTED
    assert len(re.findall(r"\d (?:us|ms) +[\d.]+ (?:us|ms)", rows)) == MOST_PRINTED


def test_a_table_outside_its_tolerance_exits_1(monkeypatch):
    strict = replace(reading.table("attention"), median_tolerance=0.001)
    monkeypatch.setattr(reading, "table", lambda name: strict)
    status, _, errors = ended("validate --table attention --json")
    assert (status, "over the tolerance of 0.1%" in errors) == (1, True)


def test_calibrate_writes_and_describes(tmp_path):
    log, overlay = tmp_path / "log.txt", tmp_path / "mine.csv"
    log.write_text(
        "all_reduce_perf -g 8\n# size time(us) algbw busbw\n"
        "1024 20 0.05 0.09\n1048576 45 23.3 40.8\n1073741824 5000 214.7 375.8\n"
    )
    document = document_of(f"calibrate {log} --cluster dgx-h100 --overlay {overlay}")
    (group,) = document["groups"]
    assert group["median_abs_error"] <= group["median_abs_error_before"]
    head, *lines = overlay.read_text().splitlines()
    assert head.startswith("part,quantity")
    fitted = [tuple(line.split(",")[:2]) for line in lines]
    assert fitted == [("nccl.h100", "launch"), ("nccl.h100", "in_switch_efficiency")]


TEXTS = ("cluster", "precision", "collective")
ROW_OF = {
    "training": "cluster,chips,layers,hidden,ffn,heads,kv_heads,vocab,seq,tp,pp,dp,cp,ep,zero,"
    "microbatch,global_batch,precision,iteration_s\n"
    "dgx-h100,8,2,512,2048,8,8,1000,256,2,1,4,1,1,1,1,8,bf16,0.01\n",
    "collective": "collective,cluster,chips,ranks,size_bytes,time_s\n"
    "all-reduce,dgx-h100,8,8,1048576,0.00005\n",
}


@pytest.mark.parametrize("cell", ["0", "1e-400", "-1", "x", ""])
@pytest.mark.parametrize("kind", ROW_OF)
def test_one_bad_cell_never_ends_the_command(kind, cell, tmp_path):
    header, row = ROW_OF[kind].splitlines()
    for place, column in enumerate(header.split(",")):
        cells = row.split(",")
        cells[place] = cell
        (tmp_path / "rows.csv").write_text(f"{header}\n{','.join(cells)}\n")
        status, output, errors = ended(f"validate --file {tmp_path}/rows.csv --json --quiet")
        assert status in (0, 2), (column, errors)
        if cell == "1e-400" and column not in TEXTS:
            (read,) = json.loads(output)["rows"]
            assert (read["status"], read[column]) == ("unsupported", cell)


def test_a_file_of_which_every_row_is_refused_ends_with_status_2(tmp_path):
    head = "model,cluster,chips,tp,pp,dp,global_batch,seq,step_s\n"
    good, bad = "gpt2,trn2.48xlarge,16,1,1,16,16,512,1\n", "gpt2,nowhere,16,1,1,16,16,512,1\n"
    for rows, status in ((bad + bad, 2), (good + bad, 0)):
        (path := tmp_path / "rows.csv").write_text(head + rows)
        ends, output, errors = ended(f"validate --file {path} --quiet")
        assert ends == status
        assert "unknown cluster 'nowhere'" in " ".join(output.split())
        assert (f"No row of {path} could be predicted; each says why." in errors) == (status == 2)


def test_the_page_is_built_again_and_its_place_is_said(tmp_path):
    with run_directory(tmp_path / "out", command="x", inputs={}):
        pass
    page = tmp_path / "out" / "report.html"
    page.unlink()
    assert printed_by(f"report {tmp_path}/out").strip() == str(page)
    document = document_of(f"report {tmp_path}/out")
    assert document == {"report": str(page), "report_bytes": page.stat().st_size}
