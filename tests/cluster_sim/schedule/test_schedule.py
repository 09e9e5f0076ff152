"""Schedules as tables: names, edges, sizes, and values that a builder refuses."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster_sim.schedule.build import OpColumns, check, schedule
from cluster_sim.schedule.table import (
    FIXED,
    FLOW,
    JOIN,
    LARGEST_CAPACITY,
    LARGEST_FLOW_BYTES,
    Edges,
    Flows,
    Resources,
    ScheduleError,
    transfer_ps,
)
from tests.support.schedules import from_columns


def two_links(**columns):
    """Two transfers of 5 ps, one after the other, on two links."""
    return from_columns(
        kind=FIXED, resource=[0, 1], duration_ps=5, edges=Edges.from_pairs(2, [0], [1], lag_ps=1),
        resources=Resources.table("link", [0, 1], [1, 0]), **columns,
    )  # fmt: skip


def one_flow(**changes):
    flows = Flows(
        op=np.array([0], np.int32), cap_bytes_per_s=np.array([9]), ptr=np.array([0, 1]),
        resource=np.array([0], np.int32), weight=np.array([1], np.int32),
    )  # fmt: skip
    return replace(flows, **changes)


NOWHERE = {
    "ptr": np.array([0, 0]), "resource": np.empty(0, np.int32), "weight": np.empty(0, np.int32),
}  # fmt: skip


def flowing(flows, size_bytes=4, capacity=9):
    return schedule(
        OpColumns(kind=FLOW, size_bytes=size_bytes), edges=Edges.from_pairs(1, [], []),
        resources=Resources.table("hbm", [0], slots=0, capacity=capacity), flows=flows,
    )  # fmt: skip


def test_resources_print_what_they_are():
    links = Resources.table("link", [0, 0, 9], [1, 1, 0], lane=[0, 1, 0], switches_from=8)
    both = Resources.concat([Resources.table("engine", [3]), links])
    assert both.names() == ["engine:3", "link:0-1", "link:0-1.1", "link:s1-0"]
    assert (both.names(np.array([2, 0])), len(both)) == (["link:0-1.1", "engine:3"], 4)
    assert both.slots.tolist() == [1, 1, 1, 1]
    same = Resources.concat([Resources.table(kind, [0]) for kind in ("cc", "link", "cc")])
    assert (same.kinds, same.kind.tolist()) == (("cc", "link"), [0, 1, 0])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9), st.booleans())))
def test_edges_keep_every_pair_with_its_lag(rows):
    src, dst, lag, starts = (
        (list(column) for column in zip(*rows, strict=True)) if rows else [[]] * 4
    )
    edges = Edges.from_pairs(6, src, dst, lag if rows else 0, starts if rows else None)
    columns = (edges.sources(), edges.dst, edges.lag_ps, edges.start_mask())
    assert sorted(zip(*(each.tolist() for each in columns), strict=True)) == sorted(rows)
    assert len(edges) == len(rows) == edges.ptr[-1]
    assert np.diff(edges.ptr).tolist() == [src.count(op) for op in range(6)]
    assert (edges.from_start is None) == (not any(starts))


def test_scalars_are_spread_and_columns_have_one_width():
    schedule = two_links(priority=3)
    assert schedule.priority.tolist() == [3, 3]
    assert schedule.nbytes == 2 * (1 + 4 + 8 + 8 + 4) + (3 * 8 + 4 + 8) + 8  # ops, edges, flows
    columns = (schedule.kind, schedule.resource, schedule.duration_ps)
    assert [column.dtype.itemsize for column in columns] == [1, 4, 8]
    shown = repr(two_links(facts={"collective": "permute"}))
    assert shown == "Schedule(2 ops, 1 edges, 2 resources, collective=permute)"


@pytest.mark.parametrize(("columns", "message"), [
    ({"kind": 3}, r"op 0: kind 3 is not FIXED, FLOW or JOIN"),
    ({"duration_ps": [5, 0]}, r"op 1: duration_ps 0 is below 1"),
    ({"duration_ps": [2**62 + 1, 1]}, r"op 0: duration_ps \d+ is above 2\*\*62"),
    ({"kind": [FIXED, JOIN], "resource": [0, -1]}, r"op 1: duration_ps 5 of a flow or join"),
    ({"resource": [0, 2]}, r"op 1: resource 2 is not one of 2"),
    ({"resource": [-2, 0]}, r"op 0: resource -2 is not one of 2"),
    ({"kind": [JOIN, FIXED], "duration_ps": [0, 5]}, r"op 0: resource 0 held by a join"),
    ({"edges": Edges.from_pairs(2, [0], [1], lag_ps=-1)}, r"a lag of -1 ps, the least is 0"),
    ({"edges": Edges.from_pairs(2, [0], [1], 2**62 + 1)}, r"a lag of \d+ ps, the most is 2"),
    ({"edges": Edges.from_pairs(2, [0], [2])}, r"an edge leads to op 2, there are 2"),
    ({"edges": Edges.from_pairs(2, [0], [1], 0, from_start=True)},
     r"start-edge 0 → 1: lag 0 ps; it leads from a fixed op .* at least 1 ps"),
    ({"edges": Edges.from_pairs(2, [0], [1], 2, from_start=True), "duration_ps": [9, 5]},
     r"at least 4 ps, or something would leave before it arrived"),
    ({"labels": {"rank": np.zeros(3)}}, r"label rank has 3 rows, there are 2 ops"),
    ({"resources": Resources.table("hbm", [0, 1], slots=[1, 0])},
     r"op 1: resource 1 has no slots, it can only be shared"),
    ({"flows": one_flow()}, r"1 rows of flows, other than the 0 FLOWs"),
])  # fmt: skip
def test_what_breaks_a_rule_is_refused(columns, message):
    common = {
        "kind": FIXED, "resource": [0, 1], "duration_ps": 5,
        "edges": Edges.from_pairs(2, [0], [1], lag_ps=1),
        "resources": Resources.table("link", [0, 1], [1, 0]),
    }  # fmt: skip
    with pytest.raises(ScheduleError, match=message):
        from_columns(**{**common, **columns})


@pytest.mark.parametrize(("flows", "sizes", "message"), [
    (one_flow(), {"size_bytes": 0}, "a flow has no work"),
    (one_flow(), {"size_bytes": LARGEST_FLOW_BYTES + 1}, "Split it into more"),
    (one_flow(), {"capacity": 0}, "crosses a resource without capacity"),
    (one_flow(), {"capacity": LARGEST_CAPACITY + 1}, "of more than 9007199254740991 B/s"),
    (one_flow(cap_bytes_per_s=np.array([0])), {}, "must be at least 1"),
    (one_flow(weight=np.array([0])), {}, "must be at least 1"),
    (one_flow(**NOWHERE), {}, "crosses at least one shared resource"),
    (Flows.none(), {}, "0 rows of flows, other than the 1 FLOWs"),
    (one_flow(resource=np.array([-1])), {}, "crosses a resource that is not one of 1"),
    (one_flow(resource=np.array([1])), {}, "crosses a resource that is not one of 1"),
])  # fmt: skip
def test_flows_that_cannot_flow_are_refused(flows, sizes, message):
    with pytest.raises(ScheduleError, match=message):
        flowing(flows, **sizes)


@pytest.mark.parametrize(("part", "column", "values", "message"), [
    ("edges", "ptr", [0, 1], "edges.ptr has 2 entries, expected 3"),
    ("edges", "ptr", [0, 2, 1], "edges.ptr does not cut 1 entries into 2 parts"),
    ("edges", "ptr", [-1, 0, 1], "edges.ptr does not cut 1 entries into 2 parts"),
    ("edges", "lag_ps", [1, 2], "edges.lag_ps has 2 entries, expected 1"),
    ("edges", "from_start", [1], "edges.from_start is not a mask of 1 edges"),
    ("resources", "slots", [1], "resources.slots has 1 entries, expected 2"),
    ("resources", "slots", [1, -1], "resources.slots is -1 somewhere"),
    ("resources", "kind", [0, 1], r"a resource of kind 1: \('link',\)"),
    ("", "priority", [0.5, 1], "priority holds float64, expected int32"),
    ("", "priority", [0, 2**40], "priority reaches from 0 to 1099511627776, beyond int32"),
    ("", "size_bytes", [[1], [2]], "size_bytes has 2 dimensions, expected one"),
])  # fmt: skip
def test_columns_that_do_not_fit_together_are_refused(part, column, values, message):
    """A damaged file may hold these; compiled code would read past the ends of its arrays."""
    schedule = two_links()
    changed = replace(getattr(schedule, part) if part else schedule, **{column: np.array(values)})
    with pytest.raises(ScheduleError, match=message):
        check(replace(schedule, **{part: changed}) if part else changed)


@example(2**53, 2**30)
@given(st.integers(0, 2**53), st.integers(2**30, 2**60))
def test_a_transfer_takes_whole_picoseconds_rounded_up(size_bytes, rate):
    """Also at rates whose millionfold does not fit in 64 bits."""
    exact = max(1, -(-size_bytes * 10**12 // rate))
    if exact < 4 * 10**18:
        assert transfer_ps([size_bytes], [rate]).tolist() == [exact]
    elif exact > 2**62:
        with pytest.raises(ScheduleError, match="beyond 2⁶² ps"):
            transfer_ps([size_bytes, 1], [rate, 2**53])
