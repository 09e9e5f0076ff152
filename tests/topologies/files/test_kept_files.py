"""Files kept between runs are read back whole, and files appear whole or not at all."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from experiments.reports.run_directory import run_directory
from topologies.catalogue import catalogue
from topologies.catalogue.catalogue import shipped_rows
from topologies.support.errors import InputError
from topologies.support.files import kept_files
from topologies.support.files.writing import (
    OLD,
    PART,
    remove_orphans,
    unfinished,
    whole_file,
    whole_files,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_files.FOLDER_VARIABLE, str(tmp_path / "kept"))
    kept_files.folders.cache_clear()
    yield tmp_path / "kept"
    kept_files.folders.cache_clear()


@pytest.mark.parametrize("damage", [b"", b"x", b"0123\ncontent"])
def test_a_damaged_file_counts_as_missing_and_is_replaced(folder, damage):
    assert kept_files.read("a-1") is None
    kept_files.keep("a-1", b"content")
    whole = (folder / "a-1").read_bytes()
    for broken in (damage, whole[:-1], whole + b"x"):
        (folder / "a-1").write_bytes(broken)
        assert kept_files.read("a-1") is None
    kept_files.keep("a-1", b"content")
    assert kept_files.read("a-1") == b"content"


def test_a_newer_file_replaces_older_ones_of_its_kind(folder):
    for name in ("a-1", "a-2", "b-1"):
        kept_files.keep(name, b"", replaces=f"{name[0]}-*")
    assert sorted(path.name for path in folder.iterdir()) == ["a-2", "b-1"]
    assert kept_files.digest("ab", "c") != kept_files.digest("a", "bc")
    shutil.rmtree(folder)
    folder.write_text("a file stands where the folder should")
    kept_files.keep("a-1", b"content")  # which is no failure
    assert kept_files.read("a-1") is None


@pytest.mark.parametrize("place", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_could_have_written_is_not_read(folder, place, mode):
    kept_files.keep("a-1", b"content")
    path = folder if place == "folder" else folder / "a-1"
    path.chmod(path.stat().st_mode | mode)
    assert kept_files.read("a-1") is None
    path.chmod(path.stat().st_mode & ~mode)
    assert kept_files.read("a-1") == b"content"


def test_what_another_user_owns_is_not_read(folder, monkeypatch):
    kept_files.keep("a-1", b"content")
    real = os.stat

    def foreign(place, *rest, **named):
        status = real(place, *rest, **named)
        return os.stat_result((*status[:4], 4242, *status[5:])) if place == folder else status

    monkeypatch.setattr(os, "stat", foreign)
    assert kept_files.read("a-1") is None
    kept_files.keep("a-2", b"content")
    assert [path.name for path in folder.iterdir()] == ["a-1"]


def test_files_are_made_private_whatever_the_mask_is(tmp_path, monkeypatch):
    """Folders of our own that an earlier version left open are closed; named ones are left."""
    (open_folder := tmp_path / "own").mkdir()
    open_folder.chmod(0o777)
    monkeypatch.delenv(kept_files.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(kept_files, "folders", lambda: (open_folder,))
    earlier = os.umask(0)
    try:
        kept_files.keep("a-1", b"content")
        open_folder.chmod(0o777)
        monkeypatch.setenv(kept_files.FOLDER_VARIABLE, str(open_folder))
        kept_files.keep("a-2", b"content")
    finally:
        os.umask(earlier)
    assert open_folder.stat().st_mode & 0o777 == 0o777
    assert [path.name for path in open_folder.iterdir()] == ["a-1"]
    assert (open_folder / "a-1").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("document", [None, {}, ["x", []], ["x", [[1]]], [["a"], [["b"]]]])
def test_a_whole_file_of_another_form_is_made_again(folder, document):
    from cluster_sim.collectives.algorithms import torus

    def answers():
        torus.shares.cache_clear()
        return [shipped_rows(), torus.shares((4, 6), (1, 2))]

    fresh = answers()
    names = [path.name for path in folder.iterdir()]
    assert len(names) == 2
    for name in names:
        kept_files.keep(name, json.dumps(document).encode())
    assert answers() == fresh
    assert kept_files.read_json(names[0], lambda content: content) != document


def test_a_killed_writer_leaves_nothing_for_long(folder):
    kept_files.keep("a-1", b"content")
    orphan = unfinished(folder / "other")
    dead = orphan.with_name(orphan.name.replace(f"-{os.getpid()}.", "-4194305."))
    dead.write_bytes(b"half")
    kept_files.keep("a-2", b"content")
    assert sorted(path.name for path in folder.iterdir()) == ["a-1", "a-2"]


@dataclass(frozen=True)
class Limit:
    """An input whose text for readers rounds, with a field that equality ignores."""

    seconds: float
    share: float = 0.99
    note: str = field(default="", compare=False)

    def __str__(self):
        return f"{self.seconds:.1f} s"


def test_exact_text_tells_all_inputs_apart():
    values = [
        *(Limit(1.0), Limit(1.0 + 2**-52), Limit(1.0, 0.5), {"a": Limit(1.0)}, [Limit(1.0)]),
        *(1, 1.0, True, "1", b"1", None, Fraction(1, 3), (1, 2), (1, (2,)), "[1,2]", {1: 2}),
        *(np.array([1.0, 2.0]), np.array([[1.0, 2.0]]), {"a", "b"}),
    ]
    texts = [kept_files.exact_text(value) for value in values]
    assert len(set(texts)) == len(texts)
    assert kept_files.exact_text(Limit(1.0, note="other")) == texts[0]
    assert kept_files.exact_text({"b": 1, "a": 2}) == kept_files.exact_text({"a": 2, "b": 1})
    assert kept_files.exact_text({"b", "a"}) == texts[-1]
    assert kept_files.exact_text(np.float64(1.0)) == kept_files.exact_text(1.0)


@pytest.mark.parametrize("value", [object(), print, Limit, [object()]])
def test_an_input_that_cannot_be_told_from_others_is_no_key(value):
    with pytest.raises(TypeError, match="no exact text"):
        kept_files.exact_text(value)


def test_the_digest_of_the_catalogue_is_kept_with_it(folder, monkeypatch):
    digest, rows = shipped_rows()
    assert digest == catalogue.digest_of(reversed(rows))
    (kept,) = folder.iterdir()
    with monkeypatch.context() as without:
        without.delattr(catalogue, "read_entries")
        assert shipped_rows() == (digest, rows)
    kept.write_bytes(kept.read_bytes()[:1000])
    assert shipped_rows() == (digest, rows)


def killed_while(code, folder):
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


def fill(folder):
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
