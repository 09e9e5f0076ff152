"""``cluster-sim queue``: its document, tables and run directory, and mistakes in its file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from experiments.cli.main import run
from tests.support.commands import document_of

ROWS = "name,submit,chips,time\nfirst,0s,96,1h\nlarge,1min,128,1h\nsmall,2min,32,30min\n"


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "queue.csv"
    path.write_text(ROWS)
    return ["queue", "trn2-ultraserver:2", "--jobs", str(path), "--quiet"]


def test_the_document_has_every_job_and_discipline(words: list[str]) -> None:
    document = document_of([*words, "--study", "--json"])
    assert [each["wait_s"] for each in document["jobs"]] == [0, 59 * 60, 0]
    assert document["mean_wait_s"] == 59 * 20
    assert document["longest_wait_s"] == 59 * 60
    # Of eight servers six run for an hour, two for half of it, then eight for an hour.
    assert document["used"] == pytest.approx((6 + 1 + 8) / 16)
    assert document["idle_beside_waiting"] == pytest.approx((2 * 1 + 2 * 28) / 960)
    assert (document["mean_wait_ends_s"], document["recorded_mean_wait_s"]) == (None, None)
    assert [each["mean_wait_s"] for each in document["others"]][:1] == [(59 + 118) * 20]
    assert len(document["others"]) == 9


def test_tables_and_the_run_directory_show_the_waits(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run([*words, "--study", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 jobs queue for trn2-ultraserver:2" in printed
    assert "Jobs wait least with discipline backfill and place any: 19.67 min" in printed
    with (out / "jobs.csv").open() as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["first", "large", "small"]
    assert json.loads((out / "results.json").read_text())["discipline"] == "backfill"
    assert (out / "occupancy.png").stat().st_size > 10_000


@pytest.mark.parametrize(("name", "key"), [("priority", "priority"), ("shortest", "limit")])
def test_jobs_that_a_discipline_cannot_tell_apart_are_named(
    words: list[str], tmp_path: Path, name: str, key: str
) -> None:
    path = tmp_path / "alike.csv"
    path.write_text("submit,chips,time,limit\n0s,16,1h,2h\n1min,16,2h,2h\n")
    document = document_of([*words[:3], str(path), "--discipline", name, "--json"])
    remark = f"All jobs have one {key}, so discipline {name} is backfill."
    assert document["remarks"] == [remark]


def test_a_mistake_is_one_line_and_status_2(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "queue.csv").write_text(ROWS.replace("128", "1280"))
    assert run(words) == 2
    assert capsys.readouterr().err == (
        "cluster-sim: job large needs 1,280 chips, but trn2-ultraserver:2 has 128. Leave it out, "
        "or use a larger cluster.\n"
    )
