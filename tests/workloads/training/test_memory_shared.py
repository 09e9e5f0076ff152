"""Kernels and collectives that run at the same time share the memory of their rank."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from cluster_sim.schedule.table import FLOW
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.toy_training import LATENT, SPARSE, TOY, plan, sixteen, toy_program
from workloads.training.detail import with_shared_memory
from workloads.training.execution.jitter import Disturbance
from workloads.training.execution.lower import lower
from workloads.training.execution.rank_vector import evaluate
from workloads.training.iteration import iteration
from workloads.training.layers.steps import CC, CC_DP, ENGINE
from workloads.training.program import program as program_module
from workloads.training.program.breakdown import breakdown
from workloads.training.program.fold import fold
from workloads.training.program.program import (
    contending,
    draws,
    fits_in_memory_rate,
    memory_bytes_per_s,
    sharing,
)

BUCKETS = {"overlap": "dp", "bucket_bytes": 160_000_000}
"""Smaller than the toy model, so that gradients leave beside its backward pass."""
OVERLAPPED = (
    {"tp": 4, "dp": 4, "overlap": "all"}, {"tp": 4, "pp": 2, "dp": 2, "overlap": "all"},
    {"dp": 16, "overlap": "dp", "zero": 3}, {"cp": 4, "dp": 4, "overlap": "none"},
    {"tp": 2, "dp": 8, "pp": 1, "zero": 0, **BUCKETS},
)  # fmt: skip


def with_rate(program, bytes_per_s):
    """The program where the memory of every rank has this rate."""
    return replace(program, memory_bytes_per_s=np.full(len(program.streams), bytes_per_s))


def shared_at(program, bytes_per_s):
    """The program with ops marked that contend for memories of this rate."""
    return sharing(with_rate(program, bytes_per_s))


def greediest(program):
    """Highest rate at which any op that may run beside another draws alone."""
    return int(lower(shared_at(program, 1), memory=True).flows.cap_bytes_per_s.max())


@pytest.mark.parametrize("stated", OVERLAPPED, ids=str)
def test_with_memory_enough_for_all_nothing_changes(stated):
    marked = shared_at(fold(toy_program(plan(**stated), sixteen())), 1)
    program = with_rate(marked, 10**15)
    shared, apart = lower(program, memory=True), lower(program)
    assert (shared.kind == FLOW).any()
    assert not (apart.kind == FLOW).any()
    times, usual = run(shared), run(apart)
    assert (times.times.start_ps == usual.times.start_ps).all()
    assert (times.times.end_ps == usual.times.end_ps).all()
    assert evaluate(program).total_ps == times.total_ps
    assert not len(lower(shared_at(program, 10**15), memory=True).flows)


@pytest.mark.parametrize("stated", OVERLAPPED, ids=str)
def test_scarce_memory_slows_what_overlaps_alike_on_both_engines(stated):
    program = fold(toy_program(plan(**stated), sixteen()))
    scarce = shared_at(program, greediest(program) // 2)
    assert not fits_in_memory_rate(scarce)
    schedule = lower(scarce, memory=True)
    trace, reference = run(schedule), run(schedule, engine="reference")
    assert (trace.times.end_ps == reference.times.end_ps).all()
    usual = run(lower(program))
    busy_ps, usual_ps = ((t.times.end_ps - t.times.start_ps).sum() for t in (trace, usual))
    assert busy_ps > usual_ps
    assert trace.total_ps >= usual.total_ps
    assert not violations(trace)
    parts = breakdown(trace).frame().drop(columns="count")
    assert (parts.sum(axis=1) == trace.total_ps).all()


@pytest.mark.parametrize("stated", OVERLAPPED, ids=str)
def test_what_never_contends_needs_no_flow(stated):
    """Times with contending ops as flows are those with all overlapping ops as flows."""
    program = fold(toy_program(plan(**stated), sixteen()))
    most = greediest(program)
    few = shared_at(program, most)
    all_of_them = with_rate(shared_at(program, 1), most)
    some, more = lower(few, memory=True), lower(all_of_them, memory=True)
    assert len(some.flows) <= len(more.flows)
    assert (run(some).times.end_ps == run(more).times.end_ps).all()


@pytest.mark.parametrize("scarce", [False, True], ids=["plenty", "scarce"])
@pytest.mark.parametrize("stated", OVERLAPPED, ids=str)
def test_without_a_trace_times_are_equal_however_they_are_computed(stated, scarce, monkeypatch):
    if scarce:
        greatest = greediest(fold(toy_program(plan(**stated), sixteen())))
        monkeypatch.setattr(program_module, "memory_bytes_per_s", lambda _: greatest // 2)
    how = plan(**stated)
    traced = iteration(TOY, sixteen(), how, folded=False)
    times = iteration(TOY, sixteen(), how, folded=False, trace=False)
    plenty = fits_in_memory_rate(traced.program)
    assert not (scarce and plenty)
    assert traced.level == "collective"
    assert times.level == ("rank-vector" if plenty else "collective")
    assert times.iteration_s == traced.iteration_s
    assert times.breakdown_s == traced.breakdown_s
    for more in ({"engine": "reference"}, {"disturbed": Disturbance(stragglers=((3, 1.5),))}):
        assert iteration(TOY, sixteen(), how, trace=False, **more).level == "collective"


def test_only_the_first_and_last_microbatches_contend():
    program = shared_at(fold(toy_program(plan(dp=16, **BUCKETS), sixteen())), 1)
    stream = program.streams[0]
    names = np.array([step.name for step in program.steps])[stream.ops.step]
    microbatch = stream.ops.microbatch
    first, last = microbatch.min(initial=9, where=microbatch >= 0), microbatch.max()
    inner = (microbatch > first) & (microbatch < last)
    assert not stream.contends[inner].any()
    assert (stream.contends & (microbatch == last)).any()
    assert "gradients.bucket" in names[stream.contends]
    assert "optimizer.step" not in names[stream.contends]


def test_a_kernel_and_a_reduction_share_what_there_is():
    """The reduction gets the one unit of two that it wants; larger kernels get the other."""
    program = fold(toy_program(plan(dp=16, **BUCKETS), sixteen()))
    alone = run(lower(program, memory=True)).frame()
    first = (alone["name"].astype(str) == "gradients.bucket").to_numpy().argmax()
    flows = lower(program, memory=True).flows
    unit = int(flows.cap_bytes_per_s[flows.op == first][0])
    frame = run(lower(shared_at(program, 2 * unit), memory=True)).frame()
    reduced = frame.iloc[first]
    within = (frame["start_ps"] >= reduced["start_ps"]) & (frame["end_ps"] <= reduced["end_ps"])
    alone_ps, lasts_ps = (each["end_ps"] - each["start_ps"] for each in (alone, frame))
    rate = frame["size_bytes"] / alone_ps * 1e12
    slowed = within & (frame["what"] == "compute") & (rate > 1.01 * unit)
    assert slowed.any()
    expected = (frame["size_bytes"] / unit * 1e12)[slowed]
    assert lasts_ps[slowed].to_numpy() == pytest.approx(expected.to_numpy(), rel=1e-6)
    lesser = within & (frame["what"] == "compute") & (rate < 0.99 * unit)
    assert lasts_ps[lesser].to_numpy() == pytest.approx(alone_ps[lesser].to_numpy(), abs=1)


@pytest.mark.parametrize(("machine", "model", "stated", "short"), [
    ("trn2.48xlarge", SPARSE, {"dp": 16, "overlap": "dp", "zero": 2, "microbatch": 2}, 0.03),
    ("trn2.48xlarge", LATENT, {"dp": 8, "pp": 2, "overlap": "all", "zero": 2}, 0.0),
    ("trn1.32xlarge", SPARSE, {"dp": 8, "pp": 2, "overlap": "dp", "zero": 3}, 0.0),
], ids=str)  # fmt: skip
def test_the_rank_vector_carries_what_shared_memory_costs(machine, model, stated, short):
    """Without it the first of these steps is more than 3 % too short."""
    how = plan(**{"seq": 512, "global_batch": 8 * stated["dp"], **stated})
    shared, vector = (
        iteration(model, sixteen(machine), how, level=level, partial=True, allow_oversized=True)
        for level in ("collective", "rank-vector")
    )
    assert vector.iteration_s == pytest.approx(shared.iteration_s, rel=0.005)
    alone = run(lower(fold(shared.program))).total_s
    assert alone <= (1 - short) * shared.iteration_s
    carried = with_shared_memory(shared.program)
    assert (carried.step_ps >= shared.program.step_ps).all()


def test_a_draw_keeps_the_time_of_its_op():
    sizes = np.array([[10**9, 123_456_789], [10, 0]])
    lasts = np.array([[10**9, 777_777_777], [10**9, 5]])
    drawn, kept = draws(sizes, lasts, 3 * 10**12)
    assert drawn.rate_bytes_per_s[1].tolist() == [0, 0]
    assert kept[1].tolist() == lasts[1].tolist()
    assert np.abs(kept[0] - lasts[0]).max() <= 1
    assert drawn.size_bytes.tolist() == [[10**9, 123_456_789], [0, 0]]
    none, same = draws(sizes, lasts, 0)
    assert not none.size_bytes.any()
    assert (same == lasts).all()
    clamped, _ = draws(np.array([10**9]), np.array([10**6]), 10**12)
    assert clamped.size_bytes.tolist() == [10**6]


def test_contention_is_found_in_a_small_graph():
    """Kernels 0, 2, 3 and 4; communication 1 after 0, awaited by 4."""
    stream, rate = np.array([ENGINE, CC, ENGINE, ENGINE, ENGINE]), np.array([9, 4, 5, 7, 9])
    edges = np.array([0, 0, 2, 1, 3]), np.array([1, 2, 3, 4, 4])
    marks = {most: contending(stream, *edges, rate, most).astype(int) for most in (8, 10, 11)}
    assert (marks[8].tolist(), marks[10].tolist()) == ([0, 1, 1, 1, 0], [0, 1, 0, 1, 0])
    assert marks[11].tolist() == [0] * 5
    chain = np.arange(4), np.arange(1, 5)
    assert not contending(stream, *chain, rate, 1).any()
    # Collectives of both streams beside kernel 3: 4 + 3 + 5.
    streams, at_once = np.array([ENGINE, CC, CC_DP, ENGINE, ENGINE]), np.array([9, 4, 3, 5, 9])
    both = streams, np.array([0, 0, 0, 1, 2, 3]), np.array([1, 2, 3, 4, 4, 4])
    assert contending(*both, at_once, 11).astype(int).tolist() == [0, 1, 1, 1, 0]
    assert not contending(*both, at_once, 12).any()


@pytest.mark.parametrize("ranks_per_chip", [1, 4])
def test_ranks_of_a_chip_divide_the_rate_of_its_memory(ranks_per_chip):
    numbers = sixteen().numbers
    how = replace(plan(), ranks_per_chip=ranks_per_chip)
    rate = memory_bytes_per_s(SimpleNamespace(chip="trn2", catalogue=numbers, plan=how))
    shares = [
        numbers.value("trn2", "hbm_in_collectives"),
        numbers.value("kernels.trainium", "elementwise_efficiency"),
    ]
    whole = max(shares) * numbers.value("trn2", "hbm_bandwidth")
    assert rate == int(whole) // ranks_per_chip
