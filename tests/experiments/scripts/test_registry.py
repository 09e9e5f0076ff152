"""Experiments by name, with parameters as options, and their points on several processes."""

from __future__ import annotations

import inspect
import json
import types
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from cluster_sim import processes
from experiments.__main__ import main
from experiments.cli.commands import experiment as module
from experiments.cli.commands import listing
from experiments.cli.commands.experiment import _parameters
from experiments.reports.run_record import read_record
from experiments.scripts import registry, scaling
from experiments.scripts.registry import EXPERIMENTS, PARAMETERS, Experiment
from experiments.scripts.support import Replica
from tests.support.commands import document_of, printed_by, refusal_of
from workloads.training.program import groups

FOLDER = Path(registry.__file__).parent
ENTRY = ("__init__.py", "registry.py", "support.py")


def _run(
    ranks: tuple[int, ...] = (2, 4), *, cluster: str = "ring:8", toy: bool = False,
    latency_s: float | None = None, seed: int = 0,
) -> pd.DataFrame:  # fmt: skip
    """Time hops.

    Each hop takes ``1 ms``.

    ``ranks``: ranks of each run.
    """
    return pd.DataFrame({"ranks": ranks, "time_s": [0.001 * r for r in ranks], "toy": toy})


def _plot(frame):
    figure = Figure()
    axes = figure.subplots()
    axes.plot(frame["ranks"], frame["time_s"])
    axes.set_title(f"A hop takes {frame['time_s'].min():g} s\nring:8")
    return figure


@pytest.fixture
def hop(monkeypatch):
    script = types.SimpleNamespace(run=_run, plot=_plot, claims=None)
    only = (Experiment("hop_time", "hops", "How long does a hop take?"),)
    monkeypatch.setattr(module, "EXPERIMENTS", only)
    monkeypatch.setattr(listing, "EXPERIMENTS", only)
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
    assert (shared, heads) == (["In", "all", "rows:", "toy", "yes"], ["ranks", "time"])
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


UNWATCHED = ("strong_scaling",)  # experiments of few and small points
SMALL = {
    "algorithm_switch_points": {"clusters": ("trn1.32xlarge", "trn2.48xlarge"), "sizes": "1MiB"},
    "collective_offload": {"model": "gpt2", "cluster": "trn2.48xlarge", "tp": (2, 4), "seq": 512},
    "half_rate_z": {"ops": ("all-gather",), "sizes": "1MiB"},
    "moe_on_torus_and_switch": {
        "model": "mixtral-8x7b", "clusters": ("trn2.48xlarge", "trn2.48xlarge"), "pp": 1,
        "ep": (1, 2), "global_batch": 8, "seq": 512,
    },
    "pipeline_schedules": {
        "model": "llama-3.1-8b", "cluster": "trn2.48xlarge", "pp": 2, "microbatches": (2,),
        "seq": 512,
    },
    "step_time_breakdown": {
        "models": ("gpt2",), "cluster": "trn2.48xlarge", "tp": (2,), "global_batch": 16, "seq": 512,
    },
    "stragglers_and_jitter": {
        "model": "gpt2", "machine": "trn2.48xlarge", "domains": (1, 2),
        "replica": Replica(tp=2, seq=512),
    },
    "torus_vs_neuronswitch": {"clusters": ("trn2.48xlarge",), "sizes": "1MiB"},
    "tp_on_torus": {
        "model": "gpt2", "cluster": "trn2.48xlarge", "tp": (2, 4), "global_batch": 32, "seq": 512,
    },
    "weak_scaling": {
        "model": "gpt2", "chips": (64, 128), "replica": Replica(tp=2, seq=512),
    },
}  # fmt: skip
QUICK = ("half_rate_z", "pipeline_schedules")
MEASURED = ["build_s", "simulate_s"]


class Watched:
    """Watch that keeps what it was given and how many items were drawn from it."""

    def __init__(self):
        self.sizes = []
        self.drawn = 0

    def __call__(self, items, what):
        assert what
        self.sizes.append(len(items))
        for item in items:
            self.drawn += 1
            yield item


def frame_of(name, watch):
    module = next(experiment for experiment in EXPERIMENTS if experiment.name == name).load()
    return module.run(**SMALL[name], watch=watch).drop(columns=MEASURED, errors="ignore")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL if name not in QUICK)],
)
def test_processes_change_no_number(name, monkeypatch):
    frames, watches = [], []
    for workers in (1, 2):
        monkeypatch.setattr(processes, "available_workers", lambda workers=workers: workers)
        watches.append(Watched())
        frames.append(frame_of(name, watches[-1]))
    pd.testing.assert_frame_equal(*frames, check_exact=True)
    for watch in watches:
        assert watch.drawn == sum(watch.sizes) > 1


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_progress_is_no_option(experiment):
    run = experiment.load().run
    assert ("watch" in inspect.signature(run).parameters) == (experiment.name not in UNWATCHED)
    assert "watch" not in _parameters(run)


def test_overlaps_of_one_size_share_their_groups(monkeypatch):
    placed = []

    class Counted(groups.PlacedGroups):
        def __init__(self, placement):
            placed.append(placement.plan.overlap)
            super().__init__(placement)

    monkeypatch.setattr(groups, "PlacedGroups", Counted)
    kinds = ("dp", "none")
    frame = scaling.weak_scaling("gpt2", chips=(64,), overlap=kinds, replica=Replica(tp=2, seq=512))
    assert frame.overlap.tolist() == ["dp", "dp", "none", "none"]
    assert placed == ["dp"]
