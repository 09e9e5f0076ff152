"""The commands ``share`` and ``queue``."""

import csv
import json

import pandas as pd
import pytest

from tests.support.commands import document_of, printed_by, refusal_of
from tests.support.small_models import TOY_CONFIG, config_file

ROWS = "name,submit,chips,time\nfirst,0s,96,1h\nlarge,1min,128,1h\nsmall,2min,32,30min\n"
QUEUE = "queue trn2-ultraserver:2 --jobs"


def names_in(path):
    with path.open() as file:
        return [row["name"] for row in csv.DictReader(file)]


@pytest.fixture
def file(tmp_path):
    (path := tmp_path / "queue.csv").write_text(ROWS)
    return path


def test_answer_and_tables_show_the_waits_of_every_job_and_discipline(file, tmp_path):
    out = tmp_path / "out"
    printed = " ".join(printed_by(f"{QUEUE} {file} --study --out {out}").split())
    assert "3 jobs queue for trn2-ultraserver:2" in printed
    assert "jobs wait less than with discipline backfill and place any: 19.67 min" in " ".join(
        printed.split()
    )
    assert names_in(out / "jobs.csv") == ["first", "large", "small"]
    assert (out / "occupancy.png").stat().st_size > 10_000
    document = json.loads((out / "results.json").read_text())
    assert document["discipline"] == "backfill"
    assert [each["wait_s"] for each in document["jobs"]] == [0, 59 * 60, 0]
    assert (document["mean_wait_s"], document["longest_wait_s"]) == (59 * 20, 59 * 60)
    # Of eight servers six run for an hour, two for half of it, then eight for an hour.
    assert document["used"] == pytest.approx((6 + 1 + 8) / 16)
    assert document["idle_beside_waiting"] == pytest.approx((2 * 1 + 2 * 28) / 960)
    assert (document["mean_wait_ends_s"], document["recorded_mean_wait_s"]) == (None, None)
    assert [each["mean_wait_s"] for each in document["others"]][:1] == [(59 + 118) * 20]
    assert len(document["others"]) == 9


@pytest.mark.parametrize(("name", "key"), [("priority", "priority"), ("shortest", "limit")])
def test_jobs_that_a_discipline_cannot_tell_apart_are_named(file, name, key):
    file.write_text("submit,chips,time,limit\n0s,16,1h,2h\n1min,16,2h,2h\n")
    document = document_of(f"{QUEUE} {file} --discipline {name}")
    remark = f"All jobs have one {key}, so discipline {name} is backfill."
    assert document["remarks"] == [remark]


def test_a_mistake_is_one_line_and_status_2(file):
    file.write_text(ROWS.replace("128", "1280"))
    assert refusal_of(f"{QUEUE} {file}") == (
        "cluster-sim: job large needs 1,280 chips, but trn2-ultraserver:2 has 128. Leave it out, "
        "or use a larger cluster.\n"
    )


@pytest.fixture
def model(tmp_path):
    return config_file(tmp_path / "config.json", TOY_CONFIG)


@pytest.fixture
def jobs(model, tmp_path):
    plan = f"model: {model}, tp: 2, dp: 4, global_batch: 8, seq: 512"
    path = tmp_path / "jobs.yaml"
    path.write_text(f"jobs: [{{name: first, {plan}}}, {{name: second, {plan}}}]")
    return f"share trn2.48xlarge:2 --jobs {path} --steps 1"


def test_periods_are_printed_and_written_where_jobs_come_and_go(jobs, tmp_path):
    path, out = tmp_path / "jobs.yaml", tmp_path / "out"
    path.write_text(
        path.read_text().replace("name: second", "name: second, starts_at: 1s, steps: 3")
    )
    printed = printed_by(f"{jobs} --out {out}")
    assert "Periods in which the same jobs run" in printed
    assert "first crosses no full link that another job crosses at the same time" in printed
    document = json.loads((out / "results.json").read_text())
    first, second = document["periods"]
    assert (first["begins_at_s"], first["ends_at_s"], second["begins_at_s"]) == (0, 1, 1)
    assert [job["name"] for job in first["jobs"]] == ["first"]
    assert [job["slowdown"] for job in second["jobs"]] == [1, 1]
    assert (document["jobs"][1]["starts_at_s"], document["jobs"][1]["steps"]) == (1, 3)
    assert names_in(out / "periods.csv") == ["first", "first", "second"]


def test_a_late_period_is_told_by_its_length(jobs, tmp_path):
    """A step of a few milliseconds after four days: both of its ends would be 4.167 d."""
    path = tmp_path / "jobs.yaml"
    first = path.read_text().partition("}, {")[0]
    path.write_text(f"{first}, starts_at: 100h}}]")
    printed = printed_by(jobs)
    assert printed.startswith("1 job on trn2.48xlarge:2\n")
    begins, lasts = printed.rpartition("first\n")[2].split("  ")[:2]
    assert (begins, lasts.split()[1]) == ("4.167 d", "ms")


def test_the_document_has_each_job_and_every_placement(jobs):
    document = document_of(jobs, "--study")
    assert [each["name"] for each in document["jobs"]] == ["first", "second"]
    first = document["jobs"][0]
    assert first["slowdown"] == first["beside_s"] / first["alone_s"]
    assert first["interval"]["low"] < first["beside_s"] < first["interval"]["high"]
    assert first["placement"] == "packed"
    assert (first["first_chip"], first["last_chip"], first["chips"]) == (0, 7, 8)
    names = [each["placement"] for each in document["placements"]]
    assert names == ["as stated", "packed", "server", "domain", "rack", "spread"]
    assert document["best"] in names


def test_tables_say_what_jobs_lose_and_the_run_directory_has_them(jobs, tmp_path):
    out = tmp_path / "out"
    printed = printed_by(jobs, "--placement=spread", f"--out={out}")
    assert "2 jobs on trn2.48xlarge:2" in printed
    assert "first crosses no full link that another job crosses, so it loses nothing." in printed
    assert names_in(out / "jobs.csv") == ["first", "second"]
    assert json.loads((out / "results.json").read_text())["placement"] == "spread"
    assert (out / "slowdowns.svg").exists()
    assert "2 jobs on trn2.48xlarge:2: none loses to" in (out / "report.html").read_text()


def test_an_answer_says_how_sure_it_is_on_the_links_that_jobs_share(model, tmp_path):
    plan = f"model: {model}, global_batch: 30, seq: 512"
    path = tmp_path / "jobs.yaml"
    jobs = f"{{name: pairs, {plan}, tp: 2, dp: 3, start: 3}}, {{name: ring, {plan}, dp: 10}}"
    path.write_text(f"jobs: [{jobs}]")
    document = document_of(f"share trn2.48xlarge --jobs {path}")
    assert {each["kind"] for each in document["links"]} == {"link"}
    (remark,) = document["remarks"]
    assert "On links within a domain, nine in ten steps" in remark
    assert all(each["slowdown"] > 1 for each in document["jobs"])


def test_parts_of_a_job_in_a_queue_are_columns(tmp_path):
    (tmp_path / "jobs.csv").write_text("submit,chips,time\n0s,8,1h\n0s,16,1h\n")
    printed_by(f"queue dgx-h100:2 --jobs={tmp_path}/jobs.csv --out={tmp_path}/out")
    columns = pd.read_csv(tmp_path / "out" / "jobs.csv").set_index("submit_s")
    assert columns["restart_s"].tolist() == columns["lost_work_s"].tolist() == [0, 0]
    assert "{" not in (tmp_path / "out" / "jobs.csv").read_text()
