"""Messages about files that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from topologies.files.reading import MOST_ENTRIES, no_such_file


def test_a_like_name_is_suggested(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").touch()
    message = no_such_file(tmp_path / "sudy.yaml")
    assert message == (
        f"there is no such file in {tmp_path}. Did you mean study.yaml? Correct the path."
    )


def test_files_of_the_same_kind_are_listed(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.txt"):
        (tmp_path / name).touch()
    message = no_such_file(tmp_path / "measurements.csv")
    assert "which holds a.csv, b.csv, c.csv and 2 more .csv files. Correct" in message


def test_the_first_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    message = no_such_file(tmp_path / "a" / "b" / "c.csv")
    assert message == f"there is no folder {tmp_path / 'a'}. Correct the path."


@pytest.mark.parametrize("name", ["x" * 5000 + "/y", "a\x00b/c", "\x1b[31m/red"])
def test_names_that_no_file_can_have_are_printed_harmlessly(tmp_path: Path, name: str) -> None:
    message = no_such_file(tmp_path / name)
    assert message.isprintable()
    assert len(message) < 400


def test_a_crowded_folder_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topologies.files.reading.MOST_ENTRIES", 5)
    assert MOST_ENTRIES > 5
    for number in range(20):
        (tmp_path / f"{number}.csv").touch()
    assert "and 2 more .csv files" in no_such_file(tmp_path / "measurements.csv")
