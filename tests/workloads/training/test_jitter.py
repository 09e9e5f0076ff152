"""Jitter has its spread, and causes of uneven chips, for which steps of many wait."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.toy_training import TOY, plan, sixteen
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
from workloads.training.iteration import iteration


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
    equal = CATALOGUE.with_rows([spread._replace(exact=Fraction(0))])
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
