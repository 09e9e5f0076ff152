"""Files kept between runs are read back whole, or written again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from topologies import kept_files
from topologies.catalogue.shipped import shipped_rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(kept_files.FOLDER_VARIABLE, str(tmp_path / "kept"))
    kept_files.folders.cache_clear()
    yield tmp_path / "kept"
    kept_files.folders.cache_clear()


def test_a_kept_file_reads_back(folder: Path) -> None:
    assert kept_files.read("a-1") is None
    kept_files.keep("a-1", b"one\ntwo")
    assert kept_files.read("a-1") == b"one\ntwo"


@pytest.mark.parametrize("damage", [b"", b"x", b"0123\ncontent"])
def test_a_damaged_file_counts_as_missing_and_is_replaced(folder: Path, damage: bytes) -> None:
    kept_files.keep("a-1", b"content")
    whole = (folder / "a-1").read_bytes()
    for broken in (damage, whole[:-1], whole + b"x"):
        (folder / "a-1").write_bytes(broken)
        assert kept_files.read("a-1") is None
    kept_files.keep("a-1", b"content")
    assert kept_files.read("a-1") == b"content"


def test_a_newer_file_replaces_older_ones_of_its_kind(folder: Path) -> None:
    for name in ("a-1", "a-2", "b-1"):
        kept_files.keep(name, b"", replaces=f"{name[0]}-*")
    assert sorted(path.name for path in folder.iterdir()) == ["a-2", "b-1"]


def test_a_folder_that_cannot_be_made_is_no_failure(folder: Path) -> None:
    folder.write_text("a file stands where the folder should")
    kept_files.keep("a-1", b"content")
    assert kept_files.read("a-1") is None


def test_parts_are_told_apart_by_their_borders() -> None:
    assert kept_files.digest("ab", "c") != kept_files.digest("a", "bc")


def test_the_kept_catalogue_is_the_parsed_one(folder: Path) -> None:
    parsed = shipped_rows()
    (kept,) = folder.iterdir()
    assert shipped_rows() == parsed
    kept.write_bytes(kept.read_bytes()[:1000])
    assert shipped_rows() == parsed
