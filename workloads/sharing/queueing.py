"""Jobs that queue for one cluster: who starts when, under a discipline and a placement.

Jobs take whole servers for as long as they run, as under Slurm or Kueue. Servers of a scale-up
domain are alike, so the state of the cluster is the number of free servers of each domain.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import simpy

from topologies import display
from topologies.arguments import checked
from topologies.arrays import FloatArray, IntArray
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.errors import InputError, check_choice
from workloads.sharing.arrivals import Arrival, arrivals_from, read_arrivals

Process = Generator[simpy.Event, Any, None]


class Discipline(NamedTuple):
    """An order in which waiting jobs are considered."""

    order: Callable[[Arrival], tuple[float, ...]]  # function whose least value comes first
    # Whether a later job may start early where, by all limits, it does not delay the first
    fills: bool = True


DISCIPLINES = {
    "fifo": Discipline(lambda job: (job.submit_s,), fills=False),
    "backfill": Discipline(lambda job: (job.submit_s,)),
    "priority": Discipline(lambda job: (-job.priority, job.submit_s)),
    "shortest": Discipline(lambda job: (job.limit_s, job.submit_s)),
}
"""Disciplines by name. Backfill is EASY's: only the first waiting job has a reservation."""
PLACES = ("any", "domain")
"""Where jobs may start: on any free servers, or in no more domains than their size needs."""


@dataclass(frozen=True)
class Started:
    """A job with its place in time and on the cluster."""

    job: Arrival
    start_s: float  # since the first arrival [s]
    servers: int
    domains: int  # scale-up domains that it is in
    least_domains: int  # domains that its size needs

    @property
    def wait_s(self) -> float:
        """Time between arrival and start [s]."""
        return self.start_s - self.job.submit_s

    @property
    def end_s(self) -> float:
        """Time of its end, since the first arrival [s]."""
        return self.start_s + self.job.run_s


@display.by_facts("Queue of jobs")
@dataclass(frozen=True, eq=False)
class Queue:
    """A queue that has been worked off."""

    cluster: Cluster
    discipline: str
    place: str
    jobs: tuple[Started, ...]  # jobs in order of arrival. ``times_s``, ``busy``,
    times_s: FloatArray
    busy: IntArray
    # (changes,): times at which anything changed [s], and from each on the servers in use and the
    # jobs that wait
    waiting: IntArray
    # The same jobs by (discipline, place), where a study was asked for
    others: dict[tuple[str, str], Queue] = field(default_factory=dict)
    # Mean waits with all predicted times at the low and high ends of their 80 % intervals [s]; None
    # where no time is predicted
    wait_ends_s: tuple[float, float] | None = None
    # Sentences on the entries of the record that are no jobs of the queue
    left_out: tuple[str, ...] = ()

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

    @property
    def used(self) -> float:
        """Share of the server-hours in which jobs run."""
        return self._share(self.busy)

    @property
    def idle_beside_waiting(self) -> float:
        """Share of the server-hours that are free while a job waits."""
        return self._share((self.cluster.servers - self.busy) * (self.waiting > 0))

    @property
    def scattered(self) -> float:
        """Share of the jobs that are in more domains than their size needs."""
        return sum(each.domains > each.least_domains for each in self.jobs) / len(self.jobs)


def work_off(cluster: Cluster, jobs: Sequence[Arrival], discipline: str, place: str) -> Queue:
    """Run a queue of jobs until it is empty; arguments as of :func:`queue_jobs`, checked there."""
    env = simpy.Environment()
    state = _State(env, cluster, DISCIPLINES[discipline], place)
    for job in jobs:
        env.process(state.lead(job))
    env.run()
    started = {each.job: each for each in state.started}
    if len(started) != len(jobs) or (state.free != state.per_domain).any():
        raise RuntimeError("a job or a server was lost, which is a fault of the simulator")
    times_s, busy, waiting = (np.array(column) for column in zip(*state.changes, strict=True))
    return Queue(
        *(cluster, discipline, place, tuple(started[job] for job in jobs)), times_s, busy, waiting
    )


def with_ends(queue: Queue, jobs: Sequence[Arrival]) -> Queue:
    """Return the queue with its mean waits at both ends of predicted times."""
    if not any(job.ends_s for job in jobs):
        return queue
    waits_s = []
    for end in (0, 1):
        stretched = []
        for job in jobs:
            run_s = job.ends_s[end] if job.ends_s else job.run_s
            stretched.append(replace(job, run_s=run_s, limit_s=max(run_s, job.limit_s)))
        other = work_off(queue.cluster, stretched, queue.discipline, queue.place)
        waits_s.append(float(other.waits_s.mean()))
    return replace(queue, wait_ends_s=(waits_s[0], waits_s[1]))


class _State:
    """Free servers, waiting and running jobs of one run."""

    def __init__(
        self, env: simpy.Environment, cluster: Cluster, discipline: Discipline, place: str
    ):
        self.env, self.discipline, self.place = env, discipline, place
        self.per_domain = cluster.chips_per_domain // cluster.chips_per_server
        self.per_server = cluster.chips_per_server
        self.free = np.full(cluster.domains, self.per_domain)
        self.waiting: list[Arrival] = []
        self.running: dict[Arrival, tuple[float, IntArray]] = {}  # end by its limit, servers
        self.started: list[Started] = []
        self.changes: list[tuple[float, int, int]] = []  # time, busy servers, waiting jobs
        self.turns: dict[Arrival, simpy.Event] = {}  # of waiting jobs
        self.is_changed = False  # whether jobs came or went at the present time

    def lead(self, job: Arrival) -> Process:
        """Lead a job through the queue and its run."""
        yield self.env.timeout(job.submit_s)
        insort(self.waiting, job, key=self.discipline.order)
        self.turns[job] = self.env.event()
        self._consider()
        servers = yield self.turns[job]
        yield self.env.timeout(job.run_s)
        del self.running[job]
        self.free += servers
        self._consider()

    def _consider(self) -> None:
        """Consider the waiting jobs once all that comes or goes at the present time has."""
        if not self.is_changed:
            self.is_changed = True
            self.env.timeout(0).callbacks.append(lambda _: self._start())

    def _start(self) -> None:
        """Start all jobs that may start now."""
        self.is_changed = False
        while self.waiting and (servers := self._servers(self.waiting[0], self.free)) is not None:
            self._begin(self.waiting[0], servers)
        if self.discipline.fills and len(self.waiting) > 1:
            self._backfill()
        busy = self.per_domain * len(self.free) - int(self.free.sum())
        self.changes.append((self.env.now, busy, len(self.waiting)))

    def _backfill(self) -> None:
        """Start later jobs that do not delay the first waiting one, by all limits."""
        first, *later = self.waiting
        turn_s, spare = self._turn(first)
        for job in later:
            ends_before = self.env.now + job.limit_s <= turn_s
            room = self.free if ends_before else np.minimum(self.free, spare)
            if (servers := self._servers(job, room)) is not None:
                self._begin(job, servers)
                spare = spare if ends_before else spare - servers

    def _turn(self, job: Arrival) -> tuple[float, IntArray]:
        """Return when a job can start by all limits [s], and the servers left free then."""
        free = self.free.copy()
        for end_s, servers in sorted(self.running.values(), key=lambda item: item[0]):
            free += servers
            if (reserved := self._servers(job, free)) is not None:
                return end_s, free - reserved
        raise RuntimeError("a job that fits in the empty cluster has no turn")

    def _begin(self, job: Arrival, servers: IntArray) -> None:
        self.waiting.remove(job)
        self.free -= servers
        self.running[job] = (self.env.now + job.limit_s, servers)
        count = int(servers.sum())
        least = -(-count // self.per_domain)
        self.started.append(
            Started(job, self.env.now, count, int(np.count_nonzero(servers)), least)
        )
        self.turns.pop(job).succeed(servers)

    def _servers(self, job: Arrival, free: IntArray) -> IntArray | None:
        """Servers of each domain that a job gets among free ones; None if it has to wait."""
        needed = -(-job.chips // self.per_server)
        if needed > free.sum():
            return None
        # The fullest domain in which the rest of the job fits keeps the others whole; a job of
        # several domains takes the emptiest ones first.
        taken = np.zeros_like(free)
        for domain in np.argsort(-free, kind="stable"):
            rest = needed - int(taken.sum())
            if rest <= free[domain]:
                enough = np.flatnonzero((free >= rest) & (taken == 0))
                taken[enough[np.argmin(free[enough])]] = rest
                break
            taken[domain] = free[domain]
        if self.place == "domain" and np.count_nonzero(taken) > -(-needed // self.per_domain):
            return None
        return taken


@checked(cluster=CLUSTER_REMEDY, jobs="Pass a file of jobs, or a list of dictionaries.")
def queue_jobs(
    cluster: Cluster | str,
    jobs: Sequence[Mapping[str, Any]] | str | Path,
    *,
    discipline: str = "backfill",
    place: str = "any",
    study: bool = False,
) -> Queue:
    """Run jobs that arrive one after another, and see how long each waits.

    A job takes whole servers for as long as it runs. What jobs cost each other is not in that
    time; see :func:`share`.

    Parameters
    ----------
    cluster : Cluster or str
        Object, or its name as :func:`cluster_sim.cluster` takes it.
    jobs : list of mappings, str or Path
        For each job ``submit``, ``chips`` and ``time``, or ``model``, fields of a plan and
        ``steps``; optionally ``name``, ``limit`` and ``priority``. Or a file: CSV with these
        columns, the output of Slurm's ``sacct --parsable2``, or Kubernetes' list of jobs.
    discipline : {"fifo", "backfill", "priority", "shortest"}, optional
        Order in which waiting jobs are considered.
    place : {"any", "domain"}, optional
        Whether a job may be in more scale-up domains than its size needs.
    study : bool, optional
        Whether all disciplines and places are run as well, into ``others`` of the result.

    Returns
    -------
    Queue
        ``jobs`` with ``wait_s``; ``used`` and ``idle_beside_waiting``, shares of the server-hours.

    Raises
    ------
    InputError
        For an unknown name, a record that cannot be read, and a job larger than the cluster.

    Examples
    --------
    >>> jobs = [
    ...     {"submit": "0s", "chips": 48, "time": "2h"},
    ...     {"submit": "1min", "chips": 64, "time": "1h"},
    ...     {"submit": "2min", "chips": 16, "time": "30min"},
    ... ]
    >>> [job.wait_s / 60 for job in queue_jobs("trn2-ultraserver", jobs).jobs]
    [0.0, 119.0, 0.0]
    """
    check_choice("discipline", discipline, DISCIPLINES)
    check_choice("place", place, PLACES)
    machine = as_cluster(cluster)
    if isinstance(jobs, str | Path):
        arrivals, left_out = read_arrivals(jobs, machine)
    else:
        arrivals, left_out = arrivals_from(jobs, machine), ()
    _check_fits(arrivals, machine)
    return replace(_answer(machine, arrivals, discipline, place, study), left_out=left_out)


def _answer(
    cluster: Cluster, jobs: Sequence[Arrival], discipline: str, place: str, study: bool
) -> Queue:
    """Work off the jobs, whose times count from the first arrival, in one way or in all."""
    first_s = min(job.submit_s for job in jobs)
    jobs = [replace(job, submit_s=job.submit_s - first_s) for job in jobs]
    jobs.sort(key=lambda job: job.submit_s)
    pairs = [(each, where) for where in PLACES for each in DISCIPLINES] if study else []
    others = {pair: work_off(cluster, jobs, *pair) for pair in pairs if pair != (discipline, place)}
    answer = with_ends(work_off(cluster, jobs, discipline, place), jobs)
    return replace(answer, others=others)


def _check_fits(jobs: Sequence[Arrival], cluster: Cluster) -> None:
    """Refuse an empty queue, and a job that is larger than the cluster."""
    if not jobs:
        raise InputError("there are no jobs in the queue. Give at least one that ran.")
    for job in jobs:
        if job.chips > cluster.chips:
            raise InputError(
                f"job {job.name} needs {job.chips:,} chips, but {cluster.name} has "
                f"{cluster.chips:,}. Leave it out, or use a larger cluster."
            )
