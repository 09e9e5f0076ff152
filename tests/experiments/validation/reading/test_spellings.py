"""Files of measurements with other separators, spellings and lengths are read."""

from __future__ import annotations

import csv
import io
import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from experiments.cli.main import run
from experiments.validation.reading.rows import table
from experiments.validation.validate import validate_each
from tests.support.probe_command import threads

ROWS = [
    {
        "collective": "all-gather",
        "cluster": "p5.48xlarge",
        "chips": "32",
        "size_bytes": "536870912",
        "time_s": "0.0022",
        "note": 'one, "two"\nthree',
    },
    {
        "collective": "all-reduce",
        "cluster": "dgx-a100",
        "chips": "8",
        "size_bytes": "8388608",
        "time_s": "0.000105",
        "note": "ring; tree",
    },
]


def text_of(rows: list[dict[str, str]], columns: list[str] | None = None, **how: Any) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), extrasaction="ignore", **how)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def validated(path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    path.write_bytes(content)
    assert run(["validate", "--file", str(path), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def outcomes(document: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(row["predicted"], row["error"], row["status"]) for row in document["rows"]]


@pytest.mark.parametrize(
    "content",
    [
        text_of(ROWS, lineterminator="\n"),
        text_of(ROWS, lineterminator="\n").rstrip("\n"),
        text_of(ROWS, delimiter=";"),
        text_of(ROWS, delimiter="\t"),
        "\ufeff" + text_of(ROWS),
        "\n\n" + text_of(ROWS),
        text_of(ROWS, ["note", "time_s", "chips", "collective", "size_bytes", "cluster"]),
        text_of(ROWS, quoting=csv.QUOTE_ALL),
    ],
    ids=["lf", "no-last", "semicolons", "tabs", "bom", "blank-lines", "shuffled", "quoted"],
)
def test_however_a_spreadsheet_writes_them_rows_say_the_same(content, tmp_path, capsys):
    file = tmp_path / "rows.csv"
    plain = validated(file, text_of(ROWS).encode(), capsys)
    again = validated(file, content.encode(), capsys)
    assert outcomes(again) == outcomes(plain)
    assert [row["status"] for row in plain["rows"]] == ["ok", "ok"]
    assert [row["note"] for row in again["rows"]] == [row["note"] for row in ROWS]


@pytest.mark.parametrize("spelled", ["all_gather", "AllGather", "allgather", "ALL-GATHER"])
def test_an_operation_is_known_by_every_tools_name(spelled, tmp_path, capsys):
    rows = [{**ROWS[0], "collective": spelled}, ROWS[0]]
    document = validated(tmp_path / "rows.csv", text_of(rows).encode(), capsys)
    first, second = outcomes(document)
    assert first == second
    assert document["rows"][0]["collective"] == spelled


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ({"collective": "gather"}, "collective 'gather' is none of"),
        ({"collective": "x", "cluster": "trn2.48xlarge"}, "collective 'x' is none of"),
        ({"ranks": "64"}, "ranks 64 on 32 chips of h100: NCCL runs one on each"),
        ({"algorithm": "tree"}, "unknown algorithm 'tree'"),
        ({"chips": "8.5"}, "chips '8.5' is not a whole number"),
    ],
)
def test_an_impossible_row_is_counted_and_the_others_are_predicted(cell, why, tmp_path, capsys):
    rows = [{"ranks": "", "algorithm": "", **ROWS[0], **cell}, ROWS[1]]
    columns = ["ranks", "algorithm", *ROWS[0]]
    document = validated(tmp_path / "rows.csv", text_of(rows, columns).encode(), capsys)
    bad, good = document["rows"]
    assert bad["status"] == "unsupported"
    assert why in bad["why"]
    assert good["status"] == "ok"
    assert document["summary"]["rows"] == 2
    assert document["summary"]["unsupported"] == 1


def test_a_header_alone_is_no_rows(tmp_path, capsys):
    document = validated(tmp_path / "rows.csv", text_of(ROWS).splitlines()[0].encode(), capsys)
    assert document["rows"] == []
    assert document["summary"]["rows"] == 0
    assert document["summary"]["median_abs_error"] is None


def test_processes_side_by_side_give_the_rows_of_one_in_their_order(monkeypatch):
    rows = table("llmcompass").rows()
    alone = validate_each([(rows, "kernels")])[0]
    monkeypatch.setattr("experiments.validation.validate.LONG", (rows.kind.name,))
    monkeypatch.setattr("experiments.validation.validate.ROWS_OF_A_WORKER", 2)
    monkeypatch.setattr("experiments.validation.validate.AT_ONCE", 3)
    beside = validate_each([(rows, "kernels")], workers=2)[0]
    assert beside.rows == alone.rows
    assert beside.summary == alone.summary
    assert [row["predicted"] for row in beside.rows] == [row["predicted"] for row in alone.rows]


def test_long_tables_share_the_processes_that_they_start(monkeypatch):
    opened = []

    @contextmanager
    def counted(workers):
        opened.append(workers)
        with threads(workers) as pool:
            yield pool

    measured = [(table(name).rows(), name) for name in ("llmcompass", "tpu_kernels", "llmcompass")]
    alone = [validate_each([(rows, name)])[0].rows for rows, name in measured]
    monkeypatch.setattr("experiments.validation.validate.process_pool", counted)
    monkeypatch.setattr("experiments.validation.validate.LONG", (measured[0][0].kind.name,))
    monkeypatch.setattr("experiments.validation.validate.ROWS_OF_A_WORKER", 20)
    beside = validate_each(measured, workers=2)
    assert opened == [2]
    assert [result.rows for result in beside] == alone
    assert [result.name for result in beside] == ["llmcompass", "tpu_kernels", "llmcompass"]
