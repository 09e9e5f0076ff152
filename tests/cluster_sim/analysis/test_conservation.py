"""Checks of conservation report what an engine must never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cluster_sim.engine import simulate
from cluster_sim.schedule.table import Edges
from cluster_sim.trace.trace import Trace
from tests.support.conservation import violations
from tests.support.engine_schedules import PS, fixed, flow_schedule


def test_an_op_that_overtakes_is_found() -> None:
    schedule = fixed([4, 2, 2, 4], [0, 0, 0, 0], Edges.from_pairs(4, [0], [1], lag_ps=1))
    times = simulate(schedule)
    assert times.start_ps.tolist() == [0, 10, 4, 6]
    swapped = replace(times, start_ps=np.array([0, 6, 4, 8]), end_ps=np.array([4, 8, 6, 12]))
    assert violations(Trace(schedule, times)) == []
    assert violations(Trace(schedule, swapped)) == [
        "1 ops, first op 3: starts after one of its priority that was ready later"
    ]


def test_a_flow_faster_than_its_path_is_found() -> None:
    schedule = flow_schedule([10, 10], [[0], [0]], [PS])
    times = simulate(schedule)
    assert times.end_ps.tolist() == [20, 20]
    fast = replace(times, end_ps=np.array([20, 9]))
    assert violations(Trace(schedule, times)) == []
    assert violations(Trace(schedule, fast)) == [
        "1 ops, first op 1: is faster than its cap or its path"
    ]


def test_a_resource_that_carried_too_much_is_found() -> None:
    schedule = flow_schedule([10, 10], [[0], [0]], [PS])
    both = replace(simulate(schedule), end_ps=np.array([10, 10]))
    assert violations(Trace(schedule, both)) == ["hbm:0: carried 20 bytes, more than its capacity"]
