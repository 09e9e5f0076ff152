"""Studies: their files, and the command lines that they expand to, each run exactly once."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest

from experiments.reports.run_record import read_record
from experiments.sweeps import runner as row_runner
from experiments.sweeps import study as module
from experiments.sweeps.runner import run_row, run_rows
from experiments.sweeps.study import Row, read_study, results, rows, study
from experiments.sweeps.sweep import open_store, sweep
from tests.support import probe_command
from tests.support.probe_command import PROBE, run
from tests.support.refusals import refusal_by, refused
from topologies.support.errors import InputError


@pytest.fixture
def log_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for each run that was really made."""
    monkeypatch.setattr(row_runner, "run_row", probe_command.run_row)
    monkeypatch.setenv("PROBE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


@pytest.fixture
def log(log_of_processes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File with a line for each run, all of which are made in this process."""
    monkeypatch.setattr(row_runner, "process_pool", probe_command.threads)
    return log_of_processes


def _sizes(*sizes, **fixed):
    """Study of the probe at some sizes."""
    grid = {"size": [str(size) for size in sizes]}
    return study({"command": "probe", "fixed": {"op": "x", **fixed}, "grid": grid})


def test_a_file_becomes_a_table_of_command_lines(tmp_path):
    path = tmp_path / "study.yaml"
    grid = "grid:\n  size: [1, 2]\n  fast: [true, false]\n"
    path.write_text(f"command: probe\nfixed: {{op: all-reduce, tag: [a, b]}}\n{grid}")
    table = rows(read_study(path), PROBE)
    start = ("probe", "--json", "--quiet")
    tags = ("--tag=a", "--tag=b")
    crossed = [(f"--size={size}", speed) for size in (1, 2) for speed in ("--fast", "--slow")]
    lines = [(*start, *each, *tags, "--", "all-reduce") for each in crossed]
    assert [row.arguments for row in table] == lines
    assert table[2].parameters == {"size": "2", "fast": "true"}


def test_a_list_of_runs_is_crossed_with_the_grid():
    runs = [{"op": "a", "size": "1"}, {"op": "b"}]
    crossed = study({"command": "probe", "runs": runs, "grid": {"fast": ["true", "false"]}})
    assert [row.parameters for row in rows(crossed, PROBE)] == [
        {"op": "a", "size": "1", "fast": "true"},
        {"op": "a", "size": "1", "fast": "false"},
        {"op": "b", "fast": "true"},
        {"op": "b", "fast": "false"},
    ]


@pytest.mark.parametrize(("text", "expected"), [
    ("- a", "a study is a mapping"),
    ("comand: probe", "a study has no 'comand'. Did you mean command?"),
    ("fixed: {}", "command: it is missing"),
    ("command: [a]", "command: it must be a text"),
    ("command: probe\ngrid: {size: 3}", "grid.size: it must be a list"),
    ("command: probe\nfixed: {size: {a: 1}}", "fixed.size: it must be a text"),
    ("command: [", "is no study: "),
    ("command: !!python/object/apply:os.system [ls]", "os.system is not read"),
    ("[" * 2000, "is no study"),
    ("\x00", "is no study"),
])  # fmt: skip
def test_a_file_that_is_no_study_is_refused_in_one_line(tmp_path, text, expected):
    (path := tmp_path / "study.yaml").write_text(text)
    refusal = refusal_by(read_study, path)
    assert expected in refusal
    assert str(path) in refusal


@pytest.mark.parametrize(("document", "expected"), [
    ({"command": "prob", "grid": {"a": ["1"]}}, "no command is called prob. Did you mean"),
    ({"command": "sweep", "grid": {"a": ["1"]}}, "no command is called sweep|cannot run sweep"),
    ({"command": "probe", "grid": {"sise": ["1"]}}, "probe has no parameter sise. Did you"),
    ({"command": "probe", "grid": {"json": ["true"]}}, "a study sets --json itself"),
    ({"command": "probe", "grid": {"fast": ["perhaps"]}}, "fast is perhaps; it is a switch"),
    ({"command": "probe"}, "the study has no runs; name parameters"),
    ({"command": "probe", "grid": {"size": []}}, "the study has no runs; name parameters"),
    ({"command": "probe", "grid": {"size": ["1"] * 2000, "tag": ["1"] * 2000}},
     "the study has 4,000,000 runs"),
])  # fmt: skip
def test_impossible_runs_are_refused_before_anything_runs(document, expected):
    refused(expected, rows, study(document), PROBE)


def test_missing_and_large_files_are_refused(tmp_path, monkeypatch):
    message = r"no such file in .* A study is a YAML file with the keys command"
    refused(message, read_study, tmp_path / "none.yaml")
    (tmp_path / "large.yaml").write_text("x" * 100)
    monkeypatch.setattr(module, "LARGEST_FILE_BYTES", 99)
    refused("is over the limit of 99 B", read_study, tmp_path / "large.yaml")


def test_the_digest_follows_command_line_and_files(tmp_path):
    config = tmp_path / "config.json"
    for model in (config, tmp_path):  # a file, and a model's directory by its content
        seen = []
        for text in ("{}", "{ }"):
            config.write_text(text)
            digests = [row.digest for row in rows(_sizes(1, 2, model=str(model)), PROBE)]
            again = [row.digest for row in rows(_sizes(2, 1, model=str(model)), PROBE)]
            assert again == digests[::-1]
            seen += digests
        assert len(set(seen)) == 4


@pytest.mark.parametrize(("size", "status", "message"), [
    (1, "ok", ""),
    (13, "refused", "size 13 brings bad luck. Use 12."),
    (14, "crashed", "ZeroDivisionError: fourteen"),
    (15, "crashed", "it printed no JSON document"),
    (16, "crashed", "exit status 1"),
])  # fmt: skip
def test_every_end_of_a_run_has_a_status_and_a_reason(size, status, message, capsys):
    outcome = run_row(run, ["probe", "--json", f"--size={size}", "--", "x"])
    assert (outcome["status"], outcome["message"]) == (status, message)
    assert (outcome["document"] is not None) == (size in (1, 16))
    assert capsys.readouterr() == ("", "")


def test_results_are_one_table_with_dotted_names():
    table = rows(_sizes(1, 13), PROBE)
    with ThreadPoolExecutor(2) as pool:
        outcomes = {row.digest: done.result() for row, done in run_rows(table, pool, 8, run)}
    frame = results((row, outcomes[row.digest]) for row in table)
    assert (frame["size"].tolist(), frame["status"].tolist()) == ([1, 13], ["ok", "refused"])
    assert (frame.loc[0, "memory_bytes.total"], frame.loc[0, "tags"]) == (1, "[]")
    assert pd.isna(frame.loc[1, "double"])
    assert frame["double"].dtype == "Int64"


def test_a_command_that_prints_rows_gives_rows_and_parameters_keep_their_names():
    row = Row({"algorithm": "best"}, ("x",), "d")
    document = {"rows": [{"algorithm": "ring", "t": 1}, {"algorithm": "mesh", "t": 2}]}
    outcome = {"status": "ok", "message": "", "document": document}
    frame = results([(row, outcome)])
    assert frame["algorithm"].tolist() == ["best", "best"]
    assert frame["result.algorithm"].tolist() == ["ring", "mesh"]
    assert list(frame.columns) == ["algorithm", "status", "result.algorithm", "t", "message"]
    none = results([(row, {**outcome, "document": {"rows": []}})])
    assert none["status"].tolist() == ["ok"]


def test_parameters_of_several_kinds_are_text_and_can_be_stored(tmp_path):
    outcome = {"status": "ok", "message": "", "document": {"t": 1}}
    rows = [Row({"size": text}, (text,), text) for text in ("1KiB", "nan", "-1", "1e3")]
    frame = results([(row, outcome) for row in rows])
    assert frame["size"].tolist() == ["1KiB", "nan", "-1", "1000.0"]
    frame.to_parquet(tmp_path / "frame.parquet")
    assert results([(rows[2], outcome)])["size"].tolist() == [-1]


def test_finished_runs_are_not_run_again_and_progress_is_told(log, tmp_path):
    out, progress = tmp_path / "out", []
    first = sweep(_sizes(1, 2), PROBE, out=out, workers=1, progress=lambda *of: progress.append(of))
    assert first["double"].tolist() == [2, 4]
    assert progress == [(1, 2), (2, 2)]
    more = sweep(_sizes(3, 2, 1, 3), PROBE, out=out, workers=1)
    assert more["double"].tolist() == [6, 4, 2, 6]
    assert sorted(log.read_text().split()) == ["1", "2", "3"]


def test_a_sweep_leaves_table_record_and_page(log_of_processes, tmp_path):
    out = tmp_path / "out"
    frame = sweep(_sizes(1, 2), PROBE, out=out, workers=1)
    assert pd.read_csv(out / "results.csv")["double"].tolist() == frame["double"].tolist()
    assert read_record(out)["command"] == "sweep"
    names = "report.html results.csv results.parquet rows run.json sweep.json"
    assert sorted(entry.name for entry in out.iterdir()) == names.split()


@pytest.mark.slow
def test_a_run_that_kills_its_process_does_not_stop_the_rest(log_of_processes, tmp_path):
    sizes_study = _sizes(1, 666, 3)
    frame = sweep(sizes_study, PROBE, out=tmp_path / "out", workers=1)
    assert frame["status"].tolist() == ["ok", "crashed", "ok"]
    assert "killed" in frame.loc[1, "message"]
    before = log_of_processes.read_text().split()
    sweep(sizes_study, PROBE, out=tmp_path / "out", workers=1)
    again = log_of_processes.read_text().split()[len(before) :]
    assert set(again) == {"666"}


def test_damaged_rows_are_run_again_and_half_written_ones_cleared_away(log, tmp_path):
    out = tmp_path / "out"
    sweep(_sizes(1, 2, 21), PROBE, out=out, workers=1)
    kept = (out / "rows").iterdir()
    digit, first, second = sorted(kept, key=lambda row: "42" not in row.read_text())
    digit.write_text(digit.read_text().replace("42", "43"))
    first.write_text(first.read_text()[:20])
    second.write_text(json.dumps({"digest": "of another", "status": "ok"}))
    (out / "rows" / ".abc.json.123.part").write_text("{")
    (out / "results.part").mkdir()
    assert sweep(_sizes(1, 2, 21), PROBE, out=out, workers=1)["double"].tolist() == [2, 4, 42]
    assert sorted(log.read_text().split()) == ["1", "1", "2", "2", "21", "21"]
    assert not list(out.rglob("*.part"))
    digit.unlink()
    digit.mkdir()
    with pytest.raises(InputError, match="is no file, and the result of a run belongs there"):
        sweep(_sizes(1, 2, 21), PROBE, out=out, workers=1)


def test_directories_that_hold_something_else_are_refused(log, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("mine")
    refused(r"holds thesis\.tex, and no sweep", sweep, _sizes(1), PROBE, out=tmp_path / "out")
    refused("is a file", sweep, _sizes(1), PROBE, out=tmp_path / "out" / "thesis.tex")
    assert not log.exists()


INTERRUPTED = """
import signal
import sys
from tests.support import probe_command
from experiments.sweeps import runner as row_runner
from experiments.sweeps.study import study
from experiments.sweeps.sweep import open_store, sweep

if __name__ == "__main__":
    # A parent in the background of a shell ignores SIGINT, and its children with it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    row_runner.run_row = probe_command.run_row
    sizes = [str(size) for size in range(40)]
    many = study({"command": "probe", "fixed": {"op": "x"}, "grid": {"size": sizes}})
    sweep(many, probe_command.PROBE, out=sys.argv[1], workers=2)
"""


@pytest.mark.slow
def test_ctrl_c_keeps_what_has_finished_and_leaves_no_process(tmp_path):
    script, log, out = tmp_path / "script.py", tmp_path / "log", tmp_path / "out"
    script.write_text(INTERRUPTED)
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PROBE_SLEEP_S": "0.2"}
    environment["PROBE_LOG"] = str(log)
    command = [sys.executable, str(script), str(out)]
    child = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    while not list(out.glob("rows/*.json")):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=300) != 0  # as long as a busy machine may need
    kept = len(list(out.glob("rows/*.json")))
    assert 1 <= kept < 40
    assert not list(out.glob("rows/.*"))
    begun = len(log.read_text().split())
    time.sleep(0.5)
    assert len(log.read_text().split()) == begun
    done = subprocess.run(command, env={**environment, "PROBE_SLEEP_S": "0"}, check=False)
    assert done.returncode == 0
    assert len(log.read_text().split()) == begun + 40 - kept
    assert len(pd.read_csv(out / "results.csv")) == 40


def test_two_sweeps_do_not_write_to_one_directory(tmp_path):
    with (
        open_store(tmp_path / "out"),
        pytest.raises(InputError, match="another sweep is writing"),
        open_store(tmp_path / "out"),
    ):
        pass


def test_a_dask_cluster_gives_the_same_table(log):
    distributed = pytest.importorskip("distributed")
    sizes_study = _sizes(1, 2, 3)
    here = sweep(sizes_study, PROBE, workers=1)
    how = {"threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=1, **how) as cluster:
        there = sweep(sizes_study, PROBE, dask=cluster.scheduler_address)
    pd.testing.assert_frame_equal(here, there)


def test_an_address_without_a_port_or_where_nobody_answers_is_one_line(monkeypatch):
    distributed = pytest.importorskip("distributed")

    def nobody(*_, **__):
        raise OSError("Timed out\nafter 10 s")

    monkeypatch.setattr(distributed, "Client", nobody)
    for address, message in (
        ("", "--dask '' has no port; write tcp://host:8786"),
        ("tcp://x:1", "no Dask scheduler answers at tcp://x:1: Timed out after"),
    ):
        refused(message, sweep, _sizes(1), PROBE, dask=address)
