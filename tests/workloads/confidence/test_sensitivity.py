"""Sensitivity, propagation through ranges and Poisson counts: exact answers of known ones."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.support.errors import InputError
from workloads.confidence.interval import Interval
from workloads.confidence.poisson import fewest, fewest_of_sizes
from workloads.confidence.sensitivity import (
    AS_STATED,
    STEP,
    WIDE_STEP,
    Uncertain,
    between,
    ends_of,
    lattice,
    noting,
    sensitivity,
    sensitivity_frame,
)


def _transfer_s(catalogue: Catalogue) -> float:
    """A latency and a transfer, and a number that is read for nothing."""
    catalogue.value("trn2", "hbm_bytes")
    return catalogue.value("trn2", "link_latency") + 3e6 / catalogue.value("trn2", "link_bandwidth")


def test_elasticities_are_those_of_the_formula():
    rows = {row.input: row for row in sensitivity(_transfer_s, shipped_catalogue())}
    catalogue = shipped_catalogue()
    latency, total = catalogue.value("trn2", "link_latency"), _transfer_s(catalogue)
    assert rows.keys() == {"trn2.link_latency", "trn2.link_bandwidth"}
    assert rows["trn2.link_latency"].elasticity == pytest.approx(latency / total)
    moved = (1 / 1.01 - 1) * (total - latency) / total
    assert rows["trn2.link_bandwidth"].elasticity == pytest.approx(moved / 0.01)


def test_an_answer_that_jumps_takes_wider_steps():
    """An answer in proportion to a number, less one step of five per cent on the way."""

    def jumping_s(catalogue: Catalogue) -> float:
        latency = catalogue.value("trn2", "link_latency") / shipped.value("trn2", "link_latency")
        return 100 * latency - 5 * (latency > 1.005)

    shipped = shipped_catalogue()
    narrow, wide = (sensitivity(jumping_s, shipped, step=step)[0] for step in (STEP, WIDE_STEP))
    assert narrow.elasticity == pytest.approx(-4)
    assert wide.elasticity == pytest.approx(0.5)


def test_a_range_is_walked_to_both_ends():
    rows = sensitivity(_transfer_s, shipped_catalogue())
    row = next(row for row in rows if "latency" in row.input)
    entry = shipped_catalogue().entry("trn2", "link_latency")
    assert (row.low, row.high) == (entry.low, entry.high)
    change_s = entry.low - entry.value
    assert row.change_low == pytest.approx(change_s / _transfer_s(shipped_catalogue()))
    assert row.change_low < 0 < row.change_high
    # The largest swing comes first.
    assert [row.swing for row in rows] == sorted((row.swing for row in rows), reverse=True)
    frame = sensitivity_frame(rows)
    assert list(frame.columns)[:4] == ["input", "low", "high", "change_low"]


def test_a_refused_end_is_left_empty():
    lowest = shipped_catalogue().entry("trn2", "link_latency").low

    def picky(catalogue):
        if catalogue.value("trn2", "link_latency") == lowest:
            raise InputError("too fast")
        return _transfer_s(catalogue)

    row = next(row for row in sensitivity(picky, shipped_catalogue()) if "latency" in row.input)
    assert row.change_low is None
    assert row.change_high is not None


def test_a_noting_catalogue_has_the_same_numbers_under_another_digest():
    noted = noting(shipped_catalogue())
    assert noted.value("trn2", "cores") == shipped_catalogue().value("trn2", "cores")
    assert list(noted.read) == [("trn2", "cores", "")]
    assert noted != shipped_catalogue()


def test_reads_are_recorded_again_where_an_answer_is_cached_by_its_catalogue():
    """A second ranking in a process, as of a notebook, ranks as many numbers as the first."""
    cached = functools.cache(_transfer_s)
    first, second = (sensitivity(cached, shipped_catalogue()) for _ in range(2))
    assert len(first) == 2
    assert second == first


def test_numbers_of_a_variant_that_the_answer_chooses_are_ranked():
    """As a framework does, whose variants were read without being recorded."""
    chosen = {"trn2.hbm_bandwidth": "kernel-guide"}

    def stream_s(catalogue: Catalogue) -> float:
        return 1e12 / catalogue.with_variants(chosen).value("trn2", "hbm_bandwidth")

    (row,) = sensitivity(stream_s, shipped_catalogue())
    assert row.input == "trn2.hbm_bandwidth"
    assert row.elasticity == pytest.approx((1 / 1.01 - 1) / 0.01)
    assert (row.low, row.high, row.swing) == (None, None, 0.1 * -row.elasticity)


ENDS = st.floats(0.02, 1.5)


def test_the_lattice_is_normal_and_its_inputs_are_independent():
    scores = lattice()
    assert np.abs(scores.mean(axis=1)).max() < 0.01
    assert np.abs(scores.std(axis=1) - 1).max() < 0.01
    assert np.abs(np.corrcoef(scores) - np.eye(len(scores))).max() < 0.02


@given(ENDS, ENDS, ENDS, ENDS)
def test_a_ratio_of_two_inputs_is_as_wide_as_the_root_of_their_squares(
    down, up, other_down, other_up
):
    """Where both sides of both are equal, this is exact; else the formula is a little off."""

    def between_exp(low, high):
        return Uncertain(math.exp(-low), math.exp(high))

    ratio = between_exp(down, up).over(between_exp(other_down, other_up))
    assert math.log(ratio.low) == pytest.approx(-math.hypot(down, other_up))
    assert math.log(ratio.high) == pytest.approx(math.hypot(up, other_down))
    scores, others = lattice()[:2]
    ends = ends_of(
        between_exp(up, up).factors(scores) / between_exp(down, down).factors(others), 1.0
    )
    assert math.log(ends["high"]) == pytest.approx(math.hypot(up, down), rel=0.02)
    assert math.log(ends["low"]) == pytest.approx(-math.hypot(up, down), rel=0.02)


def test_an_input_that_is_known_is_a_point_and_has_no_score():
    factors = AS_STATED.factors(lattice()[0])
    assert AS_STATED.is_point
    assert (factors == 1.0).all()
    assert (AS_STATED.scores(np.array([0.5, 2.0])) == 0.0).all()
    assert ends_of(factors * 7.0, 7.0) == {"low": 7.0, "high": 7.0}
    around = Uncertain.of(Interval(3.0, 6.0, basis="x", value=4.0))
    assert around == Uncertain(0.75, 1.5, "x")


@given(ENDS, ENDS)
def test_factors_and_scores_are_inverse(down, up):
    factor = Uncertain(math.exp(-down), math.exp(up))
    scores = np.linspace(-3, 3, 13)
    assert factor.scores(factor.factors(scores)) == pytest.approx(scores, abs=1e-9)


def test_an_answer_goes_through_all_its_values():
    at, values = (-1.0, 0.0, 2.0), (3.0, 1.0, 7.0)
    assert between(values, at, np.array(at)).tolist() == list(values)
    assert between(values, at, np.array([-2.0, 3.0])).tolist() == [5.0, 10.0]


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("mean", [0.0, 1e-4, 0.3, 2.0, 17.5, 144.0, 145.0, 900.0, 12345.6, 1e6])
def test_counts_are_those_of_scipy(share, mean):
    assert fewest(share, mean) == max(0, int(stats.poisson.ppf(share, mean)))
    assert fewest(stats.poisson.cdf(5, 2.0), 2.0) == 5  # a chance that is met exactly is enough


@pytest.mark.parametrize("share", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("means", [{1: 2.0, 3: 0.7}, {1: 0.3, 2: 4.0, 50: 0.02}, {4: 1.5}])
def test_a_sum_of_sizes_is_the_convolution_of_its_parts(share, means):
    chances = np.array([1.0])
    for size, mean in means.items():
        spread = np.zeros(300 * size)
        spread[::size] = stats.poisson.pmf(np.arange(300), mean)
        chances = np.convolve(chances, spread)
    assert fewest_of_sizes(share, means) == np.searchsorted(np.cumsum(chances), share)


def test_many_parts_of_several_sizes_are_normal():
    assert fewest_of_sizes(0.95, {1: 900.0}) == fewest(0.95, 900.0)
    assert fewest_of_sizes(0.95, {1: 900.0, 2: 1e-9}) == pytest.approx(fewest(0.95, 900.0), abs=1)
