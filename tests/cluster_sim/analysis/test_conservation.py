"""Conservation, whose checks report what an engine must never do, and critical paths."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.analysis.metrics import critical_path
from cluster_sim.engine import simulate
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, Edges, Resources
from cluster_sim.trace.trace import Trace, run
from tests.support.conservation import violations
from tests.support.engine_schedules import PS, fixed, flow_schedule
from tests.support.examples import examples
from tests.support.random_schedules import ended, on_one_link, schedules


def test_an_op_that_overtakes_is_found():
    schedule = fixed([4, 2, 2, 4], [0, 0, 0, 0], Edges.from_pairs(4, [0], [1], lag_ps=1))
    times = simulate(schedule)
    assert times.start_ps.tolist() == [0, 10, 4, 6]
    swapped = replace(times, start_ps=np.array([0, 6, 4, 8]), end_ps=np.array([4, 8, 6, 12]))
    assert violations(Trace(schedule, times)) == []
    late = "1 ops, first op 3: starts after one of its priority that was ready later"
    assert violations(Trace(schedule, swapped)) == [late]


def test_a_flow_faster_than_its_path_is_found():
    schedule = flow_schedule([10, 10], [[0], [0]], [PS])
    times = simulate(schedule)
    assert times.end_ps.tolist() == [20, 20]
    fast = replace(times, end_ps=np.array([20, 9]))
    assert violations(Trace(schedule, times)) == []
    (line,) = violations(Trace(schedule, fast))
    assert line == "1 ops, first op 1: is faster than its cap or its path"
    both = replace(times, end_ps=np.array([10, 10]))
    assert violations(Trace(schedule, both)) == ["hbm:0: carried 20 bytes, more than its capacity"]


def test_the_critical_path_of_a_pipe_of_two():
    """Op 1 follows op 0 by an edge of 3 ps; op 2 waits for op 1 to leave the link."""
    ops = schedule(
        OpColumns(kind=[FIXED] * 3, resource=[1, 0, 0], duration_ps=[5, 4, 7], priority=[0, 0, 1]),
        edges=Edges.from_pairs(3, [0, 0], [1, 2], lag_ps=[3, 3]),
        resources=Resources.table("link", [0, 1], [1, 2]),
    )
    path = critical_path(run(ops))
    assert path.index.tolist() == [0, 1, 2]
    assert path["because"].tolist() == ["begin", "edge", "resource"]
    rows = path[["after", "lag_ps", "on_path_ps"]].to_numpy().tolist()
    assert rows == [[-1, 0, 5], [0, 3, 4], [1, 0, 7]]
    assert path["share"].sum() == pytest.approx(1)


def test_a_start_edge_puts_only_the_way_to_the_start_on_the_path():
    ops = schedule(
        OpColumns(kind=[FIXED] * 2, resource=[0, 1], duration_ps=[5, 5]),
        edges=Edges.from_pairs(2, [0], [1], [2], [True]),
        resources=Resources.table("link", [0, 1], [1, 2]),
    )
    times = ended(np.array([0, 2]), np.array([5, 7]))
    path = critical_path(Trace(ops, times))
    assert path["because"].tolist() == ["begin", "start-edge"]
    assert path[["lag_ps", "on_path_ps"]].to_numpy().tolist() == [[0, 0], [2, 5]]
    late = Trace(on_one_link(1), ended(np.array([9]), np.array([14]), np.array([0])))
    path = critical_path(late)
    assert (path["because"].tolist(), path["lag_ps"].tolist()) == (["revival"], [9])


@given(schedule=schedules(), block=st.sampled_from([1, 3, 2**20]))
@examples(60)
def test_the_critical_path_explains_the_whole_run(schedule, block):
    trace = run(schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster_sim.analysis.metrics.BLOCK_OPS", block)
        path = critical_path(trace)
    assert path.equals(critical_path(trace))
    assert path["lag_ps"].sum() + path["on_path_ps"].sum() == trace.total_ps
    assert (path["lag_ps"] >= 0).all()
    if len(path):
        assert path["end_ps"].iloc[-1] == trace.total_ps
        assert path["because"].iloc[0] == "begin"
        assert path["after"].tolist() == [-1, *path.index.tolist()[:-1]]
