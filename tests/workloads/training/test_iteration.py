"""Iterations: breakdown, efficiencies, and messages about a user's mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from cluster_sim.hardware.faults import parse_fault
from cluster_sim.trace.trace import Trace
from tests.support.toy_training import TOY, plan, sixteen
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.models.model import training_flops
from workloads.training.execution.jitter import Disturbance
from workloads.training.explain import input_table, step_table
from workloads.training.iteration import iteration
from workloads.training.program.breakdown import breakdown


def test_one_chip_only_computes() -> None:
    run = iteration(TOY, sixteen(), plan(), partial=True)
    busy = {part for part, value in run.breakdown_s.items() if value}
    assert busy == {"compute", "optimizer"}
    total = sum(row["total_s"] for row in step_table(run))
    assert total == pytest.approx(run.iteration_s, rel=1e-12)


def test_efficiencies() -> None:
    run = iteration(TOY, sixteen(), plan(tp=4, dp=4))
    needed = training_flops(TOY, run.plan.seq, run.plan.tokens)
    assert run.mfu == pytest.approx(needed / run.iteration_s / 16 / 667e12)
    assert run.hfu == run.mfu
    assert (run.overlapped_s, run.breakdown_s["bubble"]) == (0, 0)
    assert run.tokens_per_s * run.iteration_s == pytest.approx(run.plan.global_batch * 1024)
    full = iteration(TOY, sixteen(), plan(tp=4, dp=4, recompute="full"))
    assert 1.2 < full.hfu / full.mfu < 4 / 3
    assert full.iteration_s > run.iteration_s


def test_every_other_layer_computed_again_costs_half() -> None:
    """Forward passes of half of the layers: half way between none and all of them, to a few ps."""
    kinds = (
        {"recompute": "none"},
        {"recompute": "full", "recompute_every": 2},
        {"recompute": "full"},
    )
    none, half, full = (iteration(TOY, sixteen(), plan(tp=4, dp=4, **kind)) for kind in kinds)
    assert TOY.layers % 2 == 0
    assert half.iteration_s == pytest.approx((none.iteration_s + full.iteration_s) / 2, rel=1e-6)
    assert half.hfu / half.mfu > 1.1


def test_waiting_beyond_the_usual_is_a_stragglers_fault() -> None:
    """Rank 0 of four computes twice as long: the others wait, and no longer than that."""
    from cluster_sim.trace.trace import run as simulate

    undisturbed = iteration(TOY, sixteen(), plan(tp=4), folded=False, partial=True).trace
    schedule = undisturbed.schedule
    slow = (schedule.labels["rank"] == 0) & (schedule.resource >= 0)  # type: ignore[operator]
    late = replace(schedule, duration_ps=schedule.duration_ps * (1 + slow))
    shares = breakdown(simulate(late), undisturbed).frame()
    assert shares.loc[0, "straggler_ps"] == 0
    assert (shares.loc[[1, 2, 3], "straggler_ps"] > 0).all()
    assert (shares.drop(columns="count").sum(axis=1) == simulate(late).total_ps).all()


@pytest.mark.parametrize(
    "disturbed", [Disturbance(0.05, seed=2), Disturbance(0.02, 1, ((3, 1.3),))]
)
@pytest.mark.parametrize("stated", [{"tp": 4, "dp": 4}, {"tp": 2, "pp": 4, "dp": 2}], ids=str)
def test_the_undisturbed_run_beside_jitter_is_folded_and_shows_the_same_waiting(
    stated: dict[str, int], disturbed: Disturbance
) -> None:
    how = plan(**stated, overlap="all")
    noisy = iteration(TOY, sixteen(), how, disturbed=disturbed)
    calm = iteration(TOY, sixteen(), how, folded=False)
    assert noisy.undisturbed is not None
    assert isinstance(calm.trace, Trace)
    assert isinstance(noisy.trace, Trace)
    assert len(noisy.undisturbed) < len(calm.trace) == len(noisy.trace)
    assert noisy.undisturbed_s == calm.iteration_s
    expected = breakdown(noisy.trace, calm.trace).frame()
    assert noisy.ranks.equals(expected)
    assert expected["straggler_ps"].sum() > 0


@pytest.mark.parametrize("overlap", ["none", "all"])
@pytest.mark.parametrize("stragglers", [((5, 1.5),), ((0, 1.2), (9, 3.0), (12, 1.0))], ids=str)
def test_a_straggler_folded_is_the_straggler_unfolded(
    stragglers: tuple[tuple[int, float], ...], overlap: str
) -> None:
    how = plan(tp=4, pp=2, dp=2, overlap=overlap)
    slow = Disturbance(stragglers=stragglers)
    few, whole = (
        iteration(TOY, sixteen(), how, disturbed=slow, folded=folded) for folded in (True, False)
    )
    assert len(few.program) < len(whole.program) == 16
    assert {rank for rank, _ in stragglers} <= {*few.program.rank.tolist()}
    assert few.trace.total_s == whole.trace.total_s
    assert few.undisturbed_s == whole.undisturbed_s
    assert few.breakdown_s == pytest.approx(whole.breakdown_s, rel=1e-12)
    assert few.breakdown_s["straggler"] > 0


def test_the_rank_vector_and_jitter_follow_every_rank() -> None:
    how = plan(tp=4, pp=2, dp=2)
    slow = Disturbance(stragglers=((5, 1.5),))
    vector = iteration(TOY, sixteen(), how, disturbed=slow, level="rank-vector")
    jittered = iteration(TOY, sixteen(), how, disturbed=replace(slow, jitter=0.01))
    assert len(vector.program) == len(jittered.program) == 16
    with pytest.raises(InputError, match="straggler 99 is no rank of the plan: ranks are 0 to 15"):
        iteration(TOY, sixteen(), how, disturbed=Disturbance(stragglers=((99, 2.0),)))


def test_both_levels_give_one_iteration_with_jitter_and_a_straggler() -> None:
    how = Disturbance(0.02, seed=7, stragglers=((3, 1.25),))
    divided = plan(tp=4, dp=2, pp=2)
    engine, vector = (
        iteration(TOY, sixteen(), divided, disturbed=how, level=level)
        for level in ("collective", "rank-vector")
    )
    assert (engine.level, vector.level) == ("collective", "rank-vector")
    assert vector.iteration_s == engine.iteration_s
    assert vector.breakdown_s == pytest.approx(engine.breakdown_s, abs=1e-15)
    assert engine.breakdown_s["straggler"] > 0
    undisturbed = iteration(TOY, sixteen(), divided)
    assert undisturbed.breakdown_s["straggler"] == 0
    assert engine.iteration_s > undisturbed.iteration_s
    assert engine.undisturbed_s == vector.undisturbed_s == undisturbed.iteration_s
    assert undisturbed.undisturbed_s is None
    assert not engine.folded


def test_every_number_has_a_source() -> None:
    run = iteration(TOY, sixteen(), plan(tp=4, pp=2, dp=2))
    numbers = pd.DataFrame(input_table(run))
    assert (numbers[["grade", "source"]] != "").all(axis=None)
    assert {"trn2", "kernels.trainium", "efa-v3", "training"} <= set(numbers["part"])
    assert set(run.provenance) == {"gemm", "attention", "elementwise", "optimizer", "collectives"}


def test_numbers_are_those_of_the_chip_that_ran() -> None:
    run = iteration(TOY, cluster("trn1.32xlarge"), plan(tp=8, dp=2))
    names = {row["quantity"] for row in input_table(run)}
    assert {"gemm_sustained_trn1", "scheduling_trn1", "attention_io"} <= names
    assert not names & {"gemm_sustained", "gemm_sustained_inf2", "scheduling_trn2"}


SLOW = [parse_fault("engine:0@1us:slow=1/2")]


@pytest.mark.parametrize(
    ("machine", "how", "detail", "message"),
    [
        ("ring:8", {"dp": 8}, {}, "is a plain shape without chips"),
        ("trn2.48xlarge", {"tp": 8}, {}, "= 8 ranks, but the cluster has 16 chips"),
        ("trn2.48xlarge", {"tp": 4, "dp": 4}, {"faults": SLOW, "level": "rank-vector"},
         r"follows no faults\. Use --level collective, or chunk"),
        ("dgx-h100", {"tp": 8, "runtime": "eager"}, {}, "'eager' .* dgx-h100 has h100. Leave"),
        ("dgx-h100", {"tp": 8, "runtime": "xla"}, {}, "runtime 'xla' .* dgx-h100 has h100. Leave"),
        ("dgx-a100:2", {"dp": 16, "precision": "fp8"}, {},
         r"cannot train in fp8 on a100-80gb; it .* bf16\. Use"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(
    machine: str, how: dict[str, Any], detail: dict[str, Any], message: str
) -> None:
    links = {"bandwidth": "1GB/s", "latency": "1us"} if machine.startswith("ring") else {}
    with pytest.raises(InputError, match=message):
        iteration(TOY, cluster(machine, **links), plan(**how), **detail)


def test_what_does_not_fit_runs_when_that_is_allowed() -> None:
    big = named("llama-3.1-70b")
    with pytest.raises(InputError, match="GB a rank"):
        iteration(big, sixteen(), plan(dp=16))
    assert iteration(big, sixteen(), plan(dp=16), allow_oversized=True).memory.total > 2**36
