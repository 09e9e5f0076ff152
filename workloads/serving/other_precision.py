"""Gain of weights in FP8 where nobody stated a precision and BF16 fits.

They change the answers of a model, so that they are never chosen without the user's leave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.serving.deployment import Deployed
from workloads.serving.deployment_search import DeploymentQuestion, Offered, highest_rate
from workloads.serving.profile import Profile

FP8 = "fp8"
PARTS = (1, 2, 4)  # parts of a replica's chips on which the smaller weights are tried
WORTH = 1.05  # gain for each chip from which an answer names it


@dataclass(frozen=True)
class OtherPrecision:
    """Replicas with weights in another precision, and what they serve."""

    precision: str
    chips: int  # chips of a replica
    share: float  # requests/s of a chip within the SLO, over those of the chosen replica

    @property
    def sentence(self) -> str:
        """Return what they would serve, and the option that chooses them."""
        chips = f"{self.chips:,} chip{'s' * (self.chips != 1)}"
        return (
            f"weights in {self.precision.upper()}, on {chips} a replica, would serve "
            f"{self.share - 1:.0%} more requests/s a chip: --precision {self.precision}. They "
            "change the model's answers."
        )

    def document(self) -> dict[str, Any]:
        """Return the keys of the command line's JSON."""
        return {"other_precision": asdict(self)}


def may_gain(replica: Profile, cluster: Cluster) -> bool:
    """Return whether FP8 may serve more than a replica whose precision nobody stated."""
    return replica.precision == "bf16" and cluster.numbers.has(cluster.chip, f"{FP8}_peak")


def smaller_sizes(chips: int) -> Iterator[int]:
    """Yield the sizes of replicas that are tried, the largest first."""
    yield from (chips // part for part in PARTS if chips % part == 0)


def gained(rates: Iterator[tuple[int, float]], rate_per_chip_s: float) -> OtherPrecision | None:
    """Return the best of chips of a replica and rates of one; None where it gains too little."""
    chips, best = max(rates, key=lambda each: each[1], default=(0, 0.0))
    share = best / rate_per_chip_s
    return OtherPrecision(FP8, chips, share) if share >= WORTH else None


def with_other_precision(
    deployed: Deployed, question: DeploymentQuestion, offered_on: Callable[[int | None], Offered]
) -> Deployed:
    """Add what FP8 would serve to the answer of a highest rate, if nobody stated a precision.

    ``offered_on``: the same requests offered to replicas in FP8 of a tp, by default the stated one.
    """
    deployment, rate = deployed.deployment, deployed.rate_per_s
    if question.precision or not rate or deployment.prompts:
        return deployed
    if not may_gain(deployment.profile, question.cluster):
        return deployed
    stated = question.tp is not None or deployed.search is None
    sizes = [None] if stated else list(smaller_sizes(deployment.profile.chips))

    def rates() -> Iterator[tuple[int, float]]:
        """Yield the chips of each replica that keeps the SLO, and its rate for each."""
        for size in sizes:
            with suppress(InputError):
                offered = replace(offered_on(size), count=len(deployed.served.requests))
                chips = offered.deployment.chips
                yield offered.deployment.profile.chips, highest_rate(offered, question.slo) / chips

    other = gained(rates(), rate / deployment.chips)
    return replace(deployed, other_precision=other)
