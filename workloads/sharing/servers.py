"""One run of a queue: servers, waiting and running jobs, and everything that changes them."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import simpy

from topologies.support.arrays import IntArray
from topologies.support.errors import InputError
from workloads.job.job import MOST_FAILURES
from workloads.sharing.arrivals import Arrival
from workloads.sharing.hazards import NEVER_STOPPED, Hazards, Neighbours, Saving
from workloads.sharing.teams import Reservation


class Discipline(NamedTuple):
    """An order in which waiting jobs are considered."""

    order: Callable[[Arrival], tuple[float, ...]]  # function whose least value comes first
    # Whether a later job may start early where, by all limits, it does not delay the first
    fills: bool = True
    # Whether the first waiting job stops running ones of lower priority where it has no room, and
    # within its team's quota those of teams that borrow
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


@dataclass(eq=False)
class Started:
    """A job of a queue, on its way and at its end."""

    job: Arrival
    saving: Saving
    servers: int
    chips: int  # of these servers
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
    preemptions: int = 0  # number of times that another job or a reservation has stopped it
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

    @property
    def held_s(self) -> float:
        """Time for which it has held servers [s]."""
        return self.end_s - self.job.submit_s - self.wait_s

    def go_back(self, now_s: float) -> None:
        """Lose the work since the last checkpoint."""
        self.count(now_s)
        kept_s = self.saving.kept_s(self.done_s)
        self.parts_s["lost_work"] += self.done_s - kept_s
        self.left_s, self.done_s = self.left_s - kept_s, 0.0


class Servers:
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
        # Where nothing stops jobs, no failure, other job or reservation, they need no checkpoint.
        differ = len({job.priority for job in jobs}) > 1 or len(hazards.teams.quotas) > 1
        stops = hazards.rates.per_s > 0 or (discipline.stops and differ)
        stops = stops or bool(hazards.teams.reservations)
        self.runs = []
        for job in jobs:
            servers = -(-job.chips // self.per_server)
            saving = hazards.saving(job) if stops else NEVER_STOPPED
            least = -(-servers // self.per_domain)
            chips = servers * self.per_server
            self.runs.append(Started(job, saving, servers, chips, least, left_s=job.run_s))
        self.teams, self.used = hazards.teams, Counter[str]()  # chips that each team holds
        self.borrowed_s, self.counted_s = defaultdict[str, float](float), 0.0
        self.unfinished, self.ended = len(jobs), self.env.event()
        self.failing_rng, self.repair_rng = np.random.default_rng(hazards.seed).spawn(2)
        self.failures = 0

    def run(self) -> list[Started]:
        """Run until the last job has ended, and return all of them."""
        for run in self.runs:
            self._after(run.job.submit_s, partial(self._wait, run))
        if self.hazards.rates.per_s:
            self._after(self._next_failure_s(), self._fail)
        for block in self.teams.reservations:
            # After all that ends at the same time
            edges = ((max(0.0, block.start_s), False), (block.end_s, True))
            for at_s, is_over in edges:
                clear = partial(self._clear, block, is_over)
                self._after(at_s, partial(self._after, 0, clear))
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
        self.waiting.remove(run)
        self.running[run] = None
        self._use(run, 1)
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
        self._enter(run, "")
        self._use(run, -1)
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
        while (turns := self._turns()) and (servers := self._first_servers(turns[0])) is not None:
            self._begin(turns[0], servers)
        if self.discipline.fills and len(turns) > 1:
            self._backfill(turns)
        if self.hazards.neighbours is not None:
            self._meet(self.hazards.neighbours)
        self.is_changed = False  # what has changed meanwhile is considered
        self.changes.append((self.env.now, len(self.held), len(self.waiting), len(self.down)))
        if not self.unfinished:
            self.ended.succeed()

    def _turns(self) -> Sequence[Started]:
        """Return the waiting jobs that the quotas of their teams allow, those within one first."""
        if not self.teams.quotas:
            return self.waiting
        within, beyond, behind = list[Started](), list[Started](), set[str]()
        lowest: dict[str, int] = {}  # priority of a team's running jobs, where jobs may be stopped
        for running in self._in_order_of_stops() if self.discipline.stops else ():
            lowest.setdefault(running.job.team, running.job.priority)
        for run in self.waiting:
            team = run.job.team
            if team in behind:
                continue
            if not self._borrows(run):
                within.append(run)
                continue
            stops = lowest.get(team, run.job.priority) < run.job.priority
            used = self._without(self._stopped_by_priority(run)) if stops else self.used
            if self.teams.allows(team, run.chips, used, self.env.now):
                beyond.append(run)
            elif not self.discipline.fills:
                behind.add(team)
        return within + beyond

    def _first_servers(self, first: Started) -> IntArray | None:
        """Servers for the first waiting job, from which running ones are stopped if need be."""
        servers = self._room(first, self.free, self.used, self.env.now)
        if servers is None and self.discipline.stops:
            for run in self._victims(first):
                self._stop(run)
            servers = self._room(first, self.free, self.used, self.env.now)
        return servers

    def _stop(self, run: Started) -> None:
        """Take its servers from a job, which loses work and queues again."""
        run.go_back(self.env.now)
        run.preemptions += 1
        self._leave(run)
        self._wait(run)

    def _in_order_of_stops(self) -> list[Started]:
        """Running jobs of the lowest priority first, and of equal ones the last to start."""
        latest_first = [*self.running][::-1]
        return sorted(latest_first, key=lambda run: run.job.priority)

    def _stopped_by_priority(self, first: Started) -> list[Started]:
        """Running jobs of lower priority that a waiting one may stop, those of its team if any."""
        return [
            run
            for run in (self._in_order_of_stops() if self.discipline.stops else ())
            if run.job.priority < first.job.priority
            if not self.teams.quotas or run.job.team == first.job.team
        ]

    def _stopped_by_quota(self, first: Started) -> list[Started]:
        """Running jobs by which teams borrow what a waiting job's team has of its own."""
        if not self.teams.quotas or self._borrows(first):
            return []
        borrowers, used = list[Started](), Counter(self.used)
        for run in self._in_order_of_stops():
            team = run.job.team
            lends = self.teams.lends(first.job.team, team)
            if lends and used[team] > self.teams.own(team, self.env.now):
                borrowers.append(run)
                used[team] -= run.chips
        return borrowers

    def _victims(self, first: Started) -> list[Started]:
        """Running jobs without which a waiting one has room; none where it has not."""
        later = [*self._stopped_by_quota(first), *self._stopped_by_priority(first)]
        healthy = {run: self._counts([*set(run.on) - run.broken]) for run in later}
        free, used = np.sum([self.free, *healthy.values()], axis=0), self._without(later)
        if self._room(first, free, used, self.env.now) is None:
            return []
        victims = list[Started]()
        for run in reversed(later):  # the others go on
            used[run.job.team] += run.chips
            if self._room(first, free - healthy[run], used, self.env.now) is None:
                victims.append(run)
                used[run.job.team] -= run.chips
            else:
                free = free - healthy[run]
        return victims

    # Quotas and reservations of teams

    def _borrows(self, run: Started) -> bool:
        """Return whether a waiting job takes its team beyond its own chips."""
        team = run.job.team
        return self.used[team] + run.chips > self.teams.own(team, self.env.now)

    def _without(self, runs: Sequence[Started]) -> Counter[str]:
        """Chips that each team uses without some jobs."""
        used = Counter(self.used)
        for run in runs:
            used[run.job.team] -= run.chips
        return used

    def _use(self, run: Started, sign: int) -> None:
        """Let the team of a job use its chips, or give them back."""
        self._count_borrowed()
        self.used[run.job.team] += sign * run.chips

    def _count_borrowed(self) -> None:
        """Count what teams have borrowed since the last change."""
        from_s, self.counted_s = self.counted_s, self.env.now
        for team, chips in self.used.items() if self.teams.quotas else ():
            beyond = max(0, chips - self.teams.own(team, from_s))
            self.borrowed_s[team] += beyond * (self.counted_s - from_s)

    def _clear(self, block: Reservation, is_over: bool) -> None:
        """Stop jobs on reserved servers: others' as the time begins, the team's as it ends."""
        self._count_borrowed()
        for run in list(self.running):
            on = {server // self.per_domain for server in run.on} & {*block.domains.tolist()}
            if on and (run.job.team == block.team) == is_over:
                self._stop(run)
        self._consider()

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
                self._compute(run)

    def _chips(self, run: Started) -> IntArray:
        """Chips of a job, int64 (chips,)."""
        chips = np.array(run.on)[:, None] * self.per_server + np.arange(self.per_server)
        return chips.ravel()[: run.job.chips]

    def _backfill(self, turns: Sequence[Started]) -> None:
        """Start later jobs that do not delay the first waiting one, by all limits."""
        first, *later = turns
        turn_s, spare, used = self._turn(first)
        now_s, most = self.env.now, list[int]()
        room: tuple[IntArray, ...] = ()
        for run in later:
            if not room:
                room = (self.free, np.minimum(self.free, spare))
                most = [int(free.sum()) * self.per_server for free in room]
                if not most[0]:
                    break
            stays = now_s + run.job.limit_s > turn_s  # beyond the turn of the first
            if run.job.chips > most[stays]:
                continue
            servers = self._room(run, room[stays], self.used, now_s)
            if servers is None or (
                stays and not self.teams.allows(run.job.team, run.chips, used, turn_s)
            ):
                continue
            self._begin(run, servers)
            room = ()
            if stays:
                spare = spare - servers
                used[run.job.team] += run.chips

    def _turn(self, first: Started) -> tuple[float, IntArray, Counter[str]]:
        """Return when a job can start by all limits [s], and what is left free and used then."""
        free, used, now_s = self.free.copy(), Counter(self.used), self.env.now
        ends: list[tuple[float, tuple[int, ...], Started | None]]
        ends = [(run.until_s, run.on, run) for run in self.running]
        ends += [(back_s, (server,), None) for server, back_s in self.down.items()]
        for block in self.teams.reservations:
            ends += [(at_s, (), None) for at_s in (block.start_s, block.end_s) if at_s > now_s]
        for end_s, servers, run in sorted(ends, key=lambda item: max(item[0], now_s)):
            free += self._counts(servers)
            if run is not None:
                used[run.job.team] -= run.chips
            at_s = max(end_s, now_s)
            if (reserved := self._room(first, free, used, at_s)) is not None:
                used[first.job.team] += first.chips
                return at_s, free - reserved, used
        raise RuntimeError("a job that fits in the empty cluster has no turn")

    def _room(
        self, run: Started, free: IntArray, used: Mapping[str, int], at_s: float
    ) -> IntArray | None:
        """Servers of each domain that a job gets at a time, where its team may have so many."""
        if not self.teams.allows(run.job.team, run.chips, used, at_s):
            return None
        return self._servers(run.job, self.teams.free(run.job, free, at_s))

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
