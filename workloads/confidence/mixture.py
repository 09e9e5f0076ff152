"""Times on clusters of mixed quality, where some runs wait for a slow node in every microbatch.

A run takes its usual time or, with a probability that grows with its nodes, that time and a delay.
A point between the two would be the time of no run, so the probability enters the interval: its
ends are quantiles of the mixture of both.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from workloads.confidence.interval import LEVEL

NODE_CHIPS = 8  # chips of a node
HALVINGS = 60  # bisections in the search for a quantile, enough for the precision of a double
NORMAL = NormalDist()


class Slowing(NamedTuple):
    """Share of runs that slow nodes lengthen, and the time that they add."""

    share: float = 0.0  # probability that a run has one slow node or more
    seconds: float = 0.0  # time by which such a run is longer [s]


NEVER = Slowing()  # no slow nodes


def slowing(
    chips: int, microbatches: int, *, pipelined: bool, catalogue: Catalogue | None = None
) -> Slowing:
    """Return the delay of a run by slow nodes of a cluster of mixed quality, and its share."""
    catalogue = catalogue or shipped_catalogue()
    name = "slow_node_share_pipelined" if pipelined else "slow_node_share"
    each = catalogue.value("training", name)
    nodes = -(-chips // NODE_CHIPS)
    added_s = microbatches * catalogue.value("training", "slow_node_wait")
    return Slowing(1.0 - (1.0 - each) ** nodes, added_s)


def mixture_ends(
    value: float, slow: Slowing, half_width: float, level: float = LEVEL
) -> tuple[float, float]:
    """Ends of the interval of a time that slow nodes may lengthen, in the unit of ``value``.

    Usual and slowed times are log-normal about ``value`` and ``value + slow.seconds``, each with
    the same half-width, in logarithms, at ``level``; both tails have the same share of the others.
    """
    tail = (1 - level) / 2
    spread = half_width / NORMAL.inv_cdf(1 - tail)
    usual, slowed = math.log(value), math.log(value + slow.seconds)

    def distribution(log_time: float) -> float:
        usual_share = NORMAL.cdf((log_time - usual) / spread)
        return usual_share + slow.share * (NORMAL.cdf((log_time - slowed) / spread) - usual_share)

    def quantile(share: float) -> float:
        """Factor below which a share of machines lies, by halving."""
        low, high = usual - half_width, slowed + half_width
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if distribution(middle) < share else (low, middle)
        return math.exp(high)

    return quantile(tail), quantile(1 - tail)
