"""Sweeps under attack: killed workers, damaged rows, and studies from strangers."""

import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from experiments.cli.commands.sweep import NOT_IN_A_STUDY, program_of
from experiments.cli.main import app
from experiments.cli.main import run as run_line
from experiments.cli.options.from_fields import Text
from experiments.sweeps import runner
from experiments.sweeps.study import WRITTEN, study
from experiments.sweeps.sweep import sweep
from tests.support import probe_command
from tests.support.commands import refusal_of
from tests.support.probe_command import PROBE
from topologies.support.errors import InputError

ROOT = Path(__file__).parents[3]
READ = (
    "file", "deployment", "holidays", "jobs", "token_file", "matrix", "compare", "training",
    "catalogue", "nodes", "price", "plan", "out", "study", "trace", "runs", "first", "second",
)  # fmt: skip
"""Options that only read the file that they name, and those that no study can set."""


def sizes(*values: int, **fixed: str) -> dict[str, object]:
    grid = {"size": [str(value) for value in values]}
    return {"command": "probe", "fixed": {"op": "x", **fixed}, "grid": grid}


@pytest.mark.parametrize(("text", "message"), [
    ("fleet\nfixed: {cluster: rainier}\ngrid: {policy: [static, evil.py]}",
     "policy: evil.py runs a Python file"),
    ("plan\nfixed: {model: gpt2, cluster: trn2.48xlarge, best: /tmp/x.yaml}\n"
     "grid: {global_batch: ['8']}", "best: /tmp/x.yaml writes a file"),
    ("fleet\nruns: [{cluster: trn2-ultraserver:2, cache: /tmp/x}]", "cache: /tmp/x writes a file"),
    ("measure-kit\nfixed: {chip: trn2}\ngrid: {folder: [/tmp/x]}", "folder: /tmp/x writes a file"),
])  # fmt: skip
def test_a_study_of_a_stranger_runs_no_code_and_writes_no_file(tmp_path, text, message):
    (path := tmp_path / "study.yaml").write_text(f"command: {text}")
    refusal = refusal_of(f"sweep {path}")
    assert message in refusal
    assert "add --trust" in refusal


def test_every_option_that_takes_a_path_is_known_to_read_or_to_write():
    paths = 0
    for name in program_of(app, NOT_IN_A_STUDY).commands:
        command = app.get_command(None, name)
        if isinstance(command, click.Group):
            continue
        for option in command.params:
            if isinstance(option.type, Text) and option.type.kind is Path:
                assert option.name in (*WRITTEN, *READ), (name, option.name)
                paths += 1
    assert paths > len(WRITTEN)


def test_a_sweep_with_crashed_rows_exits_with_1(tmp_path, monkeypatch):
    def crashes(_: object, arguments: list[str]) -> dict[str, object]:
        return {"status": "crashed", "message": "boom", "document": None, "wall_s": 0.0}

    path = tmp_path / "study.yaml"
    path.write_text("command: topology\ngrid: {cluster: [trn2.48xlarge]}")
    monkeypatch.setattr(
        "experiments.sweeps.sweep.run_in_processes",
        lambda missing, workers, run: ((row, crashes(run, [])) for row in missing),
    )
    assert run_line(["sweep", str(path), "--quiet", "--json"]) == 1
    assert runner.AHEAD > 0


# Dask, with processes that really die


class Cluster:
    """A scheduler and workers in processes of their own."""

    def __init__(self, folder: Path, workers: int = 2, *, nanny: bool = True):
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROBE_LOG": str(folder / "log")}
        file = folder / "scheduler.json"
        self.scheduler = self._start("scheduler", "--port", "0", "--scheduler-file", str(file))
        while not file.exists() or not file.read_text():
            time.sleep(0.1)
        self.address = str(json.loads(file.read_text())["address"])
        kind = () if nanny else ("--no-nanny",)
        options = ("--nthreads", "1", "--no-dashboard", *kind)
        self.workers = [self._start("worker", self.address, *options) for _ in range(workers)]
        import distributed

        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
        quiet = subprocess.DEVNULL
        return subprocess.Popen(words, cwd=ROOT, env=self.environment, stdout=quiet, stderr=quiet)

    def close(self) -> None:
        """End all processes."""
        for process in (*self.workers, self.scheduler):
            process.terminate()
        for process in (*self.workers, self.scheduler):
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        # Dask leaves sockets of dead servers to the collector, which would warn in a later test.
        gc.collect()


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "run_row", probe_command.run_row)
    monkeypatch.setenv("PROBE_LOG", str(tmp_path / "log"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_that_kills_its_worker_is_crashed_and_the_others_finish(tmp_path, probe):
    pytest.importorskip("distributed")
    cluster = Cluster(tmp_path)
    try:
        sizes_study = study(sizes(1, 2, 666, 3, 4, 5))
        frame = sweep(sizes_study, PROBE, out=tmp_path / "out", dask=cluster.address)
    finally:
        cluster.close()
    assert frame["status"].tolist() == ["ok", "ok", "crashed", "ok", "ok", "ok"]
    assert "killed" in frame["message"][2]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dies", ["scheduler", "workers"])
def test_a_cluster_that_dies_is_one_line_and_finished_runs_stay(tmp_path, probe, monkeypatch, dies):
    pytest.importorskip("distributed")
    monkeypatch.setattr(runner, "PATIENCE_S", 3.0)
    monkeypatch.setenv("PROBE_SLEEP_S", "0.5")
    cluster = Cluster(tmp_path, nanny=False)

    def kill(done: int, _: int) -> None:
        if done == 2:
            killed = [cluster.scheduler] if dies == "scheduler" else cluster.workers
            for process in killed:
                process.kill()

    values = range(100, 140)
    try:
        with pytest.raises(InputError, match=r"the Dask cluster at .* was lost"):
            sweep(
                study(sizes(*values)), PROBE, out=tmp_path / "out", dask=cluster.address,
                progress=kill,
            )  # fmt: skip
    finally:
        cluster.close()
    assert 2 <= len(list((tmp_path / "out" / "rows").glob("*.json"))) < 40
