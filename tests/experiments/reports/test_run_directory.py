"""Run directories are written whole or not at all, and equally for equal runs."""

from __future__ import annotations

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
from experiments.reports.run_directory import check_foreign, run_directory
from experiments.reports.run_record import digest, read_record
from tests.support.random_schedules import on_one_link
from topologies.errors import InputError


def _figure() -> Figure:
    figure = Figure()
    figure.subplots().plot([1, 2])
    return figure


def _result(build_s: float) -> dict:
    return {"iteration_s": 2.5, "build_s": build_s, "rows": [{"x": 1, "simulate_s": build_s}]}


def _write(path: Path, *, ranks: int = 8, build_s: float = 1.0) -> None:
    with run_directory(path, command="train", inputs={"ranks": ranks}, seed=3) as writer:
        writer.json("result", _result(build_s), title="Result")
        writer.table("metrics", pd.DataFrame({"ranks": [ranks], "build_s": [build_s]}))
        writer.figure("breakdown", _figure(), title="Where the time goes")
        writer.trace(run(on_one_link(3)))


def test_everything_that_was_given_is_there(tmp_path: Path) -> None:
    _write(tmp_path / "out")
    assert sorted(entry.name for entry in (tmp_path / "out").iterdir()) == [
        "breakdown.png",
        "breakdown.svg",
        "breakdown_hover.json",
        "metrics.csv",
        "report.html",
        "result.json",
        "run.json",
        "timeline.json.gz",
        "timeline.pftrace.gz",
        "trace.parquet",
    ]
    assert load_trace(tmp_path / "out" / "trace.parquet").total_ps == 15
    assert pd.read_csv(tmp_path / "out" / "metrics.csv")["ranks"].tolist() == [8]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_the_record_names_inputs_version_seed_and_every_file(tmp_path: Path) -> None:
    _write(tmp_path / "out")
    record = read_record(tmp_path / "out")
    assert (record["command"], record["inputs"], record["seed"]) == ("train", {"ranks": 8}, 3)
    assert record["version"]
    for name, stored in record["files"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == stored
    assert [item["file"] for item in record["contents"]] == [
        "result.json",
        "metrics.csv",
        "breakdown.svg",
        "trace.parquet",
        "timeline.json.gz",
        "timeline.pftrace.gz",
    ]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    _write(tmp_path / "b")
    for entry in (tmp_path / "a").iterdir():
        assert entry.read_bytes() == (tmp_path / "b" / entry.name).read_bytes(), entry.name


def test_measured_times_are_written_but_no_part_of_the_digest(tmp_path: Path) -> None:
    _write(tmp_path / "a", build_s=1.0)
    _write(tmp_path / "b", build_s=2.0)
    _write(tmp_path / "c", ranks=9)
    a, b, c = (read_record(tmp_path / name) for name in "abc")
    assert a["results_digest"] == b["results_digest"] != c["results_digest"]
    assert a["inputs_digest"] == b["inputs_digest"] != c["inputs_digest"]
    assert a["files"]["result.json"] != b["files"]["result.json"]


def test_a_file_among_the_inputs_counts_by_content_not_by_place(tmp_path: Path) -> None:
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


def test_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    _write(tmp_path / "out", ranks=8)
    with run_directory(tmp_path / "out", command="other", inputs={}):
        pass
    assert sorted(e.name for e in (tmp_path / "out").iterdir()) == ["report.html", "run.json"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_an_empty_directory_and_missing_parents_are_fine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _write(tmp_path / "empty")
    _write(tmp_path / "new" / "deep" / "out")
    assert (tmp_path / "new" / "deep" / "out" / "run.json").exists()


@pytest.mark.parametrize("made_by", ["file", "folder", "run with a note", "forged record"])
def test_what_holds_something_else_is_refused_untouched(tmp_path: Path, made_by: str) -> None:
    path = tmp_path / "out"
    if made_by == "file":
        path.write_text("mine")
    elif made_by == "folder":
        path.mkdir()
        (path / "thesis.tex").write_text("mine")
    elif made_by == "run with a note":
        _write(path)
        (path / "thesis.tex").write_text("mine")
    else:
        path.mkdir()
        (path / "run.json").write_text('{"name": "of another program"}')
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    with pytest.raises(InputError) as refused, run_directory(path, command="x", inputs={}):
        raise AssertionError("must not come this far")
    assert "Choose a new directory." in str(refused.value)
    assert "\n" not in str(refused.value)
    after = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    assert after == before


def _write_and_fail(path: Path, fault: type[BaseException]) -> None:
    with run_directory(path, command="x", inputs={}) as writer:
        writer.table("metrics", pd.DataFrame({"x": [1]}))
        raise fault


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_leaves_nothing(tmp_path: Path, fault: type[BaseException]) -> None:
    with pytest.raises(fault):
        _write_and_fail(tmp_path / "a" / "b", fault)
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_leaves_the_earlier_one(tmp_path: Path) -> None:
    _write(tmp_path / "out")
    before = (tmp_path / "out" / "run.json").read_bytes()
    with pytest.raises(KeyboardInterrupt), run_directory(tmp_path / "out", command="x", inputs={}):
        raise KeyboardInterrupt
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def _write_while_another_does(path: Path) -> None:
    with run_directory(path, command="x", inputs={}):
        path.mkdir()
        (path / "thesis.tex").write_text("mine")


def test_what_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        _write_while_another_does(tmp_path / "out")
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "thesis.tex"]


def test_a_failed_rename_puts_the_earlier_run_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "out")
    real = Path.rename

    def fails_once(self: Path, target: Path) -> Path:
        if self.suffix == ".part":
            raise OSError(errno.EIO, "disk gone")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(OSError, match="disk gone"):
        _write(tmp_path / "out", ranks=9)
    assert read_record(tmp_path / "out")["inputs"] == {"ranks": 8}
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_killed_process_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    code = (
        "import signal, sys, time\n"
        # A parent in the background of a shell ignores SIGINT, and its children with it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from experiments.reports.run_directory import run_directory\n"
        "with run_directory(sys.argv[1], command='x', inputs={}) as run:\n"
        "    run.file('half', b'x'); print('ready', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "deep" / "out")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[3]
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        child.send_signal(number)
        assert child.wait(timeout=20) != 0
    assert list(tmp_path.iterdir()) == []


def test_in_a_thread_signals_are_left_alone(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=_write, args=(tmp_path / "out",))
    thread.start()
    thread.join()
    assert (tmp_path / "out" / "report.html").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_names_that_leave_the_folder_or_come_twice_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "run.json", "report.html", "a/b"):
        with (
            pytest.raises(ValueError, match="is no new file name"),
            run_directory(tmp_path / "out", command="x", inputs={}) as writer,
        ):
            writer.file(name, b"")
    assert list(tmp_path.iterdir()) == []


def test_values_that_json_does_not_know_are_written_plainly(tmp_path: Path) -> None:
    inputs = {"sizes": np.array([1, 2]), "x": np.float64(0.5), "nan": float("nan")}
    with run_directory(tmp_path / "out", command="x", inputs=inputs):
        pass
    text = (tmp_path / "out" / "run.json").read_text()
    assert json.loads(text)["inputs"] == {"sizes": [1, 2], "x": 0.5, "nan": None}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "it has no run.json"),
        ("{", "was not written by cluster-sim"),
        ("[]", "was not written by cluster-sim"),
        ('{"cluster_sim_run": 99}', "format 99, this version reads 1"),
        ('{"cluster_sim_run": 1, "contents": 3, "files": {}}', "no list of contents"),
    ],
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(InputError, match=why):
        read_record(tmp_path)


def test_a_path_that_cannot_be_written_is_refused_in_words(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for place, message in (
        (file, "is a file. Choose a new directory."),
        (file / "below", f"is below {file}, which is a file."),
        (tmp_path / ("x" * 300), "cannot be a directory: File name too long."),
    ):
        with pytest.raises(InputError) as caught:
            check_foreign(place)
        assert message in str(caught.value)
        assert "Errno" not in str(caught.value)
    with pytest.raises(InputError, match=r"cannot be written: .*No such file or directory"):
        _write(Path("/proc/run"))


def test_a_folder_without_permission_is_refused_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(InputError, match=f"nothing can be made in {tmp_path}.*Permission denied"):
        check_foreign(tmp_path / "run")


def test_a_digest_depends_on_content_not_on_order() -> None:
    assert digest({"a": [1, 2.5], "b": None}) == digest({"b": None, "a": (1, 2.5)})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_a_new_directory_is_never_refused(tmp_path: Path) -> None:
    check_foreign(tmp_path / "none")
    check_foreign(tmp_path)
    assert list(tmp_path.iterdir()) == []
