"""Plans one change away: which are named as faster, and which are no neighbours at all."""

from __future__ import annotations

from typing import Any

import pytest

import cluster_sim as cs
from experiments.reports.remarks import remarks
from workloads.search.nearest import faster_neighbours
from workloads.training.usual_plan import complete

MODEL, PLACE = cs.model("llama-3.1-8b"), cs.cluster("dgx-h100:2")
STATED = {"tp": 2, "pp": 1, "global_batch": 64, "seq": 4096, "recompute": "selective"}


def changes_of(stated: dict[str, Any]) -> list[dict[str, Any]]:
    plan = complete(stated, MODEL, PLACE)
    return [each.changes for each in faster_neighbours(MODEL, plan, PLACE)]


def test_recomputation_that_memory_does_not_ask_for_is_named() -> None:
    none = {"recompute": "none", "recompute_every": 1}
    assert none not in changes_of(STATED)
    assert changes_of({**STATED, "recompute": "full"})[0] == none


def test_degrees_larger_than_the_model_asks_for_are_named() -> None:
    wide = changes_of({**STATED, "tp": 8})
    assert {"tp": 4, "dp": 4} in wide


def test_a_neighbour_is_faster_when_it_is_simulated() -> None:
    plan = complete({**STATED, "tp": 8, "recompute": "full"}, MODEL, PLACE)
    (best, *_), step = faster_neighbours(MODEL, plan, PLACE), cs.train(MODEL, PLACE, plan)
    other = complete({**STATED, "tp": 8, "recompute": "full", **best.changes}, MODEL, PLACE)
    ratio = cs.train(MODEL, PLACE, other).time_s / step.time_s
    assert ratio == pytest.approx(best.ratio, rel=0.03)
    (sentence,) = (text for text in remarks(step) if "By its estimate" in text)
    assert f"a step takes {1 - best.ratio:.0%} less with " in sentence


def test_without_memory_or_a_whole_machine_there_is_none() -> None:
    large = cs.model("llama-3.1-70b")
    plan = complete({"tp": 8, "pp": 2, "global_batch": 64, "recompute": "full"}, large, PLACE)
    kept = [each.changes for each in faster_neighbours(large, plan, PLACE)]
    assert {"recompute": "none", "recompute_every": 1} not in kept
    assert {"tp": 4, "dp": 2} not in kept
    part = complete({**STATED, "dp": 2}, MODEL, PLACE, chips=4)
    assert faster_neighbours(MODEL, part, PLACE) == []
