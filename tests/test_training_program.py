"""Programs: placement, pipeline order, folding and lowering, to the picosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_training import TOY, plan, sixteen, toy_program

from cluster_sim.conservation import violations
from cluster_sim.trace import Trace, run
from topologies.errors import InputError
from topologies.machines import cluster
from workloads.training.fold import fold
from workloads.training.lower import lower
from workloads.training.pipeline import bubble_fraction, order
from workloads.training.placement import geometries, place
from workloads.training.program import exchange_ps
from workloads.training.steps import CC_DP, ENGINE, STREAM_KINDS


def ends(trace: Trace, rank: int) -> list[int]:
    """Ends of a rank's own ops in program order."""
    frame = trace.frame(ranks=rank)
    return frame.loc[frame["kind"] != "join", "end_ps"].tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 8), st.integers(1, 12), st.sampled_from(["gpipe", "1f1b"]), st.data())
def test_every_microbatch_goes_forward_then_back(pp: int, m: int, name: str, data: Any) -> None:
    stage = data.draw(st.integers(0, pp - 1))
    backward, microbatch = order(name, pp, stage, m)
    forward_at, backward_at = np.flatnonzero(~backward), np.flatnonzero(backward)
    assert microbatch[forward_at].tolist() == microbatch[backward_at].tolist() == list(range(m))
    assert (forward_at < backward_at).all()
    held = np.cumsum(np.where(backward, -1, 1)).max()
    assert held == (m if name == "gpipe" else min(m, pp - stage))


def test_tensor_parallel_groups_are_blocks_of_the_torus() -> None:
    placed = place(plan(tp=32, dp=2, global_batch=2), cluster("trn2-ultraserver"))
    first, kind = geometries(placed.cluster, placed.chip[placed.groups("tp")])
    assert placed.groups("tp").tolist() == [list(range(32)), list(range(32, 64))]
    assert (len(first), kind.tolist()) == (1, [0, 0])


def test_the_rank_order_is_an_input() -> None:
    how = plan(tp=4, dp=4, global_batch=4)
    assert place(how, sixteen()).groups("dp")[0].tolist() == [0, 4, 8, 12]
    turned = replace(how, order=("dp", "cp", "tp", "pp"))
    assert place(turned, sixteen()).groups("tp")[0].tolist() == [0, 4, 8, 12]
    shuffled = place(how, sixteen(), [*range(15, -1, -1)])
    assert shuffled.chip[shuffled.groups("tp")[0]].tolist() == [15, 14, 13, 12]


@pytest.mark.parametrize(
    ("chips", "message"),
    [
        ([0] * 16, "names a chip twice"),
        ([*range(15)], "names 15 chips, the plan has 16"),
        ([*range(1, 17)], "names chip 16; .* chips 0 to 15"),
    ],
)
def test_a_bad_rank_order_is_refused(chips: list[int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        place(plan(tp=4, dp=4), sixteen(), chips)


def test_a_bad_rank_order_costs() -> None:
    how, scattered = plan(tp=4, dp=4), [0, 5, 10, 15, 1, 6, 11, 12, 2, 7, 8, 13, 3, 4, 9, 14]
    good = run(lower(toy_program(how, sixteen())))
    bad = run(lower(toy_program(how, sixteen(), chips=scattered)))
    assert bad.total_ps > good.total_ps


CASES = [
    ("trn2.48xlarge", {"tp": 4, "pp": 2, "dp": 2}),
    ("trn2.48xlarge", {"tp": 2, "pp": 4, "dp": 2, "overlap": "all", "schedule": "gpipe"}),
    ("trn2.48xlarge", {"tp": 8, "dp": 2, "overlap": "dp", "recompute": "full"}),
    ("dgx-h100:2", {"pp": 2, "dp": 8, "zero": 0, "overlap": "all", "attention": "unfused"}),
    ("dgx-a100:2", {"tp": 4, "pp": 4, "sequence_parallel": False, "overlap": "all"}),
    ("trn1.32xlarge", {"tp": 8, "pp": 2, "dp": 2, "ranks_per_chip": 2, "overlap": "dp"}),
]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("machine", "changes"), CASES)
def test_folded_is_unfolded_to_the_picosecond(
    machine: str, changes: dict[str, Any], shuffled: bool
) -> None:
    model = replace(TOY, tied_embeddings=True)
    chips = np.random.default_rng(1).permutation(16) if shuffled else None
    whole = toy_program(plan(**changes), cluster(machine), model, chips)
    few = fold(whole)
    assert few.count.sum() == len(whole)
    assert shuffled or len(few) == changes.get("pp", 1)
    folded, unfolded = run(lower(few)), run(lower(whole))
    assert folded.total_ps == unfolded.total_ps
    for rank in few.rank.tolist():
        assert ends(folded, rank) == ends(unfolded, rank)
    assert folded.frame()["count"].max() == few.count.max()


def test_equal_ranks_are_equal() -> None:
    whole = toy_program(plan(tp=2, pp=2, dp=4, overlap="all"), sixteen())
    trace = run(lower(whole))
    for stage in (0, 1):
        same = [ends(trace, rank) for rank in np.flatnonzero(whole.stage == stage).tolist()]
        assert all(one == same[0] for one in same)


def test_both_engines_and_the_laws_of_conservation() -> None:
    made = lower(fold(toy_program(plan(tp=4, pp=2, dp=2, overlap="all"), sixteen())))
    fast, slow = run(made), run(made, engine="reference")
    assert fast.times.end_ps.tolist() == slow.times.end_ps.tolist()
    assert violations(slow) == []


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("pp", "microbatches"), [(2, 4), (4, 8), (8, 8)])
def test_bubble_is_the_closed_form(schedule: str, pp: int, microbatches: int) -> None:
    """Stages of equal work and transfers of a picosecond leave (p − 1) / m of the work idle."""
    whole = fold(toy_program(plan(pp=pp, schedule=schedule, global_batch=microbatches), sixteen()))
    steps = np.array([step.name for step in whole.steps])
    work = np.char.startswith(steps.astype(str), "attention") * 10**9
    talks = [replace(one, duration_ps=np.ones_like(one.duration_ps)) for one in whole.exchanges]
    trace = run(lower(replace(whole, step_ps=np.maximum(work, 1), exchanges=tuple(talks))))
    on_stage = [whole.step_ps[stream.ops.step] for stream in whole.streams]
    assert len(on_stage) == pp
    busy = microbatches * TOY.layers // pp * _layer_ps(whole, work)
    assert trace.total_ps / busy - 1 == pytest.approx(bubble_fraction(pp, microbatches), abs=1e-5)


def _layer_ps(whole: Any, work: Any) -> int:
    """Work of one layer on one microbatch, forward and back."""
    ops = whole.streams[0].ops
    layer = int(ops.layer[ops.layer >= 0][0])
    return int(work[ops.step[(ops.layer == layer) & (ops.microbatch == 0)]].sum())


def test_streams_keep_program_order_and_gradients_are_awaited() -> None:
    whole = fold(toy_program(plan(tp=4, dp=4, overlap="all"), sixteen()))
    frame = run(lower(whole)).frame()
    own = frame[frame["kind"] != "join"]
    assert (own.groupby("resource", observed=True)["start_ps"].diff().dropna() >= 0).all()
    optimizer = own[own["what"] == "optimizer"].start_ps.iloc[0]
    reduced = own[own["name"].astype(str).str.startswith("gradients")]
    gathered = own[own["name"].astype(str).str.startswith("parameters")]
    assert optimizer >= reduced.end_ps.max()
    for layer, end in zip(gathered["layer"], gathered["end_ps"], strict=True):
        used = own[(own["layer"] == layer) & (own["microbatch"] == 0) & (own["what"] != "dp")]
        assert used.start_ps.min() >= end


def test_overlap_hides_what_runs_beside_compute() -> None:
    times = [
        run(lower(fold(toy_program(plan(tp=4, dp=4, overlap=kind), sixteen())))).total_ps
        for kind in ("none", "dp", "all")
    ]
    assert times[0] > times[1] > times[2]


def test_communication_is_timed_on_the_chips_that_do_it() -> None:
    made = cluster("trn2.48xlarge:2")
    near = exchange_ps(made, np.arange(4), "all-reduce", 2**24)
    far = exchange_ps(made, np.array([0, 1, 16, 17]), "all-reduce", 2**24)
    assert far > near
    assert exchange_ps(made, np.array([0, 1]), "send", 2**20) < exchange_ps(
        made, np.array([0, 16]), "send", 2**20
    )
    assert exchange_ps(made, np.array([3, 3]), "all-reduce", 2**20) == 723_156


def test_resources_are_those_of_the_chips() -> None:
    made = lower(toy_program(plan(tp=8, dp=4, ranks_per_chip=2), cluster("trn1.32xlarge")))
    names = made.resources.names()
    assert len(set(names)) == len(names) == 32 * len(STREAM_KINDS)
    assert {"engine:15", "engine:15.1", "cc:0", "cc:0.1", "send:3"} <= set(names)
    assert (ENGINE, CC_DP) == (0, 2)
