"""Kendall's rank correlation: whether two lists of values have the same order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topologies.arrays import FloatArray


def kendall_tau(left: Sequence[float] | FloatArray, right: Sequence[float] | FloatArray) -> float:
    """Kendall's tau-b of two lists of values, 1 for the same order and -1 for the opposite one.

    It is that of ``scipy.stats.kendalltau``, to the last digit (``test_rank_correlation.py``);
    importing ``scipy.stats`` takes as long as a hundred estimates of plans.

    ``left, right`` (values,): finite values.

    M. G. Kendall, The treatment of ties in ranking problems, Biometrika 33 (1945), 239-251.
    """
    first, second = np.asarray(left, float), np.asarray(right, float)
    agreeing = untied_first = untied_second = 0
    for at in range(1, len(first)):
        one, other = np.sign(first[at:] - first[at - 1]), np.sign(second[at:] - second[at - 1])
        agreeing += int((one * other).sum())
        untied_first += int(np.count_nonzero(one))
        untied_second += int(np.count_nonzero(other))
    if not untied_first or not untied_second:
        return float("nan")
    tau = agreeing / np.sqrt(untied_first) / np.sqrt(untied_second)
    return float(min(1.0, max(-1.0, tau)))
