"""Tables are at most as wide as the terminal, and their words stay whole."""

from __future__ import annotations

import pytest

from experiments.cli.output.printing import print_paragraphs, print_table

HEADS = ["name", "algorithm bandwidth", "lower bound", "semantics", "what it rests on", "status"]
ROWS = [
    ["all-reduce", "183.2 GB/s", "11.6 ms", "proven", "links and memory of every chip", "ok"],
    ["all-to-all-of-everything", "1.2 GB/s", "9.9 us", "not-checked", "links", "unsupported"],
]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_is_no_wider_than_the_terminal_and_breaks_no_word(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_table("A table", HEADS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= width
    words = {word for line in lines for word in line.split()}
    assert words >= {word for row in [HEADS, *ROWS] for cell in row for word in cell.split()}


def test_columns_that_do_not_fit_follow_under_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table("", ["row", "first", "second"], [["a", "12345678", "87654321"]])
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["row", "first"],
        ["a", "12345678"],
        ["row", "second"],
        ["a", "87654321"],
    ]


def test_names_stand_at_the_foot_of_the_heading_and_cells_at_the_top_of_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_table("A title", ["name", "what it is", "time"], [["a ring", "of every chip", "1 s"]])
    assert capsys.readouterr().out.splitlines() == [
        "A title",
        "        what",
        "name    it is   time",
        "a ring  of       1 s",
        "        every",
        "        chip",
    ]


def test_a_paragraph_stands_indented_below_its_heading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    print_paragraphs("Numbers", [("trn2.peak 667 TFLOP/s", "[ND] dense, and sparse no more")])
    assert capsys.readouterr().out.splitlines() == [
        "Numbers",
        "trn2.peak 667",
        "TFLOP/s",
        "    [ND] dense, and",
        "    sparse no more",
    ]


def test_a_word_that_is_longer_than_the_terminal_is_cut_not_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    print_table("", ["source"], [["x" * 8 + "y" * 8]])
    assert capsys.readouterr().out == "source\nxxxxxxxxyy\nyyyyyy\n"


def test_a_number_and_its_unit_stay_on_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    print_table("", ["size", "what the number means"], [["1.5 GB/s", "a rate of every link"]])
    assert "1.5 GB/s" in capsys.readouterr().out
