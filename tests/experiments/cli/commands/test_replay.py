"""The command ``replay``: its document, table, run directory and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.cli.main import run
from tests.support.small_traces import job

RING = ["--cluster", "ring:4", "--bandwidth", "50GB/s", "--latency", "1us"]


def test_the_document_has_the_promised_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job(tmp_path)
    assert run(["replay", str(tmp_path), *RING, "--json", "--out", str(tmp_path / "run")]) == 0
    document = json.loads(capsys.readouterr().out)
    promised = {"ranks", "nodes", "iteration_s", "breakdown_s", "unmapped", "interval"}
    assert promised <= set(document)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_table_for_people_and_chakra_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(path) for path in job(tmp_path)]
    assert run(["replay", *paths, *RING, "--chakra", str(tmp_path / "et")]) == 0
    assert "where the time goes" in capsys.readouterr().out
    assert len(list((tmp_path / "et").glob("*.et"))) == 4
    assert run(["replay", *paths, "--cluster", "trn2.48xlarge"]) == 0
    unknown = "kernel times     recorded on an unknown chip; --recorded-on CHIP scales to trn2\n"
    assert unknown in capsys.readouterr().out
