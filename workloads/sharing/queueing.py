"""Jobs that queue for one cluster: who starts when, under a discipline and a placement.

Jobs take whole servers for as long as they run, as under Slurm or Kueue. Servers of a scale-up
domain are alike, so the state of the cluster is the number of free servers of each domain.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import simpy

from topologies import display
from topologies.arguments import Seed, checked
from topologies.arrays import FloatArray, IntArray
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.errors import InputError, check_choice
from workloads.job.job import MOST_FAILURES
from workloads.options.job import AUTO
from workloads.sharing.arrivals import Arrival, arrivals_from, read_arrivals
from workloads.sharing.hazards import NEVER_STOPPED, Hazards, Neighbours, Saving, hazards_of


class Discipline(NamedTuple):
    """An order in which waiting jobs are considered."""

    order: Callable[[Arrival], tuple[float, ...]]  # function whose least value comes first
    # Whether a later job may start early where, by all limits, it does not delay the first
    fills: bool = True
    # Whether the first waiting job stops running ones of lower priority where it has no room
    stops: bool = False


def _by_priority(job: Arrival) -> tuple[float, ...]:
    """Return the order of jobs of higher priority before others."""
    return -job.priority, job.submit_s


DISCIPLINES = {
    "fifo": Discipline(lambda job: (job.submit_s,), fills=False),
    "backfill": Discipline(lambda job: (job.submit_s,)),
    "priority": Discipline(_by_priority),
    "preempt": Discipline(_by_priority, stops=True),
    "shortest": Discipline(lambda job: (job.limit_s, job.submit_s)),
}
"""Disciplines by name. Backfill is EASY's: only the first waiting job has a reservation."""
PLACES = ("any", "domain")
"""Where jobs may start: on any free servers, or in no more domains than their size needs."""
WAITING, COMPUTING, DETECTION, RESTART = "waiting", "useful", "detection", "restart"
"""Phases of a job."""
OVERHEADS = ("lost_work", "checkpoint", "neighbours", DETECTION, RESTART)
"""Parts of the time that a job holds servers, beside the useful one."""
RUNS = 8  # runs of other seeds, from whose spread the interval comes


@dataclass(eq=False)
class Started:
    """A job of a queue, on its way and at its end."""

    job: Arrival
    saving: Saving
    servers: int
    least_domains: int  # domains that its size needs
    left_s: float  # its work that no checkpoint holds [s]
    done_s: float = 0.0  # of this, what is done since its last start [s]
    slower: float = 0.0  # time that neighbours add to a second of work
    phase: str = ""
    end_s: float = 0.0  # end of what is counted, since the first arrival [s]
    turn: int = 0  # number of phases so far, so that the end of one that was cut short is none
    start_s: float = -1.0  # first start, since the first arrival [s]
    wait_s: float = 0.0  # time in the queue, after stops too [s]
    until_s: float = 0.0  # end by its limit, as schedulers see it [s]
    on: tuple[int, ...] = ()  # its servers
    domains: int = 0  # scale-up domains that it is in, after its last start
    broken: set[int] = field(default_factory=set)  # servers that have failed and are not found yet
    preemptions: int = 0  # number of times that a job of higher priority has stopped it
    failures: int = 0  # number of times that a failure has
    # Time on its servers for each of ``OVERHEADS`` [s]
    parts_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(OVERHEADS, 0.0))

    def count(self, now_s: float) -> None:
        """Add the time since the last count to the part that it belongs to."""
        elapsed_s, self.end_s = now_s - self.end_s, now_s
        if self.phase == WAITING:
            self.wait_s += elapsed_s
        elif self.phase == COMPUTING:
            work_s = elapsed_s / self.pace
            self.done_s += work_s
            self.parts_s["checkpoint"] += work_s * self.saving.share
            self.parts_s["neighbours"] += work_s * self.slower
        elif self.phase:
            self.parts_s[self.phase] += elapsed_s

    @property
    def pace(self) -> float:
        """Time that a second of work takes [s]."""
        return 1.0 + self.saving.share + self.slower

    def go_back(self, now_s: float) -> None:
        """Lose the work since the last checkpoint."""
        self.count(now_s)
        kept_s = self.saving.kept_s(self.done_s)
        self.parts_s["lost_work"] += self.done_s - kept_s
        self.left_s, self.done_s = self.left_s - kept_s, 0.0


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


def work_off(jobs: Sequence[Arrival], discipline: str, place: str, hazards: Hazards) -> Queue:
    """Run a queue of jobs until it is empty; arguments as of :func:`queue_jobs`, checked there."""
    state = _State(DISCIPLINES[discipline], place, hazards, jobs)
    ended = state.run()
    times_s, busy, waiting, down = map(np.array, zip(*state.changes, strict=True))
    cluster = hazards.cluster
    return Queue(cluster, discipline, place, tuple(ended), times_s, busy, waiting, down)


def with_ends(queue: Queue, jobs: Sequence[Arrival], hazards: Hazards) -> Queue:
    """Return the queue with its mean waits at both ends of predicted times, and of failures."""

    def mean_s(jobs: Sequence[Arrival], hazards: Hazards) -> float:
        """Mean wait of the queue with other jobs or hazards [s]."""
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


def _preempts(discipline: Discipline, jobs: Sequence[Arrival]) -> bool:
    """Return whether a job may take servers from another."""
    return discipline.stops and len({job.priority for job in jobs}) > 1


class _State:
    """Servers, waiting and running jobs of one run, and everything that changes them."""

    # A job waits, computes and ends. A failure, or a job of higher priority, cuts this short; then
    # it detects the failure on its servers, or waits again, and restarts from its checkpoint.

    def __init__(
        self, discipline: Discipline, place: str, hazards: Hazards, jobs: Sequence[Arrival]
    ):
        cluster = hazards.cluster
        self.env, self.discipline, self.place = simpy.Environment(), discipline, place
        self.hazards, self.cluster, self.recovery = hazards, cluster, hazards.recovery()
        self.per_domain = cluster.chips_per_domain // cluster.chips_per_server
        self.per_server = cluster.chips_per_server
        self.free = np.full(cluster.domains, self.per_domain)
        self.held: dict[int, Started] = {}  # servers of jobs
        self.down: dict[int, float] = {}  # servers in repair, and when they should be back
        self.waiting: list[Started] = []
        self.running: dict[Started, None] = {}  # in order of their starts
        self.changes: list[tuple[float, int, int, int]] = []  # time, servers busy, jobs, down
        self.is_changed = False  # whether jobs came or went at the present time
        # Where nothing stops jobs, they need no checkpoint.
        stops = hazards.rates.per_s > 0 or _preempts(discipline, jobs)
        self.runs = []
        for job in jobs:
            servers = -(-job.chips // self.per_server)
            saving = hazards.saving(job) if stops else NEVER_STOPPED
            least = -(-servers // self.per_domain)
            self.runs.append(Started(job, saving, servers, least, left_s=job.run_s))
        self.unfinished, self.ended = len(jobs), self.env.event()
        self.failing_rng, self.repair_rng = np.random.default_rng(hazards.seed).spawn(2)
        self.failures = 0

    def run(self) -> list[Started]:
        """Run until the last job has ended, and return all of them."""
        for run in self.runs:
            self._after(run.job.submit_s, partial(self._wait, run))
        if self.hazards.rates.per_s:
            self._after(self._next_failure_s(), self._fail)
        self.env.run(until=self.ended)
        if self.held or self.waiting or (self.free.sum() + len(self.down) != self.cluster.servers):
            raise RuntimeError("a job or a server was lost, which is a fault of the simulator")
        return self.runs

    # Phases of a job

    def _after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.env.timeout(delay_s).callbacks.append(lambda _: call())

    def _enter(self, run: Started, phase: str) -> int:
        """Let a job begin a phase, and return its number."""
        run.count(self.env.now)
        meets = self.hazards.neighbours is not None and run.job.trained
        if meets and run.phase != phase:
            self._consider()  # what it slows goes on at another pace
        run.phase, run.turn = phase, run.turn + 1
        return run.turn

    def _spend(
        self, run: Started, phase: str, length_s: float, then: Callable[[Started], None]
    ) -> None:
        """Let a job begin a phase that ends after a time, unless another begins before."""
        turn = self._enter(run, phase)
        self._after(length_s, lambda: then(run) if run.turn == turn else None)

    def _wait(self, run: Started) -> None:
        """Let a job queue, for the first time or again."""
        self._enter(run, WAITING)
        insort(self.waiting, run, key=lambda each: self.discipline.order(each.job))
        self._consider()

    def _begin(self, run: Started, taken: IntArray) -> None:
        """Give a job servers of each domain."""
        self.waiting.remove(run)
        self.running[run] = None
        self.free -= taken
        run.on, run.domains = self._picked(taken), int(np.count_nonzero(taken))
        self.held.update(dict.fromkeys(run.on, run))
        run.until_s = self.env.now + run.job.limit_s
        if run.start_s < 0:
            run.start_s = self.env.now
            self._compute(run)
        else:
            self._restart(run)

    def _restart(self, run: Started) -> None:
        self._spend(run, RESTART, run.saving.restart_s, self._compute)

    def _compute(self, run: Started) -> None:
        self._spend(run, COMPUTING, (run.left_s - run.done_s) * run.pace, self._finish)

    def _finish(self, run: Started) -> None:
        self._leave(run)
        self.unfinished -= 1

    def _leave(self, run: Started) -> None:
        """Take its servers from a job."""
        self._enter(run, "")
        del self.running[run]
        for server in run.on:
            del self.held[server]
            if server not in run.broken:
                self.free[server // self.per_domain] += 1
        for server in sorted(run.broken):
            self._repair(server)
        run.on, run.broken = (), set()
        self._consider()

    def _picked(self, taken: IntArray) -> tuple[int, ...]:
        """Return the servers of a job, the first free ones of each of its domains."""
        picked = list[int]()
        for domain in np.flatnonzero(taken).tolist():
            servers = range(domain * self.per_domain, (domain + 1) * self.per_domain)
            free = [each for each in servers if each not in self.held and each not in self.down]
            picked += free[: int(taken[domain])]
        return tuple(picked)

    def _counts(self, servers: Collection[int]) -> IntArray:
        """Count servers in each domain."""
        domains = np.fromiter(servers, np.int64, len(servers)) // self.per_domain
        return np.bincount(domains, minlength=len(self.free))

    # Failures

    def _next_failure_s(self) -> float:
        return float(self.failing_rng.exponential(self.hazards.rates.mtbf_s))

    def _fail(self) -> None:
        """Let a server fail, whether a job is on it or not."""
        self._after(self._next_failure_s(), self._fail)
        self.failures += 1
        if self.failures > MOST_FAILURES:
            raise InputError(
                f"there are more than {MOST_FAILURES:,} failures until all jobs have ended. Use "
                "fewer --failures, or a shorter --restart or --repair."
            )
        # All is drawn at every failure, so that these are the same ones under all disciplines.
        server = int(self.failing_rng.integers(self.cluster.servers))
        replaces = self.hazards.rates.draw(self.failing_rng).replaces
        detection_s = self.recovery.draw_detection_s(self.failing_rng)
        run = self.held.get(server)
        if run is None:
            if replaces and server not in self.down:
                self.free[server // self.per_domain] -= 1
                self._repair(server)
                self._consider()
            return
        if replaces:
            run.broken.add(server)
        if run.phase != DETECTION:
            run.go_back(self.env.now)
            run.failures += 1
            self._spend(run, DETECTION, detection_s, self._detect)

    def _detect(self, run: Started) -> None:
        """Let a job restart where it is, or queue again if servers of it go to repair."""
        if run.broken:
            self._leave(run)
            self._wait(run)
        else:
            self._restart(run)

    def _repair(self, server: int) -> None:
        self.down[server] = self.env.now + self.recovery.repair_s
        repair_s = self.repair_rng.exponential(self.recovery.repair_s)
        self._after(repair_s, lambda: self._return(server))

    def _return(self, server: int) -> None:
        del self.down[server]
        self.free[server // self.per_domain] += 1
        self._consider()

    # Who starts

    def _consider(self) -> None:
        """Consider the waiting jobs once all that comes or goes at the present time has."""
        if not self.is_changed:
            self.is_changed = True
            self._after(0, self._start)

    def _start(self) -> None:
        """Start all jobs that may start now."""
        while self.waiting and (servers := self._first_servers()) is not None:
            self._begin(self.waiting[0], servers)
        if self.discipline.fills and len(self.waiting) > 1:
            self._backfill()
        if self.hazards.neighbours is not None:
            self._meet(self.hazards.neighbours)
        self.is_changed = False  # what has changed meanwhile is considered
        self.changes.append((self.env.now, len(self.held), len(self.waiting), len(self.down)))
        if not self.unfinished:
            self.ended.succeed()

    def _first_servers(self) -> IntArray | None:
        """Servers for the first waiting job, from which running ones are stopped if need be."""
        first = self.waiting[0]
        servers = self._servers(first.job, self.free)
        if servers is None and self.discipline.stops:
            for run in self._victims(first.job):
                run.go_back(self.env.now)
                run.preemptions += 1
                self._leave(run)
                self._wait(run)
            servers = self._servers(first.job, self.free)
        return servers

    def _victims(self, job: Arrival) -> list[Started]:
        """Running jobs of lower priority without which a job has room; none where it has not."""
        # Those of the lowest priority come first, and of equal ones the last to start.
        later = [run for run in reversed(self.running) if run.job.priority < job.priority]
        later.sort(key=lambda run: run.job.priority)
        healthy = {run: self._counts([*set(run.on) - run.broken]) for run in later}
        free = np.sum([self.free, *healthy.values()], axis=0)
        if self._servers(job, free) is None:
            return []
        victims = list[Started]()
        for run in reversed(later):  # the others go on
            if self._servers(job, free - healthy[run]) is None:
                victims.append(run)
            else:
                free = free - healthy[run]
        return victims

    def _meet(self, neighbours: Neighbours) -> None:
        """Let jobs with a model that compute at a time slow each other, by the sum over pairs."""
        placed = [
            (run, (run.job.trained, self._chips(run)))
            for run in self.running
            if run.phase == COMPUTING and run.job.trained
        ]
        slower = {run: 0.0 for run, _ in placed}
        for (one, place), (other, place_of_other) in combinations(placed, 2):
            both = neighbours.slowdowns(place, place_of_other)
            slower[one] += both[0] - 1
            slower[other] += both[1] - 1
        for run, by in slower.items():
            if by != run.slower:
                run.count(self.env.now)
                run.slower = by
                self._spend(run, COMPUTING, (run.left_s - run.done_s) * run.pace, self._finish)

    def _chips(self, run: Started) -> IntArray:
        """Chips of a job, int64 (chips,)."""
        chips = np.array(run.on)[:, None] * self.per_server + np.arange(self.per_server)
        return chips.ravel()[: run.job.chips]

    def _backfill(self) -> None:
        """Start later jobs that do not delay the first waiting one, by all limits."""
        first, *later = self.waiting
        turn_s, spare = self._turn(first.job)
        for run in later:
            ends_before = self.env.now + run.job.limit_s <= turn_s
            room = self.free if ends_before else np.minimum(self.free, spare)
            if (servers := self._servers(run.job, room)) is not None:
                self._begin(run, servers)
                spare = spare if ends_before else spare - servers

    def _turn(self, job: Arrival) -> tuple[float, IntArray]:
        """Return when a job can start by all limits [s], and the servers left free then."""
        free = self.free.copy()
        ends = [(max(run.until_s, self.env.now), run.on) for run in self.running]
        ends += [(max(back_s, self.env.now), (server,)) for server, back_s in self.down.items()]
        for end_s, servers in sorted(ends, key=lambda item: item[0]):
            free += self._counts(servers)
            if (reserved := self._servers(job, free)) is not None:
                return end_s, free - reserved
        raise RuntimeError("a job that fits in the empty cluster has no turn")

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
        For each job ``submit``, ``chips`` and ``time``, or ``model``, fields of a plan and
        ``steps``; optionally ``name``, ``limit`` and ``priority``. Or a file: CSV of these, output
        of Slurm's ``sacct --parsable2``, or Kubernetes' list of jobs.
    discipline : {"fifo", "backfill", "priority", "preempt", "shortest"}, optional
        Order of waiting jobs; under ``preempt`` the first stops others of lower priority.
    place : {"any", "domain"}, optional
        Whether a job may be in more scale-up domains than its size needs.
    study, seed : bool and int, optional
        Whether all disciplines and places are run as well, into ``others``; seed of failures.
    **hazards
        ``failures`` ("catalogue", or as of :func:`run_job`; by default none), ``restart``,
        ``repair``, ``checkpoint_interval``, ``neighbours``, as options of ``cluster-sim queue``.

    Returns
    -------
    Queue
        ``jobs`` with ``wait_s``; ``used`` and ``breakdown``, shares of the server-hours.

    Raises
    ------
    InputError
        For an unknown name, a record that cannot be read, and a job larger than the cluster.

    Examples
    --------
    >>> jobs = [
    ...     {"submit": "0s", "chips": 48, "time": "2h"},
    ...     {"submit": "1min", "chips": 64, "time": "1h"},
    ... ]
    >>> [job.wait_s / 60 for job in queue_jobs("trn2-ultraserver", jobs).jobs]
    [0.0, 119.0]
    """
    check_choice("discipline", discipline, DISCIPLINES)
    check_choice("place", place, PLACES)
    machine = as_cluster(cluster)
    of_jobs = hazards_of(machine, hazards, seed)
    arrivals, left_out = _fitting(jobs, machine)
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
    jobs = [each.job for each in answer.jobs]
    if not fails:
        why["repair"] = "nothing fails without failures"
    if not fails and not _preempts(DISCIPLINES[answer.discipline], jobs):
        why |= dict.fromkeys(("checkpoint_interval", "restart"), "nothing stops a job")
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
        raise InputError("there are no jobs in the queue. Give at least one that ran.")
    for job in jobs:
        if job.chips > cluster.chips:
            raise InputError(
                f"job {job.name} needs {job.chips:,} chips, but {cluster.name} has "
                f"{cluster.chips:,}. Leave it out, or use a larger cluster."
            )
    return jobs, left_out
