"""Metrics of a trace: algebra of intervals, time by category, and the critical path."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_sim.analysis import intervals
from cluster_sim.analysis.categories import overlap, time_by_category, waits
from cluster_sim.analysis.critical_path import critical_path
from cluster_sim.analysis.intervals import (
    Intervals,
    attribute_ps,
    gaps,
    merged,
    stable_order,
    union_ps,
)
from cluster_sim.analysis.metrics import (
    kind_use,
    label_use,
    node_bytes,
    resource_use,
    summary,
)
from cluster_sim.analysis.stretches import stretches
from cluster_sim.engine.times import DONE, RUNNING, Attempts, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import Trace, run
from tests.support.random_schedules import WHATS, ended, on_one_link, schedules, spans
from topologies.errors import InputError

rows = st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 8), st.integers(0, 2))


def _on_at(table: list[tuple[int, int, int, int]], group: int, instant: int) -> list[int]:
    """Categories on in a group at an instant, by the definition."""
    return [c for g, start, length, c in table if g == group and start <= instant < start + length]


def _columns(table: list[tuple[int, int, int, int]]) -> tuple[Intervals, np.ndarray]:
    group, start, length, category = np.array(table, np.int64).reshape(-1, 4).T
    return Intervals(group, start, start + length, 4), category


@given(table=st.lists(rows, max_size=25), total=st.integers(0, 30))
def test_every_instant_goes_to_the_first_category_that_is_on(
    table: list[tuple[int, int, int, int]], total: int
) -> None:
    expected = np.zeros((4, 4), np.int64)
    for group in range(4):
        for instant in range(total):
            expected[group, min(_on_at(table, group, instant), default=3)] += 1
    columns, category = _columns(table)
    assert np.array_equal(attribute_ps(columns, category, 3, total), expected)


@given(table=st.lists(rows, max_size=25))
def test_merged_intervals_cover_the_same_and_do_not_touch(
    table: list[tuple[int, int, int, int]],
) -> None:
    columns, _ = _columns(table)
    joined = merged(columns)
    assert np.array_equal(union_ps(joined), union_ps(columns))
    same = joined.group[1:] == joined.group[:-1]
    assert np.all(joined.start_ps[1:][same] > joined.end_ps[:-1][same])
    length = joined.end_ps - joined.start_ps
    counted = np.bincount(joined.group, length, minlength=4)
    assert np.array_equal(counted, union_ps(columns))


@given(table=st.lists(rows, max_size=25))
def test_gaps_and_intervals_make_up_the_whole(table: list[tuple[int, int, int, int]]) -> None:
    columns, _ = _columns(table)
    rest, _ = gaps(columns, 40)
    assert np.array_equal(union_ps(columns) + union_ps(rest), np.full(4, 40))


def test_intervals_of_zero_length_and_no_intervals_count_for_nothing() -> None:
    none = Intervals(*(np.empty(0, np.int64) for _ in range(3)), 2)
    assert attribute_ps(none, np.empty(0, np.int64), 1, 9).tolist() == [[0, 9], [0, 9]]
    assert (len(merged(none)), len(gaps(none, 9)[0])) == (0, 2)
    empty = Intervals(np.array([1]), np.array([3]), np.array([3]), 2)
    assert union_ps(empty).tolist() == [0, 0]


def test_many_blocks_and_long_horizons_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "BLOCK_ROWS", 7)
    rng = np.random.default_rng(1)
    group, category = rng.integers(0, 50, 400), rng.integers(0, 3, 400)
    start = rng.integers(0, 2**61, 400)
    many = Intervals(group, start, start + rng.integers(0, 2**60, 400), 50)
    parts = attribute_ps(many, category, 3, 2**62 - 1)
    assert np.all(parts >= 0)
    assert np.all(parts.sum(1) == 2**62 - 1)
    for k in (0, 17, 49):
        alone = many.group == k
        one = Intervals(np.zeros(alone.sum(), int), start[alone], many.end_ps[alone], 1)
        assert attribute_ps(one, category[alone], 3, 2**62 - 1)[0].tolist() == parts[k].tolist()


def test_a_stable_order_by_code_beyond_16_bits() -> None:
    codes = np.random.default_rng(0).integers(0, 200_000, 5_000)
    assert np.array_equal(stable_order(codes), np.argsort(codes, kind="stable"))


def test_resources_show_busy_time_utilisation_and_bytes() -> None:
    ops = schedule(
        OpColumns(
            kind=[FIXED, FIXED, FIXED],
            resource=[0, 1, 1],
            duration_ps=[4, 10, 10],
            size_bytes=[100, 7, 8],
        ),
        edges=Edges.from_pairs(3, [], []),
        resources=Resources.table("link", [0, 1, 2], [1, 2, 0], slots=[1, 2, 1]),
    )
    table = resource_use(run(ops))
    assert table["busy_ps"].tolist() == [4, 20, 0]
    assert table["utilisation"].tolist() == [0.4, 1.0, 0.0]
    assert table["bytes"].tolist() == [100, 15, 0]
    assert table["mean_bytes_per_s"].tolist() == [1e13, 1.5e12, 0.0]
    assert table.index.tolist() == ["link:0-1", "link:1-2", "link:2-0"]
    kinds = kind_use(run(ops))
    assert kinds.loc["link", "busiest"] == "link:1-2"
    assert kinds.loc["link", "mean_utilisation"] == pytest.approx(1.4 / 3)


def test_a_shared_resource_is_used_by_the_work_that_crosses_it() -> None:
    ops = schedule(
        OpColumns(kind=[FLOW], size_bytes=50),
        edges=Edges.from_pairs(1, [], []),
        resources=Resources.table("hbm", [0], slots=0, capacity=10**12),
        flows=Flows(*(np.array(c, np.int64) for c in ([0], [10**12], [0, 1], [0], [2]))),
    )
    table = resource_use(Trace(ops, ended(np.array([0]), np.array([200]))))
    assert table["bytes"].tolist() == [100]
    assert table["utilisation"].tolist() == [pytest.approx(0.5)]


def test_slots_without_capacity_and_resources_without_either_are_fine() -> None:
    table = Resources.table("x", [0, 1, 2], slots=[1, 0, 0], capacity=[0, 5, 0])
    ops = schedule(
        OpColumns(kind=[FIXED], resource=0, duration_ps=2**50, size_bytes=2**50),
        resources=table,
        edges=Edges.from_pairs(1, [], []),
    )
    assert resource_use(run(ops))["utilisation"].tolist() == [1.0, 0.0, 0.0]


@given(schedule=schedules())
def test_busy_time_is_the_sum_of_durations(schedule: Schedule) -> None:
    trace = run(schedule)
    assert resource_use(trace)["busy_ps"].sum() == schedule.duration_ps.sum()
    assert label_use(trace, "what")["busy_ps"].sum() == schedule.duration_ps.sum()
    assert label_use(trace, "rank")["bytes"].sum() == schedule.size_bytes.sum()


@given(schedule=schedules())
def test_as_many_bytes_reach_nodes_as_leave_them(schedule: Schedule) -> None:
    table = node_bytes(run(schedule))
    held = schedule.resource >= 0
    assert table["sent_bytes"].sum() == table["received_bytes"].sum()
    assert table["sent_bytes"].sum() == schedule.size_bytes[held].sum()


def test_switches_have_names_of_their_own() -> None:
    ops = schedule(
        OpColumns(kind=[FIXED] * 2, resource=[0, 1], duration_ps=1, size_bytes=5),
        edges=Edges.from_pairs(2, [0], [1]),
        resources=Resources.table("link", [0, 8], [8, 1], switches_from=8),
    )
    table = node_bytes(run(ops))
    assert table.loc["s0"].tolist() == [5, 5]
    assert table.index.tolist() == ["0", "1", "s0"]


def test_lost_attempts_and_running_ops_count_as_busy() -> None:
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
    assert label_use(trace, "rank")["active_ps"].tolist() == [8, 2]
    assert time_by_category(_named(trace), ["a"])["total_ps"].tolist() == [16, 16]


def _named(trace: Trace) -> Trace:
    from cluster_sim.schedule.table import Codes

    what = Codes(np.zeros(len(trace), np.int8), ("a",))
    return Trace(trace.schedule.with_labels(what=what), trace.times)


def test_time_by_category_takes_the_first_of_the_list() -> None:
    trace = spans([0, 0, 1], ["tp", "compute", "dp"], [0, 4, 2], [6, 9, 10])
    table = time_by_category(trace, ["compute", "tp"])
    assert table.columns.tolist() == ["compute_ps", "tp_ps", "idle_ps", "total_ps"]
    assert table.loc[0].tolist() == [5, 4, 1, 10]
    assert table.loc[1].tolist() == [0, 0, 10, 10]


def test_categories_may_gather_several_names() -> None:
    trace = spans([0, 0], ["tp", "dp"], [0, 2], [3, 5])
    table = time_by_category(trace, {"compute": ["compute"], "comm": ["tp", "dp"]}, rest="waiting")
    assert table.loc[0].to_dict() == {
        "compute_ps": 0,
        "comm_ps": 5,
        "waiting_ps": 0,
        "total_ps": 5,
    }


@given(schedule=schedules(), order=st.permutations(WHATS))
def test_parts_sum_to_the_run_exactly_and_overlap_adds_up(
    schedule: Schedule, order: list[str]
) -> None:
    trace = run(schedule)
    table = time_by_category(trace, order)
    parts = table.drop(columns="total_ps")
    assert (parts.sum(axis=1) == trace.total_ps).all()
    assert (parts >= 0).all(axis=None)
    hidden = overlap(trace, order)
    assert (hidden["exposed_ps"] + hidden["overlapped_ps"] == hidden["active_ps"]).all()
    assert (hidden["overlapped_ps"] >= 0).all()
    assert hidden["exposed_ps"].sum() == parts.drop(columns="idle_ps").sum(axis=None)


def test_waits_name_the_op_that_ended_them() -> None:
    trace = spans([0, 0, 1], ["tp", "compute", "dp"], [2, 9, 0], [5, 12, 12])
    table = waits(trace)
    assert table.to_dict("list") == {
        "rank": [0, 0],
        "op": [0, 1],
        "start_ps": [0, 5],
        "end_ps": [2, 9],
        "wait_ps": [2, 4],
    }


def test_a_wait_until_the_end_of_the_run_has_no_op() -> None:
    table = waits(spans([0, 1], ["tp", "tp"], [0, 0], [3, 8]))
    assert table[["op", "wait_ps"]].to_numpy().tolist() == [[-1, 5]]


@given(table=st.lists(rows, max_size=25), block=st.sampled_from([1, 4, 2**20]))
def test_a_gap_knows_the_first_row_that_ends_it(
    table: list[tuple[int, int, int, int]], block: int
) -> None:
    columns, _ = _columns(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK_ROWS", block)
        free, row = gaps(columns, 40)
    for group, end, first in zip(free.group, free.end_ps, row, strict=True):
        starting = [
            k
            for k, (g, start, length, _) in enumerate(table)
            if g == group and start == end and length
        ]
        assert first == min(starting, default=-1)


@given(schedule=schedules())
def test_waits_are_what_no_category_takes(schedule: Schedule) -> None:
    trace = run(schedule)
    idle = time_by_category(trace, WHATS)["idle_ps"]
    by_rank = waits(trace).groupby("rank")["wait_ps"].sum()
    assert by_rank.reindex(idle.index, fill_value=0).tolist() == idle.tolist()


def test_labels_that_are_missing_or_numbers_are_refused() -> None:
    trace = spans([0], ["tp"], [0], [1])
    with pytest.raises(InputError, match=r"no label ranc\. Did you mean rank"):
        time_by_category(trace, ["tp"], by="ranc")
    with pytest.raises(InputError, match="label rank holds numbers"):
        time_by_category(trace, ["tp"], what="rank")


def test_the_critical_path_of_a_pipe_of_two() -> None:
    """Op 1 follows op 0 by an edge of 3 ps; op 2 waits for op 1 to leave the link."""
    ops = schedule(
        OpColumns(kind=[FIXED] * 3, resource=[1, 0, 0], duration_ps=[5, 4, 7], priority=[0, 0, 1]),
        edges=Edges.from_pairs(3, [0, 0], [1, 2], lag_ps=[3, 3]),
        resources=Resources.table("link", [0, 1], [1, 2]),
    )
    path = critical_path(run(ops))
    assert path.index.tolist() == [0, 1, 2]
    assert path["because"].tolist() == ["begin", "edge", "resource"]
    assert path["after"].tolist() == [-1, 0, 1]
    assert path["lag_ps"].tolist() == [0, 3, 0]
    assert path["on_path_ps"].tolist() == [5, 4, 7]
    assert path["share"].sum() == pytest.approx(1)


def test_a_start_edge_puts_only_the_way_to_the_start_on_the_path() -> None:
    ops = schedule(
        OpColumns(kind=[FIXED] * 2, resource=[0, 1], duration_ps=[5, 5]),
        edges=Edges.from_pairs(2, [0], [1], [2], [True]),
        resources=Resources.table("link", [0, 1], [1, 2]),
    )
    times = ended(np.array([0, 2]), np.array([5, 7]))
    path = critical_path(Trace(ops, times))
    assert path["because"].tolist() == ["begin", "start-edge"]
    assert path[["lag_ps", "on_path_ps"]].to_numpy().tolist() == [[0, 0], [2, 5]]


def test_a_start_after_a_revival_begins_a_path() -> None:
    schedule = on_one_link(1)
    trace = Trace(schedule, ended(np.array([9]), np.array([14]), np.array([0])))
    path = critical_path(trace)
    assert path["because"].tolist() == ["revival"]
    assert path["lag_ps"].tolist() == [9]


@given(schedule=schedules(), block=st.sampled_from([1, 3, 2**20]))
@settings(max_examples=60)
def test_the_critical_path_explains_the_whole_run(schedule: Schedule, block: int) -> None:
    trace = run(schedule)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cluster_sim.analysis.critical_path.BLOCK_OPS", block)
        path = critical_path(trace)
    assert path["lag_ps"].sum() + path["on_path_ps"].sum() == trace.total_ps
    assert (path["lag_ps"] >= 0).all()
    if len(path):
        assert path["end_ps"].iloc[-1] == trace.total_ps
        assert path["because"].iloc[0] == "begin"
        assert path["after"].tolist() == [-1, *path.index.tolist()[:-1]]


@given(schedule=schedules())
@settings(max_examples=30)
def test_every_table_is_labelled_and_finite(schedule: Schedule) -> None:
    trace = run(schedule)
    tables = [
        resource_use(trace),
        kind_use(trace),
        node_bytes(trace),
        label_use(trace, "what"),
        time_by_category(trace, WHATS),
        overlap(trace, WHATS),
    ]
    for table in tables:
        assert all(table.index.names)
        numbers = table.select_dtypes("number")
        assert np.isfinite(numbers.to_numpy(np.float64)).all()
    assert summary(trace).columns.tolist() == ["metric", "value", "unit"]
    assert summary(trace).set_index("metric")["value"]["ops"] == len(schedule)


def test_a_name_under_two_categories_belongs_to_the_first() -> None:
    table = time_by_category(spans([0], ["tp"], [0], [4]), {"x": ["tp"], "y": ["tp"]})
    assert table.loc[0, ["x_ps", "y_ps"]].tolist() == [4, 0]
