"""Simulation of a job: SimPy processes for the job, its failures, slow servers and repairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpy

from workloads.job.causes import Cause
from workloads.job.job import MAINTENANCE, Job, Outcome, Replicas
from workloads.options.windows import Window


@dataclass
class Work:
    """Computing time that no checkpoint holds yet [ms]."""

    # It is useful, or lost by slow servers, or by replicas that are left out.

    useful: int = 0
    slow: int = 0
    fewer: int = 0

    @property
    def total(self) -> int:
        """All of it [ms]."""
        return self.useful + self.slow + self.fewer

    def add(self, ms: int, slower: float, fewer: float = 0.0) -> None:
        """Add time in which a step took longer by a slow server, and by fewer replicas."""
        left_out = ms - round(ms / (1 + fewer))  # all of it where no replica is left
        extra = round((ms - left_out) * slower / (1 + slower))
        self.join(Work(ms - left_out - extra, extra, left_out))

    def join(self, other: Work) -> None:
        """Add other work."""
        self.useful += other.useful
        self.slow += other.slow
        self.fewer += other.fewer

    def take(self, ms: int) -> int:
        """Take at most ``ms`` away, all kinds in proportion; return the amount [ms]."""
        total = self.total
        taken = min(ms, total)
        slow, fewer = (
            round(part * taken / total) if total else 0 for part in (self.slow, self.fewer)
        )
        self.join(Work(slow + fewer - taken, -slow, -fewer))
        return taken

    def count(self, times_ms: dict[str, int]) -> None:
        """Add the work to the times of the parts that it belongs to."""
        times_ms["useful"] += self.useful
        times_ms["stragglers"] += self.slow
        times_ms["fewer_replicas"] += self.fewer


MS = 1000
Process = Generator[simpy.Event, Any, None]
COMPUTING = "computing"
SAVED = ("useful", "stragglers", "fewer_replicas")  # parts of work that a checkpoint holds
STOPPED_BY_FAILURES = (COMPUTING, "checkpoint", "restart")
"""States in which a failure stops the job even if no unit has to be replaced."""


def simulate(job: Job, rng: np.random.Generator, slices: int = 0) -> Outcome:
    """Run a job once.

    Parameters
    ----------
    job : Job
    rng : Generator
        Draws failures, their causes, hangs and repairs. Two runs whose generators have the same
        state have their failures at the same times, whatever their checkpoints.
    slices : int
        Number of equal parts of the run that the outcome has the times of; 0 for none.

    Examples
    --------
    >>> from workloads.job.causes import FailureRates
    >>> from workloads.job.job import Recovery
    >>> never = Job(FailureRates(()), Recovery(0, 0, 0, 0, 0), 90, 10, 0, 1, 0, 1000)
    >>> simulate(never, np.random.default_rng(0)).goodput
    0.9
    """
    run = _Run(job, rng) if job.replicas is None else _ElasticRun(job, job.replicas, rng)
    return run.run(slices)


class _Run:
    """State of a run, and the SimPy processes that change it."""

    # Computed work is ``at_risk`` until a checkpoint holds it, then ``written`` until the
    # checkpoint is in the store, then counted in ``times_ms``.

    def __init__(self, job: Job, rng: np.random.Generator) -> None:
        self.job = job
        self.env = simpy.Environment()
        # A random stream for each purpose, so that more draws for one do not change the others.
        self.failing_rng, self.hang_rng, self.repair_rng, *others = rng.spawn(6)
        self.slow_rng, self.pair_rng, self.again_rng = others
        self.times_ms = dict.fromkeys(job.parts, 0)
        self.failures: Counter[str] = Counter({cause.name: 0 for cause in job.rates.causes})
        self.state, self.since = COMPUTING, 0
        self.at_risk, self.written = Work(), Work()
        self.written_at = 0  # when the checkpoint of the work `written` is in the store
        # Spares that are ready, units that the job lacks, and the most units away at one time.
        self.ready, self.missing, self.most_away = job.spares, 0, 0
        self.returned = self.env.event()  # triggered when a unit comes back from repair
        self.slow, self.known_slow = 0, 0
        # Units of windows that leave at the next checkpoint, which comes at once, with the event of
        # their return; time for which units are out for which the job has just stopped [s].
        self.due: list[tuple[Window, int, simpy.Event]] = []
        self.drain = self.env.event()
        self.planned_s = 0.0
        self.without = 0  # units without which the job goes on by another plan
        self.checkpoints, self.replaced = 0, 0
        # Time computed since the last restart, and units lost since then whose copies are not back.
        self.computed_ms, self.exposed = 0, 0
        self.pair_lost, self.pairs_lost = False, 0
        # Saved work from before each corruption that is not found yet, and causes of repairs in
        # vain of ready spares. After a corruption also the peers' copies are wrong.
        self.clean: list[Work] = []
        self.unrepaired: list[Cause] = []
        self.from_store = False
        self.slices: list[tuple[int, Mapping[str, int]]] = []

    def run(self, slices: int = 0) -> Outcome:
        """Run from start to end; work that is not lost by then counts as useful."""
        self.process = self.env.process(self._work())
        if self.job.rates.per_s:
            self.env.process(self._failing())
        if self.job.stragglers.per_s and self.job.stragglers.slower:
            self.env.process(self._slowing())
        for window in self.job.windows:
            self.env.process(self._maintaining(window))
        if slices:
            self.env.process(self._slicing(slices))
        self.env.run(until=max(1, _ms(self.job.span_s)))
        self._enter(self.state)
        self._keep()
        self._keep_rest()
        return Outcome(
            dict(self.times_ms),
            dict(self.failures),
            self.checkpoints,
            self.replaced,
            self.most_away,
            self.pairs_lost,
            (*self.slices, (int(self.env.now), dict(self.times_ms))) if slices else (),
        )

    def _slicing(self, slices: int) -> Process:
        each = max(1, _ms(self.job.span_s) // slices)
        while True:
            yield self.env.timeout(each)
            self._enter(self.state)
            self.slices.append((int(self.env.now), dict(self.times_ms)))

    # Account of the time

    @property
    def _fewer(self) -> float:
        """Relative slowdown of a step by replicas that are left out, or by another plan."""
        return self.job.without[self.without - 1] if self.without else 0.0

    @property
    def _slower(self) -> float:
        """Relative slowdown of a step by the slow servers of the moment."""
        return self.job.stragglers.slower if self.slow else 0.0

    def _enter(self, state: str) -> None:
        """Change the state, and add the time since the last change to the state that ends."""
        ms = int(self.env.now) - self.since
        if self.state == COMPUTING:
            self.at_risk.add(ms, self._slower, self._fewer)
            self.computed_ms += ms
        elif self.planned_s and self.state in ("restart", "waiting_for_spares"):
            self.times_ms[MAINTENANCE] += ms
        else:
            self.times_ms[self.state] += ms
        self.state, self.since = state, int(self.env.now)

    def _keep(self) -> None:
        """Count the work in the last checkpoint, if it has been written by now."""
        if self.env.now >= self.written_at:
            self.written.count(self.times_ms)
            self.written = Work()

    def _keep_rest(self) -> None:
        """Count the work that is not in a written checkpoint at the end of the run."""
        self.written.count(self.times_ms)
        self.at_risk.count(self.times_ms)

    def _go_back(self) -> None:
        """Lose the work since the last checkpoint, or since the last copy at peers."""
        peers = self.job.peers
        if peers is None:
            self._lose()
            return
        self._keep()
        # The peers also hold the work of the unfinished checkpoint; a later one will save it.
        self.at_risk.join(self.written)
        self.written = Work()
        lost_ms = _ms(peers.lost_s(self.computed_ms / MS))
        self.times_ms["lost_work"] += self.at_risk.take(lost_ms)

    def _lose(self) -> None:
        self._keep()
        self.times_ms["lost_work"] += self.written.total + self.at_risk.total
        self.written, self.at_risk = Work(), Work()
        # What was computed since a corruption is lost with it, where no checkpoint came after.
        self.clean = [work for work in self.clean if work.total < self._saved.total]

    @property
    def _saved(self) -> Work:
        """Work that written checkpoints hold."""
        return Work(*(self.times_ms[part] for part in SAVED))

    # The job itself

    def _work(self) -> Process:
        """Alternate between computing and recovery from failures, which interrupt it."""
        while True:
            try:
                yield from self._compute_and_save()
            except simpy.Interrupt:
                yield from self._recover()

    def _compute_and_save(self) -> Process:
        """Compute for one interval, save a checkpoint, and replace servers known to be slow."""
        self._enter(COMPUTING)
        whole = self.env.timeout(self._interval_ms())
        if self.job.windows and not self.due:
            self.drain = self.env.event()
            yield whole | self.drain
        elif not self.due:
            yield whole
        self._enter("checkpoint")
        if self.env.now < self.written_at:  # one checkpoint at a time is written
            yield self.env.timeout(self.written_at - self.env.now)
        self._keep()
        yield self.env.timeout(_ms(self.job.stall_s))
        self._enter("checkpoint")
        self.checkpoints += 1
        self.written, self.at_risk = self.at_risk, Work()
        self.written_at = int(self.env.now) + _ms(self.job.write_s)
        replaces = 0 < self.known_slow <= self.ready - self.without
        if replaces or self.due or self._comes_back:
            yield self.env.timeout(self.written_at - self.env.now)
            self._keep()
            yield from self._change_units(replaces=replaces)
        else:
            yield from self._repeat_undisturbed()

    def _interval_ms(self) -> int:
        """Computing time until the next checkpoint [ms]."""
        return max(1, _ms(self.job.interval_s))

    def _repeat_undisturbed(self) -> Process:
        """Run all checkpoint intervals that end before any process's next event, as one event."""
        # A job of months saves a hundred thousand checkpoints and has a few hundred failures.
        # Without an event in between, all intervals are equal: each begins with no work at risk,
        # and while the previous checkpoint is still being written.
        compute_ms, stall_ms = max(1, _ms(self.job.interval_s)), _ms(self.job.stall_s)
        saving_ms = max(0, _ms(self.job.write_s) - compute_ms) + stall_ms
        interval_ms = compute_ms + saving_ms
        # Strictly before the next event: at the same instant, the order of events would matter.
        intervals = (math.ceil(self.env.peek() - self.env.now) - 1) // interval_ms
        if intervals < 1:
            return
        yield self.env.timeout(intervals * interval_ms)
        work = Work()
        work.add(compute_ms, self._slower, self._fewer)
        self.times_ms["checkpoint"] += intervals * saving_ms
        # The first interval completes the earlier checkpoint; the last one's is still unwritten.
        self.written.count(self.times_ms)
        repeated = intervals - 1
        whole = Work(repeated * work.useful, repeated * work.slow, repeated * work.fewer)
        whole.count(self.times_ms)
        self.written, self.since = work, int(self.env.now)
        self.written_at = self.since + _ms(self.job.write_s)
        self.computed_ms += intervals * compute_ms
        self.checkpoints += intervals

    def _recover(self) -> Process:
        """Lose unsaved work, detect the failure, and restart until a restart succeeds."""
        self._enter("detection")
        self.planned_s = 0.0
        self._go_back()
        while True:
            yield self.env.timeout(_ms(self.job.recovery.draw_detection_s(self.hang_rng)))
            try:
                yield from self._start_again()
            except simpy.Interrupt:
                self._enter("detection")
            else:
                return

    def _start_again(self) -> Process:
        """Wait until spares replace all missing units, or go on without, and restart."""
        self._enter("waiting_for_spares")
        warm = self.ready >= self.missing
        while self.ready < self.missing and not self._goes_without():
            self.returned = self.env.event()
            yield self.returned
        taken = min(self.ready, self.missing)
        self._use(taken)
        self.missing -= taken
        self.without = self.missing
        self._enter("restart")
        yield self.env.timeout(_ms(self._restart_s(warm=warm)))
        # Only now have the new units got their parts of the state, and hold their partners'.
        self.computed_ms, self.exposed = 0, 0

    def _goes_without(self) -> bool:
        """Return whether another plan on the units that are left is taken."""
        lacking = self.missing - self.ready
        waits_s = self.job.waits_s(lacking, self.job.spares - self.ready + self.missing)
        return self.job.goes_without(lacking, min(waits_s, self.planned_s or math.inf))

    @property
    def _comes_back(self) -> bool:
        """Units without which the job goes on are back, and gain more than a restart costs."""
        if not self.without or not self.ready:
            return False
        left = self.missing - self.ready
        slower = self.job.without[left - 1] if left > 0 else 0.0
        gain = 1 / (1 + slower) - 1 / (1 + self._fewer)
        return gain * self.job.rates.mtbf_s > self.job.recovery.restart_s

    def _restart_s(self, *, warm: bool) -> float:
        """Time of a restart, which after the loss of a pair of peers begins from the store [s]."""
        restart_s = self.job.recovery.restart_s
        if self.pair_lost or self.from_store:
            self._lose()
            self.pairs_lost += self.pair_lost
            self.pair_lost, self.from_store = False, False
        elif self.job.peers is not None:
            restart_s = self.job.peers.restart_s
        return restart_s - (self.job.recovery.warm_saves_s if warm else 0.0)

    def _change_units(self, *, replaces: bool) -> Process:
        """Replace slow servers, let units leave for planned downtime, and take others back."""
        self._enter("restart")
        for _ in range(self.known_slow if replaces else 0):
            self._take_out()
            self.slow -= 1
            self.known_slow -= 1
        self.planned_s = max((window.length_s for window, *_ in self.due), default=0.0)
        while self.due:
            self.missing += self.due[-1][1]
            self.env.process(self._serviced(*self.due.pop()))
        self.most_away = max(self.most_away, self.job.spares - self.ready + self.missing)
        yield from self._start_again()
        self._enter(self.state)
        self.planned_s = 0.0

    def _maintaining(self, window: Window) -> Process:
        """Let the units of a window leave, one group after the other, as often as it begins."""
        begin_ms = _ms(window.begin_s)
        while True:
            yield self.env.timeout(max(0, begin_ms - self.env.now))
            left = self.job.units
            for _ in range(window.rounds(left)):
                back = self.env.event()
                self.due.append((window, min(window.units, left), back))
                left -= window.units
                if not self.drain.triggered:
                    self.drain.succeed()
                yield back
            if math.isinf(window.every_s):
                return
            begin_ms += _ms(window.every_s)

    def _serviced(self, window: Window, units: int, back: simpy.Event) -> Process:
        """Keep units out of service, and give them back together as spares."""
        yield self.env.timeout(_ms(window.length_s))
        back.succeed()
        self.ready += units - 1
        self._back()

    # Failures, repairs and slow servers

    def _failing(self) -> Process:
        rates = self.job.rates
        while True:
            yield self.env.timeout(_ms(self.failing_rng.exponential(rates.mtbf_s)))
            self._fail(rates.draw(self.failing_rng))

    def _fail(self, cause: Cause) -> None:
        """Let a failure stop the job, and take a unit out if its cause does."""
        stops = self.state in STOPPED_BY_FAILURES
        if not stops and not cause.replaces:
            return
        if cause.found_after_s:
            self.env.process(self._corrupted(cause))
            return
        self.failures[cause.name] += 1
        for _ in range(min(cause.units, self.job.units) if cause.replaces else 0):
            self._break_a_pair()
            self._take_out(cause)
        if stops:
            self._stop(cause)

    def _corrupted(self, cause: Cause) -> Process:
        """Compute on with wrong numbers until they are found, and go back to before them."""
        if self.state not in (COMPUTING, "checkpoint"):
            return
        self._enter(self.state)
        self._keep()
        before = self._saved
        self.clean.append(before)
        yield self.env.timeout(_ms(cause.found_after_s))
        if not any(work is before for work in self.clean):
            return  # a restart from an earlier checkpoint has undone it
        self.failures[cause.name] += 1
        self._enter(self.state)
        self._lose()
        saved = self._saved
        for part, kept in zip(SAVED, (before.useful, before.slow, before.fewer), strict=True):
            self.times_ms[part] = kept
        self.times_ms["lost_work"] += saved.total - before.total
        self.clean = [work for work in self.clean if work.total < before.total]
        self.from_store = True
        if cause.replaces:
            self._take_out(cause)
        if self.state in STOPPED_BY_FAILURES:
            self._stop(cause)

    def _stop(self, cause: Cause) -> None:
        self._enter("detection")
        self.process.interrupt(cause.name)

    def _break_a_pair(self) -> None:
        """Draw whether the failed unit is the partner of one that has no state back yet."""
        if self.job.peers is not None and self.exposed:
            chance = min(1.0, self.exposed / (self.job.units - 1))
            self.pair_lost |= bool(self.pair_rng.random() < chance)
        self.exposed += 1

    def _take_out(self, cause: Cause | None = None) -> None:
        self.missing += 1
        self.replaced += 1
        self.env.process(self._repair(cause))

    def _repair(self, cause: Cause | None) -> Process:
        self.most_away = max(self.most_away, self.job.spares - self.ready + self.missing)
        yield self.env.timeout(_ms(self.repair_rng.exponential(self.job.recovery.repair_s)))
        if cause and cause.again and self.again_rng.random() < cause.again:
            self.unrepaired.append(cause)
        self._back()

    def _use(self, count: int) -> None:
        """Let ready spares join, of which some may have been repaired in vain."""
        rng, bad = self.again_rng, len(self.unrepaired)
        for _ in range(rng.hypergeometric(bad, self.ready - bad, count) if bad else 0):
            self.env.process(self._failing_again(self.unrepaired.pop()))
        self.ready -= count

    def _failing_again(self, cause: Cause) -> Process:
        yield self.env.timeout(_ms(self.again_rng.exponential(cause.again_after_s)))
        self._fail(cause)

    def _back(self) -> None:
        self.ready += 1
        if not self.returned.triggered:
            self.returned.succeed()

    def _slowing(self) -> Process:
        stragglers = self.job.stragglers
        while True:
            yield self.env.timeout(_ms(self.slow_rng.exponential(1 / stragglers.per_s)))
            self._enter(self.state)
            self.slow += 1
            self.env.process(self._finding())

    def _finding(self) -> Process:
        yield self.env.timeout(_ms(self.job.stragglers.found_after_s))
        self.known_slow += 1


JOIN = "join"  # cause of an interrupt of the job by units that are ready to join


class _ElasticRun(_Run):
    """State of a run whose job may go on without some of its replicas."""

    # A failure stops all replicas until it is detected. Then those that it hit are left out, and
    # the others form their groups anew. ``missing`` units have no spare yet, ``stopped`` ones have
    # failed and need none, ``starting`` ones read their state beside the job, ``arrived`` ones wait
    # to join.

    def __init__(self, job: Job, replicas: Replicas, rng: np.random.Generator) -> None:
        super().__init__(job, rng)
        self.replicas = replicas
        self.stopped, self.starting, self.arrived = 0, 0, 0
        self.restarts = 0  # of the whole job, which take in all units that were starting
        self.from_ms, self.done_ms = 0, 0  # begin of this stretch of an interval, and earlier ones

    @property
    def _fewer(self) -> float:
        """Relative slowdown of a step by the replicas that are left out."""
        lacking = self.missing + self.stopped + self.starting + self.arrived
        return self.replicas.slower(self.replicas.out(lacking))

    def _interval_ms(self) -> int:
        """Computing time until the next checkpoint, which goes on after units have joined [ms]."""
        self.from_ms = int(self.env.now)
        return max(1, super()._interval_ms() - self.done_ms)

    def _work(self) -> Process:
        """Compute, recover from failures, and take in units that are ready."""
        cause: object = None
        while True:
            why, cause = cause, None
            try:
                if why == JOIN:
                    yield from self._change()
                elif why is not None:
                    yield from self._recover()
                else:
                    self._replace()
                    if self._joins_now:
                        yield from self._change()
                    yield from self._compute_and_save()
                    self.done_ms = 0
            except simpy.Interrupt as interrupt:
                cause = interrupt.cause
                computed_ms = int(self.env.now) - self.from_ms
                self.done_ms = self.done_ms + computed_ms if cause == JOIN else 0

    def _change(self) -> Process:
        """Form the groups anew, with the units that have arrived and without those that failed."""
        joining = self.arrived
        self._enter("restart")
        yield self.env.timeout(_ms(self.replicas.resize_s))
        self.arrived -= joining
        self.computed_ms, self.exposed = 0, 0

    def _start_again(self) -> Process:
        """Go on without the failed units where that loses less time than a restart of all."""
        if self._goes_on():
            self._replace()
            yield from self._change()
            return
        self._enter("waiting_for_spares")
        warm = self.ready >= self.missing
        while self.replicas.out(self.missing - self.ready) >= self.replicas.groups:
            self.returned = self.env.event()
            yield self.returned
        taken = min(self.ready, self.missing)
        self._use(taken)
        self.missing -= taken
        self.stopped, self.starting, self.arrived = 0, 0, 0
        self.restarts += 1
        self._enter("restart")
        yield self.env.timeout(_ms(self._restart_s(warm=warm)))
        self.computed_ms, self.exposed = 0, 0

    def _goes_on(self) -> bool:
        """Return whether the job goes on, for which a replica and the state have to be left."""
        out = self.replicas.out(self.missing + self.stopped + self.starting)
        if self.pair_lost or self.from_store or out >= self.replicas.groups:
            return False
        if self.ready < self.missing:
            return True
        restart_s = self._joining_s - self.job.recovery.warm_saves_s
        return self.replicas.cost_s(restart_s, self.job.rates.mtbf_s, out) < restart_s

    @property
    def _joining_s(self) -> float:
        """Time in which a unit starts beside the job [s]."""
        return (self.job.peers or self.job.recovery).restart_s

    def _replace(self) -> None:
        """Start spares in the place of missing units, and units that only stopped."""
        taken = min(self.ready, self.missing)
        self._use(taken)
        self.missing -= taken
        units, self.stopped = taken + self.stopped, 0
        if units:
            self.starting += units
            self.env.process(self._starting(units))

    def _starting(self, units: int) -> Process:
        """Start units beside the job; they join at once where that loses less than waiting."""
        restarts = self.restarts
        yield self.env.timeout(_ms(self._joining_s))
        if restarts != self.restarts:  # all units have restarted together meanwhile
            return
        self.starting, self.arrived = self.starting - units, self.arrived + units
        if self.state == COMPUTING and self._joins_now:
            self.process.interrupt(JOIN)

    @property
    def _joins_now(self) -> bool:
        """Units have arrived, and would lose more by waiting for the next failure."""
        share = 1 - 1 / (1 + self._fewer)
        return self.arrived > 0 and share * self.job.rates.mtbf_s > self.replicas.resize_s

    def _stop(self, cause: Cause) -> None:
        """Stop the job; a unit that needs no repair starts again."""
        super()._stop(cause)
        self.stopped += not cause.replaces

    def _take_out(self, cause: Cause | None = None) -> None:
        self._enter(self.state)
        super()._take_out(cause)

    def _back(self) -> None:
        super()._back()
        if self.state == COMPUTING:
            self._replace()


def _ms(seconds: float) -> int:
    return round(seconds * MS)
