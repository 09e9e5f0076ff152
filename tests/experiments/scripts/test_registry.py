"""``python -m experiments``: found by source, options from ``run``, written as a run directory."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import types
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from experiments import __main__ as front
from experiments.__main__ import main
from experiments.reports.run_record import read_record
from experiments.scripts import registry as scripts
from experiments.scripts.registry import Experiment, experiment, experiments
from topologies.errors import InputError

SCRIPT = '''"""How long does a hop take?

More words.
"""
def run(ranks=(2, 4)): ...
def plot(frame): ...
'''


def _run(
    ranks: tuple[int, ...] = (2, 4),
    *,
    cluster: str = "ring:8",
    toy: bool = False,
    latency_s: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    return pd.DataFrame({"ranks": ranks, "time_s": [0.001 * r for r in ranks], "toy": toy})


def _plot(frame: pd.DataFrame) -> Figure:
    figure = Figure()
    figure.subplots().plot(frame["ranks"], frame["time_s"])
    return figure


@pytest.fixture
def hop(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """One experiment named ``hop_time``."""
    module = types.SimpleNamespace(run=_run, plot=_plot)
    found = [Experiment("hop_time", "How long does a hop take?")]
    monkeypatch.setattr(scripts, "experiments", lambda: found)
    monkeypatch.setattr(front, "experiments", lambda: found)
    monkeypatch.setattr(Experiment, "load", lambda self: module)
    return module


def test_scripts_are_found_without_importing_them(tmp_path: Path) -> None:
    (tmp_path / "hop_time.py").write_text(SCRIPT + "\nraise RuntimeError('was imported')\n")
    (tmp_path / "helper.py").write_text('"""No experiment."""\ndef run(): ...\n')
    assert experiments(tmp_path) == [Experiment("hop_time", "How long does a hop take?")]


def test_every_experiment_has_a_question_and_readable_options() -> None:
    for found in experiments():
        assert found.summary
        assert all(
            isinstance(told, dict) and ("default" in told or "required" in told)
            for told in found.options().values()
        )
        assert callable(found.load().plot)


def test_without_a_name_they_are_listed(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([]) == 0
    assert "How long does a hop take?" in capsys.readouterr().out


def test_rows_are_a_table_for_people(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hop-time", "--ranks", "3,5", "--toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["toy", "True"],
        ["ranks", "time"],
        ["3", "3", "ms"],
        ["5", "5", "ms"],
    ]


def test_rows_are_json_for_programs(
    hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["hop_time", "--json", "--latency-s", "1e-6", "--ranks", "2"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["latency_s"] == 1e-6
    assert document["rows"] == [{"ranks": 2, "time_s": 0.002, "toy": False}]


def test_out_is_a_run_directory_with_rows_and_figure(
    hop: types.SimpleNamespace, tmp_path: Path
) -> None:
    extra: list[dict] = []
    hop.save = lambda run, frame, **given: extra.append(given)
    assert main(["hop_time", "--seed", "5", "--out", str(tmp_path / "out")]) == 0
    record = read_record(tmp_path / "out")
    assert (record["command"], record["seed"]) == ("experiment hop_time", 5)
    assert {"metrics.csv", "metrics.parquet", "hop_time.png", "hop_time.svg"} <= set(
        record["files"]
    )
    assert extra[0]["cluster"] == "ring:8"


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
    ("arguments", "said"),
    [
        (["hop_tme"], "no experiment is called hop_tme. Did you mean hop_time?"),
        (["zebra"], "no experiment is called zebra. There are: hop_time"),
        (["hop_time", "--ranks", "x"], "invalid comma-separated int value: 'x'"),
        (["hop_time", "--rank"], "See python -m experiments hop_time --help"),
        (["hop_time", "--speed", "3"], "unrecognized arguments: --speed 3"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    hop: types.SimpleNamespace,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert said in told.err


def test_ctrl_c_is_one_line(hop: types.SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> pd.DataFrame:
        raise KeyboardInterrupt

    hop.run = interrupted
    assert main(["hop_time"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_options_follow_the_types_of_the_parameters(hop: types.SimpleNamespace) -> None:
    options = Experiment("hop_time", "").options()
    assert options["ranks"]["type"]("1, 2") == (1, 2)
    assert options["latency_s"]["type"] is float
    assert options["toy"]["action"] is argparse.BooleanOptionalAction
    assert options["cluster"]["default"] == "ring:8"
    required = scripts._option(int, inspect.Parameter.empty)
    assert required["required"] is True


def test_unknown_names_raise(hop: types.SimpleNamespace) -> None:
    with pytest.raises(InputError):
        experiment("nothing")
    assert "experiments.hop_time" not in sys.modules
