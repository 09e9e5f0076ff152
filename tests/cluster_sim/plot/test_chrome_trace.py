"""Timeline files keep the rules of the Chrome trace-event format, and the checker finds faults."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import build, whole
from cluster_sim.engine.faults import Faults
from cluster_sim.plot.perfetto import write_timeline
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import Trace, run
from tests.support.chrome_trace import Event, faults, load
from tests.support.random_schedules import schedules
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.training.iteration import iteration
from workloads.training.plan.plan import ParallelPlan


def _written(trace: Trace, folder: Path, **options: Any) -> dict[str, Any]:
    path = folder / "timeline.json.gz"
    write_timeline(trace, path, **options)
    return load(path)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A ring all-reduce of four chips, with arrows."""
    ring = cluster("ring:4", bandwidth="100GB/s", latency="1us")
    trace = run(build(Call("all-reduce", whole(ring), 10**6), "ring"))
    return _written(trace, tmp_path_factory.mktemp("trace"), arrows=True)


def test_a_collective_keeps_the_rules(document: dict[str, Any]) -> None:
    phases = [event["ph"] for event in document["traceEvents"]]
    assert {"X", "M", "s", "f"} <= set(phases)
    assert faults(document) == []


@pytest.mark.parametrize("name", ["trn2.48xlarge", "dgx-h100", "trn2.48xlarge:2"])
def test_machines_keep_the_rules(name: str, tmp_path: Path) -> None:
    trace = run(build(Call("all-reduce", whole(cluster(name)), 2**20)))
    assert faults(_written(trace, tmp_path)) == []


def test_a_training_iteration_keeps_the_rules(tmp_path: Path) -> None:
    machine = cluster("trn2-ultraserver")
    plan = ParallelPlan(tp=4, pp=2, dp=8, global_batch=32)
    step = iteration(named("llama-3.1-8b"), machine, plan)
    assert isinstance(step.trace, Trace)
    document = _written(step.trace, tmp_path)
    assert len(document["traceEvents"]) > 100
    assert faults(document) == []


@given(schedule=schedules())
@settings(max_examples=40)
def test_any_schedule_keeps_the_rules(
    schedule: Schedule, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert faults(_written(run(schedule), tmp_path_factory.mktemp("any"))) == []


Break = Callable[[list[Event]], object]


def _first(events: list[Event], phase: str) -> Event:
    return next(event for event in events if event["ph"] == phase)


def _add(events: list[Event], phase: str, **changes: Any) -> None:
    events.append({**_first(events, phase), **changes})


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (lambda events: _first(events, "X").pop("dur"), "is no time"),
        (lambda events: _first(events, "X").update(ts=-1), "is no time"),
        (lambda events: _first(events, "X").update(pid="rank 0"), "pid of"),
        (lambda events: _first(events, "X").update(ph="Q"), "has the phase Q"),
        (lambda events: _first(events, "X").update(tid=99), "(0, 99) has no name"),
        (lambda events: _first(events, "X").update(dur=10**6), "begins at"),
        (lambda events: events.remove(_first(events, "M")), "has no name"),
        (lambda events: _add(events, "M"), "has 2 names"),
        (lambda events: _add(events, "M", pid=77), "is named and empty"),
        (lambda events: events.remove(_first(events, "s")), "has one end only"),
        (lambda events: _first(events, "s").update(ts=10**9), "points back"),
        (lambda events: _first(events, "f").update(ts=10**9), "hangs in the air"),
        (lambda events: _add(events, "X", ph="b", id=1, cat="flow"), "1 begins and 0 ends"),
    ],
)
def test_a_defect_is_found(document: dict[str, Any], broken: Break, message: str) -> None:
    spoilt = copy.deepcopy(document)
    broken(spoilt["traceEvents"])
    assert any(message in line for line in faults(spoilt))


def test_times_in_another_unit_would_be_seen(document: dict[str, Any]) -> None:
    """The slices end when the closed form says: 6 steps of 1 us and 250 kB at 100 GB/s."""
    ends = [event["ts"] + event["dur"] for event in document["traceEvents"] if event["ph"] == "X"]
    assert float(max(ends)) == pytest.approx(6 * (1 + 2.5), abs=1.0)


def test_faults_keep_the_rules(tmp_path: Path) -> None:
    ring = cluster("ring:4", bandwidth="100GB/s", latency="1us")
    schedule = build(Call("all-reduce", whole(ring), 10**6), "ring")
    resource = int(schedule.resource[np.argmax(schedule.duration_ps)])
    lost = Faults.table([10**6, 3 * 10**6], [resource, resource], [0, 1])
    trace = run(schedule, faults=lost)
    document = _written(trace, tmp_path)
    assert any(event.get("cat") == "lost" for event in document["traceEvents"])
    assert faults(document) == []
