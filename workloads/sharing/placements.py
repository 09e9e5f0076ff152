"""Placements: which chips of a cluster each job gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import BoolArray, IntArray
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.routing import switch_chips
from workloads.models.model import Model
from workloads.training.plan.plan import ParallelPlan

PLACEMENTS = {
    "packed": "the next free chips, whatever they share with the job before",
    "server": "whole servers that no other job uses",
    "domain": "whole scale-up domains, such as UltraServers, that no other job uses",
    "rack": "all that is below a first switch of the scale-out fabric",
    "spread": "equally many chips of every scale-up domain",
}
"""Names of placements, with the chips that a job gets."""


@dataclass(frozen=True)
class Job:
    """A training job and its place on the cluster.

    ``placement``: a name of :data:`PLACEMENTS`. ``start``: first chip, in place of a placement.
    """

    name: str
    model: Model
    plan: ParallelPlan
    placement: str = "packed"
    start: int | None = None

    @property
    def chips(self) -> int:
        """Number of chips that the job uses."""
        return -(-self.plan.ranks // self.plan.ranks_per_chip)


def chips_of_jobs(jobs: Sequence[Job], cluster: Cluster, placement: str = "") -> list[IntArray]:
    """Return the chips of each job, int64 (chips,).

    Jobs with a first chip of their own are placed first, the others in their order.

    ``placement``: placement of all jobs without a first chip, in place of their own.

    Raises InputError for jobs that need more chips than there are, explicit places that overlap,
    and a job for which the free chips do not suffice in its placement.
    """
    needed = sum(job.chips for job in jobs)
    if needed > cluster.chips:
        counts = ", ".join(f"{job.name} {job.chips:,}" for job in jobs)
        raise InputError(
            f"the jobs use {needed:,} chips ({counts}), but {cluster.name} has "
            f"{cluster.chips:,}. Use fewer or smaller jobs, or a larger cluster."
        )
    owner = np.full(cluster.chips, -1)
    places: list[IntArray] = [np.empty(0, np.int64)] * len(jobs)
    in_order = sorted(range(len(jobs)), key=lambda number: jobs[number].start is None)
    for number in in_order:
        job = jobs[number]
        if job.start is None:
            picked = _free(job, cluster, owner < 0, placement or job.placement)
        else:
            picked = job.start + np.arange(job.chips)
            _check_stated(job, picked, jobs, owner)
        places[number], owner[picked] = picked, number
    return places


def _check_stated(job: Job, picked: IntArray, jobs: Sequence[Job], owner: IntArray) -> None:
    """Refuse chips from a stated one on that the cluster does not have, or another job has."""
    first, last = int(picked[0]), len(owner) - 1
    if picked[-1] > last:
        raise InputError(
            f"job {job.name} uses {job.chips:,} chips from {first:,} on, but the last is "
            f"{last:,}. Start it at {len(owner) - job.chips:,} at most."
        )
    taken = picked[owner[picked] >= 0]
    if len(taken):
        other = jobs[int(owner[taken[0]])]
        raise InputError(
            f"jobs {other.name} and {job.name} both use chip {taken[0]:,}. Start {job.name} "
            "elsewhere."
        )


def _free(job: Job, cluster: Cluster, free: BoolArray, placement: str) -> IntArray:
    """Chips that a job gets among the free ones."""
    each = _unit(cluster, placement)
    unit = np.arange(cluster.chips) // each
    units = int(unit[-1]) + 1
    if placement == "spread":
        open_chips = np.bincount(unit[free], minlength=units)
        share = -(-job.chips // units)
        used = -(-job.chips // share)  # the first domains, if they do not divide the chips
        rank = np.cumsum(free) - 1
        rank -= np.concatenate([[0], np.cumsum(open_chips)[:-1]])[unit]
        picked = np.flatnonzero(free & (unit < used) & (rank < share))[: job.chips]
    else:
        whole = np.bincount(unit[free], minlength=units) == np.bincount(unit)
        picked = np.flatnonzero(free & whole[unit])[: job.chips]
    if len(picked) < job.chips:
        remedy = "packed" if placement != "packed" else "fewer chips"
        raise InputError(
            f"job {job.name} needs {job.chips:,} chips, and placement {placement} finds "
            f"{len(picked):,} free ones beside the other jobs. Use {remedy}, or a larger cluster."
        )
    return picked


def _unit(cluster: Cluster, placement: str) -> int:
    """Chips that a placement gives to one job alone, or of a domain for ``spread``."""
    if placement == "packed":
        return 1
    if placement == "server":
        return cluster.chips_per_server
    # Without a layer of switches below the top, all chips are in one rack.
    return [*switch_chips(cluster), cluster.chips][placement == "rack"]
