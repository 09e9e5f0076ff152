"""Jobs that queue for one cluster: their waits under a discipline and a placement, and how sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import Seed, checked
from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, check_choice, shown
from workloads.options.job import AUTO
from workloads.sharing.arrivals import Arrival, arrivals_from, read_arrivals
from workloads.sharing.hazards import Hazards, hazards_of
from workloads.sharing.servers import DISCIPLINES, OVERHEADS, PLACES, Servers, Started
from workloads.sharing.teams import Teams, teams_of

if TYPE_CHECKING:
    import pandas as pd

RUNS = 8  # runs of other seeds, from whose spread the interval comes


@display.by_facts("Queue of jobs")
@dataclass(frozen=True, eq=False)
class Queue:
    """A queue that has been worked off."""

    cluster: Cluster
    discipline: str
    place: str
    jobs: tuple[Started, ...]  # jobs in order of arrival
    # (changes,): times at which anything changed [s], and from each on the servers in use, the jobs
    # that wait, and the servers in repair
    times_s: FloatArray
    busy: IntArray
    waiting: IntArray
    down: IntArray
    # The same jobs by (discipline, place), where a study was asked for
    others: dict[tuple[str, str], Queue] = field(default_factory=dict)
    # Mean waits with all predicted times at the low and high ends of their 80 % intervals [s]; None
    # where no time is predicted
    wait_ends_s: tuple[float, float] | None = None
    # Mean waits between which 80 % of runs of other seeds and rates lie [s]; None without failures
    failure_ends_s: tuple[float, float] | None = None
    rights: Teams = field(default_factory=Teams)  # quotas and reservations of teams
    borrowed_s: Mapping[str, float] = field(default_factory=dict)  # of chips beyond quotas [chip-s]
    # Sentences on the entries of the record that are no jobs of the queue
    left_out: tuple[str, ...] = ()
    # Options that change nothing here, with the reason
    without_effect: dict[str, str] = field(default_factory=dict)

    @property
    def _facts(self) -> dict[str, object]:
        return {
            "cluster": self.cluster.name,
            "jobs": len(self.jobs),
            "discipline": self.discipline,
            "mean wait": f"{self.waits_s.mean() / 3600:.2f} h",
        }

    @property
    def waits_s(self) -> FloatArray:
        """Wait of each job [s], float64 (jobs,)."""
        return np.array([each.wait_s for each in self.jobs])

    @property
    def end_s(self) -> float:
        """End of the last job, since the first arrival [s]."""
        return max(each.end_s for each in self.jobs)

    def _share(self, servers: IntArray) -> float:
        """Share of all server-hours, until the last job ends, that are so many servers."""
        lengths_s = np.diff(self.times_s, append=self.end_s)
        return float(servers @ lengths_s / (self.cluster.servers * self.end_s))

    def rows(self) -> list[dict[str, Any]]:
        """Return each job in order of arrival: its times [s], servers, stops and parts."""
        return [
            {
                "name": each.job.name,
                "submit_s": each.job.submit_s,
                "start_s": each.start_s,
                "end_s": each.end_s,
                "wait_s": each.wait_s,
                "recorded_wait_s": each.job.recorded_wait_s,
                "chips": each.job.chips,
                "servers": each.servers,
                "domains": each.domains,
                "least_domains": each.least_domains,
                "priority": each.job.priority,
                "team": each.job.team or None,
                "run_s": each.held_s,
                "failures": each.failures,
                "preemptions": each.preemptions,
                "parts_s": dict(each.parts_s),
            }
            for each in self.jobs
        ]

    def frame(self) -> pd.DataFrame:
        """Return a table with one row a job, in order of arrival; each part has a column."""
        import pandas as pd

        rows = self.rows()
        parts = [{f"{part}_s": s for part, s in row.pop("parts_s").items()} for row in rows]
        return pd.DataFrame([row | of_row for row, of_row in zip(rows, parts, strict=True)])

    @property
    def used(self) -> float:
        """Share of the server-hours in which jobs hold servers."""
        return self._share(self.busy)

    @property
    def idle_beside_waiting(self) -> float:
        """Share of the server-hours that are free while a job waits."""
        return self._share((self.cluster.servers - self.busy - self.down) * (self.waiting > 0))

    @property
    def breakdown(self) -> dict[str, float]:
        """Share of the server-hours of each part: of jobs, ``down`` in repair and ``idle``."""
        all_s = self.cluster.servers * self.end_s
        parts = {
            part: sum(each.servers * each.parts_s[part] for each in self.jobs) / all_s
            for part in OVERHEADS
        }
        useful = sum(each.servers * each.job.run_s for each in self.jobs) / all_s
        free = self.cluster.servers - self.busy - self.down
        rest = {"down": self._share(self.down), "idle": self._share(free)}
        return {"useful": useful, **parts, **rest}

    @property
    def scattered(self) -> float:
        """Share of the jobs that are in more domains than their size needs."""
        return sum(each.domains > each.least_domains for each in self.jobs) / len(self.jobs)

    @property
    def teams(self) -> list[dict[str, Any]]:
        """Waits and chip-hours of the jobs of each team; empty where no job names one."""
        names = {*self.rights.quotas, *(each.job.team for each in self.jobs)}
        return [self._team(name) for name in sorted(names)] if any(names) else []

    def _team(self, name: str) -> dict[str, Any]:
        jobs, quota = [each for each in self.jobs if each.job.team == name], self.rights.quotas
        waits_s = [each.wait_s for each in jobs]
        return {
            "team": name,
            "quota_chips": quota[name].chips if quota else None,
            "jobs": len(jobs),
            "mean_wait_s": float(np.mean(waits_s)) if jobs else None,
            "longest_wait_s": max(waits_s, default=None),
            "chip_hours": sum(each.chips * each.held_s for each in jobs) / 3600,
            "borrowed_chip_hours": self.borrowed_s.get(name, 0.0) / 3600 if quota else None,
            "preemptions": sum(each.preemptions for each in jobs),
        }


def work_off(jobs: Sequence[Arrival], discipline: str, place: str, hazards: Hazards) -> Queue:
    """Run a queue of jobs until it is empty; arguments as of :func:`queue_jobs`, checked there."""
    state = Servers(DISCIPLINES[discipline], place, hazards, jobs)
    ended = state.run()
    times_s, busy, waiting, down = map(np.array, zip(*state.changes, strict=True))
    return Queue(
        *(hazards.cluster, discipline, place, tuple(ended), times_s, busy, waiting, down),
        rights=hazards.teams,
        borrowed_s=state.borrowed_s,
    )


def with_ends(queue: Queue, jobs: Sequence[Arrival], hazards: Hazards) -> Queue:
    """Return the queue with its mean waits at both ends of predicted times, and of failures."""

    def mean_s(jobs: Sequence[Arrival], hazards: Hazards) -> float:
        return float(work_off(jobs, queue.discipline, queue.place, hazards).waits_s.mean())

    if hazards.rates.per_s:
        waits_s = []
        for run in range(1, RUNS + 1):
            seed = (*hazards.seed, run)
            rates = hazards.rates.drawn(np.random.default_rng((*seed, 0)))
            waits_s.append(mean_s(jobs, replace(hazards, rates=rates, seed=seed)))
        low_s, high_s = np.quantile(waits_s, (0.1, 0.9)).tolist()
        here_s = float(queue.waits_s.mean())
        queue = replace(queue, failure_ends_s=(min(low_s, here_s), max(high_s, here_s)))
    if any(job.ends_s for job in jobs):
        waits_s = []
        for end in (0, 1):
            stretched = []
            for job in jobs:
                run_s = job.ends_s[end] if job.ends_s else job.run_s
                stretched.append(replace(job, run_s=run_s, limit_s=max(run_s, job.limit_s)))
            waits_s.append(mean_s(stretched, hazards))
        queue = replace(queue, wait_ends_s=(waits_s[0], waits_s[1]))
    return queue


@checked(
    cluster=CLUSTER_REMEDY,
    jobs="Pass a file of jobs, or a list of dictionaries, as frame.to_dict('records') is.",
)
def queue_jobs(
    cluster: Cluster | str,
    jobs: Sequence[Mapping[str, Any]] | str | Path,
    *,
    discipline: str = "backfill",
    place: str = "any",
    study: bool = False,
    seed: Seed = 0,
    **hazards: Any,
) -> Queue:
    """Run jobs that arrive one after another, and see how long each waits.

    A job takes whole servers until it has done its work. Where a failure or a job of higher
    priority stops it, it loses what it did since its last checkpoint, and restarts.

    Parameters
    ----------
    cluster : Cluster or str
        Object, or its name as :func:`cluster_sim.cluster` takes it.
    jobs : list of mappings, str or Path
        For each job ``submit``, ``chips``, ``time``, or ``model``, fields of a plan, ``steps``;
        optionally ``name``, ``limit``, ``priority``, ``team``. Or a file: CSV of these, output of
        Slurm's ``sacct --parsable2``, or Kubernetes' list of jobs.
    discipline : {"fifo", "backfill", "priority", "preempt", "shortest"}, optional
        Order of waiting jobs; under ``preempt`` the first stops others of lower priority.
    place : {"any", "domain"}, optional
        Whether a job may be in more scale-up domains than its size needs.
    study, seed : bool and int, optional
        Whether all disciplines and places are run as well, into ``others``; seed of failures.
    **hazards
        ``failures`` ("catalogue", or as of :func:`run_job`; by default none), ``restart``,
        ``repair``, ``checkpoint_interval``, ``neighbours``, ``quota`` (``["research=64"]``),
        ``reserve``, as options of ``cluster-sim queue``.

    Returns
    -------
    Queue
        ``jobs`` with ``wait_s``; ``used`` and ``breakdown``, shares of the server-hours; ``teams``.

    Raises
    ------
    InputError
        For an unknown name, a record that cannot be read, and more chips than there are.

    Examples
    --------
    >>> jobs = [{"submit": at, "chips": 48, "time": "2h"} for at in ("0s", "1min")]
    >>> [job.wait_s / 60 for job in queue_jobs("trn2-ultraserver", jobs).jobs]
    [0.0, 119.0]
    """
    check_choice("discipline", discipline, DISCIPLINES)
    check_choice("place", place, PLACES)
    machine = as_cluster(cluster)
    usual = hazards_of(machine, hazards, seed)
    arrivals, left_out = _fitting(jobs, machine)
    of_jobs = replace(usual, teams=teams_of(machine, arrivals, **hazards))
    answer = _answer(arrivals, discipline, place, of_jobs, study=study)
    idle = _without_effect(answer, of_jobs, hazards)
    return replace(answer, left_out=left_out, without_effect=idle)


def _answer(
    jobs: Sequence[Arrival], discipline: str, place: str, hazards: Hazards, *, study: bool
) -> Queue:
    """Work off the jobs, whose times count from the first arrival, in one way or in all."""
    first_s = min(job.submit_s for job in jobs)
    jobs = [replace(job, submit_s=job.submit_s - first_s) for job in jobs]
    jobs.sort(key=lambda job: job.submit_s)
    pairs = [(each, where) for where in PLACES for each in DISCIPLINES] if study else []
    others = {pair: work_off(jobs, *pair, hazards) for pair in pairs if pair != (discipline, place)}
    answer = with_ends(work_off(jobs, discipline, place, hazards), jobs, hazards)
    return replace(answer, others=others)


def _without_effect(answer: Queue, hazards: Hazards, stated: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that are stated and change nothing, with the reason."""
    fails, why = hazards.rates.per_s > 0, dict[str, str]()
    runs = [run for each in (answer, *answer.others.values()) for run in each.jobs]
    if not fails:
        why["repair"] = "nothing fails without failures"
    if not fails and not any(run.preemptions for run in runs):
        why["restart"] = "nothing stops a job"
        if not any(run.saving.share for run in runs):  # otherwise saving costs time for nothing
            why["checkpoint_interval"] = "nothing stops a job"
    if not answer.breakdown["neighbours"]:
        why["neighbours"] = "no two jobs with a model share full links"
    return {name: why[name] for name in why if stated.get(name) not in (None, False, AUTO)}


def _fitting(
    stated: Sequence[Mapping[str, Any]] | str | Path, cluster: Cluster
) -> tuple[list[Arrival], tuple[str, ...]]:
    """Return the jobs, each of which fits on the cluster, and the entries that are left out."""
    if isinstance(stated, str | Path):
        jobs, left_out = read_arrivals(stated, cluster)
    else:
        jobs, left_out = arrivals_from(stated, cluster), ()
    if not jobs:
        named = shown(str(stated)) if isinstance(stated, str | Path) else "the queue"
        raise InputError(f"there are no jobs in {named}. Give at least one that ran.")
    for job in jobs:
        if job.chips > cluster.chips:
            raise InputError(
                f"job {job.name} needs {job.chips:,} chips, but {cluster.name} has "
                f"{cluster.chips:,}. Leave it out, or use a larger cluster."
            )
    return jobs, left_out
