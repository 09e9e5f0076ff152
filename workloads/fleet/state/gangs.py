"""Training jobs as gangs of whole units: a SimPy process for each job that runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import simpy

from topologies.arrays import IntArray
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.state.ledger import MS, Ledger, Role, milliseconds
from workloads.fleet.state.store import Store
from workloads.job.checkpoints import PeerCopies

if TYPE_CHECKING:
    from workloads.fleet.inputs.costs import ChangeCosts

NONE = np.empty(0, np.int64)
USUAL_INTERVAL_S = 1800.0
"""Interval of checkpoints of a job without one outside of a scenario [s]."""


@dataclass
class Tally:
    """Account of a job: tokens kept and lost, unit-time held and useful, and events."""

    tokens: float = 0.0
    lost_tokens: float = 0.0
    useful_unit_ms: float = 0.0
    held_unit_ms: int = 0
    starts: int = 0
    failures: int = 0
    reclaims: int = 0
    resizes: int = 0


class Gang:
    """One training job: its units, its progress since the last checkpoint, its SimPy process.

    All units of a gang compute in step: a checkpoint, a resize or a restart stalls all of them,
    and the loss of one unit stops all. It loses the progress that is not in a checkpoint, in host
    memory or at a peer.

    Methods that change the gang first settle the time since the last change, then interrupt the
    process, which begins anew with the stall, or with training, that is due.
    """

    def __init__(
        self,
        number: int,
        job: TrainingJob,
        env: simpy.Environment,
        ledger: Ledger,
        costs: ChangeCosts,
        horizon_ms: int,
        store: Store | None = None,
    ) -> None:
        self.number, self.job, self.env, self.ledger, self.costs = number, job, env, ledger, costs
        self.horizon_ms = horizon_ms
        self.store = store
        self.finished_ms = -1
        self.on_finish: Callable[[IntArray], None] = lambda _units: None
        self._writing = False  # whether a checkpoint is being written
        # Time computed since the last restart, and units lost since then whose copies are not back.
        self._computed_ms, self._exposed = 0, 0
        self.units: IntArray = NONE
        self.paused: IntArray = NONE
        self.joining = 0
        self.tally = Tally()
        self.changed_ms = -(2**62)  # long ago, so that the first growth does not wait
        self._saved = 0.0  # tokens in the last checkpoint
        self._state_in_host = False
        self._stall_ms, self._stall_role = 0, Role.LOADING
        self._since_ms = 0  # time up to which progress is settled
        self._running = False
        self._process: simpy.Process | None = None

    @property
    def size(self) -> int:
        """Units that compute for the job."""
        return len(self.units)

    @property
    def waits(self) -> bool:
        """Return whether the job wants units: it has arrived, and is not done."""
        return self.finished_ms < 0 and int(self.env.now) >= self.job.arrives_s * MS

    def tokens_now(self) -> float:
        """Tokens up to this instant, those that are not settled yet included."""
        running_s = (int(self.env.now) - self._since_ms) / MS if self._running else 0.0
        return self.tally.tokens + self.job.rate(self.size) * running_s

    def unsaved_unit_ms(self) -> float:
        """Unit-time that a stop without notice would lose: the price of reclaiming this gang."""
        self._settle()
        rate = self.job.rate(self.size)
        return (self.tally.tokens - self._saved) / rate * self.size * MS if rate else 0.0

    def admit(self, units: IntArray) -> None:
        """Take in units that are ready, and start or resize the job."""
        self._settle()
        new = np.concatenate([self.paused, units])
        was_running = self.size > 0
        self.paused = NONE
        self.units = np.concatenate([self.units, new])
        self.changed_ms = int(self.env.now)
        if was_running:
            self.tally.resizes += 1
            self._stall(self.costs.resize_s, Role.LOADING)
        else:
            self.tally.starts += 1
            cost = self.costs.restore_s if self._state_in_host else self.costs.restart_s
            self._state_in_host = False
            self._computed_ms, self._exposed = 0, 0
            self._stall(cost, Role.LOADING)
            self._process = self.env.process(self._run())

    def shrink(self, count: int) -> IntArray:
        """Drop the last ``count`` units and return them.

        The job loses one step, and the other units go on after a resize.
        """
        self._settle()
        self._lose(min(self.job.step_tokens, self.tally.tokens - self._saved))
        left, self.units = self.units[-count:], self.units[:-count]
        self.tally.resizes += 1
        self.changed_ms = int(self.env.now)
        self._stall(self.costs.resize_s, Role.LOADING)
        return left

    def stop(self, *, keep: bool, in_host: bool = False) -> IntArray:
        """Stop the gang and return its units; without ``keep``, unsaved progress is lost."""
        self._settle()
        if keep:
            self._saved = self.tally.tokens
        else:
            self._lose(self.tally.tokens - self._saved)
        self._state_in_host = in_host
        left, self.units = self.units, NONE
        self.changed_ms = int(self.env.now)
        self._interrupt()
        return left

    def place(self, units: IntArray) -> None:
        """Run on units from the start of the simulation, at no cost."""
        self.units = units
        self._process = self.env.process(self._run())

    def fail(
        self,
        broken: IntArray,
        replacement: IntArray,
        *,
        cold: bool = False,
        rng: np.random.Generator | None = None,
    ) -> IntArray:
        """Lose units, replace some of them, and return the units that the job can no longer use."""
        self._settle()
        self.tally.failures += 1
        copies = self._copies()
        if copies is not None and self._exposed and len(broken) and rng is not None:
            partner = self._exposed / max(self.size - 1, 1)
            copies = None if rng.random() < partner else copies
        unsaved = self.tally.tokens - self._saved
        if copies is not None:
            computed_s = self._computed_ms / MS
            unsaved = min(unsaved, copies.lost_s(computed_s) * self.job.rate(self.size))
        self._lose(unsaved)
        self._exposed += len(broken)
        rest = np.concatenate([self.units[~np.isin(self.units, broken)], replacement])
        size = self.job.fits(len(rest))
        self.units, left = rest[:size], rest[size:]
        self._stall(self._recovery_s(copies, cold=cold), Role.LOADING)
        return left

    def _copies(self) -> PeerCopies | None:
        """Return the copies in the memory of peers at this size; None for a job without any."""
        rate = self.job.rate(self.size)
        if self.job.checkpoint != "peer" or not rate:
            return None
        return self.costs.peers.copies(
            self.job.state_bytes / (self.size * self.costs.servers),
            step_s=self.job.step_tokens / rate,
            start_s=self.costs.recovery.restart_s,
        )

    def _recovery_s(self, copies: PeerCopies | None, *, cold: bool) -> float:
        """Time from a failure to the next step [s]."""
        recovery = self.costs.recovery
        if copies is None:
            all_units = max(self.size, 1) * self.costs.store_client_bytes_per_s
            rate = min(self.costs.store_bytes_per_s, all_units)
            restart_s = recovery.restart_s + self.job.state_bytes / rate
        else:
            restart_s = copies.restart_s
        warm = self.job.standby == "warm" and not cold
        return recovery.detection_s + restart_s - (recovery.warm_saves_s if warm else 0.0)

    def _run(self) -> Generator[simpy.Event, Any, None]:
        """Alternate between training and stalls until the gang has no units or no work left."""
        while self.size:
            try:
                if self._stall_ms > 0:
                    self._begin(self._stall_role)
                    yield self.env.timeout(self._stall_ms)
                    self._settle()
                    self._stall_ms = 0
                    if self._exposed:  # all units have their parts of the state again
                        self._computed_ms, self._exposed = 0, 0
                else:
                    self._begin(Role.TRAINING)
                    yield self.env.timeout(min(self._checkpoint_ms(), self._until_done_ms()))
                    self._settle()
                    if self.tally.tokens >= self.job.work_tokens * (1 - 1e-12):
                        self._finish_work()
                        return
                    if not self._writing:
                        self._writing = True
                        self.env.process(self._write(self.tally.tokens, self.tally.starts))
                    if self.job.checkpoint == "peer":
                        continue  # no stall: the store is written from the copies in host memory
                    self._stall_ms = milliseconds(self.costs.checkpoint_stall_s, self.horizon_ms)
                    self._stall_role = Role.CHECKPOINTING
            except simpy.Interrupt:
                pass

    def _write(self, tokens: float, start: int) -> Generator[simpy.Event, Any, None]:
        """Write a checkpoint of ``tokens`` tokens to the shared store while training goes on.

        It takes effect once written, if the gang has not been started anew since (``start``). A
        gang whose last checkpoint is still being written skips the next one.
        """
        if self.store is not None and self.job.state_bytes > 0:
            units = max(1, self.size)
            yield self.store.load(
                units=units,
                bytes_per_unit=self.job.state_bytes / units,
                cap_bytes_per_s=self.costs.store_client_bytes_per_s,
            )
        else:
            yield self.env.timeout(0)
        self._writing = False
        if self.tally.starts == start:
            self._saved = min(max(self._saved, tokens), self.tally.tokens)

    def _until_done_ms(self) -> int:
        """Time that the rest of the work takes at this size, at least a millisecond."""
        remaining = self.job.work_tokens - self.tally.tokens
        seconds = remaining / self.job.rate(self.size)
        # Half a millisecond more makes the rounding go up, so that the work is done by then.
        return max(1, milliseconds(seconds + 0.0005, self.horizon_ms))

    def _finish_work(self) -> None:
        self.finished_ms = int(self.env.now)
        self._saved = self.tally.tokens
        left, self.units = self.units, NONE
        self._running = False
        self.on_finish(left)

    def _checkpoint_ms(self) -> int:
        return max(
            1, milliseconds(self.job.checkpoint_every_s or USUAL_INTERVAL_S, self.horizon_ms)
        )

    def _begin(self, role: Role) -> None:
        self.ledger.put(self.units, role, int(self.env.now), self.number)
        self._running = role is Role.TRAINING
        self._since_ms = int(self.env.now)

    def _settle(self) -> None:
        """Account for the progress, or for the part of a stall, since the last call."""
        elapsed_ms = int(self.env.now) - self._since_ms
        self._since_ms = int(self.env.now)
        self.tally.held_unit_ms += self.size * elapsed_ms
        if self._running:
            self.tally.tokens += self.job.rate(self.size) * elapsed_ms / MS
            self.tally.useful_unit_ms += self.size * elapsed_ms
            self._computed_ms += elapsed_ms
        elif self.size:
            self._stall_ms = max(0, self._stall_ms - elapsed_ms)

    def _lose(self, tokens: float) -> None:
        """Take tokens off the progress, and their unit-time off the useful time."""
        rate = self.job.rate(self.size)
        self.tally.tokens -= tokens
        self.tally.lost_tokens += tokens
        if rate:
            self.tally.useful_unit_ms -= tokens / rate * self.size * MS

    def _stall(self, seconds: float, role: Role) -> None:
        """Let all units wait in a role; a stall that is under way lasts at least as long."""
        longest = max(self._stall_ms, milliseconds(seconds, self.horizon_ms))
        self._stall_ms, self._stall_role = longest, role
        self.ledger.put(self.units, role, int(self.env.now), self.number)
        self._interrupt()

    def _interrupt(self) -> None:
        """Stop computing, and wake the process to read the new state."""
        self._running = False
        if self._process is not None and self._process.is_alive:
            self._process.interrupt()

    def finish(self) -> Tally:
        """Settle everything up to the end of the run, and return the account."""
        self._settle()
        return self.tally
