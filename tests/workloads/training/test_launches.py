"""Launches of kernels and the runtimes that issue them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.toy_training import TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.model import Model
from workloads.training.execution.jitter import Disturbance
from workloads.training.frameworks.framework import framework_of
from workloads.training.iteration import Iteration, iteration
from workloads.training.layers.layer import (
    backward,
    embedding,
    embedding_backward,
    forward,
    output,
    output_backward,
)
from workloads.training.layers.steps import RankShapes
from workloads.training.plan.plan import ParallelPlan
from workloads.training.usual_plan import complete

BLOCKING = {"training.issued_ahead": "blocking"}
WIDE = replace(TOY, hidden=8192, ffn=32768, heads=64, kv_heads=64, head_dim=128, layers=2)
"""Model whose kernels take longer than the host needs to issue them."""


def _step(machine: str, how: ParallelPlan, *, blocked: bool, **options: object) -> Iteration:
    numbers = shipped_catalogue().with_variants(BLOCKING if blocked else {})
    return iteration(WIDE, cluster(machine, catalogue=numbers), how, **options)


def test_the_time_of_all_launches_is_added_to_that_of_the_kernels() -> None:
    how = plan(tp=8, recompute="full", seq=4096)
    usual, blocked = (_step("dgx-h100", how, blocked=blocks) for blocks in (False, True))
    shapes = RankShapes(WIDE, how, "h100", shipped_catalogue())
    layers = [*forward(shapes), *backward(shapes)] * WIDE.layers
    ends = [
        *embedding(shapes),
        *output(shapes),
        *output_backward(shapes),
        *embedding_backward(shapes),
    ]
    launched_s = shipped_catalogue().value("kernels.h100", "host_dispatch") * how.microbatches
    added_s = launched_s * sum(step.issued for step in [*layers, *ends])
    assert blocked.iteration_s - usual.iteration_s == pytest.approx(added_s, rel=1e-6)
    assert usual.breakdown_s["host"] == 0
    assert blocked.breakdown_s["host"] == pytest.approx(added_s, rel=1e-6)


@pytest.mark.parametrize("degrees", [{"tp": 4, "pp": 2}, {"tp": 2, "pp": 2, "dp": 2}])
@pytest.mark.parametrize("how", [None, Disturbance(0.05, seed=3)])
def test_the_rank_vector_blocks_as_the_engine_does(
    degrees: dict[str, int], how: Disturbance | None
) -> None:
    divided = plan(**degrees, recompute="full")
    options = {"disturbed": how} if how else {}
    engine, vector = (
        _step("dgx-h100", divided, blocked=True, level=level, **options)
        for level in ("collective", "rank-vector")
    )
    assert vector.iteration_s == engine.iteration_s
    assert vector.breakdown_s == pytest.approx(engine.breakdown_s, abs=1e-15)


def test_compiled_programs_have_no_launches_that_block() -> None:
    for machine in ("trn2.48xlarge", "tpu-v6e-pod"):
        how = plan(dp=cluster(machine).chips)
        assert (
            _step(machine, how, blocked=True).iteration_s
            == _step(machine, how, blocked=False).iteration_s
        )


@pytest.mark.parametrize(("recompute", "passes"), [("none", 2), ("full", 3)])
def test_a_neuron_chip_waits_for_the_starts_of_pytorchs_own_backend(
    recompute: str, passes: int
) -> None:
    """1.9 ms for a layer of each pass, and 7.1 ms for its update, beside equal kernels."""
    how = plan(dp=4, global_batch=8, ranks_per_chip=4, recompute=recompute, overlap="none")
    whole, by_layer = (
        iteration(TOY, cluster("trn2.3xlarge"), replace(how, framework=name))
        for name in ("neuronx", "torchneuron")
    )
    waited_s = TOY.layers * (how.microbatches * passes * 1.9e-3 + 7.1e-3)
    assert whole.breakdown_s["host"] == 0
    assert by_layer.breakdown_s["host"] == pytest.approx(waited_s, rel=1e-9)
    assert by_layer.iteration_s == pytest.approx(whole.iteration_s + waited_s, rel=1e-9)


def test_one_trainium_chip_is_pytorchs_own_unless_its_runtime_is_stated() -> None:
    one, server = cluster("trn2.3xlarge"), cluster("trn2.48xlarge")
    predicted_as = [
        framework_of(complete(stated, TOY, machine), machine).name
        for machine, stated in [
            (one, {}),
            (server, {}),
            (one, {"runtime": "compiled"}),
            (one, {"runtime": "xla"}),
        ]
    ]
    assert predicted_as == ["torchneuron", "neuronx", "neuronx", "torch-neuronx"]
    assert not complete({}, TOY, one).names_framework


SHAPES = {"hidden": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64, "ffn": 4096, "vocab": 32_000}


def test_the_runtime_is_obeyed_by_adapters() -> None:
    """A compiled step has no host in it; an eager and a traced one name its time."""
    plan = ParallelPlan(tp=4, ranks_per_chip=4, global_batch=8, seq=2048, lora_rank=16)
    model = Model("eight", layers=32, **SHAPES)
    steps = {
        runtime: iteration(model, cluster("trn2.3xlarge"), replace(plan, runtime=runtime))
        for runtime in ("compiled", "eager", "xla")
    }
    assert steps["compiled"].breakdown_s["host"] == 0
    assert 0 < steps["eager"].breakdown_s["host"] < steps["xla"].breakdown_s["host"]
    assert steps["xla"].iteration_s == pytest.approx(8 * 32 * 2 * (3.75e-3 + 2.1e-3), rel=0.1)
