"""Shares of a model's parameters and layers that ranks and stages hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import LATENT, SPARSE, TOY, plan
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import (
    chunk_layers,
    edge_share,
    layer_counts,
    layer_share,
    stage_layers,
    stage_share,
)

SHARES: list[tuple[Model, dict[str, Any]]] = [
    (TOY, {"tp": 4, "pp": 2}),
    (TOY, {"tp": 2, "pp": 4, "vpp": 2}),
    (TOY, {"tp": 2, "pp": 3}),
    (SPARSE, {"tp": 2, "pp": 2, "dp": 4, "ep": 8, "etp": 1}),
    (SPARSE, {"tp": 4, "dp": 2, "ep": 2}),
    (LATENT, {"tp": 4, "pp": 2, "dp": 4, "ep": 4}),
]


@pytest.mark.parametrize(("model", "changes"), SHARES)
def test_shares_of_all_ranks_are_the_model(model: Model, changes: dict[str, Any]) -> None:
    """Each tensor-parallel rank holds the undivided parameters; experts are on one."""
    how = plan(**changes)
    shares = [stage_share(model, how, stage) for stage in range(how.pp)]
    experts = sum(share.experts for share in shares) * how.ep * how.expert_tp
    alone = [stage_share(model, plan(), 0)]
    assert experts == alone[0].experts
    whole = model.norm_parameters + sum(
        layers * _undivided(model, moe=moe)
        for moe, layers in ((False, model.layers - model.moe_layers), (True, model.moe_layers))
    )
    dense = sum(share.dense for share in shares) * how.tp
    assert dense == alone[0].dense + (how.tp - 1) * whole
    assert alone[0].total == model.parameters


def _undivided(model: Model, *, moe: bool) -> int:
    """Parameters of a layer that all ranks of a group have: twice what two ranks have too many."""
    one, two = (layer_share(model, plan(tp=tp), moe=moe).dense for tp in (1, 2))
    return 2 * two - one


def test_layers_are_spread_evenly_and_the_ends_have_fewer() -> None:
    assert layer_counts(126, 64) == (1, *[2] * 62, 1)
    assert layer_counts(32, 8) == (4,) * 8
    assert sum(layer_counts(61, 16)) == 61
    how = ParallelPlan(pp=2, vpp=2, seq=1024)
    held = [chunk_layers(TOY, how, stage) for stage in (0, 1)]
    assert [layers.tolist() for layers in held[1]] == [[2, 3], [6, 7]]
    assert np.sort(np.concatenate([*held[0], *held[1]])).tolist() == [*range(8)]
    stated = replace(how, stage_layers=(1, 3, 3, 1))
    assert [layers.tolist() for layers in chunk_layers(TOY, stated, 0)] == [[0], [4, 5, 6]]
    assert stage_layers(TOY, stated) == 4


def test_edges_are_on_the_first_and_the_last_stage() -> None:
    how = plan(pp=4)
    assert [edge_share(TOY, how, stage) > 0 for stage in range(4)] == [True, False, False, True]
