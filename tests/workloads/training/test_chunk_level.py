"""An iteration in chunks has the times of one in whole collectives where nothing contends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cluster_sim.analysis.conservation import violations
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import compose, whole
from cluster_sim.schedule.table import FLOW
from cluster_sim.trace.trace import run
from tests.support.toy_training import SPARSE, TOY, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution.chunk_level import expand, project
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.lower import lower
from workloads.training.iteration import iteration

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)
APART: tuple[tuple[str, dict[str, Any]], ...] = (
    ("trn2.48xlarge", {"tp": 16}),
    ("trn2.48xlarge", {"tp": 4, "dp": 4}),
    ("trn2.48xlarge", {"tp": 4, "dp": 4, "zero": 0, "sequence_parallel": False}),
    ("trn2.48xlarge", {"pp": 2, "dp": 8, "schedule": "gpipe"}),
    ("trn2.48xlarge:2", {"tp": 16, "dp": 2, "overlap": "dp"}),
    ("trn2.48xlarge:2", {"tp": 16, "pp": 2, "overlap": "all"}),
    ("trn2.48xlarge", {"tp": 4, "cp": 4}),
)
"""Plans whose collectives at one time use links of their own."""


@pytest.mark.parametrize(("machine", "asked"), APART, ids=str)
def test_where_nothing_contends_both_levels_are_equal(machine: str, asked: dict[str, Any]) -> None:
    how, made = plan(**asked), cluster(machine)
    chunks, usual = (iteration(SHORT, made, how, level=lv) for lv in ("chunk", "collective"))
    assert (chunks.level, usual.level) == ("chunk", "collective")
    assert chunks.trace.total_ps == usual.trace.total_ps
    assert chunks.breakdown_s == pytest.approx(usual.breakdown_s, abs=1e-12)
    assert chunks.ops > len(chunks.trace)
    assert not chunks.shares_memory


def test_what_shares_cables_is_slower() -> None:
    """Eight stages of two ranks lie next to each other, and so do what they send on and back."""
    how, made = plan(pp=8, dp=2), sixteen()
    chunks, usual = (iteration(TOY, made, how, level=lv) for lv in ("chunk", "collective"))
    assert chunks.trace.total_ps > usual.trace.total_ps
    parts = chunks.ranks.drop(columns="count")
    assert (parts.sum(axis=1) == chunks.trace.total_ps).all()


def test_both_engines_run_the_chunks_alike_and_nothing_is_lost() -> None:
    program, made = toy_program(plan(tp=4, dp=4, global_batch=4), sixteen(), SHORT), sixteen()
    expanded = expand(program, lower(program), made)
    trace, reference = run(expanded.schedule), run(expanded.schedule, engine="reference")
    assert (trace.times.end_ps == reference.times.end_ps).all()
    assert not violations(trace)
    told = project(trace, expanded)
    assert len(told.schedule) == len(lower(program))
    assert told.total_ps == trace.total_ps


def test_every_call_has_the_ops_of_its_collective() -> None:
    how, made = plan(tp=16, global_batch=2), sixteen()
    program = toy_program(how, made, SHORT)
    told = lower(program)
    expanded = expand(program, told, made)
    ops = 0
    for step in np.array(program.steps)[program.streams[0].ops.step]:
        if step.axis:
            ops += len(compose(Call(step.collective, whole(made), step.size_bytes)).schedule)
    assert len(expanded.schedule) == len(told) + ops


def test_ranks_of_one_chip_share_its_memory() -> None:
    """Between four ranks of a chip chunks are flows on memory, which stay flows."""
    how, made = plan(tp=8, dp=8, ranks_per_chip=4, global_batch=8), sixteen()
    program = toy_program(how, made, SHORT)
    expanded = expand(program, lower(program), made)
    assert (expanded.schedule.kind == FLOW).any()
    assert project(run(expanded.schedule), expanded).total_ps >= run(lower(program)).total_ps


def test_experts_and_jitter_at_the_chunk_level() -> None:
    made = sixteen()
    sparse = iteration(SPARSE, made, plan(tp=2, dp=8, ep=8, etp=2, global_batch=8), level="chunk")
    assert sparse.breakdown_s["exposed_ep"] > 0
    how = Disturbance(0.05, seed=3)
    chunks, usual = (
        iteration(SHORT, made, plan(tp=4, dp=4), level=level, disturbed=how)
        for level in ("chunk", "collective")
    )
    assert chunks.trace.total_ps == usual.trace.total_ps
    assert chunks.breakdown_s["straggler"] == pytest.approx(usual.breakdown_s["straggler"])


def test_what_is_not_known_by_its_chunks_or_too_large_is_refused() -> None:
    with pytest.raises(InputError, match="by the times that NCCL takes"):
        iteration(TOY, cluster("dgx-h100"), plan(dp=8), level="chunk")
    with pytest.raises(InputError, match=r"at most 10,000,000 are run\. Use fewer chips"):
        iteration(TOY, sixteen(), plan(tp=16, global_batch=128), level="chunk")
