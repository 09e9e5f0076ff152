"""Points of experiments: processes change no number, progress is shown, and work is shared."""

import inspect
from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

from experiments.cli.commands.experiment import _parameters
from experiments.scripts import scaling, support
from experiments.scripts.registry import EXPERIMENTS
from experiments.scripts.support import Replica
from workloads.training.program import groups

UNWATCHED = ("strong_scaling",)  # experiments of few and small points
SMALL: dict[str, dict[str, Any]] = {
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

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.drawn = 0

    def __call__(self, items: Sequence[Any], what: str) -> Any:
        assert what
        self.sizes.append(len(items))
        for item in items:
            self.drawn += 1
            yield item


def frame_of(name: str, watch: Watched) -> pd.DataFrame:
    module = next(experiment for experiment in EXPERIMENTS if experiment.name == name).load()
    frame: pd.DataFrame = module.run(**SMALL[name], watch=watch)
    return frame.drop(columns=MEASURED, errors="ignore")


@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SMALL if name not in QUICK)],
)
def test_processes_change_no_number(name, monkeypatch):
    frames, watches = [], []
    for workers in (1, 2):
        monkeypatch.setattr(support, "available_workers", lambda workers=workers: workers)
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
        def __init__(self, placement: Any):
            placed.append(placement.plan.overlap)
            super().__init__(placement)

    monkeypatch.setattr(groups, "PlacedGroups", Counted)
    # Alternatives of fields that nobody stated are plans of their own.
    monkeypatch.setattr("workloads.training.iteration.alternatives", lambda *_: ())
    kinds = ("dp", "none")
    frame = scaling.weak_scaling("gpt2", chips=(64,), overlap=kinds, replica=Replica(tp=2, seq=512))
    assert frame.overlap.tolist() == ["dp", "dp", "none", "none"]
    assert placed == ["dp"]
