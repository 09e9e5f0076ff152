"""An iteration in chunks has the times of whole collectives where nothing contends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import compose, whole
from cluster_sim.engine.repeats import simulate_calls
from cluster_sim.schedule.repeats import calls_written_out
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.toy_training import TOY, plan, sixteen, toy_program
from tests.support.written_rules import check_routines
from topologies import memory_limit
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution.chunk_level import expand, project
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.lower import lower
from workloads.training.execution.turns import in_turns, turn_bytes
from workloads.training.iteration import iteration

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)
APART: tuple[tuple[str, dict[str, Any]], ...] = (
    ("trn2.48xlarge", {"tp": 16}),
    ("trn2.48xlarge", {"tp": 4, "dp": 4, "zero": 0, "sequence_parallel": False}),
    ("trn2.48xlarge", {"pp": 2, "dp": 8, "schedule": "gpipe"}),
    ("trn2.48xlarge:2", {"tp": 16, "dp": 2, "overlap": "dp"}),
    ("trn2.48xlarge", {"tp": 4, "cp": 4}),
)
"""Plans whose collectives at one time use links of their own."""


@pytest.mark.parametrize("level", ["chunk", "flow"])
@pytest.mark.parametrize(("machine", "stated"), APART, ids=str)
def test_where_nothing_contends_levels_are_equal(
    machine: str, stated: dict[str, Any], level: Any
) -> None:
    how, fabric = plan(**stated), cluster(machine)
    each, usual = (iteration(SHORT, fabric, how, level=one) for one in (level, "collective"))
    assert (each.level, usual.level) == (level, "collective")
    assert each.trace.total_ps == usual.trace.total_ps
    assert each.breakdown_s == pytest.approx(usual.breakdown_s, abs=1e-12)
    assert each.ops > len(each.trace) or level == "flow"
    assert not each.shares_memory


def test_jitter_is_that_of_whole_collectives() -> None:
    chunks, usual = (
        iteration(SHORT, sixteen(), plan(tp=4, dp=4), level=level, disturbed=Disturbance(0.05, 3))
        for level in ("chunk", "collective")
    )
    assert chunks.trace.total_ps == usual.trace.total_ps
    assert chunks.breakdown_s["straggler"] == pytest.approx(usual.breakdown_s["straggler"])


CONTENDING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "dp": 4, "overlap": "all", "global_batch": 8}),
    ("trn2.48xlarge:2", {"tp": 8, "dp": 4, "overlap": "dp", "global_batch": 4}),
    ("trn2.48xlarge", {"tp": 8, "dp": 8, "ranks_per_chip": 4, "global_batch": 8}),
)
"""Plans whose collectives share links, CC-Cores, adapters or memories."""


@pytest.mark.parametrize("as_flows", [False, True], ids=["chunk", "flow"])
@pytest.mark.parametrize(("machine", "stated"), CONTENDING, ids=str)
def test_calls_in_place_have_the_times_of_those_written_out(
    machine: str, stated: dict[str, Any], as_flows: bool
) -> None:
    """Both engines agree on collectives written once a group, or once a call."""
    fabric = cluster(machine)
    program = toy_program(plan(**stated), fabric, SHORT)
    expanded = expand(program, lower(program), fabric, as_flows=as_flows)
    check_routines(expanded.schedule, expanded.routines)
    plain = run(calls_written_out(expanded.schedule, expanded.routines))
    reference = run(plain.schedule, engine="reference")
    assert (plain.times.end_ps == reference.times.end_ps).all()
    assert not violations(plain)
    times = simulate_calls(expanded.schedule, expanded.routines)
    for name in ("ready_ps", "start_ps", "end_ps", "status"):
        outside = getattr(plain.times, name)[: expanded.routines.outside]
        assert (getattr(times, name) == outside).all(), name
    projected = project(times, expanded)
    assert len(projected.schedule) == len(lower(program))
    assert projected.total_ps == plain.total_ps
    assert expanded.ops == len(plain) - len(expanded.routines.caller)


def test_every_call_has_the_ops_of_its_collective() -> None:
    how, machine = plan(tp=16, global_batch=2), sixteen()
    program = toy_program(how, machine, SHORT)
    schedule = lower(program)
    expanded = expand(program, schedule, machine)
    steps = [program.steps[number] for number in program.streams[0].ops.step.tolist()]
    messages = [
        compose(Call(step.collective, whole(machine), step.size_bytes)).schedule
        for step in steps
        if step.axis
    ]
    part_bytes = turn_bytes([messages])
    ops = sum(len(in_turns(each, part_bytes)) for each in messages)
    assert ops > sum(map(len, messages))
    assert expanded.ops == len(schedule) + ops


@pytest.mark.parametrize("level", ["chunk", "flow"])
def test_what_is_not_known_by_its_chunks_or_too_large_is_refused(
    level: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="by the times that its library takes"):
        iteration(TOY, cluster("dgx-h100"), plan(dp=8), level=level)
    words = {"chunk": r"makes of the groups .* may use 10 kB\. Use",
             "flow": "shares of links, which groups of ranks take"}  # fmt: skip
    monkeypatch.setattr(memory_limit, "machine_bytes", lambda: 10_000)
    with pytest.raises(InputError, match=words[level]):
        iteration(TOY, sixteen(), plan(tp=4, dp=4), level=level)


def test_a_long_run_of_the_reference_is_refused() -> None:
    large = plan(tp=16, global_batch=128)
    with pytest.raises(InputError, match=r"at most 10,000,000 are run\..*, --engine fast without"):
        iteration(TOY, sixteen(), large, level="chunk", engine="reference")


def test_steps_of_one_collective_and_size_share_a_routine() -> None:
    """Each group of an exchange calls each of its collectives of one size by one routine."""
    fabric = cluster("trn2.48xlarge")
    program = toy_program(plan(tp=4, dp=4, global_batch=4), fabric, SHORT)
    expanded = expand(program, lower(program), fabric)
    within = [exchange for exchange in program.exchanges if exchange.axis == "tp"]
    calls = sum(len(exchange.members) * exchange.calls for exchange in within)
    kinds = {
        (step.collective, step.size_bytes, step.stream)
        for step in program.steps
        if step.axis == "tp"
    }
    groups = sum(len(exchange.members) for exchange in within)
    shared = np.bincount(expanded.routines.routine)[: groups * len(kinds)]
    assert groups == 4
    assert shared.sum() == calls
    assert len(set(expanded.routines.routine[: int(shared.sum())].tolist())) == groups * len(kinds)
