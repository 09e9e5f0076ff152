"""Runs that would not fit are refused before they are built, with a level that would fit."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest

from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.training import detail
from workloads.training.detail import estimated_size
from workloads.training.iteration import iteration
from workloads.training.layers.steps import RankShapes
from workloads.training.usual_plan import complete

HUGE: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    ("gpt2", "trn2.48xlarge", {"tp": 4, "global_batch": 100_000_000}, {}),
    ("gpt2", "trn2.48xlarge", {"tp": 4, "global_batch": 1600}, {"iterations": 1000}),
    ("llama-3.1-405b", "rainier", {"tp": 32, "pp": 2}, {"level": "chunk"}),
    ("llama-3.1-405b", "rainier", {"tp": 32, "pp": 2}, {"folded": False, "level": "collective"}),
]


@pytest.mark.parametrize(("model", "machine", "stated", "how"), HUGE)
def test_work_too_large_is_refused_before_it_is_built(
    model: str, machine: str, stated: dict[str, Any], how: dict[str, Any]
) -> None:
    shape, where = named(model), cluster(machine)
    whole = complete(stated, shape, where)
    begun = time.process_time()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"follows about .* ops of this step, and .*\. Use "):
        iteration(shape, where, whole, **how)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert time.process_time() - begun < 20


@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_the_estimate_of_ops_is_near_what_is_built(zero: int, schedule: str) -> None:
    for model in (TOY, SPARSE):
        how = plan(tp=2, pp=2, dp=4, zero=zero, schedule=schedule, overlap="dp", global_batch=64)
        step = iteration(model, sixteen(), how)
        built = sum(len(stream.ops) for stream in step.program.streams)
        where = step.cluster  # with the numbers of the framework
        assert where.catalogue is not None
        shapes = RankShapes(model, how, where.chip, where.catalogue)
        guess = estimated_size(shapes, 1, every_rank=False)
        assert 0.95 * built <= guess.stage_ops <= 1.25 * built
        assert step.ops <= guess.ops


def test_the_refusal_names_the_level_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detail, "machine_bytes", lambda: 10**9)
    how = plan(tp=4, dp=4, global_batch=8000)
    with pytest.raises(InputError, match="Use --level rank-vector"):
        iteration(TOY, sixteen(), how, folded=False, level="collective")
    few = plan(tp=4, dp=4, global_batch=2000)
    with pytest.raises(InputError, match="Use --engine fast"):
        iteration(TOY, sixteen(), few, folded=False, engine="reference")


def test_a_process_with_a_limit_of_its_own_is_held_to_it() -> None:
    assert 0 < detail.machine_bytes() <= 2**50
