"""Fields of a plan that change nothing are named, and those that change the step are not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from workloads.models.model import Model
from workloads.training.iteration import iteration
from workloads.training.plan.without_effect import without_effect

EACH: list[tuple[Model, dict[str, Any], dict[str, Any], str]] = [
    (TOY, {"dp": 8, "tp": 2}, {"etp": 1}, "the model has no experts"),
    (TOY, {"dp": 16}, {"routing_skew": 1.5}, "the model has no experts"),
    (TOY, {"dp": 16}, {"cp_exchange": "all-gather"}, "cp is 1"),
    (TOY, {"dp": 16}, {"recompute_every": 2}, "recompute is selective"),
    (TOY, {"dp": 16, "zero": 1}, {"reshard": False}, "zero is 1"),
    (TOY, {"dp": 16}, {"schedule": "gpipe"}, "pp is 1"),
    (TOY, {"dp": 16}, {"stage_layers": (8,)}, "pp is 1"),
]
WITH_EFFECT: list[tuple[Model, dict[str, Any], dict[str, Any]]] = [
    (SPARSE, {"dp": 8, "tp": 2, "ep": 4}, {"etp": 1}),
    (SPARSE, {"dp": 16, "ep": 4}, {"routing_skew": 1.5}),
    (TOY, {"dp": 8, "cp": 2}, {"cp_exchange": "all-gather"}),
    (TOY, {"dp": 16, "recompute": "full"}, {"recompute_every": 2}),
    (TOY, {"dp": 16, "zero": 3}, {"reshard": False}),
    (TOY, {"dp": 8, "pp": 2}, {"schedule": "zero-bubble"}),
    (TOY, {"dp": 8, "pp": 2}, {"stage_layers": (5, 3)}),
]


def step_s(model: Model, fields: dict[str, Any]) -> float:
    """Time of a step on sixteen chips [s]."""
    return iteration(model, sixteen(), plan(**fields)).iteration_s


@pytest.mark.parametrize(("model", "fields", "idle", "reason"), EACH)
def test_a_field_that_changes_nothing_is_named_with_the_reason(
    model: Model, fields: dict[str, Any], idle: dict[str, Any], reason: str
) -> None:
    stated = plan(**fields, **idle)
    assert without_effect(stated, model) == dict.fromkeys(idle, reason)
    assert without_effect(plan(**fields), model) == {}
    assert step_s(model, fields | idle) == step_s(model, fields)


@pytest.mark.parametrize(("model", "fields", "change"), WITH_EFFECT)
def test_a_field_that_changes_the_step_is_not_named(
    model: Model, fields: dict[str, Any], change: dict[str, Any]
) -> None:
    assert without_effect(plan(**fields, **change), model) == {}
    assert step_s(model, fields | change) != step_s(model, fields)
