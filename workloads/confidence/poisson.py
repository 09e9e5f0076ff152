"""Quantiles of counts of independent events."""

from __future__ import annotations

import math

DEEPEST = 12
"""Standard deviations below the mean at which sums of chances begin, less than 1e-32."""
ROUNDING = 1e-12


def fewest(share: float, mean: float) -> int:
    """Smallest count that a Poisson number does not exceed with at least this chance.

    Chances are summed one by one: ``scipy.special`` has the same, and takes longer to import than
    a small command.

    Parameters
    ----------
    share : float
        Chance, in (0, 1).
    mean : float
        Mean of the number, 0 or more.

    Examples
    --------
    >>> [fewest(0.999, mean) for mean in (0.0, 0.5, 2.0, 1e6)]
    [0, 4, 8, 1003092]
    """
    if mean <= 0:
        return 0
    count = max(0, math.floor(mean - DEEPEST * math.sqrt(mean)))
    chance = math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))
    total = chance
    while total < share - ROUNDING:
        count += 1
        chance *= mean / count
        total += chance
    return count
