"""A run directory holds all that was given, and appears whole, only where no other files stand."""

import errno
import hashlib
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from cluster_sim.trace.trace import load_trace, run
from experiments.reports.run_directory import run_directory
from experiments.reports.run_record import check_replaceable, read_record
from tests.support.random_schedules import on_one_link
from tests.support.refusals import refusal_by, refused
from topologies.support.errors import InputError


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
        (config := tmp_path / f"{place}.json").write_text(text)
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
    *((text, "was not written by cluster-sim") for text in ("{", "[]")),
    ('{"cluster_sim_run": 99}', "format 99, this version reads 1"),
    ('{"cluster_sim_run": 1, "contents": 3, "files": {}}', "no list of contents"),
    ('{"cluster_sim_run": 1, "contents": [], "files": {}}', "cluster-sim: 'command'"),
    ('{"cluster_sim_run": 1, "contents": [], "files": {}, "command": "x", "inputs": 5}',
     "no command with a table of inputs"),
])  # fmt: skip
def test_a_damaged_record_is_refused(tmp_path, text, why):
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    refused(why, read_record, tmp_path)


def _write_small(path: Path, *, ranks: int = 8) -> None:
    with run_directory(path, command="train", inputs={"ranks": ranks}) as writer:
        writer.json("result", {"iteration_s": 2.5})


@pytest.mark.parametrize("made_by", ["file", "folder", "run with a note", "forged record"])
def test_what_holds_something_else_is_refused_untouched(tmp_path, made_by):
    path = tmp_path / "out"
    if made_by == "run with a note":
        _write_small(path)
    if made_by == "file":
        path.write_text("mine")
    else:
        path.mkdir(exist_ok=True)
        name = "run.json" if made_by == "forged record" else "thesis.tex"
        (path / name).write_text('{"name": "of another program"}')
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    refused(r"^[^\n]*Choose (a new directory|another name)\.[^\n]*$", _write_small, path)
    after = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    assert after == before


def _write_and_fail(path: Path, fault: type[BaseException]) -> None:
    with run_directory(path, command="x", inputs={}) as writer:
        writer.table("metrics", pd.DataFrame({"x": [1]}))
        raise fault


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_leaves_nothing(tmp_path, fault):
    with pytest.raises(fault):
        _write_and_fail(tmp_path / "a" / "b", fault)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_the_earlier_one(tmp_path):
    _write_small(tmp_path / "out")
    before = (tmp_path / "out" / "run.json").read_bytes()
    with pytest.raises(KeyboardInterrupt):
        _write_and_fail(tmp_path / "out", KeyboardInterrupt)
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def _write_while_another_does(path: Path) -> None:
    with run_directory(path, command="x", inputs={}):
        path.mkdir()
        (path / "thesis.tex").write_text("mine")


def test_what_appears_meanwhile_is_not_overwritten(tmp_path):
    refused(r"holds thesis\.tex", _write_while_another_does, tmp_path / "out")
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "thesis.tex"]


def test_a_failed_rename_puts_the_earlier_run_back(tmp_path, monkeypatch):
    _write_small(tmp_path / "out")
    real = Path.rename

    def fails_once(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(errno.EIO, "disk gone")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(OSError, match="disk gone"):
        _write_small(tmp_path / "out", ranks=9)
    assert read_record(tmp_path / "out")["inputs"] == {"ranks": 8}
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_nothing(tmp_path, number):
    code = (
        "import signal, sys, time\n"
        # A parent in the background of a shell ignores SIGINT, and its children with it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from experiments.reports.run_directory import run_directory\n"
        "with run_directory(sys.argv[1], command='x', inputs={}) as run:\n"
        "    run.file('half', b'x'); print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "deep" / "out")]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **streams, cwd=Path(__file__).parents[3]) as child:
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(timeout=20) != 0
    assert list(tmp_path.iterdir()) == []


def test_in_a_thread_signals_are_left_alone(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=_write_small, args=(tmp_path / "out",))
    thread.start()
    thread.join()
    assert (tmp_path / "out" / "report.html").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_path_that_cannot_be_written_is_refused_in_words(tmp_path):
    (file := tmp_path / "file").write_text("mine")
    for place, message in (
        (file, "is a file. Choose another name."),
        (file / "below", f"is below {file}, which is a file."),
        (tmp_path / ("x" * 300), "cannot be a directory: File name too long."),
    ):
        text = refusal_by(check_replaceable, place)
        assert message in text
        assert "Errno" not in text
    refused(r"cannot be written: .*No such file or directory", _write_small, Path("/proc/run"))


def test_a_folder_without_permission_is_refused_before_the_run(tmp_path, monkeypatch):
    def refuses(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(InputError, match=f"nothing can be made in {tmp_path}.*Permission denied"):
        check_replaceable(tmp_path / "run")
