"""A run directory appears whole or not at all, and only where no other files stand."""

import errno
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pandas as pd
import pytest

from experiments.reports.run_directory import run_directory
from experiments.reports.run_record import check_replaceable, read_record
from topologies.errors import InputError


def _write(path: Path, *, ranks: int = 8) -> None:
    with run_directory(path, command="train", inputs={"ranks": ranks}) as writer:
        writer.json("result", {"iteration_s": 2.5})


@pytest.mark.parametrize("made_by", ["file", "folder", "run with a note", "forged record"])
def test_what_holds_something_else_is_refused_untouched(tmp_path, made_by):
    path = tmp_path / "out"
    if made_by == "run with a note":
        _write(path)
    if made_by == "file":
        path.write_text("mine")
    else:
        path.mkdir(exist_ok=True)
        name = "run.json" if made_by == "forged record" else "thesis.tex"
        (path / name).write_text('{"name": "of another program"}')
    before = {entry: entry.read_bytes() for entry in tmp_path.rglob("*") if entry.is_file()}
    with pytest.raises(InputError, match=r"^[^\n]*Choose a new directory\.[^\n]*$"):
        _write(path)
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
    _write(tmp_path / "out")
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
    with pytest.raises(InputError, match=r"holds thesis\.tex"):
        _write_while_another_does(tmp_path / "out")
    assert [entry.name for entry in tmp_path.rglob("*")] == ["out", "thesis.tex"]


def test_a_failed_rename_puts_the_earlier_run_back(tmp_path, monkeypatch):
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
    thread = threading.Thread(target=_write, args=(tmp_path / "out",))
    thread.start()
    thread.join()
    assert (tmp_path / "out" / "report.html").exists()
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_path_that_cannot_be_written_is_refused_in_words(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for place, message in (
        (file, "is a file. Choose a new directory."),
        (file / "below", f"is below {file}, which is a file."),
        (tmp_path / ("x" * 300), "cannot be a directory: File name too long."),
    ):
        with pytest.raises(InputError) as caught:
            check_replaceable(place)
        assert message in str(caught.value)
        assert "Errno" not in str(caught.value)
    with pytest.raises(InputError, match=r"cannot be written: .*No such file or directory"):
        _write(Path("/proc/run"))


def test_a_folder_without_permission_is_refused_before_the_run(tmp_path, monkeypatch):
    def refuses(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuses)
    with pytest.raises(InputError, match=f"nothing can be made in {tmp_path}.*Permission denied"):
        check_replaceable(tmp_path / "run")
