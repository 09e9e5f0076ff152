"""Files of measurements with other separators, spellings and lengths are read."""

import csv
import io
from contextlib import contextmanager

import pytest

from experiments.validation.reading.rows import table
from experiments.validation.validate import validate_each
from tests.support.commands import document_of
from tests.support.probe_command import threads

ROWS = [
    {
        "collective": "all-gather", "cluster": "p5.48xlarge", "chips": "32",
        "size_bytes": "536870912", "time_s": "0.0022", "note": 'one, "two"\nthree',
    },
    {
        "collective": "all-reduce", "cluster": "dgx-a100", "chips": "8",
        "size_bytes": "8388608", "time_s": "0.000105", "note": "ring; tree",
    },
]  # fmt: skip


def text_of(rows, columns=None, **how):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or list(rows[0]), **how)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def validated(folder, text):
    (folder / "rows.csv").write_bytes(text.encode())
    rows = document_of(f"validate --file {folder / 'rows.csv'}")["rows"]
    return rows, [(row["predicted"], row["error"], row["status"]) for row in rows]


@pytest.mark.parametrize(
    "content",
    [
        text_of(ROWS, lineterminator="\n"), text_of(ROWS, lineterminator="\n").rstrip("\n"),
        text_of(ROWS, delimiter=";"), text_of(ROWS, delimiter="\t"), "\ufeff" + text_of(ROWS),
        "\n\n" + text_of(ROWS),
        text_of(ROWS, ["note", "time_s", "chips", "collective", "size_bytes", "cluster"]),
        text_of(ROWS, quoting=csv.QUOTE_ALL),
    ],
    ids=["lf", "no-last", "semicolons", "tabs", "bom", "blank-lines", "shuffled", "quoted"],
)  # fmt: skip
def test_however_a_spreadsheet_writes_them_rows_say_the_same(content, tmp_path):
    _, plain = validated(tmp_path, text_of(ROWS))
    rows, again = validated(tmp_path, content)
    assert again == plain
    assert [status for *_, status in plain] == ["ok", "ok"]
    assert [row["note"] for row in rows] == [row["note"] for row in ROWS]


def test_an_operation_is_known_by_every_tools_name(tmp_path):
    spelled = ["all_gather", "AllGather", "allgather", "ALL-GATHER", "all-gather"]
    rows, answers = validated(tmp_path, text_of([{**ROWS[0], "collective": it} for it in spelled]))
    assert len(set(answers)) == 1
    assert [row["collective"] for row in rows] == spelled


@pytest.mark.parametrize(("cell", "why"), [
    ({"collective": "gather"}, "collective 'gather' is none of"),
    ({"ranks": "64"}, "ranks 64 on 32 chips of h100: NCCL runs one on each"),
    ({"algorithm": "tree"}, "unknown algorithm 'tree'"),
    ({"chips": "8.5"}, "chips '8.5' is not a whole number"),
])  # fmt: skip
def test_an_impossible_row_is_counted_and_the_others_are_predicted(cell, why, tmp_path):
    empty = {"ranks": "", "algorithm": ""}
    rows = [{**empty, **ROWS[0], **cell}, {**empty, **ROWS[1]}]
    (bad, good), _ = validated(tmp_path, text_of(rows))
    assert (bad["status"], good["status"]) == ("unsupported", "ok")
    assert why in bad["why"]


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
    monkeypatch.setattr("experiments.validation.validate.ROWS_OF_A_WORKER", 10**6)
    validate_each(measured[:1], workers=2)  # too few rows for a second process
    assert opened == [2]
    assert [result.rows for result in beside] == alone
    assert [result.name for result in beside] == ["llmcompass", "tpu_kernels", "llmcompass"]
