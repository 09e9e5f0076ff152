"""State, arithmetic and exchanges of optimizers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.toy_training import SPARSE, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.kernels.times import gemm, host_dispatch_s
from workloads.training.iteration import iteration
from workloads.training.layers.replicas import orthogonalized, update
from workloads.training.layers.steps import RankShapes
from workloads.training.memory.memory import memory
from workloads.training.plan.stages import Share, layer_share

CATALOGUE = shipped_catalogue()
OPTIMIZERS = ("adafactor", "sgd", "muon", "adamw")
"""By ascending bytes of state of a model with an embedding."""


def shapes(optimizer: str, chip: str = "trn2", **changes: int) -> RankShapes:
    return RankShapes(TOY, replace(plan(**changes), optimizer=optimizer), chip, CATALOGUE)


def test_states_take_their_bytes_an_element() -> None:
    owned, edges = Share(1000, 0), Share(400, 0)
    moved = {
        name: update(shapes(name, dp=1), owned, edges).size_bytes / 1000 for name in OPTIMIZERS
    }
    assert moved == {"adamw": 30, "sgd": 22, "adafactor": 14, "muon": 25.2}


def test_muon_takes_five_newton_schulz_steps_of_three_products() -> None:
    """The matrices of TOY are as 1024 × 4096; ranks that shard them divide the work."""
    sides = [(1024, 1024, 4096), (1024, 1024, 1024), (1024, 4096, 1024)]
    matrix_s = 5 * sum(gemm("trn2", *side, "bf16", catalogue=CATALOGUE).seconds for side in sides)
    matrices = Share(8 * 1024 * 4096 + 77, 0)
    (step,) = orthogonalized(shapes("muon", zero=0), matrices, Share(77, 0))
    assert step.seconds == pytest.approx(8 * matrix_s)
    (part,) = orthogonalized(shapes("muon", dp=4, zero=1), matrices, Share(77, 0))
    assert part.seconds == pytest.approx(2 * matrix_s, rel=1e-4)
    assert orthogonalized(shapes("adamw"), matrices, Share(77, 0)) == []


def test_the_host_of_a_gpu_issues_each_newton_schulz_step_of_a_matrix() -> None:
    """TOY's layers have six matrices each, whose products are shorter than their launches."""
    layer = layer_share(TOY, plan()).total
    (step,) = orthogonalized(shapes("muon", "h100", zero=0), Share(3 * layer, 0), Share(0, 0))
    per_layer = 7 if TOY.gated_mlp else 6
    dispatch_s = host_dispatch_s("h100", catalogue=CATALOGUE)
    assert step.seconds == pytest.approx(3 * per_layer * 5 * dispatch_s)


def test_tensor_parallel_ranks_exchange_their_parts_before_and_after() -> None:
    steps = orthogonalized(shapes("muon", tp=4, dp=2, zero=1), Share(8000, 0), Share(0, 0))
    assert [step.collective for step in steps] == ["all-to-all", "", "all-to-all"]
    assert {step.size_bytes for step in steps if step.collective} == {2 * 4000}


@pytest.mark.parametrize("machine", ["trn2.48xlarge", "trn1.32xlarge", "dgx-h100"])
def test_more_state_needs_more_memory_and_never_less_time(machine: str) -> None:
    whole = cluster(machine)
    chip, how = whole.chip, plan(dp=whole.chips, zero=1)
    held = [
        memory(SPARSE, replace(how, optimizer=name), 0, CATALOGUE, chip).optimizer
        for name in OPTIMIZERS
    ]
    assert held == sorted(held)
    taken = [
        iteration(SPARSE, whole, replace(how, optimizer=name)).iteration_s
        for name in ("adafactor", "sgd", "adamw", "muon")
    ]
    assert taken == sorted(taken)
