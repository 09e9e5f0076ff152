"""Collectives as flows on links: unchanged alone, and limited by their links together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import compose, whole
from cluster_sim.hardware.faults import parse_fault
from cluster_sim.schedule.repeats import calls_written_out
from cluster_sim.schedule.table import FLOW
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.toy_training import SPARSE, TOY, plan, sixteen, toy_program
from tools.shared_jobs import thin_cluster
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution.chunk_level import LEAST, PACE, PARTS, as_flow, busy_ps, expand
from workloads.training.execution.lower import lower
from workloads.training.iteration import iteration

SHORT = Model("short", 2, 1024, 16, 4, 64, 4096, 32_000)


SMALL, SMALL_SPARSE = replace(TOY, layers=4), replace(SPARSE, layers=4)
TORUS = """\
name: torus
chip: {like: trn2}
chips_per_server: 32
scale_up:
  shape: torus
  axes:
    - {name: X, size: 8, bandwidth: 64GB/s, latency: 0.5us}
    - {name: Y, size: 4, bandwidth: 64GB/s, latency: 0.5us}
domains: 1
"""
SHARING: tuple[tuple[str, Model, dict[str, Any]], ...] = (
    ("trn2.48xlarge", TOY, {"pp": 8, "dp": 2}),
    ("trn2.48xlarge", SMALL_SPARSE, {"pp": 2, "cp": 2, "dp": 4, "ep": 2, "overlap": "all"}),
    ("trn1.32xlarge", SMALL_SPARSE, {"tp": 8, "dp": 2, "overlap": "dp", "global_batch": 2}),
    ("torus", SMALL_SPARSE, {"tp": 8, "dp": 4, "ep": 4, "overlap": "all", "global_batch": 8}),
)
"""Plans whose tp, dp, ep and pp meet on the links of one torus."""


@pytest.mark.parametrize(("machine", "model", "stated"), SHARING, ids=str)
def test_what_sharing_links_costs_is_found(
    machine: str, model: Model, stated: dict[str, Any], tmp_path: Path
) -> None:
    """At least 80 % of what a run of all messages takes longer than collectives alone."""
    (tmp_path / "torus.yaml").write_text(TORUS)
    fabric = cluster(str(tmp_path / "torus.yaml") if machine == "torus" else machine)
    usual, flows, chunks = (
        iteration(model, fabric, plan(**stated), level=level)
        for level in ("collective", "flow", "chunk")
    )
    cost_ps = chunks.trace.total_ps - usual.trace.total_ps
    assert cost_ps > 0
    assert 0.8 <= (flows.trace.total_ps - usual.trace.total_ps) / cost_ps <= 1.25
    assert flows.trace.total_ps == pytest.approx(chunks.trace.total_ps, rel=0.05)
    parts = flows.ranks.drop(columns="count")
    assert (parts.sum(axis=1) == flows.trace.total_ps).all()
    assert flows.ops < chunks.ops


@pytest.fixture(scope="module")
def clos() -> Cluster:
    return thin_cluster()


@given(drawn=st.data())
@examples(5)
def test_folded_flows_take_the_times_of_all_ranks(clos: Cluster, drawn: st.DataObject) -> None:
    machine = drawn.draw(st.sampled_from(["trn2.48xlarge", "trn1.32xlarge:2", "clos"]))
    fabric = clos if machine == "clos" else cluster(machine)
    model = replace(drawn.draw(st.sampled_from([TOY, SPARSE])), layers=4)
    ranks = drawn.draw(st.sampled_from([1, 2]))
    degrees = {
        "tp": drawn.draw(st.sampled_from([1, 2, 4, 8])),
        "pp": drawn.draw(st.sampled_from([1, 2, 4])),
        "cp": drawn.draw(st.sampled_from([1, 2])),
    }
    dp, rest = divmod(fabric.chips * ranks, int(np.prod([*degrees.values()])))
    ep = drawn.draw(st.sampled_from([1, 2, 4])) if model.experts else 1
    assume(rest == 0 and dp > 0 and dp * degrees["cp"] % ep == 0)
    how = plan(
        **degrees,
        **{"dp": dp, "ep": ep, "ranks_per_chip": ranks, "global_batch": 2 * dp},
        overlap=drawn.draw(st.sampled_from(["none", "dp", "all"])),
    )
    engine = drawn.draw(st.sampled_from(["fast", "fast", "reference"]))
    try:
        whole = iteration(model, fabric, how, level="flow", folded=False)
    except InputError:
        assume(False)
    few = iteration(model, fabric, how, level="flow", engine=engine)
    assert few.trace.total_ps == whole.trace.total_ps
    assert few.breakdown_s == pytest.approx(whole.breakdown_s, abs=1e-12)
    assert few.ranks["count"].sum() == how.ranks
    rows = few.ranks.drop(columns="count")
    assert rows.equals(whole.ranks.drop(columns="count").loc[rows.index])


def test_the_shares_are_those_of_the_links() -> None:
    """A ring of eight keeps every link of its direction busy all the time but for latencies."""
    ring = whole(cluster("ring:8", bandwidth="100GB/s", latency="0us"))
    chunks = compose(Call("all-reduce", ring, 2**26), "ring").schedule
    total_ps = run(chunks).total_ps
    assert set(busy_ps(chunks).tolist()) <= {0, total_ps}
    flow = as_flow(chunks.resources, busy_ps(chunks), total_ps)
    assert run(flow).total_ps == total_ps
    assert set(flow.flows.weight.tolist()) == {PARTS}
    assert len(flow.resources) == int((busy_ps(chunks) > 0).sum())
    twice = as_flow(chunks.resources, busy_ps(chunks), 2 * total_ps)
    assert set(twice.flows.weight.tolist()) == {PARTS // 2}
    barely = as_flow(chunks.resources, busy_ps(chunks), 2 * PARTS // LEAST * total_ps)
    assert len(barely.flows.op) == 0
    assert run(barely).total_ps == 2 * PARTS // LEAST * total_ps
    assert run(as_flow(chunks.resources, busy_ps(chunks), 0)).total_ps == 0
    assert flow.flows.cap_bytes_per_s.tolist() == [PACE]


def test_both_engines_run_the_flows_alike_and_nothing_is_lost() -> None:
    program, fabric = toy_program(plan(pp=4, dp=4, global_batch=8), sixteen(), SHORT), sixteen()
    expanded = expand(program, lower(program), fabric, as_flows=True)
    assert (expanded.schedule.kind == FLOW).any()
    plain = calls_written_out(expanded.schedule, expanded.routines)
    trace, reference = run(plain), run(plain, engine="reference")
    assert np.array_equal(trace.times.end_ps, reference.times.end_ps)
    assert not violations(trace)


def test_a_slow_link_reaches_what_crosses_it() -> None:
    fabric, how = sixteen(), plan(tp=16, global_batch=2)
    calm = iteration(SHORT, fabric, how, level="flow")
    # At a quarter of its rate the link still carries its messages between handshakes.
    faults = [parse_fault("link:0-1@0s:slow=1/16")]
    slow = iteration(SHORT, fabric, how, level="flow", faults=faults)
    assert slow.trace.total_ps > calm.trace.total_ps
    assert slow.undisturbed_s == pytest.approx(calm.iteration_s)


def test_long_collectives_are_refused() -> None:
    chunks = compose(Call("all-reduce", whole(sixteen()), 2**20)).schedule
    with pytest.raises(InputError, match=r"up to 9\.2 s; one here takes 10\.0 s"):
        as_flow(chunks.resources, busy_ps(chunks), 10**13)
