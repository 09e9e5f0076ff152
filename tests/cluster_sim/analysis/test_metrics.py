"""Metrics of a trace, the algebra of intervals below them, conservation, and critical paths."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.analysis import stretches as intervals
from cluster_sim.analysis.metrics import (
    critical_path,
    overlap,
    resource_use,
    summary,
    time_by_category,
    waits,
)
from cluster_sim.analysis.stretches import (
    Intervals,
    end_of_run_ps,
    gaps,
    shares_ps,
    stable_order,
    stretches,
)
from cluster_sim.engine import DONE, RUNNING, Attempts, Times, simulate
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, Codes, Edges, Flows, Resources
from cluster_sim.trace.trace import Trace, run
from tests.support.conservation import violations
from tests.support.engine_schedules import PS, fixed, flow_schedule
from tests.support.examples import examples
from tests.support.random_schedules import WHATS, ended, on_one_link, schedules, spans
from tests.support.refusals import refused


def test_resources_show_busy_time_utilisation_and_bytes():
    ops = schedule(
        OpColumns([FIXED] * 3, resource=[0, 1, 1], duration_ps=[4, 10, 10], size_bytes=[100, 7, 8]),
        edges=Edges.from_pairs(3, [], []),
        resources=Resources.table("link", [0, 1, 2], [1, 2, 0], slots=[1, 2, 1]),
    )  # fmt: skip
    table = resource_use(run(ops))
    assert table["busy_ps"].tolist() == [4, 20, 0]
    assert table["utilisation"].tolist() == [0.4, 1.0, 0.0]
    assert table["bytes"].tolist() == [100, 15, 0]
    assert table["mean_bytes_per_s"].tolist() == [1e13, 1.5e12, 0.0]
    assert table.index.tolist() == ["link:0-1", "link:1-2", "link:2-0"]
    assert ops.crossed.tolist() == ops.resource.tolist()


def test_a_shared_resource_is_used_by_the_work_that_crosses_it():
    ops = schedule(
        OpColumns(kind=[FLOW], size_bytes=50),
        edges=Edges.from_pairs(1, [], []),
        resources=Resources.table("hbm", [0], slots=0, capacity=10**12),
        flows=Flows(*(np.array(c, np.int64) for c in ([0], [10**12], [0, 1], [0], [2]))),
    )
    trace = Trace(ops, ended(np.array([0]), np.array([200])))
    assert trace.schedule.crossed.tolist() == [0]
    table = resource_use(trace)
    assert table["bytes"].tolist() == [100]
    assert table["utilisation"].tolist() == [pytest.approx(0.5)]


@given(schedule=schedules())
def test_busy_time_is_the_sum_of_durations(schedule):
    assert resource_use(run(schedule))["busy_ps"].sum() == schedule.duration_ps.sum()
    assert end_of_run_ps(run(on_one_link(0))) == 0


def test_lost_attempts_and_running_ops_count_as_busy():
    schedule = on_one_link(2)
    times = Times(
        *(np.array(c, np.int64) for c in ([0, 14], [9, 14], [14, -1])),
        status=np.array([DONE, RUNNING], np.uint8),
        attempts=Attempts(np.array([0]), np.array([0]), np.array([3])),
        dead=np.empty(0, np.int32),
        stopped_ps=16,
    )
    trace = Trace(schedule, times)
    assert stretches(trace).op.tolist() == [0, 1, 0]
    assert resource_use(trace)["busy_ps"].tolist() == [3 + 5 + 2]
    what = Codes(np.zeros(len(trace), np.int8), ("a",))
    named = Trace(replace(schedule, labels={**schedule.labels, "what": what}), times)
    assert time_by_category(named, ["a"])["total_ps"].tolist() == [16, 16]


@given(schedule=schedules())
@examples(30)
def test_every_table_is_labelled_and_finite(schedule):
    trace = run(schedule)
    for table in (resource_use(trace), time_by_category(trace, WHATS), overlap(trace, WHATS)):
        assert all(table.index.names)
        assert np.isfinite(table.select_dtypes("number").to_numpy(np.float64)).all()
    assert summary(trace).columns.tolist() == ["metric", "value", "unit"]
    assert summary(trace).set_index("metric")["value"]["ops"] == len(schedule)


def test_time_by_category_takes_the_first_of_the_list():
    trace = spans([0, 0, 1], ["tp", "compute", "dp"], [0, 4, 2], [6, 9, 10])
    table = time_by_category(trace, ["compute", "tp"])
    assert table.columns.tolist() == ["compute_ps", "tp_ps", "idle_ps", "total_ps"]
    assert table.loc[[0, 1]].to_numpy().tolist() == [[5, 4, 1, 10], [0, 0, 10, 10]]
    twice = time_by_category(spans([0], ["tp"], [0], [4]), {"x": ["tp"], "y": ["tp"]})
    assert twice.loc[0, ["x_ps", "y_ps"]].tolist() == [4, 0]


@pytest.mark.parametrize("ranks", [(-2, 0), (0, 10**11)])
def test_ranks_below_zero_or_far_apart_are_groups(ranks):
    trace = spans([*ranks, ranks[0]], ["tp", "compute", "dp"], [0, 4, 2], [6, 9, 10])
    table = time_by_category(trace, ["tp", "compute", "dp"])
    assert table.index.tolist() == list(ranks)
    assert table["idle_ps"].tolist() == [0, 5]


def test_categories_may_gather_several_names():
    trace = spans([0, 0], ["tp", "dp"], [0, 2], [3, 5])
    table = time_by_category(trace, {"compute": ["compute"], "comm": ["tp", "dp"]}, rest="waiting")
    assert table.loc[0].to_dict() == {"compute_ps": 0, "comm_ps": 5, "waiting_ps": 0, "total_ps": 5}


@given(schedule=schedules(), order=st.permutations(WHATS))
def test_parts_sum_to_the_run_exactly_and_overlap_adds_up(schedule, order):
    trace = run(schedule)
    table = time_by_category(trace, order)
    parts = table.drop(columns="total_ps")
    assert (parts.sum(axis=1) == trace.total_ps).all()
    assert (parts >= 0).all(axis=None)
    hidden = overlap(trace, order)
    assert (hidden["exposed_ps"] + hidden["overlapped_ps"] == hidden["active_ps"]).all()
    assert (hidden["overlapped_ps"] >= 0).all()
    assert hidden["exposed_ps"].sum() == parts.drop(columns="idle_ps").sum(axis=None)
    by_rank = waits(trace).groupby("rank")["wait_ps"].sum()  # what no category takes
    assert by_rank.reindex(table.index, fill_value=0).tolist() == table["idle_ps"].tolist()


def test_waits_name_the_op_that_ended_them():
    trace = spans([0, 0, 1], ["tp", "compute", "dp"], [2, 9, 0], [5, 12, 12])
    assert waits(trace).to_dict("list") == {
        "rank": [0, 0], "op": [0, 1], "start_ps": [0, 5], "end_ps": [2, 9], "wait_ps": [2, 4],
    }  # fmt: skip
    until_the_end = waits(spans([0, 1], ["tp", "tp"], [0, 0], [3, 8]))
    assert until_the_end[["op", "wait_ps"]].to_numpy().tolist() == [[-1, 5]]


def test_labels_that_are_missing_or_numbers_are_refused():
    trace = spans([0], ["tp"], [0], [1])
    refused(r"no label ranc\. Did you mean rank\? The schedule has: rank, what\.",
            time_by_category, trace, ["tp"], by="ranc")  # fmt: skip
    refused("label rank holds numbers", time_by_category, trace, ["tp"], what="rank")


rows = st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 8), st.integers(0, 2))


def _on_at(table: list[tuple[int, int, int, int]], group: int, instant: int) -> list[int]:
    """Categories on in a group at an instant, by the definition."""
    return [c for g, start, length, c in table if g == group and start <= instant < start + length]


def _columns(table: list[tuple[int, int, int, int]]) -> tuple[Intervals, np.ndarray]:
    group, start, length, category = np.array(table, np.int64).reshape(-1, 4).T
    return Intervals(group, start, start + length, 4), category


@given(table=st.lists(rows, max_size=25), total=st.integers(0, 30))
def test_every_instant_goes_to_the_first_category_that_is_on(table, total):
    expected = np.zeros((4, 4), np.int64)
    for group in range(4):
        for instant in range(total):
            expected[group, min(_on_at(table, group, instant), default=3)] += 1
    columns, category = _columns(table)
    assert np.array_equal(shares_ps(columns, category, 3, total)[0], expected)


def union_ps(intervals: Intervals) -> np.ndarray:
    """Time in which at least one interval of a group is active [ps], (groups,)."""
    return shares_ps(intervals, np.zeros(len(intervals), np.int8), 1)[0][:, 0]


@given(table=st.lists(rows, max_size=25))
def test_gaps_and_intervals_make_up_the_whole(table):
    columns, _ = _columns(table)
    rest, _ = gaps(columns, 40)
    assert np.array_equal(union_ps(columns) + union_ps(rest), np.full(4, 40))


def test_intervals_of_zero_length_and_no_intervals_count_for_nothing():
    none = Intervals(*(np.empty(0, np.int64) for _ in range(3)), 2)
    assert shares_ps(none, np.empty(0, np.int64), 1, 9)[0].tolist() == [[0, 9], [0, 9]]
    assert len(gaps(none, 9)[0]) == 2
    empty = Intervals(np.array([1]), np.array([3]), np.array([3]), 2)
    assert union_ps(empty).tolist() == [0, 0]


@pytest.mark.parametrize("rows_a_block", [7, 2**20])
def test_many_blocks_and_long_horizons_stay_exact(rows_a_block, monkeypatch):
    monkeypatch.setattr(intervals, "BLOCK_ROWS", rows_a_block)
    rng = np.random.default_rng(1)
    group, category = rng.integers(0, 50, 400), rng.integers(0, 3, 400)
    start = rng.integers(0, 2**61, 400)
    many = Intervals(group, start, start + rng.integers(0, 2**60, 400), 50)
    parts = shares_ps(many, category, 3, 2**62 - 1)[0]
    assert np.all(parts >= 0)
    assert np.all(parts.sum(1) == 2**62 - 1)
    for k in (0, 17, 49):
        alone = many.group == k
        one = Intervals(np.zeros(alone.sum(), int), start[alone], many.end_ps[alone], 1)
        assert shares_ps(one, category[alone], 3, 2**62 - 1)[0][0].tolist() == parts[k].tolist()


@pytest.mark.parametrize(("most", "width"), [(100, "i1"), (30_000, "i2"), (200_000, "i4")])
def test_a_stable_order_by_code_of_any_width(most, width):
    codes = np.random.default_rng(0).integers(0, most, 5_000).astype(width)
    assert np.array_equal(stable_order(codes), np.argsort(codes, kind="stable"))


@given(table=st.lists(rows, max_size=25), block=st.sampled_from([1, 4, 2**20]))
def test_a_gap_knows_the_first_row_that_ends_it(table, block):
    columns, _ = _columns(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK_ROWS", block)
        free, row = gaps(columns, 40)
    for group, end, first in zip(free.group, free.end_ps, row, strict=True):
        starting = (k for k, row in enumerate(table) if row[:2] == (group, end) and row[2])
        assert first == min(starting, default=-1)


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
