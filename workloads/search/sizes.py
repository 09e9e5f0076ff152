"""Search for the fewest units of a machine on which a job ends in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cluster_sim.collectives.algorithms.hierarchical import prime_factors
from topologies.errors import InputError

MOST_TRIES = 10  # numbers of units that are tried, each with a search for a plan of some seconds
LARGEST_FACTOR = 7


def divides_well(count: int) -> bool:
    """Return whether a number has no prime factor above 7, so that plans have enough shapes."""
    return max(prime_factors(count), default=1) <= LARGEST_FACTOR


def usable_counts(most: int, shared: int) -> list[int]:
    """Return the numbers of units, up to ``most``, among which a batch and layers can be shared.

    The odd part of a number divides ``shared``, the product of sequences and layers.

    >>> usable_counts(24, 512 * 80 * 11)
    [1, 2, 4, 5, 8, 10, 16, 20]
    """
    odd_parts = ((count, count // (count & -count)) for count in range(1, most + 1))
    return [count for count, odd in odd_parts if shared % odd == 0 and divides_well(count)]


def fewest_in_time(
    days_on: Callable[[int], float], limit: float, counts: Sequence[int], start: int
) -> int | None:
    """Return the fewest units on which a job takes at most ``limit`` days, or None if none do.

    A number that ``days_on`` refuses has no plan, and others are tried. Longer jobs are taken to
    need more units, so that few are tried.

    >>> fewest_in_time(lambda count: 60 / count, 10, usable_counts(24, 3), 1)
    6
    """
    # The first guess after each answer is that of a job whose speed is that of its units.
    tried: dict[int, float] = {}
    refused: dict[int, InputError] = {}
    aim = float(start)
    while len(tried) + len(refused) < MOST_TRIES:
        short = max((count for count, days in tried.items() if days > limit), default=0)
        enough = min((count for count, days in tried.items() if days <= limit), default=1 << 62)
        left = [each for each in counts if short < each < enough and each not in refused]
        if not left:
            break
        count = next((each for each in left if each >= aim), left[-1])
        try:
            tried[count] = days_on(count)
            aim = count * tried[count] / limit
        except InputError as mistake:
            refused[count] = mistake
            aim = 2.0 * count
    if not tried:
        raise next(reversed(refused.values()))
    return min((count for count, days in tried.items() if days <= limit), default=None)
