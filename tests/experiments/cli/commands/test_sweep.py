"""The command ``sweep``."""

import json

import pytest

from experiments.cli.commands import sweep as program
from experiments.sweeps import runner as row_runner
from tests.support.commands import ended
from tests.support.probe_command import PROBE, threads


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Line of a study of two rows, which run in this process, with a column to show."""
    monkeypatch.setattr(row_runner, "process_pool", threads)
    monkeypatch.setattr(program, "program_of", lambda *_: PROBE)
    path = tmp_path / "study.yaml"

    def line(shown):
        path.write_text(f"command: probe\nfixed: {{op: x}}\ngrid: {{size: [1, 13]}}\n{shown}")
        return f"sweep {path}"

    return line


def test_rows_are_a_table_and_failures_are_said(study, monkeypatch):
    status, output, errors = ended(study("show: [double]"))
    lines = [line.split() for line in output.splitlines() if line.strip()]
    assert (lines[0], lines[1]) == (["size", "status", "double", "message"], ["1", "ok", "2"])
    assert lines[2][:5] == ["13", "refused", "-", "size", "13"]
    assert (status, errors) == (0, "1 of 2 rows failed; their message says why\n")
    monkeypatch.setattr(program, "MOST_COLUMNS", 3)
    assert "and 5 more columns; see --json or --out\n" in ended(study(""))[1]


def test_json_is_one_document_with_a_summary(study, tmp_path):
    status, output, errors = ended(study(""), "--json", "--quiet", f"--out={tmp_path / 'out'}")
    document = json.loads(output)
    assert (status, errors) == (0, "")
    assert document["summary"] == {"rows": 2, "ok": 1, "refused": 1}
    good, bad = document["rows"]
    assert (good["double"], good["memory_bytes.total"]) == (2, 1)
    assert bad == {"size": 13, "status": "refused", "message": "size 13 brings bad luck. Use 12."}
    assert (tmp_path / "out" / "results.csv").exists()


def test_a_column_that_is_not_there_costs_no_results(study):
    status, output, errors = ended(study("show: [dubble]"), "--quiet")
    assert (status, errors) == (0, "show: no column is called dubble. Did you mean double?\n")
    assert "refused" in output
