"""A second simulation of a job, written without SimPy, loses as much time."""

import math

import numpy as np
import pytest

from workloads.job.causes import Cause, FailureRates
from workloads.job.job import PARTS, Job, Recovery
from workloads.job.simulate import simulate

RUNS = 24
"""Seeds of each simulation, whose means are compared."""


class ByHand:
    """One run of a job without slow servers and copies at peers, in seconds of floats."""

    def __init__(self, job: Job, rng: np.random.Generator) -> None:
        self.job, self.rng = job, rng
        self.now, self.next_failure = 0.0, rng.exponential(job.rates.mtbf_s)
        self.ready, self.missing, self.returns = job.spares, 0, []
        self.spent = dict.fromkeys(PARTS, 0.0)
        self.at_risk, self.unwritten, self.written_at = 0.0, 0.0, 0.0

    def strike(self) -> None:
        """Let the failure that is due happen, and draw the next."""
        self.next_failure = self.now + self.rng.exponential(self.job.rates.mtbf_s)
        if self.rng.random() * self.job.rates.per_s < self.job.rates.replacing_per_s:
            self.missing += 1
            repair_s = self.rng.exponential(self.job.recovery.repair_s)
            self.returns.append(self.now + repair_s)

    def spend(self, part: str, seconds: float) -> bool:
        """Spend time on a part until it is over, a failure or the end; say whether it was over."""
        end = min(self.now + seconds, self.next_failure, self.job.span_s)
        whole = end == self.now + seconds
        self.spent[part] += end - self.now
        self.now = end
        return whole

    def endure(self, part: str, until: float) -> None:
        """Spend time on a part in which failures only take units out."""
        until = min(until, self.job.span_s)
        while self.next_failure < until:
            self.spend(part, self.next_failure - self.now)
            self.strike()
        self.spend(part, until - self.now)

    def keep(self) -> None:
        """Count the work of the last checkpoint if it has been written."""
        if self.now >= self.written_at:
            self.spent["useful"] += self.unwritten
            self.unwritten = 0.0

    def save(self) -> bool:
        """Compute for an interval and save a checkpoint; say whether no failure came."""
        begin, useful = self.now, self.spent["useful"]
        whole = self.spend("useful", self.job.interval_s)
        self.spent["useful"], self.at_risk = useful, self.now - begin
        if whole and self.now < self.written_at:
            whole = self.spend("checkpoint", self.written_at - self.now)
        if not whole or not self.spend("checkpoint", self.job.stall_s):
            return False
        self.keep()
        self.unwritten, self.at_risk = self.at_risk, 0.0
        self.written_at = self.now + self.job.write_s
        return True

    def recover(self) -> None:
        """Lose what is not written, and restart until a restart is over."""
        recovery = self.job.recovery
        self.keep()
        self.spent["lost_work"] += self.at_risk + self.unwritten
        self.at_risk = self.unwritten = 0.0
        while self.now < self.job.span_s:
            self.strike()
            hangs = self.rng.random() < recovery.hang_share
            detected_s = recovery.timeout_s if hangs else recovery.explicit_s
            self.endure("detection", self.now + detected_s)
            self.wait()
            if self.now < self.job.span_s:
                self.ready, self.missing = self.ready - self.missing, 0
                if self.spend("restart", recovery.restart_s):
                    return

    def wait(self) -> None:
        """Wait until spares replace all missing units."""
        while True:
            self.ready += sum(moment <= self.now for moment in self.returns)
            self.returns = sorted(moment for moment in self.returns if moment > self.now)
            if self.ready >= self.missing or self.now >= self.job.span_s:
                return
            self.endure("waiting_for_spares", min(self.returns[0], self.next_failure))
            if self.now == self.next_failure:
                self.strike()

    def run(self) -> dict[str, float]:
        """Return the share of time that each part took."""
        while self.now < self.job.span_s:
            if not self.save() and self.now < self.job.span_s:
                self.recover()
        self.spent["useful"] += self.at_risk + self.unwritten
        return {part: seconds / self.job.span_s for part, seconds in self.spent.items()}


def _random_job(draw: np.random.Generator) -> Job:
    """A job with rare or frequent failures, slow or fast writes, and few spares."""
    per_s, replaced = 1 / 10 ** draw.uniform(3, 5), draw.choice([0.2, 0.8])
    interval_s = 10 ** draw.uniform(2, 4)
    return Job(
        FailureRates(
            (Cause("part", per_s * replaced, True), Cause("code", per_s * (1 - replaced), False))
        ), Recovery(*(float(draw.choice(each)) for each in RECOVERIES)), interval_s,
        stall_s=float(draw.choice([0, 10, 60])),
        write_s=float(draw.choice([0, 30, 1.5 * interval_s])), units=8,
        spares=int(draw.integers(0, 4)), span_s=86400.0 * draw.choice([2, 10]),
    )  # fmt: skip


RECOVERIES = ((0, 60, 900), (0, 30), (0, 1200), (0, 0.2, 1), (60, 4 * 3600, 40 * 3600))
"""Restarts, reported errors, time-outs [s], shares of hangs, and repairs [s] of random jobs."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_every_part_takes_the_same_share(seed):
    job = _random_job(np.random.default_rng(seed))
    outcomes = [simulate(job, np.random.default_rng([seed, run])) for run in range(RUNS)]
    by_hand = [ByHand(job, np.random.default_rng([99, seed, run])).run() for run in range(RUNS)]
    for part in PARTS:
        first = np.array([outcome.parts_ms[part] / 1000 / job.span_s for outcome in outcomes])
        second = np.array([shares[part] for shares in by_hand])
        error = math.sqrt((first.var() + second.var()) / RUNS)
        assert abs(first.mean() - second.mean()) <= 4.5 * error + 1e-4, part
