"""The command ``sweep``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.commands import sweep as program
from experiments.cli.main import run
from experiments.sweeps import runner as row_runner
from tests.support.probe_command import PROBE, threads


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_runner, "process_pool", threads)
    monkeypatch.setattr(program, "program_of", lambda *_: PROBE)


def _study(folder: Path, more: str = "") -> str:
    path = folder / "study.yaml"
    path.write_text(f"command: probe\nfixed: {{op: x}}\ngrid: {{size: [1, 13]}}\n{more}")
    return str(path)


def _run(*arguments: str) -> int:
    return run(["sweep", *arguments])


def test_rows_are_a_table_and_failures_are_said(tmp_path, capsys):
    assert _run(_study(tmp_path, "show: [double]")) == 0
    printed = capsys.readouterr()
    lines = [line.split() for line in printed.out.splitlines() if line.strip()]
    assert lines[0] == ["size", "status", "double", "message"]
    assert lines[1] == ["1", "ok", "2"]
    assert lines[2][:5] == ["13", "refused", "-", "size", "13"]
    assert printed.err == "1 of 2 rows failed; their message says why\n"


def test_json_is_one_document_with_a_summary(tmp_path, capsys):
    assert _run(_study(tmp_path), "--json", "--quiet", "--out", str(tmp_path / "out")) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert printed.err == ""
    assert document["summary"] == {"rows": 2, "ok": 1, "refused": 1}
    good, bad = document["rows"]
    assert (good["double"], good["memory_bytes.total"]) == (2, 1)
    assert bad == {"size": 13, "status": "refused", "message": "size 13 brings bad luck. Use 12."}
    assert (tmp_path / "out" / "results.csv").exists()


def test_a_column_that_is_not_there_costs_no_results(tmp_path, capsys):
    assert _run(_study(tmp_path, "show: [dubble]"), "--quiet") == 0
    printed = capsys.readouterr()
    assert printed.err == "show: no column is called dubble. Did you mean double?\n"
    assert "refused" in printed.out
