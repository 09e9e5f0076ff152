"""The rank vector has the engine's times; causes of uneven chips, for which steps of many wait."""

import itertools
from fractions import Fraction
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
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.training.execution import jitter
from workloads.training.execution.jitter import (
    CAUSES,
    LAWS,
    TYPICAL,
    Chips,
    Disturbance,
    disturbance,
    largest,
    named_causes,
)
from workloads.training.execution.lower import lower
from workloads.training.execution.rank_vector import evaluate, evaluation
from workloads.training.execution.rank_vector import nodes as nodes_module
from workloads.training.execution.rank_vector.cover import new_cover
from workloads.training.iteration import iteration
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
        for schedule in ("gpipe", "1f1b")
        for overlap in ("none", "dp", "all")
        for zero, degrees in zip((0, 1, 1), DEGREES, strict=True)
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


def disturbed(how, durations, ranks, ops):
    """Durations of so many ops on so many ranks, disturbed."""
    keys, slowness = (of(np.arange(ranks))[:, None] for of in (how.keys, how.slowness))
    return jitter.disturbed_array(durations, keys, np.arange(ops), slowness, how.table)


def test_jitter_has_its_spread_and_no_bias():
    times = disturbed(Disturbance(0.1, 7), np.array(10**9), 1000, 100)
    assert times.mean() == pytest.approx(10**9, rel=1e-3)
    assert times.std() == pytest.approx(10**8, rel=1e-2)
    assert len(np.unique(times[:, 0])) > 500
    assert abs(np.corrcoef(times[:, 0], times[:, 1])[0, 1]) < 0.1


def test_the_table_is_the_same_everywhere():
    table = jitter.normal_quantiles()
    assert (len(table), sum(table)) == (1024, 0)
    assert (table[1023], table[512], sum(table[512:])) == (3_457_358, 1_283, 428_268_537)


def test_nothing_lasts_less_than_a_picosecond():
    assert disturbed(Disturbance(0.25), np.array(1), 100, 1).min() == 1


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


def test_the_table_of_jittered_times_is_what_each_draw_gives():
    how, durations = (Disturbance(jitter=0.02, seed=3), np.array([1, 999, 10**6, 2**41 + 7]))
    table = jitter.jittered(durations, how.table)
    for place, times in enumerate(disturbed(how, durations, 64, 4).T):
        assert set(times.tolist()) <= set(table[place].tolist())
    assert table.min() >= 1


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


CATALOGUE = shipped_catalogue()
REPLICAS = {"tp": 4, "dp": 16, "overlap": "dp"}


def step(names, machine="trn2.48xlarge:4", how=REPLICAS, seed=0, **detail):
    """A step on chips that causes make uneven; of 16 replicas without stages by default."""
    uneven = disturbance(names, seed, ())
    return iteration(TOY, cluster(machine), plan(**how), disturbed=uneven, **detail)


def chips(count: int, seed: int = 0) -> Chips:
    """Chips of servers of eight, whose steps compute for a second and wait for a tenth."""
    return Chips(np.arange(count), 8, seed, 1.0, 0.1, CATALOGUE)


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0.0), (2, 0.5642), (10, 1.5388), (1000, 3.2414), (10**6, 4.8635)]
)
def test_the_largest_of_normal_values_has_its_known_mean(count, mean):
    """Means of order statistics of the normal distribution (Tippett 1925)."""
    assert LAWS["normal"].largest(count, 2.0, 1.0) == pytest.approx(2 * mean, rel=1e-3, abs=1e-9)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("count", [1, 7, 300])
def test_draws_have_the_mean_of_their_largest_value(name, count):
    spread, share, trials = 0.1, 0.02, 4000
    rng = np.random.default_rng(5)
    largest_values = [LAWS[name].draw(rng, count, spread, share).max() for _ in range(trials)]
    mean = LAWS[name].largest(count, spread, share)
    if name == "daily" and count > 1:  # all chips share one value
        assert max(largest_values) <= mean
        return
    apart = 4 * np.std(largest_values) / np.sqrt(trials) + 1e-12
    assert np.mean(largest_values) == pytest.approx(mean, abs=apart)


def test_closed_forms():
    harmonic = sum(1 / k for k in range(1, 5001))
    assert LAWS["exponential"].largest(5000, 2.0, 1.0) == pytest.approx(2 * harmonic, rel=1e-9)
    assert LAWS["rare"].largest(3, 0.1, 0.5) == pytest.approx(0.1 * (1 - 0.5**3))


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(sorted(LAWS)))
def test_more_units_never_lose_less(few, more, name):
    few, more = sorted((few, more))
    law = LAWS[name]
    assert law.largest(few, 0.1, 0.01) <= law.largest(more, 0.1, 0.01) + 1e-12


@given(st.integers(1, 400), st.integers(0, 400), st.integers(0, 99))
def test_more_chips_draw_the_same_values_and_others(few, further, seed):
    losses = [chips(count, seed).draw(tuple(CAUSES), 3).loss_s for count in (few, few + further)]
    assert (losses[0] <= losses[1]).all()


@pytest.mark.parametrize("names", ["heat", "network", "typical", "chips,servers"])
def test_one_slow_rank_a_stage_stands_for_all(names):
    """Without stages the folded step is that of all ranks, each as slow as its chip is."""
    folded, whole = (step(names, folded=kind) for kind in (True, False))
    assert len(folded.program) < len(whole.program) == 64
    assert folded.iteration_s == pytest.approx(whole.iteration_s, rel=1e-9)
    assert folded.uneven.even_s == whole.undisturbed_s
    assert folded.uneven.even_s < folded.iteration_s


@pytest.mark.parametrize("seed", range(2))
def test_stages_are_followed_to_a_tenth_of_what_they_lose(seed):
    how = {"tp": 8, "pp": 4, "dp": 8}
    of_stages = "chips", "p5.48xlarge:32", how, seed
    folded, whole = (step(*of_stages, folded=kind) for kind in (True, False))
    even_s = folded.undisturbed_s
    assert folded.iteration_s - even_s == pytest.approx(whole.iteration_s - even_s, rel=0.1)


@pytest.mark.parametrize(
    "more", [{"engine": "reference"}, {"level": "rank-vector"}, {"level": "chunk"}]
)
def test_levels_and_engines_wait_as_long(more):
    names = "chips,hosts,heat" if more.get("level") == "chunk" else "typical"
    two = "trn2.48xlarge:2", {"tp": 4, "dp": 8, "overlap": "dp"}
    usual, other = (step(names, *two, iterations=3, **changes) for changes in ({}, more))
    lost_s, usual_s = (each.uneven.steps_s - each.uneven.even_s for each in (other, usual))
    assert lost_s == pytest.approx(usual_s, rel=0.02 if "chunk" in more.values() else 1e-9)


def test_the_median_of_the_drawn_steps_is_simulated():
    run = step("typical", iterations=101)
    uneven = run.uneven
    assert len(uneven.steps_s) == 101
    assert uneven.quantile_s(50) == run.iteration_s == run.trace.total_s
    assert uneven.even_s < uneven.quantile_s(50) <= uneven.quantile_s(90) <= uneven.quantile_s(99)
    assert uneven.without_straggler_s < run.iteration_s
    assert uneven.straggler.cause == "chips"
    assert uneven.straggler.chip == uneven.straggler.rank  # one rank a chip
    slow = step("chips").program
    assert uneven.straggler.rank in slow.rank.tolist()


def test_chips_that_are_equal_are_no_jitter():
    spread = CATALOGUE.entry("jitter.chips", "spread")
    equal = CATALOGUE.with_rows([spread._replace(value=0.0, exact=Fraction(0))])
    run = iteration(TOY, cluster("trn2.48xlarge", catalogue=equal), plan(tp=4, dp=4),
                    disturbed=disturbance("chips", 3, ()))  # fmt: skip
    assert run.iteration_s == run.undisturbed_s
    assert iteration(TOY, sixteen(), plan(tp=4, dp=4)).iteration_s == run.iteration_s


def test_a_million_chips_lose_what_order_statistics_say():
    drawn = chips(10**6).draw(("chips",), 1)
    expected = largest(("chips",), 10**6, 125_000, CATALOGUE)
    assert drawn.loss_s[0] == pytest.approx(expected, rel=0.1)
    assert drawn.straggler.slower == drawn.slower.max() == drawn.loss_s[0]


def test_the_network_may_be_the_straggler():
    drawn = Chips(np.arange(16), 8, 0, 1.0, 1e6, CATALOGUE).draw(("chips", "network"), 2)
    assert drawn.straggler.cause == "network"
    run = step("network", "trn2.48xlarge", {"tp": 4, "dp": 4})
    assert run.iteration_s == run.undisturbed_s
    assert run.without_effect["jitter network"] == "all collectives stay in one scale-up domain"


def test_causes_by_name():
    assert named_causes("typical") == TYPICAL
    assert named_causes("chips+ hosts,chips") == ("chips", "hosts")
    assert disturbance("0.02", 1, ()) == Disturbance(0.02, 1)
    refused(r"and 'chip' is no cause\. Did you mean chips", named_causes, "chip")
    refused("--level chunk times messages on links", step, "network", level="chunk")
