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
from experiments.reports.run_record import read_record
from experiments.scripts import registry
from experiments.scripts.registry import EXPERIMENTS, PARAMETERS, Experiment
from tests.support.commands import document_of, printed_by, refusal_of

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
    script = types.SimpleNamespace(run=_run, plot=_plot, claims=None)
    only = (Experiment("hop_time", "hops", "How long does a hop take?"),)
    monkeypatch.setattr(module, "EXPERIMENTS", only)
    monkeypatch.setattr(registry, "EXPERIMENTS", only)
    monkeypatch.setattr(Experiment, "load", lambda self: script)
    return script


@pytest.mark.parametrize("one", EXPERIMENTS, ids=lambda one: one.name)
def test_an_experiment_can_plot_and_its_help_describes_every_parameter(one):
    script = one.load()
    described = module.parameter_texts(inspect.getdoc(script.run) or "")
    assert (described | PARAMETERS).keys() >= inspect.signature(script.run).parameters.keys()
    assert all(len(text.split()) > 1 for text in described.values())
    assert one.question.endswith("?")
    assert callable(script.plot)
    page = printed_by(f"experiment {one.name.replace('_', '-')} --help")
    assert f"Usage: cluster-sim experiment {one.name}" in page
    assert all(f"  --{name}" in page for name in ("json", "out", "seed", "engine", "quiet"))


def test_what_several_experiments_describe_alike_stands_once():
    texts = [
        (name, text.rstrip("."))
        for experiment in EXPERIMENTS
        for name, text in module.parameter_texts(inspect.getdoc(experiment.load().run)).items()
    ]
    assert not PARAMETERS.items() & texts
    used = [name for one in EXPERIMENTS for name in inspect.signature(one.load().run).parameters]
    assert all(used.count(name) > 1 for name in PARAMETERS)


def test_every_module_of_the_folder_is_registered():
    modules = {path.stem for path in FOLDER.glob("*.py") if path.name not in ENTRY}
    assert {one.module for one in EXPERIMENTS} == modules


def test_without_a_name_they_are_listed(hop, capsys):
    assert main([]) == 0
    for listed in (capsys.readouterr().out, printed_by("list experiments")):
        assert "How long does a hop take?" in listed


def test_rows_are_a_table_for_people(hop, capsys):
    assert main(["hop-time", "--ranks", "3,5", "--toy"]) == 0
    title, answer, method, _, *lines = capsys.readouterr().out.splitlines()
    assert title == "How long does a hop take?"
    assert answer == "A hop takes 0.003 s. ring:8."
    assert method == "Each hop takes 1 ms."
    shared, heads, *rows = [line.split() for line in lines]
    assert (shared, heads) == (["In", "all", "rows:", "toy", "True"], ["ranks", "time"])
    assert rows == [["3", "3", "ms"], ["5", "5", "ms"]]


def test_columns_that_tell_rows_apart_come_first_and_intervals_are_named(hop, capsys):
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


def test_both_ways_to_run_one_print_the_same_json(hop, tmp_path, capsys):
    options = ["--json", "--latency-s=1e-6", "--ranks=2", "--seed=5", f"--out={tmp_path / 'out'}"]
    assert main(["hop_time", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["inputs"]["latency_s"] == 1e-6
    assert document["answer"] == "A hop takes 0.002 s. ring:8"
    assert document["rows"] == [{"ranks": 2, "time_s": 0.002, "toy": False}]
    assert document_of(["experiment", "hop_time"], *options) == document
    record = read_record(tmp_path / "out")
    assert (record["command"], record["seed"]) == ("experiment hop_time", 5)
    written = {"metrics.csv", "metrics.parquet", "hop_time.png", "hop_time.svg"}
    assert written <= set(record["files"])


def test_an_empty_cell_is_null_and_no_fault(hop, capsys, tmp_path):
    hop.run = lambda: pd.DataFrame({"ranks": [2, 4], "time_s": [1.0, 2.0], "cost_usd": [3, None]})
    assert main(["hop_time", "--json", "--out", str(tmp_path / "run")]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["cost_usd"] for row in rows] == [3.0, None]
    hop.run = lambda: pd.DataFrame({"ranks": [2, 4], "time_s": [1.0, float("inf")]})
    assert main(["hop_time", "--json"]) == 2
    assert "time_s is inf" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["hop_tme"], "no experiment is called hop_tme. Did you mean hop_time?"),
    (["zebra"], "no experiment is called zebra. There are: hop_time"),
    (["hop_time", "--ranks", "2,1k"], "--ranks '2,1k': '1k' must be a whole number; write"),
    (["hop_time", "--rank"], "See cluster-sim experiment hop_time --help"),
    (["hop_time", "--speed", "3"], "No such option '--speed'"),
])  # fmt: skip
def test_mistakes_are_one_line_and_status_2(hop, arguments, message):
    assert message in refusal_of(["experiment", *arguments])
