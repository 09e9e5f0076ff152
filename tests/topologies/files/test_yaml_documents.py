"""YAML from strangers is limited in size and has no types, merges or functions."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import InputError
from topologies.files.yaml_documents import read_yaml

BOMB = "a0: &a0 {tp: 1}\n" + "\n".join(
    f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)
)
MERGES = "a0: &a0 {tp: 1}\n" + "\n".join(
    f"a{level}: &a{level} {{<<: [{', '.join([f'*a{level - 1}'] * 10)}]}}" for level in range(1, 9)
)


def read(folder: Path, text: str, *, all_text: bool = False) -> dict[str, object]:
    path = folder / "a.yaml"
    path.write_text(text, encoding="utf-8")
    return read_yaml(path, limit_bytes=10**6, content="keys", all_text=all_text)


def test_values_are_what_they_look_like_or_text(tmp_path: Path) -> None:
    text = "a: 1\nb: [1.5, yes, 2024-01-01x]\nc: 1:30\nd: &x {e: null}\nf: *x"
    assert read(tmp_path, text)["b"] == [1.5, True, "2024-01-01x"]
    assert read(tmp_path, text)["f"] == {"e": None}
    assert read(tmp_path, text, all_text=True)["b"] == ["1.5", "yes", "2024-01-01x"]


@pytest.mark.parametrize("text", [BOMB, MERGES])
def test_a_short_file_cannot_come_to_millions_of_values(tmp_path: Path, text: str) -> None:
    begun = time.process_time()
    with pytest.raises(InputError, match=r"come to more than|merge keys"):
        read(tmp_path, text)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('x: !!int ""', "the tag tag:yaml.org,2002:int is not read; leave it out"),
        ("!!python/object/apply:os.system ['true']", "is not read"),
        ("a: 1\na: 2", "line 2 is not YAML: the key a is given twice"),
        ("a: &a {b: 1}\nc: {<<: *a}", "line 2 is not YAML: merge keys"),
        ("a: &a [*a]", "an alias stands within what it repeats"),
        ("[1]: 2", "a key must be a text or a number"),
        ("a: " + "[" * 40 + "]" * 40, "nested too deeply"),
        ("a: " + "9" * 5000, "is not YAML"),
        ("a: 2024-99-99", "is not YAML"),
        ("- 1", "holds no keys."),
        ("", "holds no keys"),
        ("a: 1\n---\nb: 2", "another document"),
    ],
)
def test_a_faulty_document_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as mistake:
        read(tmp_path, text)
    assert message in str(mistake.value)
    assert "\n" not in str(mistake.value)


@given(text=st.text(alphabet="ab:[]{}&*<!|>-#'\"\n ,?0.%@~", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    message = ""
    try:
        assert isinstance(read(tmp_path_factory.mktemp("y"), text), dict)
    except InputError as mistake:
        message = str(mistake)
    assert "\n" not in message
