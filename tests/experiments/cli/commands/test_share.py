"""``cluster-sim share``: its document, tables and run directory, and mistakes in its file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from experiments.cli.main import run
from tests.support.commands import document_of
from tests.support.small_models import TOY_CONFIG, config_file

MACHINE = "trn2.48xlarge:2"


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    model = config_file(tmp_path / "config.json", TOY_CONFIG)
    plan = f"model: {model}, tp: 2, dp: 4, global_batch: 8, seq: 512"
    path = tmp_path / "jobs.yaml"
    path.write_text(f"jobs: [{{name: first, {plan}}}, {{name: second, {plan}}}]")
    return str(path)


def test_the_document_has_each_job_and_every_placement(jobs: str) -> None:
    words = ["share", MACHINE, "--jobs", jobs, "--study", "--steps", "1", "--json", "--quiet"]
    document = document_of(words)
    assert [each["name"] for each in document["jobs"]] == ["first", "second"]
    first = document["jobs"][0]
    assert first["slowdown"] == first["beside_s"] / first["alone_s"]
    assert first["interval"]["low"] < first["beside_s"] < first["interval"]["high"]
    assert first["placement"] == "packed"
    assert (first["first_chip"], first["last_chip"], first["chips"]) == (0, 7, 8)
    names = [each["placement"] for each in document["placements"]]
    assert names == ["as stated", "packed", "server", "domain", "rack", "spread"]
    assert document["best"] in names


def test_tables_say_what_jobs_lose_and_the_run_directory_has_them(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["share", MACHINE, "--jobs", jobs, "--placement", "spread", "--steps", "1", "--quiet"]
    assert run([*words, "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "2 jobs on trn2.48xlarge:2" in printed
    assert "first crosses no full link that another job crosses, so it loses nothing." in printed
    with (out / "jobs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["first", "second"]
    assert json.loads((out / "results.json").read_text())["placement"] == "spread"
    assert (out / "slowdowns.svg").exists()
    assert (out / "report.html").exists()


def test_an_answer_says_how_sure_it_is_on_the_links_that_jobs_share(tmp_path: Path) -> None:
    model = config_file(tmp_path / "config.json", TOY_CONFIG)
    plan = f"model: {model}, global_batch: 30, seq: 512"
    path = tmp_path / "jobs.yaml"
    jobs = f"{{name: pairs, {plan}, tp: 2, dp: 3, start: 3}}, {{name: ring, {plan}, dp: 10}}"
    path.write_text(f"jobs: [{jobs}]")
    document = document_of(["share", "trn2.48xlarge", "--jobs", str(path), "--json", "--quiet"])
    assert {each["kind"] for each in document["links"]} == {"link"}
    (remark,) = document["remarks"]
    assert "On links within a domain, nine in ten steps" in remark
    assert all(each["slowdown"] > 1 for each in document["jobs"])
