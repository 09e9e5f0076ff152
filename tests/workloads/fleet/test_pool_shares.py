"""Sums over the services of pools: the short way for lone services equals the general one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from workloads.fleet.simulation import _shares
from workloads.fleet.state.services import Pool, by_pool


@pytest.mark.parametrize("services", [[(0,), (1,), (2,)], [(1,), (0,), (2,)], [(0, 2), (1,)]])
@pytest.mark.parametrize("shape", [(3,), (3, 5)])
def test_rows_of_services_are_summed_by_pool(
    services: list[tuple[int, ...]], shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).random(shape)
    pools = [Pool(str(members), members, 1.0) for members in services]
    result = by_pool(values, pools)
    assert result.tolist() == [values[list(members)].sum(axis=0).tolist() for members in services]
    assert not np.shares_memory(result, values)


@pytest.mark.parametrize(
    ("waiting", "shares"), [([0, 0], [0.5, 0.5]), ([3, 0], [1.0, 0.0]), ([2, 6], [0.5, 0.5])]
)
def test_a_pool_divides_its_time_by_the_work_of_its_services(
    waiting: list[int], shares: list[float]
) -> None:
    queues = [SimpleNamespace(waiting=count, arrivals=np.zeros(1, np.int64)) for count in waiting]
    world: Any = SimpleNamespace(queues=queues)
    pool = Pool("both", (0, 1), 1.0)
    assert _shares(world, pool, np.array([1.0, 3.0]), 0) == shares
