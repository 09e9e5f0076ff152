"""Files appear whole or not at all, even if a writer is killed or the disk is full."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.reports.run_directory import run_directory
from topologies.errors import InputError
from topologies.files.writing import OLD, PART, remove_orphans, unfinished, whole_file, whole_files


def killed_while(code: str, folder: Path) -> None:
    code = f"import os, signal\n{code}\n    os.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False).returncode == -9


def test_a_killed_run_leaves_nothing_once_another_writes(tmp_path):
    code = (
        "from experiments.reports.run_directory import run_directory\n"
        "with run_directory('out', command='list', inputs={}) as run:\n    run.json('a', {})"
    )
    killed_while(code, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [PART]
    with run_directory(tmp_path / "out", command="list", inputs={}) as run:
        run.json("a", {})
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_earlier_run_comes_back_where_a_writer_was_killed_between_two_names(tmp_path):
    mine = unfinished(tmp_path / "out").name
    dead = mine.replace(str(os.getpid()), "999999999").replace(PART, OLD)
    (tmp_path / dead).mkdir()
    (tmp_path / dead / "run.json").write_text("earlier")
    remove_orphans(tmp_path / "out")
    assert (tmp_path / "out" / "run.json").read_text() == "earlier"


def test_what_a_living_process_or_another_host_writes_is_let_be(tmp_path):
    mine = unfinished(tmp_path / "out")
    other = tmp_path / f".out.elsewhere-999999999{PART}"
    for path in (mine, other):
        path.write_text("half")
    remove_orphans(tmp_path / "out")
    assert mine.exists()
    assert other.exists()


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with pytest.raises(OSError, match="No space left") as caught, whole_file(tmp_path / "x.csv"):
        raise OSError(28, "No space left on device")
    assert caught.value.filename == str(tmp_path / "x.csv")
    message = r"x\.csv cannot be written: Error writing bytes"
    with pytest.raises(InputError, match=message), whole_file(tmp_path / "x.csv"):
        raise OSError("Error writing bytes to file")  # a fault without a number
    with (
        pytest.raises(OSError, match="No space left") as caught,
        run_directory(tmp_path / "out", command="list", inputs={}) as run,
    ):
        raise OSError(28, "No space left on device", str(run.folder / "a.csv"))
    assert caught.value.filename == str(tmp_path / "out" / "a.csv")
    assert list(tmp_path.iterdir()) == []


def fill(folder: Path) -> None:
    with whole_files(folder) as part:
        (part / "a").write_text("half")
        raise OSError(28, "full", str(part / "b"))


def test_a_folder_of_files_appears_whole_or_not_at_all(tmp_path):
    for folder in (tmp_path / "new", tmp_path / "deep" / "new"):
        with pytest.raises(OSError, match="full"):
            fill(folder)
        assert not folder.exists()
        with whole_files(folder) as part:
            (part / "a").write_text("whole")
        with whole_files(folder) as part:
            (part / "b").write_text("more")
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_nothing_is_written_over_what_is_no_file(tmp_path, kind):
    """A device would be replaced by a file: a root user's /dev/zero once was."""
    target = tmp_path / kind
    os.mkfifo(target) if kind == "pipe" else target.mkdir()
    with pytest.raises(InputError, match="it is no file"), whole_file(target):
        pass
    assert not target.is_file()
    with pytest.raises(InputError, match="holds a zero byte"), whole_file(tmp_path / "a\0b"):
        pass
