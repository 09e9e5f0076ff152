"""Experiments by name, and the command that runs them with the parameters of ``run`` as options."""

from __future__ import annotations

import inspect
import json
import types
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments.__main__ import main
from experiments.cli.commands import experiment as module
from experiments.cli.main import run
from experiments.reports.run_record import read_record
from experiments.scripts import registry
from experiments.scripts.registry import EXPERIMENTS, PARAMETERS, Experiment

FOLDER = Path(registry.__file__).parent
ENTRY = ("__init__.py", "registry.py", "support.py")


def _run(
    ranks: tuple[int, ...] = (2, 4),
    *,
    cluster: str = "ring:8",
    toy: bool = False,
    latency_s: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Time hops.

    Each hop takes ``1 ms``.

    ``ranks``: ranks of each run.
    """
    return pd.DataFrame({"ranks": ranks, "time_s": [0.001 * r for r in ranks], "toy": toy})


def _plot(frame: pd.DataFrame) -> Figure:
    figure = Figure()
    axes = figure.subplots()
    axes.plot(frame["ranks"], frame["time_s"])
    axes.set_title(f"A hop takes {frame['time_s'].min():g} s\nring:8")
    return figure


@pytest.fixture
def hop(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """One experiment named ``hop_time``."""
    script = types.SimpleNamespace(run=_run, plot=_plot, claims=None)
    only = (Experiment("hop_time", "hops", "How long does a hop take?"),)
    monkeypatch.setattr(module, "EXPERIMENTS", only)
    monkeypatch.setattr(registry, "EXPERIMENTS", only)
    monkeypatch.setattr(Experiment, "load", lambda self: script)
    return script


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_help_of_an_experiment_describes_every_parameter(experiment: Experiment) -> None:
    run = experiment.load().run
    described = module.parameter_texts(inspect.getdoc(run) or "")
    assert (described | PARAMETERS).keys() >= inspect.signature(run).parameters.keys()
    assert all(len(text.split()) > 1 for text in described.values())


def test_what_several_experiments_describe_alike_stands_once() -> None:
    texts = [
        (name, text.rstrip("."))
        for experiment in EXPERIMENTS
        for name, text in module.parameter_texts(inspect.getdoc(experiment.load().run)).items()
    ]
    assert not PARAMETERS.items() & texts
    used = [name for one in EXPERIMENTS for name in inspect.signature(one.load().run).parameters]
    assert all(used.count(name) > 1 for name in PARAMETERS)


def test_every_module_of_the_folder_is_registered() -> None:
    modules = {path.stem for path in FOLDER.glob("*.py") if path.name not in ENTRY}
    assert {one.module for one in EXPERIMENTS} == modules


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_every_experiment_helps_and_can_plot(
    one: Experiment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert one.question.endswith("?")
    assert callable(one.load().plot)
    assert run(["experiment", one.name.replace("_", "-"), "--help"]) == 0
    page = capsys.readouterr().out
    assert f"Usage: cluster-sim experiment {one.name}" in page
    assert all(f"  --{name}" in page for name in ("json", "out", "seed", "engine", "quiet"))


def test_without_a_name_they_are_listed(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "How long does a hop take?" in capsys.readouterr().out
    assert run(["list", "experiments"]) == 0
    assert "How long does a hop take?" in capsys.readouterr().out


def test_rows_are_a_table_for_people(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hop-time", "--ranks", "3,5", "--toy"]) == 0
    title, answer, method, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "How long does a hop take?"
    assert answer == "A hop takes 0.003 s. ring:8."
    assert method == "Each hop takes 1 ms."
    assert [line.split() for line in lines] == [
        ["In", "all", "rows:", "toy", "True"],
        ["ranks", "time"],
        ["3", "3", "ms"],
        ["5", "5", "ms"],
    ]


def test_columns_that_tell_rows_apart_come_first_and_intervals_are_named(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"op": ["a", "a", "b", "b"], "time_s": [1.0, 2.0, 3.0, 4.0], "z": [1, 2, 1, 2]}
    ends = {"low_s": [0.5, 1.5, 2.5, 3.5], "high_s": [1.5, 2.5, 3.5, 4.5]}
    hop.run = lambda: pd.DataFrame(grid | ends).assign(ranks=[2, 3, 4, 5])
    assert main(["hop_time"]) == 0
    *_, heads, first, _, _, _, caveat = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[:3] == ["op", "z", "time"]
    assert "80 % from" in heads
    assert "80 % to" in heads
    assert first.split()[:3] == ["a", "1", "1"]
    assert caveat == "80 % of measurements would lie between the two columns of 80 %."


def test_both_ways_to_run_one_print_the_same_json(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--json", "--latency-s", "1e-6", "--ranks", "2"]
    assert main(["hop_time", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["latency_s"] == 1e-6
    assert document["answer"] == "A hop takes 0.002 s. ring:8"
    assert document["rows"] == [{"ranks": 2, "time_s": 0.002, "toy": False}]
    assert run(["experiment", "hop_time", *options]) == 0
    assert json.loads(capsys.readouterr().out) == document


def test_an_empty_cell_is_null_and_no_fault(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hop.run = lambda: pd.DataFrame({"ranks": [2, 4], "time_s": [1.0, 2.0], "cost_usd": [3, None]})
    assert main(["hop_time", "--json", "--out", str(tmp_path / "run")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["cost_usd"] for row in rows] == [3.0, None]
    hop.run = lambda: pd.DataFrame({"ranks": [2, 4], "time_s": [1.0, float("inf")]})
    assert main(["hop_time", "--json"]) == 2
    assert "time_s is inf" in capsys.readouterr().err


def test_help_says_what_the_docstring_says(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hop_time", "-h"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert "Time hops." in page
    assert "--ranks A,B,… Ranks of each run; default 2,4." in page


def test_out_is_a_run_directory_with_rows_and_figure(
    hop: types.SimpleNamespace, tmp_path: Path
) -> None:
    assert main(["hop_time", "--seed", "5", "--out", str(tmp_path / "out")]) == 0
    record = read_record(tmp_path / "out")
    assert (record["command"], record["seed"]) == ("experiment hop_time", 5)
    assert {"metrics.csv", "metrics.parquet", "hop_time.png", "hop_time.svg"} <= set(
        record["files"]
    )


def test_out_that_holds_something_else_is_refused_before_the_work(
    hop: types.SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def never() -> pd.DataFrame:
        raise AssertionError("ran")

    hop.run = never
    (tmp_path / "thesis.tex").write_text("mine")
    assert main(["hop_time", "--out", str(tmp_path)]) == 2
    assert "Choose a new directory." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hop_tme"], "no experiment is called hop_tme. Did you mean hop_time?"),
        (["zebra"], "no experiment is called zebra. There are: hop_time"),
        (["hop_time", "--ranks", "2,1k"], "--ranks '2,1k': '1k' must be a whole number; write"),
        (["hop_time", "--rank"], "See cluster-sim experiment hop_time --help"),
        (["hop_time", "--speed", "3"], "No such option '--speed'"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    hop: types.SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_ctrl_c_is_one_line(hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> pd.DataFrame:
        raise KeyboardInterrupt

    hop.run = interrupted
    assert main(["hop_time"]) == 130
    assert "interrupted" in capsys.readouterr().err
