"""The nearest plan that works does work, and no nearer one is passed over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.toy_training import TOY, sixteen
from topologies.errors import InputError
from workloads.models.huggingface import named
from workloads.search.nearest import nearest_plan
from workloads.training.iteration import iteration
from workloads.training.usual_plan import complete

BAD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tp": 3}, {"tp": 4}),
    ({"tp": 32}, {"tp": 16}),
    ({"pp": 16}, {"pp": 8}),
    ({"tp": 4, "pp": 3}, {"pp": 4}),
    ({"tp": 4, "dp": 3}, {"dp": 4}),
    ({"tp": 4, "global_batch": 33}, {"global_batch": 32}),
    ({"tp": 4, "vpp": 2}, {"pp": 2}),
    ({"cp": 3}, {"cp": 4}),
    ({"ep": 2}, {"ep": 1}),
    ({"microbatch": 8, "global_batch": 16, "dp": 16}, {"microbatch": 1}),
]


@pytest.mark.parametrize(("stated", "changes"), BAD)
def test_the_nearest_plan_is_near_and_runs(stated: dict[str, Any], changes: Any) -> None:
    fields = {"seq": 1024, **stated}
    with pytest.raises(InputError):
        iteration(TOY, sixteen(), complete(fields, TOY, sixteen()))
    assert nearest_plan(fields, TOY, sixteen()) == changes
    plan = complete({**fields, **changes}, TOY, sixteen())
    assert iteration(TOY, sixteen(), plan).iteration_s > 0


def test_the_nearest_plan_of_an_oversized_one_fits() -> None:
    model, fields = named("llama-3.1-70b"), {"tp": 2, "seq": 2048, "global_batch": 16}
    changes = nearest_plan(fields, model, sixteen())
    assert changes is not None
    plan = complete({**fields, **changes}, model, sixteen())
    assert iteration(model, sixteen(), plan).memory.total > 0


def test_a_plan_that_works_needs_no_changes_and_a_hopeless_one_gets_none() -> None:
    assert nearest_plan({"tp": 4, "seq": 1024}, TOY, sixteen()) == {}
    assert nearest_plan({"tp": 4}, named("llama-3.1-405b"), sixteen()) is None
    assert nearest_plan({"zero": 4}, TOY, sixteen()) is None
