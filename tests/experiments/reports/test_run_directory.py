"""A run directory holds everything that was given, and equal runs write equal bytes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from cluster_sim.trace.trace import load_trace, run
from experiments.reports.run_directory import run_directory
from experiments.reports.run_record import read_record
from tests.support.random_schedules import on_one_link
from topologies.errors import InputError


def _write(path: Path, *, ranks: int = 8, build_s: float = 1.0) -> None:
    figure = Figure()
    figure.subplots().plot([1, 2])
    rows = [{"x": 1, "simulate_s": build_s}]
    with run_directory(path, command="train", inputs={"ranks": ranks}, seed=3) as writer:
        results = {"iteration_s": 2.5, "build_s": build_s, "rows": rows}
        writer.json("result", results, title="Result")
        writer.table("metrics", pd.DataFrame({"ranks": [ranks], "build_s": [build_s]}))
        writer.figure("breakdown", figure, title="Where the time goes")
        writer.trace(run(on_one_link(3)))


def test_everything_that_was_given_is_there_and_recorded(tmp_path):
    out = tmp_path / "out"
    _write(out)
    contents = [
        "result.json", "metrics.csv", "breakdown.svg", "trace.parquet", "timeline.pftrace.gz",
    ]  # fmt: skip
    beside = {"breakdown.png", "breakdown_hover.json", "report.html", "run.json"}
    assert {entry.name for entry in out.iterdir()} == {*contents, *beside}
    assert load_trace(out / "trace.parquet").total_ps == 15
    assert pd.read_csv(out / "metrics.csv")["ranks"].tolist() == [8]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    record = read_record(out)
    assert (record["command"], record["inputs"], record["seed"]) == ("train", {"ranks": 8}, 3)
    assert record["version"]
    for name, stored in record["files"].items():
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == stored
    assert [item["file"] for item in record["contents"]] == contents
    _write(tmp_path / "again")
    for entry in out.iterdir():
        assert entry.read_bytes() == (tmp_path / "again" / entry.name).read_bytes(), entry.name


def test_text_of_a_table_is_no_formula(tmp_path):
    rows = pd.DataFrame({"=name": ["=1+1", "-2"], "change": [-1.5, 2.0]})
    with run_directory(tmp_path / "out", command="x", inputs={}) as writer:
        writer.table("results", rows)
    text = (tmp_path / "out" / "results.csv").read_text()
    assert text == "'=name,change\n'=1+1,-1.5\n-2,2.0\n"


def test_measured_times_are_written_but_no_part_of_the_digest(tmp_path):
    _write(tmp_path / "a", build_s=1.0)
    _write(tmp_path / "b", build_s=2.0)
    _write(tmp_path / "c", ranks=9)
    a, b, c = (read_record(tmp_path / name) for name in "abc")
    assert a["results_digest"] == b["results_digest"] != c["results_digest"]
    assert a["inputs_digest"] == b["inputs_digest"] != c["inputs_digest"]
    assert a["files"]["result.json"] != b["files"]["result.json"]


def test_a_file_among_the_inputs_counts_by_content_not_by_place(tmp_path):
    digests = []
    for place, text in (("x", "{}"), ("y", "{}"), ("z", "{ }")):
        config = tmp_path / f"{place}.json"
        config.write_text(text)
        with run_directory(tmp_path / place, command="train", inputs={"model": config}):
            pass
        digests.append(read_record(tmp_path / place)["inputs_digest"])
    assert digests[0] == digests[1] != digests[2]
    recorded = read_record(tmp_path / "x")["inputs"]["model"]
    assert recorded["path"].endswith("x.json")


def test_names_that_leave_the_folder_or_come_twice_are_refused(tmp_path):
    for name in ("../x", "run.json", "report.html", "a/b"):
        with (
            pytest.raises(ValueError, match="is no new file name"),
            run_directory(tmp_path / "out", command="x", inputs={}) as writer,
        ):
            writer.file(name, b"")
    assert list(tmp_path.iterdir()) == []


def test_values_that_json_does_not_know_are_written_plainly(tmp_path):
    inputs = {"sizes": np.array([1, 2]), "x": np.float64(0.5), "nan": float("nan")}
    with run_directory(tmp_path / "out", command="x", inputs=inputs):
        pass
    text = (tmp_path / "out" / "run.json").read_text()
    assert json.loads(text)["inputs"] == {"sizes": [1, 2], "x": 0.5, "nan": None}


@pytest.mark.parametrize(("text", "why"), [
    (None, "it has no run.json"),
    ("{", "was not written by cluster-sim"),
    ("[]", "was not written by cluster-sim"),
    ('{"cluster_sim_run": 99}', "format 99, this version reads 1"),
    ('{"cluster_sim_run": 1, "contents": 3, "files": {}}', "no list of contents"),
])  # fmt: skip
def test_a_damaged_record_is_refused(tmp_path, text, why):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=why):
        read_record(tmp_path)
