"""Quantiles of counts equal closed forms and scipy's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from workloads.confidence.poisson import fewest, fewest_of_sizes


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("mean", [0.0, 1e-4, 0.3, 2.0, 17.5, 144.0, 145.0, 900.0, 12345.6, 1e6])
def test_counts_are_those_of_scipy(share: float, mean: float) -> None:
    assert fewest(share, mean) == max(0, int(stats.poisson.ppf(share, mean)))


def test_a_chance_that_is_met_exactly_is_enough() -> None:
    assert fewest(stats.poisson.cdf(5, 2.0), 2.0) == 5


@pytest.mark.parametrize("share", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("means", [{1: 2.0, 3: 0.7}, {1: 0.3, 2: 4.0, 50: 0.02}, {4: 1.5}])
def test_a_sum_of_sizes_is_the_convolution_of_its_parts(
    share: float, means: dict[int, float]
) -> None:
    chances = np.array([1.0])
    for size, mean in means.items():
        spread = np.zeros(300 * size)
        spread[::size] = stats.poisson.pmf(np.arange(300), mean)
        chances = np.convolve(chances, spread)
    assert fewest_of_sizes(share, means) == np.searchsorted(np.cumsum(chances), share)


def test_many_parts_of_several_sizes_are_normal() -> None:
    assert fewest_of_sizes(0.95, {1: 900.0}) == fewest(0.95, 900.0)
    assert fewest_of_sizes(0.95, {1: 900.0, 2: 1e-9}) == pytest.approx(fewest(0.95, 900.0), abs=1)
