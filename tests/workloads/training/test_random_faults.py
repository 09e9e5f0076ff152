"""Random plans with random faults and stragglers: folded, unfolded and on both engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cluster_sim.hardware.faults import Fault, parse_fault
from cluster_sim.trace.trace import Trace
from tests.support.toy_training import LATENT, SPARSE, TOY
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution.jitter import Disturbance
from workloads.training.iteration import Iteration, iteration
from workloads.training.plan.plan import ParallelPlan

MACHINES = ("trn1.32xlarge", "trn2.48xlarge", "dgx-h100:2", "trn3-gen1")
SLACK_PS = 100
"""Rounding of the rates of flows; a fault may shorten a step by no more than this."""


def _random_plan(draw: np.random.Generator) -> tuple[Model, Cluster, ParallelPlan]:
    """A plan of at most 64 ranks; not every one suits its model and machine."""

    def pick(*choices: Any) -> Any:
        return choices[draw.integers(len(choices))]

    machine, model = cluster(pick(*MACHINES)), pick(TOY, SPARSE, LATENT)
    dp, schedule = pick(1, 2, 4), pick("gpipe", "1f1b", "zero-bubble", "interleaved", "dualpipe")
    return (
        model,
        machine,
        ParallelPlan(
            tp=pick(1, 2, 4),
            pp=pick(1, 2, 4),
            cp=pick(1, 1, 2),
            ep=1 if model is TOY else pick(1, 2, 4),
            vpp=2 if schedule == "interleaved" else 1,
            dp=dp,
            global_batch=dp * pick(1, 2, 4),
            seq=512,
            overlap=pick("none", "dp", "all"),
            zero=pick(0, 1, 2, 3),
            schedule=schedule,
            recompute=pick("none", "selective", "full"),
            ranks_per_chip=2 if machine.chip == "trn1" else 1,
        ),
    )


def _random_faults(
    draw: np.random.Generator, names: Sequence[str], total_ps: int
) -> tuple[Fault, ...]:
    """One to three resources, each slow from some instant on or dead for a while."""
    faults = []
    for place in draw.choice(len(names), int(draw.integers(1, 4)), replace=False).tolist():
        begin, length = draw.integers(0, total_ps), draw.integers(1, total_ps)
        slow = f"slow=1/{draw.integers(1, 20)}"
        if draw.random() < 0.3:
            faults.append(f"{names[place]}@{begin}ps:dead")
            begin += length
        faults.append(f"{names[place]}@{begin}ps:{slow}")
    return tuple(parse_fault(text) for text in faults)


def _trace(step: Iteration) -> Trace:
    assert isinstance(step.trace, Trace)
    return step.trace


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_random_fault_is_the_same_folded_and_never_helps(seed: int) -> None:
    """Five plans for each seed; among them were groups of which some ranks only are equal."""
    draw, done = np.random.default_rng(seed), 0
    while done < 5:
        try:
            model, machine, plan = _random_plan(draw)
            healthy = iteration(model, machine, plan, partial=True, folded=False)
        except InputError:
            continue
        names = _trace(healthy).schedule.resources.names()
        faults = _random_faults(draw, names, healthy.trace.total_ps)
        done += 1

        def step(faults: Sequence[Fault] = faults, **changes: Any) -> Iteration:
            return iteration(model, machine, plan, partial=True, faults=faults, **changes)  # noqa: B023

        few, whole = step(), step(folded=False)
        assert few.trace.total_ps == whole.trace.total_ps >= healthy.trace.total_ps - SLACK_PS
        assert few.breakdown_s == pytest.approx(
            whole.breakdown_s, abs=1e-9 + 1e-6 * few.iteration_s
        )
        assert whole.undisturbed_s == pytest.approx(healthy.iteration_s, rel=1e-12)
        rank, factor = int(draw.integers(plan.ranks)), float(draw.uniform(1, 3))
        late = step((), disturbed=Disturbance(0.0, seed, ((rank, factor),)))
        longest_ps = healthy.trace.total_ps * factor * (1 + 1e-5) + SLACK_PS
        assert healthy.trace.total_ps - SLACK_PS <= late.trace.total_ps <= longest_ps
    reference = step(folded=False, engine="reference")
    assert np.array_equal(_trace(reference).times.end_ps, _trace(whole).times.end_ps)
