"""Kendall's tau equals scipy's, to the last digit."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from workloads.confidence.rank_correlation import kendall_tau


@pytest.mark.parametrize("values", [2, 3, 20, 300])
def test_tau_with_and_without_ties_is_that_of_scipy(values):
    random = np.random.default_rng(values)
    for most in (2, values, 100 * values):
        left = random.integers(0, most, values).astype(float)
        right = left + random.integers(0, most, values)
        np.testing.assert_equal(kendall_tau(left, right), kendalltau(left, right).statistic)


def test_what_has_no_order_has_no_tau():
    assert np.isnan(kendall_tau([1, 1], [1, 2]))
    assert np.isnan(kendall_tau([1], [1]))
    assert kendall_tau([1, 2, 3], [3, 2, 1]) == -1
