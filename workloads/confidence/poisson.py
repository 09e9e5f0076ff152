"""Quantile of the Poisson distribution, without scipy."""

from __future__ import annotations

import math

DEEPEST = 12
"""Standard deviations below the mean at which the sum begins; what lies below is under 1e-32."""
ROUNDING = 1e-12
"""Shortfall of a sum that counts as rounding."""


def fewest(share: float, mean: float) -> int:
    """Return the smallest count that a Poisson variable does not exceed with this probability.

    Probabilities are summed term by term. ``scipy.special.pdtrik`` is the same quantile, but its
    import takes longer than a small command.

    Parameters
    ----------
    share : float
        Probability, in (0, 1).
    mean : float
        Mean of the variable, 0 or more.

    Examples
    --------
    >>> [fewest(0.999, mean) for mean in (0.0, 0.5, 2.0, 1e6)]
    [0, 4, 8, 1003092]
    """
    if mean <= 0:
        return 0
    count = max(0, math.floor(mean - DEEPEST * math.sqrt(mean)))
    term = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    total = term
    while total < share - ROUNDING:
        count += 1
        term *= mean / count
        total += term
    return count
