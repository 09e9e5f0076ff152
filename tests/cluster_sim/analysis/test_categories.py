"""Time by category, overlap of categories, and waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.analysis.metrics import overlap, time_by_category, waits
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import run
from tests.support.random_schedules import WHATS, schedules, spans
from topologies.errors import InputError


def test_time_by_category_takes_the_first_of_the_list() -> None:
    trace = spans([0, 0, 1], ["tp", "compute", "dp"], [0, 4, 2], [6, 9, 10])
    table = time_by_category(trace, ["compute", "tp"])
    assert table.columns.tolist() == ["compute_ps", "tp_ps", "idle_ps", "total_ps"]
    assert table.loc[0].tolist() == [5, 4, 1, 10]
    assert table.loc[1].tolist() == [0, 0, 10, 10]
    twice = time_by_category(spans([0], ["tp"], [0], [4]), {"x": ["tp"], "y": ["tp"]})
    assert twice.loc[0, ["x_ps", "y_ps"]].tolist() == [4, 0]


@pytest.mark.parametrize("ranks", [(-2, 0), (0, 10**11)])
def test_ranks_below_zero_or_far_apart_are_groups(ranks: tuple[int, int]) -> None:
    trace = spans([*ranks, ranks[0]], ["tp", "compute", "dp"], [0, 4, 2], [6, 9, 10])
    table = time_by_category(trace, ["tp", "compute", "dp"])
    assert table.index.tolist() == list(ranks)
    assert table["idle_ps"].tolist() == [0, 5]


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
    by_rank = waits(trace).groupby("rank")["wait_ps"].sum()  # what no category takes
    assert by_rank.reindex(table.index, fill_value=0).tolist() == table["idle_ps"].tolist()


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
    until_the_end = waits(spans([0, 1], ["tp", "tp"], [0, 0], [3, 8]))
    assert until_the_end[["op", "wait_ps"]].to_numpy().tolist() == [[-1, 5]]


def test_labels_that_are_missing_or_numbers_are_refused() -> None:
    trace = spans([0], ["tp"], [0], [1])
    with pytest.raises(InputError, match=r"no label ranc\. Did you mean rank"):
        time_by_category(trace, ["tp"], by="ranc")
    with pytest.raises(InputError, match="label rank holds numbers"):
        time_by_category(trace, ["tp"], what="rank")
