"""Metrics of a trace: use of resources, time by category, overlap of categories, and waits."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.analysis.metrics import overlap, resource_use, summary, time_by_category, waits
from cluster_sim.analysis.stretches import end_of_run_ps, stretches
from cluster_sim.engine.times import DONE, RUNNING, Attempts, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, Codes, Edges, Flows, Resources
from cluster_sim.trace.trace import Trace, run
from tests.support.examples import examples
from tests.support.random_schedules import WHATS, ended, on_one_link, schedules, spans
from topologies.errors import InputError


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
    with pytest.raises(InputError, match=r"no label ranc\. Did you mean rank"):
        time_by_category(trace, ["tp"], by="ranc")
    with pytest.raises(InputError, match="label rank holds numbers"):
        time_by_category(trace, ["tp"], what="rank")
