"""Failures, checkpoints and neighbours of jobs in a queue."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.routing import switch_chips
from topologies.support.arguments import check_names
from topologies.support.arrays import IntArray
from topologies.support.errors import InputError, shown
from topologies.support.options import described
from workloads.job.causes import FailureRates, failure_rates, read_failures
from workloads.job.checkpoints import job_state
from workloads.job.goodput import daly_interval_s
from workloads.job.job import Recovery
from workloads.options.job import HazardInputs
from workloads.options.keywords import read_options
from workloads.sharing.arrivals import Arrival
from workloads.sharing.jobs import Job
from workloads.sharing.sharing import pair_slowdowns
from workloads.sharing.teams import Teams


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


NEVER_STOPPED = Saving(1.0, 0.0, 0.0, 0.0)  # checkpoints of a job that needs none


class Neighbours:
    """Slowdowns of jobs with a model by each other, simulated once for each pair of placements."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster
        # Slowdowns of both of a pair, by their plans and chips, as they are and renumbered
        self.kept: dict[tuple[object, ...], Sequence[float]] = {}

    def slowdowns(self, one: tuple[Job, IntArray], other: tuple[Job, IntArray]) -> Sequence[float]:
        """Return the time of a step beside the other relative to alone, of both jobs on chips."""
        jobs, chips = (one[0], other[0]), (one[1], other[1])
        domains = [np.unique(each // self.cluster.chips_per_domain) for each in chips]
        if max(map(len, domains)) == 1 and domains[0] != domains[1]:
            return 1.0, 1.0  # neither leaves its domain
        key = tuple((job, places.tobytes()) for job, places in zip(jobs, chips, strict=True))
        if key not in self.kept:
            alike = _renumbered(self.cluster, chips)
            if all(map(np.array_equal, alike, chips)):
                self.kept[key] = pair_slowdowns(self.cluster, jobs, chips)
            else:
                self.kept[key] = self.slowdowns((jobs[0], alike[0]), (jobs[1], alike[1]))
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
        codes, parts = pd.factorize(places // below)
        wholes = pd.Series(parts // (above // below))
        alike += below * wholes.groupby(wholes).cumcount().to_numpy()[codes]
    return np.split(alike, [len(chips[0])])


@dataclass(frozen=True, eq=False)
class Hazards:
    """Events and conditions that stop, slow and hold back jobs of a queue."""

    cluster: Cluster
    times: HazardInputs  # stated times of checkpoints and recovery
    rates: FailureRates  # of the whole cluster
    neighbours: Neighbours | None
    seed: tuple[int, ...]
    # Checkpoints by size and plan of a job; at drawn rates too they are as far apart as at these
    savings: dict[object, Saving] = field(default_factory=dict)
    teams: Teams = field(default_factory=Teams)

    def recovery(self, read_s: float = 0.0) -> Recovery:
        """Return the times after a failure of a job that reads its state in ``read_s``."""
        return Recovery.from_catalogue(self.cluster.numbers, read_s).with_stated(self.times)

    def saving(self, job: Arrival) -> Saving:
        """Return the checkpoints of a job, which takes whole servers."""
        # Asynchronous, as those of ``run_job`` by default, at Daly's estimate for its servers'
        # failures, the catalogue's where none are simulated. A job without a model has an unknown
        # state, and its saving is in its stated time.
        cluster, key = self.cluster, (job.chips, job.trained)
        if key in self.savings:
            return self.savings[key]
        state = job_state(job.trained.model, job.trained.plan, cluster) if job.trained else None
        rates = self.rates if self.rates.per_s else failure_rates(cluster, cluster.chips)
        servers = -(-job.chips // cluster.chips_per_server)
        mtbf_s = cluster.servers / servers * rates.mtbf_s
        least_s = cluster.numbers.value("fleet.training", "checkpoint_stall")  # without a copy
        stall_s = state.stall_s if state else least_s
        # As ``run_job`` has it: where saving costs nothing, once a second
        interval_s = self.times.interval_s or max(1.0, daly_interval_s(mtbf_s, stall_s))
        write_s, read_s = (state.write_s, state.read_s) if state else (0.0, 0.0)
        restart_s = self.recovery(read_s).restart_s
        saving = Saving(interval_s, write_s, restart_s, stall_s / interval_s if state else 0.0)
        self.savings[key] = saving
        return saving


def hazards_of(cluster: Cluster, options: Mapping[str, Any], seed: int) -> Hazards:
    """Return the hazards that options state, by the names of :class:`HazardInputs`."""
    named = ("cluster", "jobs", "discipline", "place", "study", "seed")
    check_names("queue_jobs", options, [*named, *described(HazardInputs)])
    inputs, rates = read_options(HazardInputs, options), FailureRates(())
    if inputs.failures is not None:
        rates = read_failures(inputs.failures, cluster, cluster.chips)
    if unlike := [
        one.name for one in rates.causes if one.units > 1 or one.found_after_s or one.again
    ]:
        raise InputError(
            f"--failures {shown(str(inputs.failures), 60)}: cause {unlike[0]} has units, "
            "found_after or again, which jobs in a queue do not know; leave these columns out, or "
            "ask run-job."
        )
    beside = Neighbours(cluster) if inputs.neighbours else None
    return Hazards(cluster, inputs, rates, beside, (seed,))
