"""Quantiles of the Poisson distribution and of sums of Poisson variables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

DEEPEST = 12
"""Standard deviations below the mean at which the sum begins; what lies below is under 1e-32."""
MOST_PARTS = 700.0
"""Mean number of parts from which their sum is taken as normal; e^-746 is no float any more."""
ROUNDING = 1e-12  # shortfall of a sum that counts as rounding


def fewest(share: float, mean: float) -> int:
    """Return the smallest count that a Poisson variable does not exceed with this probability."""
    # ``scipy.special.pdtrik`` is the same quantile; its import takes longer than a small command.
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


def fewest_of_sizes(share: float, means: Mapping[int, float]) -> int:
    """Return the smallest total that parts of several sizes do not exceed with this probability."""
    # The number of parts of each size is Poisson and independent of the others. The probabilities
    # of all totals follow one from another by Panjer's recursion (ASTIN Bulletin 12, 1981).
    parts = {size: mean for size, mean in means.items() if mean > 0}
    if parts.keys() <= {1}:
        return fewest(share, parts.get(1, 0.0))
    if sum(parts.values()) > MOST_PARTS:
        mean = sum(size * each for size, each in parts.items())
        deviation = math.sqrt(sum(size**2 * each for size, each in parts.items()))
        return math.ceil(mean + NormalDist().inv_cdf(share) * deviation)
    chance = [math.exp(-sum(parts.values()))]
    total = chance[0]
    while total < share - ROUNDING:
        count = len(chance)
        chance.append(
            sum(size * mean * chance[count - size] for size, mean in parts.items() if size <= count)
            / count
        )
        total += chance[-1]
    return len(chance) - 1
