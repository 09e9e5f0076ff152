"""Rows of measurements with any separator or spelling, and the shipped tables of them."""

import csv
import io
import json
from contextlib import contextmanager
from importlib.resources import files

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.validation.comparison import compare
from experiments.validation.reading.rows import Outcome, misses, model_for, read_file, table, tables
from experiments.validation.validate import validate_each
from tests.support.commands import document_of
from tests.support.probe_command import threads
from tests.support.refusals import refused
from tests.support.validation_rows import COLLECTIVES, TRAINING, rows_of, training_row
from topologies.support.errors import InputError


def test_bad_cells_are_named_with_column_value_and_remedy_and_the_row_stays():
    lines = "all-reduce,dgx-h100,eight,1024,1e-5,x\n,dgx-h100,8,1.5,-1,x\nall-reduce,dgx-h100,8\n"
    read = rows_of(f"{COLLECTIVES}{lines}all-reduce,dgx-h100,8,1024,1e-5,x,y\n")
    assert len(read) == 4
    assert read.rows[0].mistakes == ("chips 'eight' is not a number. Write digits only.",)
    assert read.rows[1].mistakes == (
        "collective is empty. State it.",
        "size_bytes '1.5' is not a whole number. Write it as digits.",
        "time_s '-1' is not above 0 and finite. State it in SI units.",
    )
    for row, cells in zip(read.rows[2:], (3, 7), strict=True):
        assert row.mistakes[0] == f"it has {cells} cells, the header names 6. Align it."


@pytest.mark.parametrize(("cell", "why"), [
    ("selectve", "is none of none, selective, full. Did you mean selective?"),
    ("x" * 2000, "over 1000 characters"),
])  # fmt: skip
def test_a_choice_must_be_one_of_its_words(cell, why):
    read = rows_of(TRAINING.strip() + ",recompute\nm,dgx-h100,8,2,64,2,64,1,1,8,8,1.0," + cell)
    assert why in read.rows[0].mistakes[0]


@pytest.mark.parametrize(("content", "why"), [
    (b"", "is empty"),
    (b"\xff\xfe\x00a", "not UTF-8"),
    (b"a,a\n", "appears twice"),
    (b"a,b\n1,2\n", "no known kind"),
    (COLLECTIVES.replace("cluster", "clustre").encode(), r"needs cluster\..*mean cluster\?"),
    (b'collective,"x\n' + b"y" * 200_000, "not CSV"),
])  # fmt: skip
def test_other_files_are_refused_in_one_line(tmp_path, content, why):
    (path := tmp_path / "rows.csv").write_bytes(content)
    refused(why, read_file, path)


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    try:
        read = rows_of(COLLECTIVES + text)
    except InputError:
        return
    compare(read, lambda values: Outcome({"time_s": 1.0}))


@pytest.mark.parametrize(("name", "text", "expected"), [
    ("recompute", "Selective (attention)", "selective"),
    ("recompute", "core_attn", "selective"),
    ("recompute", "off", "none"),
    ("schedule", "Interleaved 1F1B", "interleaved"),
    ("schedule", "zb-h1", "zero-bubble"),
    ("overlap", "DP", "dp"),
    ("overlap", "tp+dp", "all"),
    ("sequence_parallel", "True", 1),
    ("vocab", '"128,256"', 128256),
    ("vpp", "0", None),
    ("etp", "0", None),
])  # fmt: skip
def test_cells_are_read_as_people_spell_them(name, text, expected):
    assert training_row(**{name: text})[name] == expected


def test_files_of_rows_are_beside_the_table(tmp_path, monkeypatch):
    """One table gives one answer in any working directory; names are left as they are."""
    (tmp_path / "models" / "mine").mkdir(parents=True)
    path = tmp_path / "rows.csv"
    head = "model,cluster,chips,tp,prompt_tokens,output_tokens,concurrency,tpot_s\n"
    lines = ("c.json,my.yaml", "models/mine,dgx-h100", "Qwen/Qwen-72B,trn2.48xlarge")
    path.write_text(head + "".join(f"{line},8,8,1,1,1,0.1\n" for line in lines))
    monkeypatch.chdir("/")
    read = [(row.values["model"], row.values["cluster"]) for row in read_file(path).rows]
    mine = [(f"{tmp_path}/c.json", f"{tmp_path}/my.yaml"), (f"{tmp_path}/models/mine", "dgx-h100")]
    assert read == [*mine, ("Qwen/Qwen-72B", "trn2.48xlarge")]


def test_a_users_model_is_read_at_each_call(tmp_path):
    shipped = files("workloads") / "models" / "configs" / "llama-3.1-8b.json"
    fields = json.loads(shipped.read_text(encoding="utf-8"))
    path = tmp_path / "config.json"
    for layers in (2, 3):
        path.write_text(json.dumps({**fields, "num_hidden_layers": layers}), encoding="utf-8")
        assert model_for(str(path)).layers == layers


@pytest.mark.parametrize("name", list(tables()))
def test_every_shipped_table_is_whole_and_credited(name):
    one = table(name)
    read = one.rows()
    assert len(read) >= 5
    assert one.licence
    assert one.credit
    assert 0 < one.median_tolerance <= one.p90_tolerance
    wrong = [why for row in read.rows for why in row.mistakes if "is empty" not in why]
    assert not wrong
    assert sum(not row.mistakes for row in read.rows) > 0.8 * len(read)
    assert all(row.cells.get("source") for row in read.rows)


def test_a_table_outside_its_tolerance_says_by_how_much():
    one = table("mlperf")
    inside = {"median_abs_error": 0.01, "p90_abs_error": 0.02}
    assert misses(one, inside) == ""
    assert "p90_abs_error 90.0% is over" in misses(one, {**inside, "p90_abs_error": 0.9})
    assert "no row" in misses(one, {"median_abs_error": None, "p90_abs_error": None})


@pytest.mark.parametrize(("name", "median", "p90"), [
    ("vidur_gemm", 0.10, 0.25),
    ("deepgemm", 0.08, 0.27),
    ("attention", 0.05, 0.12),
    ("nccl_aic", 0.08, 0.25),
])  # fmt: skip
def test_tables_that_the_kernels_and_collectives_must_meet(name, median, p90):
    result = validate_each([(table(name).rows(), name)])[0]
    assert result.summary["ok"] == result.summary["rows"]
    assert result.summary["median_abs_error"] < median
    assert result.summary["p90_abs_error"] < p90
    assert result.summary["kendall_tau"] > 0.9


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
