"""Several uncertain inputs combine as independent factors do."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads.confidence.interval import Interval
from workloads.confidence.sensitivity import AS_STATED, Uncertain, between, ends_of, lattice

ENDS = st.floats(0.02, 1.5)


def test_the_lattice_is_normal_and_its_inputs_are_independent() -> None:
    scores = lattice()
    assert np.abs(scores.mean(axis=1)).max() < 0.01
    assert np.abs(scores.std(axis=1) - 1).max() < 0.01
    assert np.abs(np.corrcoef(scores) - np.eye(len(scores))).max() < 0.02


@given(ENDS, ENDS, ENDS, ENDS)
def test_a_ratio_of_two_inputs_is_as_wide_as_the_root_of_their_squares(
    down: float, up: float, other_down: float, other_up: float
) -> None:
    """Where both sides of both are equal, this is exact; else the formula is a little off."""
    one = Uncertain(math.exp(-down), math.exp(up))
    other = Uncertain(math.exp(-other_down), math.exp(other_up))
    ratio = one.over(other)
    assert math.log(ratio.low) == pytest.approx(-math.hypot(down, other_up))
    assert math.log(ratio.high) == pytest.approx(math.hypot(up, other_down))
    even = Uncertain(math.exp(-up), math.exp(up)), Uncertain(math.exp(-down), math.exp(down))
    drawn = even[0].factors(lattice()[0]) / even[1].factors(lattice()[1])
    ends = ends_of(drawn, 1.0)
    assert math.log(ends["high"]) == pytest.approx(math.hypot(up, down), rel=0.02)
    assert math.log(ends["low"]) == pytest.approx(-math.hypot(up, down), rel=0.02)


def test_an_input_that_is_known_is_a_point_and_has_no_score() -> None:
    factors = AS_STATED.factors(lattice()[0])
    assert AS_STATED.is_point
    assert (factors == 1.0).all()
    assert (AS_STATED.scores(np.array([0.5, 2.0])) == 0.0).all()
    assert ends_of(factors * 7.0, 7.0) == {"low": 7.0, "high": 7.0}


@given(ENDS, ENDS)
def test_factors_and_scores_are_inverse(down: float, up: float) -> None:
    factor = Uncertain(math.exp(-down), math.exp(up))
    scores = np.linspace(-3, 3, 13)
    assert factor.scores(factor.factors(scores)) == pytest.approx(scores, abs=1e-9)


def test_an_interval_becomes_a_factor_around_its_middle() -> None:
    factor = Uncertain.of(Interval(8.0, 12.5, basis="rows", value=10.0))
    assert (factor.low, factor.high, factor.basis) == (0.8, 1.25, "rows")


def test_an_answer_goes_through_all_its_values() -> None:
    at, values = (-1.0, 0.0, 2.0), (3.0, 1.0, 7.0)
    assert between(values, at, np.array(at)).tolist() == list(values)
    assert between(values, at, np.array([-2.0, 3.0])).tolist() == [5.0, 10.0]
