"""Traces: frames, selections, Parquet files, the report of blocked work, and conservation."""

from dataclasses import fields, replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import READY, RUNNING, WAITING, Attempts, Faults, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, JOIN, Codes, Edges, Flows, Resources
from cluster_sim.trace.trace import BlockedWork, Trace, explain, load_trace, run, waiting_chain
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.random_schedules import on_one_link, schedules
from tests.support.refusals import refusal_by, refused
from topologies.support.errors import InputError


def equal(first, second):
    """Return whether two schedules hold the same ops, edges, resources, labels and facts."""
    second_parts = _parts(second)
    for part, owner in _parts(first).items():
        for item in fields(owner):
            a, b = getattr(owner, item.name), getattr(second_parts[part], item.name)
            if isinstance(a, np.ndarray) and not (type(b) is type(a) and np.array_equal(a, b)):
                return False
    if first.labels.keys() != second.labels.keys() or first.facts != second.facts:
        return False
    if first.resources.names() != second.resources.names():
        return False
    return all(_equal_labels(first.labels[key], second.labels[key]) for key in first.labels)


def _equal_labels(a, b):
    """Compare labels by their names: the same names may stand in another order of codes."""
    if isinstance(a, Codes) or isinstance(b, Codes):
        return list(a) == list(b)
    return bool(np.array_equal(a, b))


def _parts(schedule):
    tables = {name: getattr(schedule, name) for name in ("edges", "flows", "resources")}
    return {"schedule": schedule, **tables}


def check_damaged(path, read, cut, flip):
    """Assert that a reader ends a file that is damaged or cut at a share of it in one line."""
    data = bytearray(path.read_bytes())
    data[int(cut * (len(data) - 1))] ^= flip
    for damaged in (bytes(data), bytes(data[: int(cut * len(data))])):
        path.write_bytes(damaged)
        message = ""
        try:
            read(path)
        except InputError as refused:
            message = str(refused)
        assert "\n" not in message


def test_a_frame_has_exact_and_readable_times():
    trace = run(on_one_link(3))
    assert (trace.total_ps, trace.total_s, len(trace)) == (15, 15e-12, 3)
    assert repr(trace).startswith("Trace(1.5e-11 s, Schedule(3 ops")
    frame = trace.frame()
    assert frame["start_ps"].tolist() == [0, 5, 10]
    assert frame["end_s"].tolist() == [5e-12, 10e-12, 15e-12]
    assert [*frame["resource"], *frame["status"]] == ["link:0-1"] * 3 + ["done"] * 3
    assert frame.index.name == "op"
    assert isinstance(frame["resource"].dtype, pd.CategoricalDtype)
    repeated = replace(on_one_link(2), labels={"what": Codes(np.array([0, 1]), ("a", "a"))})
    assert list(run(repeated).frame()["what"]) == ["a", "a"]
    never = run(_circle(), on_blocked="report").frame()
    assert never["end_s"].isna().all()
    assert [*never["end_ps"], *never["status"]] == [-1] * 3 + ["waiting"] * 3


@pytest.mark.parametrize(("picks", "ops"), [
    ({"ranks": 1}, [1, 3]),
    ({"ranks": [0, 1]}, [0, 1, 2, 3, 4]),
    ({"ranks": 7}, []),
    ({"ops": [4, 0, 4]}, [0, 4]),
    ({"ops": np.arange(5) % 2 == 1}, [1, 3]),
    ({"ranks": 0, "ops": [0, 1, 2]}, [0, 2]),
    ({"resources": "link"}, [0, 1, 2, 3, 4]),
    ({"resources": ["link:0-*", 0]}, [0, 1, 2, 3, 4]),
])  # fmt: skip
def test_only_the_rows_asked_for_are_made(picks, ops):
    assert run(on_one_link(5)).frame(**picks).index.tolist() == ops


@pytest.mark.parametrize(("picks", "message"), [
    ({"resources": "link:0-2"}, "no resource is called link:0-2. Did you mean link:0-1?"),
    ({"resources": 9}, "resource 9: there are 1, counted from 0"),
    ({"ops": [9]}, "op 9 is none of the trace; ops are 0 to 1."),
    ({"ops": np.array([True])}, "a mask of 1 ops; give one of 2, as the trace has."),
])  # fmt: skip
def test_unknown_picks_are_refused(picks, message):
    assert refusal_by(run(on_one_link(2)).frame, **picks) == message


@pytest.mark.parametrize(("call", "message"), [
    (lambda: run(replace(on_one_link(1), labels={})).frame(ranks=0),
     "no label of ranks; use one of"),
    (lambda: run(on_one_link(1), on_blocked="ignore"), "on_blocked is 'ignore'"),
    (lambda: run(on_one_link(1), engine="fats"), r"engine 'fats' is none of .* Did you mean"),
    (lambda: run(on_one_link(3, duration_ps=2**61)), r"2\*\*62 ps"),
    (lambda: run(on_one_link(3), faults=Faults.table([7], [9], [0])), "resource 9"),
])  # fmt: skip
def test_wrong_runs_are_refused(call, message):
    refused(message, call)


@given(schedule=schedules())
@examples(40)
def test_parquet_gives_back_schedule_and_times(schedule, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    trace = run(schedule)
    trace.save(path)
    again = load_trace(path)
    # Readers such as polars take metadata for text and refuse a file with other bytes.
    stored = pq.ParquetFile(path).metadata.metadata
    assert b"cluster_sim.resources" in stored
    assert all(part.isascii() for pair in stored.items() for part in pair)
    assert violations(trace) == []
    assert equal(again.schedule, schedule)
    for column in ("ready_ps", "start_ps", "end_ps", "status", "dead"):
        assert np.array_equal(getattr(again.times, column), getattr(trace.times, column))
    pd.testing.assert_frame_equal(again.frame(), trace.frame(), check_dtype=False)


def test_parquet_keeps_flows_start_edges_attempts_and_odd_labels(tmp_path):
    shared = Resources.table("nic", [0, 1], slots=[1, 0], capacity=[0, 10**9])
    ops = schedule(
        OpColumns(
            kind=[FIXED, FLOW, JOIN, FIXED], resource=[0, -1, -1, 0], duration_ps=[5, 0, 0, 7],
            size_bytes=[0, 3, 0, 0],
        ),
        edges=Edges.from_pairs(4, [0, 0], [1, 3], [0, 9], [False, True]),
        resources=Resources.concat([shared, Resources.table("link", [0], [9], switches_from=9)]),
        flows=Flows(*(np.array(c, np.int64) for c in ([1], [10**6], [0, 1], [1], [2]))),
        labels={"kind": np.arange(4), "label.x": Codes(np.zeros(4, np.int8), ("é",))},
    )  # fmt: skip
    times = Times(
        *(np.array(c, np.int64) for c in ([0, 5, 0, 9], [0, 5, 0, 9], [5, -1, 0, 16])),
        status=np.array([3, RUNNING, 3, 3], np.uint8),
        attempts=Attempts(np.array([3], np.int32), np.array([6]), np.array([8])),
        dead=np.array([1], np.int32),
        stopped_ps=20,
    )
    path = tmp_path / "t.parquet"
    Trace(ops, times).save(path)
    again = load_trace(path)
    assert equal(again.schedule, ops)
    assert again.schedule.edges.from_start.tolist() == [False, True]
    assert again.times.attempts.end_ps.tolist() == [8]
    assert (again.times.dead.tolist(), again.times.stopped_ps) == ([1], 20)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "trace.parquet"
    run(on_one_link(3)).save(path)
    before = path.read_bytes()
    broken = replace(on_one_link(3), labels={"bad": np.zeros(2)})
    with pytest.raises(ValueError, match="bad"):
        Trace(broken, run(on_one_link(3)).times).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.parquet"]


def test_files_that_are_no_trace_are_refused_in_one_line(tmp_path):
    path = tmp_path / "x.parquet"
    refused(r"trace .* there is no such file in", load_trace, path)
    path.write_bytes(b"PAR1 nonsense PAR1")
    refused("is not a trace that", load_trace, path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    refused("is not a trace that", load_trace, path)


def test_a_stored_trace_that_breaks_the_rules_is_refused(tmp_path):
    path = tmp_path / "x.parquet"
    run(on_one_link(2)).save(path)
    table = pq.read_table(path)
    column = table.schema.get_field_index("duration_ps")
    pq.write_table(table.set_column(column, "duration_ps", [np.array([5, -3])]), path)
    refused("op 1: duration_ps -3 is below 1", load_trace, path)


@given(cut=st.floats(0, 1), flip=st.integers(1, 255))
@examples(60)
def test_no_damage_to_a_file_ends_in_anything_but_one_line(cut, flip, tmp_path_factory):
    path = tmp_path_factory.mktemp("damage") / "t.parquet"
    run(on_one_link(3)).save(path)
    check_damaged(path, load_trace, cut, flip)


def _circle():
    edges = Edges.from_pairs(3, [0, 1, 1], [1, 0, 2])
    ops = OpColumns(kind=[FIXED] * 3, duration_ps=1)
    return schedule(ops, edges=edges, resources=Resources.none())


def test_a_circle_is_reported_and_cut_short():
    with pytest.raises(BlockedWork) as blocked:
        run(_circle())
    first = "First: op 0 waits for op 1, which waits for op 0."
    assert str(blocked.value) == f"3 of 3 ops never ran. {first}"
    edges = Edges.from_pairs(3, [1, 2, 1], [0, 1, 2])
    behind = replace(_circle(), edges=edges)  # op 0 is behind the circle, not on it
    assert waiting_chain(behind, run(behind, on_blocked="report").times) == [1, 2, 1]
    ops = 2_000
    edges = Edges.from_pairs(ops, np.arange(ops), (np.arange(ops) + 1) % ops)
    op_table = schedule(OpColumns(kind=np.full(ops, JOIN)), edges=edges, resources=Resources.none())
    with pytest.raises(BlockedWork) as blocked:
        run(op_table)
    assert str(blocked.value) == (
        "2,000 of 2,000 ops never ran. First: op 0 waits for op 1999, which waits for op 1998, "
        "which waits for op 1997, which waits for op 1996, which waits for op 1995, "
        "and so on through 2,000 ops until one waits for op 0."
    )


def test_a_dead_resource_and_a_starved_flow_are_named():
    ops, never = on_one_link(2), np.full(2, -1, np.int64)
    waiting = np.array([READY, WAITING], np.uint8)
    dead = Times(np.array([0, -1]), never, never, waiting, Attempts.none(), np.array([0]))
    assert explain(ops, dead) == (
        "2 of 2 ops never ran. First: op 0 waits for link:0-1, which is dead. Make it "
        "slow=P/Q, or use an algorithm that goes round."
    )
    flow = schedule(
        OpColumns(kind=[FLOW], size_bytes=1),
        edges=Edges.from_pairs(1, [], []),
        resources=Resources.table("nic", [4], slots=0, capacity=5),
        flows=Flows(*(np.array(c, np.int64) for c in ([0], [5], [0, 1], [0], [1]))),
    )
    zero, running = np.zeros(1, np.int64), np.array([RUNNING], np.uint8)
    starved = Times(zero, zero, zero - 1, running, Attempts.none(), np.empty(0, np.int32))
    assert explain(flow, starved).endswith("op 0 has no rate left on nic:4.")


def test_a_fault_that_blocks_work_names_the_dead_resource():
    dead = Faults.table([7], [0], [0])
    message = r"^2 of 3 ops never ran\. First: op 1 waits for link:0-1"
    with pytest.raises(BlockedWork, match=message):
        run(on_one_link(3), faults=dead)
