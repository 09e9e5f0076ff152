"""Reading text from foreign files."""

from __future__ import annotations

from pathlib import Path

import pytest

from topologies.errors import InputError
from topologies.files.reading import read_text


def test_text_is_read_without_its_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfone\n")
    assert read_text(path, limit_bytes=100) == "one\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a" * 11, r"the list is over the limit of 10 B\. Cut it\."),
        (b"ab\n\xff", r"the list line 2: not UTF-8 text\."),
        (None, r"the list cannot be read: there is no such file in .*, which holds no .txt file\."),
    ],
)
def test_an_unreadable_file_is_refused_in_one_line(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_text(path, limit_bytes=10, name="the list", remedy="Cut it.")


def test_what_programs_printed_is_read_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\xffb")
    assert read_text(path, limit_bytes=10, lenient=True) == "a�b"
