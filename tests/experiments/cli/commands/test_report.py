"""The command ``report``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.main import run
from experiments.reports.run_directory import run_directory


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
