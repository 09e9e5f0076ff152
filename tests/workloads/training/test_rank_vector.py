"""The rank vector has the engine's times."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from cluster_sim.schedule.table import ScheduleError
from cluster_sim.trace.trace import run
from tests.support.refusals import refused
from tests.support.toy_training import LATENT, SPARSE, TOY, plan, sixteen, toy_program
from workloads.training.execution import jitter
from workloads.training.execution.jitter import Disturbance, disturbance
from workloads.training.execution.lower import lower
from workloads.training.execution.rank_vector import evaluate, evaluation
from workloads.training.execution.rank_vector import nodes as nodes_module
from workloads.training.execution.rank_vector.cover import new_cover
from workloads.training.program.breakdown import breakdown, overlapped_s
from workloads.training.program.fold import fold

CALM = Disturbance()
NOISY = Disturbance(0.05, seed=3)
WILD = Disturbance(0.2, seed=5, stragglers=((0, 1.2), (9, 3.0)))
DEGREES = ({"tp": 4, "pp": 2, "dp": 2}, {"tp": 2, "pp": 4, "dp": 2}, {"pp": 4, "dp": 4})


def agree(program, how):
    """Compare a program's evaluation with its run by the engine."""
    schedule = lower(program)
    undisturbed = run(schedule)
    trace = run(jitter.disturb(schedule, program, how)) if how else undisturbed
    vector = evaluate(program, how)
    assert vector.total_ps == trace.total_ps
    expected = breakdown(trace, undisturbed if how else None).frame()
    pd.testing.assert_frame_equal(vector.ranks.frame(), expected, check_dtype=False)
    assert (vector.ranks.frame().drop(columns="count").sum(axis=1) == vector.total_ps).all()
    assert vector.overlapped_s == pytest.approx(overlapped_s(trace), rel=1e-12)
    assert vector.ops == int((schedule.resource >= 0).sum())


PLANS = (
    *(
        {"schedule": schedule, "overlap": overlap, "zero": zero, **degrees}
        for schedule, zero, degrees in zip(
            ("gpipe", "1f1b", "1f1b"), (0, 1, 1), DEGREES, strict=True
        )
        for overlap in ("none", "dp", "all")
    ),
    {"tp": 4, "dp": 4, "recompute": "full"}, {"pp": 4, "dp": 4, "vpp": 2},
    {"tp": 4, "pp": 2, "dp": 2, "vpp": 2, "overlap": "all"}, {"tp": 4, "cp": 2, "dp": 2},
    {"pp": 4, "dp": 4, "schedule": "zero-bubble", "overlap": "dp"},
    {"tp": 4, "dp": 4, "zero": 3, "overlap": "dp"}, {"pp": 4, "dp": 4, "zero": 3, "overlap": "dp"},
    {"tp": 2, "pp": 2, "dp": 4, "zero": 2, "overlap": "all"},
    {"tp": 2, "pp": 2, "vpp": 2, "dp": 4, "zero": 3, "overlap": "all"},
)  # fmt: skip
DUALPIPE = {"schedule": "dualpipe", "vpp": 2, "pp": 4}
EXPERTS = (
    ({"dp": 16, "ep": 8, "overlap": "dp"}, LATENT),
    ({"tp": 4, "dp": 4, "ep": 4, "etp": 1, "zero": 1, "overlap": "dp"}, SPARSE),
    ({"tp": 2, "pp": 2, "dp": 4, "ep": 4, "etp": 2, "overlap": "all"}, LATENT),
    ({"tp": 2, "cp": 2, "dp": 4, "ep": 4, "zero": 2}, SPARSE),
    ({"pp": 2, "dp": 8, "ep": 2, "routing_skew": 1.5, "vpp": 2, "schedule": "interleaved"}, LATENT),
    *(
        ({**DUALPIPE, **degrees, "overlap": overlap, "global_batch": 10 * degrees["dp"]}, SPARSE)
        for overlap in ("none", "dp", "all")
        for degrees in ({"dp": 4, "ep": 4}, {"dp": 2, "tp": 2, "ep": 2})
    ),
)


@pytest.mark.parametrize(
    ("stated", "model"), [*((stated, TOY) for stated in PLANS), *EXPERTS], ids=str
)
def test_rank_vector_has_the_times_of_the_engine(stated, model):
    program = toy_program(plan(**stated), sixteen(), model)
    assert any(one.axis == "ep" for one in program.exchanges) == ("ep" in stated)
    for how in (CALM, NOISY, WILD):
        agree(program, how)


def test_one_rank_and_any_order_of_ranks_have_the_times_of_the_engine():
    agree(toy_program(plan(), sixteen()), NOISY)
    chips = np.random.default_rng(1).permutation(16)
    program = toy_program(plan(tp=4, pp=2, dp=2, overlap="all"), sixteen(), chips=chips)
    for how in (CALM, WILD):
        agree(program, how)


@pytest.mark.parametrize("overlap", ["none", "dp", "all"])
def test_wide_exchanges_are_met_in_phases(overlap, monkeypatch):
    """Small components let data parallelism couple blocks, as it does for 500,000 chips."""
    monkeypatch.setattr(nodes_module, "LARGEST_COMPONENT", 4)
    monkeypatch.setattr(nodes_module, "BLOCK_RANKS", 4)
    for degrees, how in itertools.product(DEGREES, (CALM, WILD)):
        agree(toy_program(plan(**degrees, overlap=overlap, zero=1), sixteen()), how)


def test_threads_change_nothing(monkeypatch):
    monkeypatch.setattr(nodes_module, "LARGEST_COMPONENT", 4)
    monkeypatch.setattr(nodes_module, "BLOCK_RANKS", 2)
    program = toy_program(plan(tp=2, pp=2, dp=4, overlap="all", zero=1), sixteen())
    one, three = (evaluate(program, WILD, threads=threads) for threads in (1, 3))
    pd.testing.assert_frame_equal(one.ranks.frame(), three.ranks.frame())
    assert (one.total_ps, one.overlapped_s) == (three.total_ps, three.overlapped_s)


@pytest.mark.parametrize("room", [1, 2])
def test_gaps_that_do_not_fit_are_found_again(room, monkeypatch):
    """Ops of other streams come late for the gaps of a rank that is far behind its peers."""
    monkeypatch.setattr(evaluation, "ROOM", room)
    rooms = []

    def counted(*sizes):
        rooms.append(sizes[-1])
        return new_cover(*sizes)

    monkeypatch.setattr(evaluation, "new_cover", counted)
    program = toy_program(plan(tp=2, pp=4, dp=2, overlap="all", zero=1), sixteen())
    for how in (CALM, NOISY, WILD):
        agree(program, how)
    assert max(rooms) > room


def test_progress_reaches_its_end(monkeypatch):
    monkeypatch.setattr(nodes_module, "LARGEST_COMPONENT", 4)
    monkeypatch.setattr(nodes_module, "BLOCK_RANKS", 4)
    steps = {"clocks": [], "breakdown": []}
    toy = toy_program(plan(dp=8, tp=2, overlap="dp"), sixteen())
    evaluate(toy, NOISY, progress=lambda what, *places: steps[what].append(places))
    for parts in steps.values():
        assert [done for done, _ in parts] == sorted(done for done, _ in parts)
        assert parts[-1][0] == parts[-1][1] > 1


def test_what_is_no_disturbance_is_refused():
    toy = toy_program(plan(tp=4), sixteen())
    for call, message in (
        (lambda: disturbance(0.0, 0, ["17"]),
         r"straggler '17' is no RANK:FACTOR; write 17:1\.25\."),
        (lambda: disturbance(0.0, 0, ["3:0.5"]),
         r"straggler 3:0\.5: the factor is outside 1 to 1000"),
        (lambda: Disturbance(0.5), r"outside 0 to 0\.25"),
        (lambda: evaluate(toy, Disturbance(stragglers=((99, 2.0),))),
         "straggler 99 is no rank of the plan: ranks are 0 to 3"),
    ):  # fmt: skip
        refused(message, call)
    with pytest.raises(ScheduleError, match="folded"):
        evaluate(fold(toy), NOISY)


@given(st.integers(1, 30), st.lists(st.integers(1, 4), max_size=4), st.integers(0, 99))
def test_ranks_of_a_group_are_of_one_component(ranks, widths, seed):
    random = np.random.default_rng(seed)
    groups = [random.integers(0, ranks, (3, width)) for width in widths]
    exchanges = [SimpleNamespace(members=members) for members in groups]
    src = np.concatenate([members[:, [0] * members.shape[1]].ravel() for members in groups] or [[]])
    dst = np.concatenate([members.ravel() for members in groups] or [[]])
    graph = coo_array((np.ones(len(src)), (src.astype(int), dst.astype(int))), (ranks, ranks))
    number = connected_components(graph, directed=False)[1].tolist()
    in_order = list(dict.fromkeys(number))
    joined = nodes_module._joined(np.arange(ranks), exchanges)
    assert joined.tolist() == [in_order.index(component) for component in number]
    half = len(exchanges) // 2
    some = nodes_module._joined(np.arange(ranks), exchanges[:half])
    assert nodes_module._joined(some, exchanges[half:]).tolist() == joined.tolist()
