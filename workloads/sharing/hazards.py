"""Failures, checkpoints and neighbours of jobs in a queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from topologies.arguments import check_fields, check_names
from topologies.arrays import IntArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.options import described
from topologies.routing import switch_chips
from workloads.job.causes import FailureRates, failure_rates
from workloads.job.checkpoints import job_state
from workloads.job.goodput import daly_interval_s
from workloads.job.job import JobPlan, Recovery, plan_with
from workloads.options.job import HazardInputs
from workloads.sharing.arrivals import Arrival
from workloads.sharing.jobs import Job
from workloads.sharing.sharing import pair_slowdowns

CATALOGUE = "catalogue"
"""Word for the causes of failures that the catalogue has."""


@dataclass(frozen=True)
class Saving:
    """Checkpoints of a job, and what it costs to go back to one."""

    interval_s: float  # time of its own work between two checkpoints [s]
    write_s: float  # time until a checkpoint can be used [s]
    restart_s: float  # time from a new start to the first step [s]
    share: float  # time that saving adds to a second of work; 0 where the stated time has it

    def kept_s(self, done_s: float) -> float:
        """Return the part of the work since a start that a checkpoint holds [s].

        >>> saving = Saving(600.0, 60.0, 0.0, 0.0)
        >>> [saving.kept_s(after_s) for after_s in (599.0, 659.0, 660.0, 1900.0)]
        [0.0, 0.0, 600.0, 1800.0]
        """
        return math.floor(max(0.0, done_s - self.write_s) / self.interval_s) * self.interval_s


NEVER_STOPPED = Saving(1.0, 0.0, 0.0, 0.0)
"""Checkpoints of a job that needs none."""


class Neighbours:
    """Slowdowns of jobs with a model by each other, simulated once for each pair of placements."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        # Slowdowns of both of a pair, by their plans and chips
        self.kept: dict[tuple[object, ...], Sequence[float]] = {}

    def slowdowns(self, one: tuple[Job, IntArray], other: tuple[Job, IntArray]) -> Sequence[float]:
        """Return the time of a step beside the other relative to alone, of both jobs on chips."""
        jobs, chips = (one[0], other[0]), (one[1], other[1])
        domains = [np.unique(each // self.cluster.chips_per_domain) for each in chips]
        if max(map(len, domains)) == 1 and domains[0] != domains[1]:
            return 1.0, 1.0  # neither leaves its domain
        alike = _renumbered(self.cluster, chips)
        key = tuple((job, places.tobytes()) for job, places in zip(jobs, alike, strict=True))
        if key not in self.kept:
            self.kept[key] = pair_slowdowns(self.cluster, jobs, alike)
        return self.kept[key]


def _renumbered(cluster: Cluster, chips: Sequence[IntArray]) -> list[IntArray]:
    """Return chips of jobs in domains, racks and so on that are numbered in order of appearance."""
    # Switches of a layer and the domains below them are alike, so only which jobs are below the
    # same ones matters to what they cost each other.
    import pandas as pd

    places, sizes = np.concatenate(chips), [*switch_chips(cluster), cluster.chips]
    if any(above % below for below, above in pairwise(sizes)):
        return list(chips)  # a switch has parts of domains or fewer of them below it
    alike = places % sizes[0]
    for below, above in pairwise(sizes):
        numbers = pd.Series(places // below).groupby(places // above)
        alike += below * numbers.transform(lambda each: pd.factorize(each)[0]).to_numpy()
    return np.split(alike, [len(chips[0])])


@dataclass(frozen=True, eq=False)
class Hazards:
    """Events and conditions that stop and slow jobs of a queue."""

    cluster: Cluster
    rates: FailureRates  # of the whole cluster
    recovery: Recovery  # of a job whose state is not known
    interval_s: float | None = None  # stated time between checkpoints [s]
    restart_s: float | None = None  # stated time of a restart [s]
    neighbours: Neighbours | None = None
    seed: tuple[int, ...] = (0,)
    # Checkpoints by size and plan of a job
    savings: dict[object, Saving] = field(default_factory=dict)

    def saving(self, job: Arrival) -> Saving:
        """Return the checkpoints of a job, which takes whole servers.

        They are asynchronous, as those of ``run_job`` by default, and as far apart as Daly's
        estimate says for the failures of its servers: the catalogue's where none are simulated.
        Of a job without a model nothing is known of its state, and its stated time has its saving.
        """
        cluster, key = self.cluster, (job.chips, job.trained)
        if key in self.savings:
            return self.savings[key]
        catalogue = cluster.catalogue or shipped_catalogue()
        state = job_state(job.trained.model, job.trained.plan, cluster) if job.trained else None
        rates = self.rates if self.rates.per_s else failure_rates(cluster, cluster.chips)
        servers = -(-job.chips // cluster.chips_per_server)
        mtbf_s = cluster.servers / servers * rates.mtbf_s
        stall_s = catalogue.value("fleet.training", "checkpoint_stall")
        interval_s = self.interval_s or daly_interval_s(mtbf_s, stall_s)
        write_s, read_s = (state.write_s, state.read_s) if state else (0.0, 0.0)
        usual_s = self.recovery.restart_s + read_s
        restart_s = usual_s if self.restart_s is None else self.restart_s
        saving = Saving(interval_s, write_s, restart_s, stall_s / interval_s if state else 0.0)
        self.savings[key] = saving
        return saving


def hazards_of(cluster: Cluster, options: Mapping[str, Any], seed: int) -> Hazards:
    """Return the hazards that options state, by the names of :class:`HazardInputs`."""
    named = ("cluster", "jobs", "discipline", "place", "study", "seed")
    check_names("queue_jobs", options, [*named, *described(HazardInputs)])
    stated = {"seed": seed, **options}
    neighbours, failures = stated.pop("neighbours", False), stated.pop("failures", None)
    check_fields(HazardInputs, {"neighbours": neighbours})
    if failures != CATALOGUE:
        stated["failures"] = failures
    plan = plan_with(JobPlan(), stated, cluster, cluster.chips)
    rates = plan.rates or FailureRates(())
    if failures == CATALOGUE:
        rates = failure_rates(cluster, cluster.chips)
    recovery = Recovery.from_catalogue(cluster.catalogue or shipped_catalogue(), 0.0)
    if plan.repair_s is not None:
        recovery = replace(recovery, repair_s=plan.repair_s)
    beside = Neighbours(cluster) if neighbours else None
    return Hazards(
        *(cluster, rates, recovery, plan.interval_s, plan.restart_s, beside), seed=(seed,)
    )
