"""Programs: placement, pipeline order, folding and lowering, to the picosecond."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives.duration.duration import geometries
from cluster_sim.trace.trace import Trace, run
from tests.support.bubbles import bubble_fraction, zero_bubble_s
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.toy_training import LATENT, SPARSE, TOY, exchange_ps, plan, sixteen, toy_program
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.models.model import Model
from workloads.training.execution.lower import lower
from workloads.training.layers.steps import CC_DP, ENGINE, stream_kinds
from workloads.training.plan.placement import place
from workloads.training.plan.schedules.held import passes
from workloads.training.plan.schedules.registry import pipeline_schedule
from workloads.training.plan.stages import check_model
from workloads.training.program.breakdown import breakdown
from workloads.training.program.fold import fold


def ends(trace: Trace, rank: int) -> list[int]:
    """Ends of a rank's own ops in program order."""
    frame = trace.frame(ranks=rank)
    return frame.loc[frame["kind"] != "join", "end_ps"].tolist()


@examples(100)
@given(
    st.integers(1, 8),
    st.integers(1, 20),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "zero-bubble"]),
    st.data(),
)
def test_every_microbatch_goes_forward_then_back(pp: int, m: int, name: str, data: Any) -> None:
    stage = data.draw(st.integers(0, pp - 1))
    vpp = data.draw(st.integers(1, 4)) if name == "interleaved" else 1
    order = passes(pipeline_schedule(name), pp, stage, m, vpp)
    phases = 3 if name == "zero-bubble" else 2
    at = np.lexsort((order.phase, order.chunk, order.microbatch))
    assert order.phase[at].tolist() == [*range(phases)] * m * vpp
    assert order.microbatch[at].tolist() == np.repeat(range(m), phases * vpp).tolist()
    assert (np.diff(at.reshape(-1, phases)) > 0).all()
    if vpp == 1:
        held = np.cumsum(np.select([order.phase == 0, order.phase == phases - 1], [1, -1])).max()
        assert held <= (m if name == "gpipe" else min(m, pp - (phases == 2) * stage))


@examples(150)
@given(st.integers(2, 8), st.integers(1, 24), st.integers(2, 4))
def test_interleaved_stages_never_wait_in_a_circle(pp: int, m: int, vpp: int) -> None:
    """Also where microbatches are no multiple of the stages; where they are, to the closed form."""
    worked = length(pp, m, vpp, "interleaved", (1, 1, 1))
    if m % pp == 0:
        assert worked / (3 * m * vpp) - 1 == pytest.approx(bubble_fraction(pp, m, vpp))


@examples(50)
@given(st.integers(2, 8), st.integers(0, 20), st.integers(1, 5))
def test_zero_bubble_is_the_closed_form(pp: int, more: int, weight: int) -> None:
    """ZB-H1 fills all but (p - 1) (F + B - W) where gradients of weights take longest least."""
    m = pp + more
    times = (5, 5, weight)
    assert length(pp, m, 1, "zero-bubble", times) == m * sum(times) + zero_bubble_s(pp, *times)


def length(pp: int, m: int, vpp: int, name: str, times: tuple[int, int, int]) -> int:
    """End of the last pass when passes wait for nothing but their data, told pass by pass."""
    how = pipeline_schedule(name)
    orders = [passes(how, pp, stage, m, vpp) for stage in range(pp)]
    left = [list(zip(*(c.tolist() for c in one), strict=True)) for one in orders]
    took = times if name == "zero-bubble" else (times[0], times[1] + times[2], 0)
    done: dict[tuple[int, int, int], int] = {}
    clock = [0] * pp
    while any(left):
        waiting = sum(map(len, left))
        for stage, todo in enumerate(left):
            while todo:
                phase, number, chunk = todo[0]
                place = chunk * pp + stage
                need = {0: (0, number, place - 1), 1: (1, number, place + 1)}.get(phase)
                if need and not 0 <= need[2] < pp * vpp:
                    need = (0, number, place) if phase else None
                if need and need not in done:
                    break
                clock[stage] = max(clock[stage], done[need] if need else 0) + took[phase]
                done[phase, number, place] = clock[stage]
                todo.pop(0)
        assert sum(map(len, left)) < waiting, "the stages wait in a circle"
    return max(clock)


def test_tensor_parallel_groups_are_blocks_of_the_torus() -> None:
    placed = place(plan(tp=32, dp=2, global_batch=2), cluster("trn2-ultraserver"))
    first, kind = geometries(placed.joined.clusters[0], placed.chip[placed.groups("tp")])
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
    ("trn2.48xlarge", {"dp": 16, "zero": 3, "overlap": "dp"}),
    ("dgx-h100:2", {"tp": 2, "dp": 8, "zero": 2, "overlap": "none"}),
    ("dgx-h100:2", {"tp": 2, "pp": 2, "dp": 4, "zero": 3, "overlap": "all", "recompute": "full"}),
    ("trn2.48xlarge", {"tp": 4, "pp": 4, "vpp": 2, "overlap": "dp"}),
    ("trn2.48xlarge", {"pp": 4, "dp": 4, "vpp": 2, "zero": 3, "overlap": "dp"}),
    ("dgx-h100:2", {"pp": 4, "dp": 4, "schedule": "zero-bubble", "zero": 2, "overlap": "dp"}),
    ("dgx-h100:2", {"pp": 2, "dp": 8, "vpp": 3, "schedule": "interleaved", "overlap": "all"}),
    ("dgx-a100:2", {"tp": 2, "pp": 4, "dp": 2, "schedule": "zero-bubble", "overlap": "all"}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "cp": 4, "overlap": "dp"}),
    ("dgx-h100:2", {"cp": 4, "dp": 4, "cp_exchange": "all-gather", "zero": 3, "overlap": "dp"}),
]
SPARSE_CASES = [
    ("dgx-h100:2", {"dp": 16, "ep": 8, "zero": 3, "overlap": "dp"}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "dp": 4, "ep": 4, "overlap": "all"}),
    ("dgx-h100:2", {"tp": 4, "dp": 4, "ep": 8, "etp": 1, "overlap": "dp", "routing_skew": 1.5}),
    ("dgx-h100:2", {"tp": 2, "pp": 2, "cp": 2, "dp": 2, "ep": 2, "sequence_parallel": False}),
    ("trn2.48xlarge", {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "ep": 8, "etp": 1, "zero": 2}),
]


@pytest.mark.parametrize(
    ("machine", "changes", "model", "shuffled"),
    [
        *((*case, replace(TOY, tied_embeddings=True), False) for case in CASES),
        *((*case, replace(TOY, tied_embeddings=True), True) for case in CASES[::3]),
        *((*case, SPARSE, True) for case in SPARSE_CASES),
        *((*case, LATENT, False) for case in SPARSE_CASES),
    ],
)
def test_folded_is_unfolded_to_the_picosecond(
    machine: str, changes: dict[str, Any], model: Model, shuffled: bool
) -> None:
    check_model(plan(**changes), model)
    chips = np.random.default_rng(1).permutation(16) if shuffled else None
    whole = toy_program(plan(**changes), cluster(machine), model, chips)
    few = fold(whole)
    assert few.count.sum() == len(whole)
    assert shuffled or len(few) == changes.get("pp", 1)
    folded, unfolded = run(lower(few)), run(lower(whole))
    assert folded.total_ps == unfolded.total_ps
    for rank in few.rank.tolist():
        assert ends(folded, rank) == ends(unfolded, rank)
    parts = breakdown(folded).frame().drop(columns="count")
    assert (parts.sum(axis=1) == folded.total_ps).all()
    assert violations(folded) == []
    assert folded.frame()["count"].max() == few.count.max()


@pytest.mark.parametrize("changes", [{"vpp": 5, "pp": 2, "dp": 8}, {"pp": 10}])
def test_first_and_last_chunk_may_hold_the_embedding_and_the_output_alone(
    changes: dict[str, Any],
) -> None:
    """Eight layers in ten chunks: 0, 1, …, 1, 0."""
    check_model(plan(**changes), TOY)
    with pytest.raises(InputError, match="pp 11 × vpp 1 = 11 stages, but toy has 8 layers"):
        check_model(plan(pp=11), TOY)
    table = lower(fold(toy_program(plan(**changes, overlap="dp"), cluster("dgx-h100:2"))))
    fast, slow = run(table), run(table, engine="reference")
    assert fast.times.end_ps.tolist() == slow.times.end_ps.tolist()
    assert violations(slow) == []


def test_streams_keep_program_order_and_gradients_are_awaited() -> None:
    whole = fold(toy_program(plan(tp=4, dp=4, overlap="all"), sixteen()))
    frame = run(lower(whole)).frame()
    ops = frame[frame["kind"] != "join"]
    assert (ops.groupby("resource", observed=True)["start_ps"].diff().dropna() >= 0).all()
    optimizer = ops[ops["what"] == "optimizer"].start_ps.iloc[0]
    reduced = ops[ops["name"].astype(str).str.startswith("gradients")]
    gathered = ops[ops["name"].astype(str).str.startswith("parameters")]
    assert optimizer >= reduced.end_ps.max()
    for layer, end in zip(gathered["layer"], gathered["end_ps"], strict=True):
        used = ops[(ops["layer"] == layer) & (ops["microbatch"] == 0) & (ops["what"] != "dp")]
        assert used.start_ps.min() >= end


def test_communication_is_timed_on_the_chips_that_do_it() -> None:
    machine = cluster("trn2.48xlarge:2")
    near = exchange_ps(machine, np.arange(4), "all-reduce", 2**24)
    far = exchange_ps(machine, np.array([0, 1, 16, 17]), "all-reduce", 2**24)
    assert far > near
    assert exchange_ps(machine, np.array([0, 1]), "send", 2**20) < exchange_ps(
        machine, np.array([0, 16]), "send", 2**20
    )
    inside = exchange_ps(machine, np.array([3, 3]), "all-reduce", 2**20)
    assert inside == pytest.approx(5_000_000 + 2**20 / 37.8e9 * 1e12, rel=0.05)


def test_resources_are_those_of_the_chips() -> None:
    program = toy_program(plan(tp=8, dp=4, ranks_per_chip=2), cluster("trn1.32xlarge"))
    table = lower(program)
    names = table.resources.names()
    assert len(set(names)) == len(names) == 32 * len(stream_kinds(program.steps))
    assert {"engine:15", "engine:15.1", "cc:0", "cc:0.1", "send:3"} <= set(names)
    assert (ENGINE, CC_DP) == (0, 2)
