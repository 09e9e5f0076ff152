"""Quantiles of counts equal closed forms and scipy's."""

from __future__ import annotations

import pytest
from scipy import stats

from workloads.confidence.poisson import fewest


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9, 0.95, 0.999, 0.999999])
@pytest.mark.parametrize("mean", [0.0, 1e-4, 0.3, 2.0, 17.5, 144.0, 145.0, 900.0, 12345.6, 1e6])
def test_counts_are_those_of_scipy(share: float, mean: float) -> None:
    assert fewest(share, mean) == max(0, int(stats.poisson.ppf(share, mean)))


def test_a_chance_that_is_met_exactly_is_enough() -> None:
    assert fewest(stats.poisson.cdf(5, 2.0), 2.0) == 5
