"""The Perfetto JSON file: structure, exact times, every op, and the same bytes each time."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cluster_sim.engine.times import DONE, RUNNING, Attempts, Times
from cluster_sim.plot.perfetto import write_timeline
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, FLOW, Codes, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import Trace, run
from tests.support.random_schedules import ended, on_one_link, schedules, spans


def _written(trace: Trace, folder: Path, **options: Any) -> dict[str, Any]:
    path = folder / "timeline.json.gz"
    write_timeline(trace, path, **options)
    return json.loads(gzip.decompress(path.read_bytes()))


def _phase(document: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == phase]


def test_an_op_is_a_slice_of_its_rank_and_resource(tmp_path: Path) -> None:
    trace = spans([3], ["tp"], [2_500_000], [4_000_001])
    document = _written(trace, tmp_path)
    assert _phase(document, "X") == [
        {
            "name": "tp",
            "cat": "tp",
            "pid": 3,
            "tid": 1,
            "ph": "X",
            "ts": 2.5,
            "dur": 1.500001,
            "args": {"op": 0, "size_bytes": 0, "waited_us": 0.0, "rank": 3, "what": "tp"},
        }
    ]
    named = {(e["name"], e["pid"], e["tid"]): e["args"] for e in _phase(document, "M")}
    assert named["process_name", 3, 0] == {"name": "rank 3"}
    assert named["thread_name", 3, 1] == {"name": "engine:0"}
    assert document["displayTimeUnit"] == "ns"
    assert document["otherData"]["shown"] == "1 ops that take time"


def test_times_are_exact_to_the_picosecond(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    write_timeline(spans([0], ["tp"], [123_456_789_000_001], [123_456_789_000_002]), path)
    text = gzip.decompress(path.read_bytes()).decode()
    assert '"ts":123456789.000001,"dur":0.000001' in text


def test_ops_that_may_overlap_are_begin_and_end_pairs(tmp_path: Path) -> None:
    ops = schedule(
        OpColumns(kind=[FIXED, FLOW], resource=[0, -1], duration_ps=[5, 0], size_bytes=[0, 9]),
        edges=Edges.from_pairs(2, [], []),
        resources=Resources.table("dma", [0, 4], slots=[2, 0], capacity=[0, 10]),
        flows=Flows(*(np.array(c, np.int64) for c in ([1], [10], [0, 1], [1], [1]))),
    )
    document = _written(Trace(ops, ended(np.array([0, 1]), np.array([5, 3]))), tmp_path)
    assert _phase(document, "X") == []
    begun, finished = _phase(document, "b"), _phase(document, "e")
    assert [(e["id"], e["pid"], e["tid"]) for e in begun] == [(0, 0, 1), (1, 4, 2)]
    assert [e["id"] for e in finished] == [0, 1]
    names = {e["args"].get("name") for e in _phase(document, "M")}
    assert {"chip 0", "chip 4", "dma:0", "dma:4"} <= names


def test_lost_attempts_and_ops_cut_short_are_shown(tmp_path: Path) -> None:
    times = Times(
        *(np.array(c, np.int64) for c in ([0, 14], [9, 14], [14, -1])),
        status=np.array([DONE, RUNNING], np.uint8),
        attempts=Attempts(np.array([0]), np.array([0]), np.array([3])),
        dead=np.empty(0, np.int32),
        stopped_ps=16,
    )
    slices = _phase(_written(Trace(on_one_link(2), times), tmp_path), "X")
    assert [(e["cat"], e["ts"], e["dur"]) for e in slices] == [
        ("link", 9e-6, 5e-6),
        ("link", 14e-6, 2e-6),
        ("lost", 0.0, 3e-6),
    ]


def test_arrows_lead_from_inside_one_slice_to_the_start_of_another(tmp_path: Path) -> None:
    ops = schedule(
        OpColumns(kind=[FIXED] * 3, resource=[0, 1, 1], duration_ps=4),
        edges=Edges.from_pairs(3, [0, 1], [1, 2]),
        resources=Resources.table("link", [0, 1], [1, 2]),
    )
    document = _written(run(ops), tmp_path, arrows=True)
    (leaves,), (arrives,) = _phase(document, "s"), _phase(document, "f")
    assert (leaves["id"], leaves["tid"], leaves["ts"]) == (arrives["id"], 1, 3e-6)
    assert (arrives["tid"], arrives["ts"], arrives["bp"]) == (2, 4e-6, "e")


def test_names_from_strangers_stay_names(tmp_path: Path) -> None:
    name = '"},{"ph":"X\\'
    schedule = replace(on_one_link(1), labels={"what": Codes(np.array([0]), (name,))})
    (event,) = _phase(_written(run(schedule), tmp_path), "X")
    assert event["name"] == name


def test_too_many_ops_are_cut_by_whole_ranks_and_reported(tmp_path: Path) -> None:
    trace = spans([0, 1, 1, 2], ["tp"] * 4, [0] * 4, [5] * 4)
    document = _written(trace, tmp_path, most_ops=3)
    assert {event["pid"] for event in _phase(document, "X")} == {0, 1}
    assert document["otherData"]["shown"] == "3 ops of ranks below 2, of 4"
    first = _written(spans([0] * 3, ["tp"] * 3, [9, 0, 4], [10] * 3), tmp_path, most_ops=2)
    assert [event["args"]["op"] for event in _phase(first, "X")] == [1, 2]


def test_an_empty_choice_is_a_valid_file(tmp_path: Path) -> None:
    assert _written(run(on_one_link(2)), tmp_path, ranks=5)["traceEvents"] == []


@given(schedule=schedules())
@settings(max_examples=30)
def test_every_op_that_takes_time_is_there_once(
    schedule: Schedule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("perfetto")
    trace = run(schedule)
    document = _written(trace, folder, arrows=True)
    shown = _phase(document, "X") + _phase(document, "b")
    assert (
        sorted(event["args"]["op"] for event in shown)
        == np.flatnonzero(schedule.duration_ps > 0).tolist()
    )
    for event in _phase(document, "X"):
        op = event["args"]["op"]
        assert round(event["ts"] * 1e6) == trace.times.start_ps[op]
        assert round(event["dur"] * 1e6) == schedule.duration_ps[op]
    first = (folder / "timeline.json.gz").read_bytes()
    _written(trace, folder, arrows=True)
    assert (folder / "timeline.json.gz").read_bytes() == first
