"""Reading text, tables and YAML from foreign files, and files that do not exist."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by, refused
from topologies.support.errors import InputError
from topologies.support.files.reading import MOST_ENTRIES, no_such_file, read_text
from topologies.support.files.table import as_named, as_text
from topologies.support.files.yaml_documents import read_yaml


def test_text_is_read_without_its_mark(tmp_path):
    (path := tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\n")
    assert read_text(path, limit_bytes=100) == "one\n"
    path.write_bytes(b"a\xffb")  # as programs printed
    assert read_text(path, limit_bytes=10, lenient=True) == "a\N{REPLACEMENT CHARACTER}b"


@pytest.mark.parametrize(("content", "message"), [
    (b"a" * 11, r"the list is over the limit of 10 B\. Cut it\."),
    (b"ab\n\xff", r"the list line 2: not UTF-8 text\."),
    (None, r"the list cannot be read: there is no such file in .*, which holds no .txt file\."),
])  # fmt: skip
def test_an_unreadable_file_is_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    refused(message, read_text, path, limit_bytes=10, name="the list", remedy="Cut it.")


@pytest.mark.parametrize("name", ["x" * 5000 + "/y", "a\x00b/c", "\x1b[31m/red"])
def test_names_that_no_file_can_have_are_printed_harmlessly(tmp_path, name):
    message = no_such_file(tmp_path / name)
    assert message.isprintable()
    assert len(message) < 400


def test_a_file_that_is_not_there_is_told_with_what_is(tmp_path, monkeypatch):
    (tmp_path / "study.yaml").touch()
    message = f"there is no such file in {tmp_path}. Did you mean study.yaml? Correct the path."
    assert no_such_file(tmp_path / "sudy.yaml") == message
    folder = no_such_file(tmp_path / "a" / "b" / "c.csv")
    assert folder == f"there is no folder {tmp_path / 'a'}. Correct the path."
    for name in ("a.csv", "b.csv", "c.csv", "d.csv", "e.csv", "f.txt"):
        (tmp_path / name).touch()
    message = no_such_file(tmp_path / "measurements.csv")
    assert "which holds a.csv, b.csv, c.csv and 2 more .csv files. Correct" in message
    monkeypatch.setattr("topologies.support.files.reading.MOST_ENTRIES", 5)
    assert MOST_ENTRIES > 5
    (tmp_path / "crowded").mkdir()
    for number in range(20):  # of which not all are read
        (tmp_path / "crowded" / f"{number}.csv").touch()
    assert "and 2 more .csv files" in no_such_file(tmp_path / "crowded" / "measurements.csv")


@given(st.lists(st.text("=+-@a1. \t'%", min_size=1, max_size=6), min_size=1, max_size=9))
def test_no_cell_of_text_is_a_formula(texts):
    """Numbers are left to be numbers."""
    for cell in map(as_text, texts):
        number = cell.rstrip("% ").lstrip("+-")
        assert not cell.startswith(("=", "@", "\t")), cell
        assert cell[:1] not in "+-" or not number or set(number) <= set("0123456789."), cell
    names = ["=1+1", "@x", "-O2", "plain", "'quoted", "-3 %"]
    assert [as_named(as_text(name)) for name in names] == names


TENFOLD = [(f"a{level}: &a{level}", ", ".join([f"*a{level - 1}"] * 10)) for level in range(1, 9)]
BOMB = "\n".join(["a0: &a0 {tp: 1}", *(f"{key} [{ten}]" for key, ten in TENFOLD)])
MERGES = "\n".join(["a0: &a0 {tp: 1}", *(f"{key} {{<<: [{ten}]}}" for key, ten in TENFOLD)])


def read(folder, text, *, all_text=False):
    (path := folder / "a.yaml").write_text(text, encoding="utf-8")
    return read_yaml(path, limit_bytes=10**6, content="keys", all_text=all_text)


def test_values_are_what_they_look_like_or_text(tmp_path):
    text = "a: 1\nb: [1.5, yes, 2024-01-01x]\nc: 1:30\nd: &x {e: null}\nf: *x"
    assert read(tmp_path, text)["b"] == [1.5, True, "2024-01-01x"]
    assert read(tmp_path, text)["f"] == {"e": None}
    assert read(tmp_path, text, all_text=True)["b"] == ["1.5", "yes", "2024-01-01x"]


@pytest.mark.parametrize("text", [BOMB, MERGES])
def test_a_short_file_cannot_come_to_millions_of_values(tmp_path, text):
    begun = time.process_time()
    refused(r"come to more than|merge keys", read, tmp_path, text)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(("text", "message"), [
    ('x: !!int ""', "the tag tag:yaml.org,2002:int is not read; leave it out"),
    ("!!python/object/apply:os.system ['true']", "is not read"),
    ("a: 1\na: 2", "line 2 is not YAML: the key a is given twice"),
    ("a: &a {b: 1}\nc: {<<: *a}", "line 2 is not YAML: merge keys"),
    ("a: &a [*a]", "an alias stands within what it repeats"),
    ("[1]: 2", "a key must be a text or a number"),
    ("a: " + "[" * 40 + "]" * 40, "nested too deeply"),
    ("a: " + "9" * 5000, "is not YAML"),
    ("", "holds no keys"),
    ("a: 1\n---\nb: 2", "another document"),
])  # fmt: skip
def test_a_faulty_document_is_refused_in_one_line(tmp_path, text, message):
    refusal = refusal_by(read, tmp_path, text)
    assert message in refusal


@given(text=st.text(alphabet="ab:[]{}&*<!|>-#'\"\n ,?0.%@~", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(tmp_path_factory, text):
    message = ""
    try:
        assert isinstance(read(tmp_path_factory.mktemp("y"), text), dict)
    except InputError as mistake:
        message = str(mistake)
    assert "\n" not in message
