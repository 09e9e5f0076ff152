"""Two schedules are equal if all that they hold is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.schedule.table import Codes, Edges, Resources
from tests.support.equal_schedules import equal
from tests.support.random_schedules import on_one_link


@pytest.mark.parametrize(
    "changed",
    [
        {"duration_ps": np.array([5, 6])},
        {"priority": np.array([0, 1], np.int32)},
        {"edges": Edges.from_pairs(2, [0], [1], [9])},
        {"resources": Resources.table("link", [0], [2])},
        {"resources": Resources.table("nic", [0], [1])},
        {"labels": {}},
        {"labels": {"rank": np.array([0, 0])}},
        {"labels": {"rank": Codes(np.array([0, 1]), ("a", "b"))}},
        {"facts": {"x": 1}},
    ],
    ids=lambda changed: f"{next(iter(changed))}",
)
def test_any_difference_is_seen(changed: dict) -> None:
    schedule = on_one_link(2)
    assert equal(schedule, on_one_link(2))
    assert not equal(schedule, replace(schedule, **changed))
    assert not equal(replace(schedule, **changed), schedule)
