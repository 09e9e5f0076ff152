"""State of a running fleet: ledger of roles, gangs, and the world that holds them.

Time is in integer milliseconds, so that the server-milliseconds of all roles sum to servers × time.
A server that is down while the rest of its unit works on counts as broken.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from topologies.support.arrays import FloatArray, IntArray
from workloads.demand.trace import Demand
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.state.services import (
    BatchQueue,
    Kind,
    Queue,
    pools_from,
    rates_max,
    to_serving_s,
)
from workloads.fleet.state.store import MINUTE_MS, MS, Store, milliseconds


class Role(IntEnum):
    """Role of a unit at a moment; the numbers are its accounts in the ledger."""

    SERVING = 0
    DRAINING = 1
    LOADING = 2
    COMPILING = 3
    WARMING = 4
    TRAINING = 5
    EVALUATION = 6
    CHECKPOINTING = 7
    PAUSED = 8
    BROKEN = 9
    SPARE = 10
    BATCH = 11
    MAINTENANCE = 12
    ABSENT = 13


ROLES = tuple(role.name.lower() for role in Role)
OUT = (Role.BROKEN, Role.MAINTENANCE, Role.ABSENT)
"""Roles of units that nothing can break; absent ones are reserved for another time."""

SINGLE = (Role.EVALUATION, Role.BATCH)
"""Roles of lent units that work one by one, outside of gangs."""

NOBODY = -1  # owner, loaded pool or heading of a unit that has none


class Ledger:
    """Arrays over all units; an account is a role, or one pool's share of the serving role."""

    def __init__(self, units: int, pools: int, servers: int = 1) -> None:
        self.servers = servers
        self.lost = np.zeros(units, np.int8)  # servers that are down in a unit that works on
        self.role = np.full(units, Role.SPARE, np.int8)
        self.owner = np.full(units, NOBODY, np.int32)  # pool or job that the unit works for
        self.loaded = np.full(units, NOBODY, np.int16)  # pool whose weights are resident
        self.back_ms = np.zeros(units, np.int64)  # end of the unit's last repair or maintenance
        # Number of the role change that the unit is in, 0 for none; a unit that breaks loses it
        self.ticket = np.zeros(units, np.int64)
        self.lent_ms = np.full(units, -(2**62), np.int64)  # when it last left the serving role
        self.accounts = len(Role) + pools
        self._account = self.role.astype(np.int16)
        # By account: units in it now, the servers that these have lost, server-time up to ``at_ms``
        self.counts = np.bincount(self._account, minlength=self.accounts).astype(np.int64)
        self.down = np.zeros(self.accounts, np.int64)
        self.spent_server_ms = np.zeros(self.accounts, np.int64)
        self.beside_lost_server_ms = 0  # time of servers that were idle beside a lost one
        self.at_ms = 0
        self.events = 0  # events so far that gave units another role, or took them on a change

    def __len__(self) -> int:
        return len(self.role)

    def advance(self, now_ms: int) -> None:
        """Add the time since the last call to the accounts."""
        if elapsed_ms := now_ms - self.at_ms:
            self.spent_server_ms += (self.counts * self.servers - self.down) * elapsed_ms
            down = self.down.tolist()
            self.spent_server_ms[Role.ABSENT] += down.pop(Role.ABSENT) * elapsed_ms
            self.spent_server_ms[Role.BROKEN] += sum(down) * elapsed_ms
            if down[Role.SPARE]:
                idle = int(np.count_nonzero(self.lost[self.role == Role.SPARE])) * self.servers
                self.beside_lost_server_ms += (idle - down[Role.SPARE]) * elapsed_ms
            self.at_ms = now_ms

    def put(self, units: IntArray, role: Role, now_ms: int, owner: int = NOBODY) -> None:
        """Give units a role and an owner at an instant."""
        account = len(Role) + owner if role is Role.SERVING else int(role)
        if (self._account[units] == account).all() and (self.owner[units] == owner).all():
            return
        self.advance(now_ms)
        self.events += 1
        self.counts -= np.bincount(self._account[units], minlength=self.accounts)
        self.counts[account] += len(units)
        lost = self.lost[units]
        if lost.any():
            np.subtract.at(self.down, self._account[units], lost)
            self.down[account] += int(lost.sum())
        self._account[units] = account
        self.role[units] = role
        self.owner[units] = owner

    def lose(self, unit: int, now_ms: int, servers: int = 1) -> None:
        """Take servers out of a unit that works on, or give them back if negative."""
        self.advance(now_ms)
        self.events += 1
        self.lost[unit] += servers
        self.down[self._account[unit]] += servers

    def out_of_service(self) -> int:
        """Units under repair or maintenance, and servers lost by others, in whole units."""
        # Sums of short lists take a fifth of the time of those of arrays.
        counts, down = self.counts.tolist(), self.down.tolist()
        elsewhere = sum(down) - sum(down[role] for role in OUT)
        return int(sum(counts[role] for role in OUT)) + elsewhere // self.servers

    def count(self, role: Role) -> int:
        """Units in a role."""
        if role is Role.SERVING:
            return int(self.counts[len(Role) :].sum())
        return int(self.counts[role])

    def of(self, role: Role, owner: int | None = None) -> IntArray:
        """Numbers of the units in a role, ascending; only those of an owner if given."""
        chosen = self.role == role
        if owner is not None:
            chosen &= self.owner == owner
        return np.flatnonzero(chosen)


NONE = np.empty(0, np.int64)  # no units
USUAL_INTERVAL_S = 1800.0  # interval of checkpoints of a job without one outside of a scenario [s]


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
    finished_s: float = math.inf  # time at which the job was done, infinity if it was not [s]


class Gang:
    """One training job: its units, its progress since the last checkpoint, its SimPy process."""

    # All units of a gang compute in step: a checkpoint, a resize or a restart stalls all of them,
    # and the loss of one unit stops all. It loses the progress that is not in a checkpoint, in host
    # memory or at a peer. Methods that change the gang first settle the time since the last change,
    # then interrupt the process, which begins anew with the stall, or with training, that is due.

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
        self._run_ms = 0  # time computed since the last checkpoint, start or resize
        self._process: simpy.Process | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Processes cannot be copied or sent to another process; a run that has ended needs none.
        live = ("env", "store", "on_finish", "_process")
        return {name: each for name, each in vars(self).items() if name not in live}

    @property
    def size(self) -> int:
        """Units that compute for the job."""
        return len(self.units)

    @property
    def waits(self) -> bool:
        """Return whether the job wants units: it has arrived, and is not done."""
        unfinished = math.isinf(self.tally.finished_s)
        return unfinished and int(self.env.now) >= self.job.arrives_s * MS

    def tokens_now(self) -> float:
        """Tokens up to this instant, those that are not settled yet included."""
        running_s = (int(self.env.now) - self._since_ms) / MS if self._running else 0.0
        return self.tally.tokens + self.job.rate(self.size) * running_s

    def unsaved_unit_ms(self) -> float:
        """Unit-time that a stop without notice would lose: the price of reclaiming this gang."""
        self.settle()
        rate = self.job.rate(self.size)
        return (self.tally.tokens - self._saved) / rate * self.size * MS if rate else 0.0

    def admit(self, units: IntArray) -> None:
        """Take in units that are ready, and start or resize the job."""
        self.settle()
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
        """Drop the last ``count`` units and return them."""
        # The job loses one step, and the other units go on after a resize.
        self.settle()
        self._lose(min(self.job.step_tokens, self.tally.tokens - self._saved))
        left, self.units = self.units[-count:], self.units[:-count]
        self.tally.resizes += 1
        self.changed_ms = int(self.env.now)
        self._stall(self.costs.resize_s, Role.LOADING)
        return left

    def stop(self, *, keep: bool, in_host: bool = False) -> IntArray:
        """Stop the gang and return its units; without ``keep``, unsaved progress is lost."""
        self.settle()
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
        self.settle()
        self.tally.failures += 1
        copies = self.costs.copies(self.job, self.size)
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
        recovery = self.costs.recovery
        if copies is None:
            all_units = max(self.size, 1) * self.costs.store_client_bytes_per_s
            rate = min(self.costs.store_bytes_per_s, all_units)
            restart_s = recovery.restart_s + self.job.state_bytes / rate
        else:
            restart_s = copies.restart_s
        warm = self.job.standby == "warm" and not cold
        saved_s = recovery.warm_saves_s if warm else 0.0
        self._stall(recovery.detection_s + restart_s - saved_s, Role.LOADING)
        return left

    def _run(self) -> Generator[simpy.Event, Any, None]:
        """Alternate between training and stalls until the gang has no units or no work left."""
        while self.size:
            try:
                if self._stall_ms > 0:
                    self._begin(self._stall_role)
                    yield self.env.timeout(self._stall_ms)
                    self.settle()
                    self._stall_ms = 0
                    if self._exposed:  # all units have their parts of the state again
                        self._computed_ms, self._exposed = 0, 0
                else:
                    self._begin(Role.TRAINING)
                    every_s = self.job.checkpoint_every_s or USUAL_INTERVAL_S
                    every_ms = max(1, milliseconds(every_s, self.horizon_ms))
                    until_saving_ms = max(1, every_ms - self._run_ms)
                    yield self.env.timeout(min(until_saving_ms, self._until_done_ms()))
                    self.settle()
                    if self.tally.tokens >= self.job.work_tokens * (1 - 1e-12):
                        self.tally.finished_s = int(self.env.now) / MS
                        self._saved = self.tally.tokens
                        left, self.units = self.units, NONE
                        self._running = False
                        self.on_finish(left)
                        return
                    self._run_ms = 0
                    if not self._writing:
                        self._writing = True
                        self._write()
                    if self.job.checkpoint == "peer":
                        continue  # no stall: the store is written from the copies in host memory
                    stall_s = self.costs.stall_s(self.job, self.size)
                    self._stall_ms = milliseconds(stall_s, self.horizon_ms)
                    self._stall_role = Role.CHECKPOINTING
            except simpy.Interrupt:
                pass

    def _write(self) -> None:
        """Write a checkpoint to the shared store while training goes on."""
        # A gang whose last checkpoint is still being written skips the next one.
        if self.store is not None and self.job.state_bytes > 0:
            units = max(1, self.size)
            end = self.store.load(
                units=units,
                bytes_per_unit=self.job.state_bytes / units,
                cap_bytes_per_s=self.costs.store_client_bytes_per_s,
            )
        else:
            end = self.env.timeout(0)
        end.callbacks.append(partial(self._written, self.tally.tokens, self.tally.starts))

    def _written(self, tokens: float, start: int, _event: simpy.Event) -> None:
        """Keep what a checkpoint holds, if the gang has not been started anew since."""
        self._writing = False
        if self.tally.starts == start:
            self._saved = min(max(self._saved, tokens), self.tally.tokens)

    def _until_done_ms(self) -> int:
        """Time that the rest of the work takes at this size, at least a millisecond."""
        remaining = self.job.work_tokens - self.tally.tokens
        seconds = remaining / self.job.rate(self.size)
        # Half a millisecond more makes the rounding go up, so that the work is done by then.
        return max(1, milliseconds(seconds + 0.0005, self.horizon_ms))

    def _begin(self, role: Role) -> None:
        self.ledger.put(self.units, role, int(self.env.now), self.number)
        self._running = role is Role.TRAINING
        self._since_ms = int(self.env.now)

    def settle(self) -> None:
        """Account for the progress, or for the part of a stall, since the last call."""
        elapsed_ms = int(self.env.now) - self._since_ms
        self._since_ms = int(self.env.now)
        self.tally.held_unit_ms += self.size * elapsed_ms
        if self._running:
            self.tally.tokens += self.job.rate(self.size) * elapsed_ms / MS
            self.tally.useful_unit_ms += self.size * elapsed_ms
            self._computed_ms += elapsed_ms
            self._run_ms += elapsed_ms
        elif self.size:
            self._stall_ms = max(0, self._stall_ms - elapsed_ms)

    def _lose(self, tokens: float) -> None:
        """Take tokens off the progress, and their unit-time off the useful time."""
        rate = self.job.rate(self.size)
        self.tally.tokens -= tokens
        self.tally.lost_tokens += tokens
        if rate:
            self.tally.useful_unit_ms -= tokens / rate * self.size * MS

    def hold(self, seconds: float) -> None:
        """Let all units wait in place for a time, and then go on."""
        self.settle()
        run_ms = self._run_ms
        self._stall(seconds, Role.LOADING)
        self._run_ms = run_ms

    def _stall(self, seconds: float, role: Role) -> None:
        """Let all units wait in a role; a stall that is under way lasts at least as long."""
        self._run_ms = 0
        longest = max(self._stall_ms, milliseconds(seconds, self.horizon_ms))
        self._stall_ms, self._stall_role = longest, role
        self.ledger.put(self.units, role, int(self.env.now), self.number)
        self._interrupt()

    def _interrupt(self) -> None:
        """Stop computing, and wake the process to read the new state."""
        self._running = False
        if self._process is not None and self._process.is_alive:
            self._process.interrupt()


@dataclass
class Change:
    """One ordered role change of a cohort of units; ``ready_ms`` is -1 while it is under way."""

    ordered_ms: int
    units: int
    source: str
    target: str
    ready_ms: int = -1
    arrived: int = 0  # units that did not break on the way


class World:
    """Units of one kind, what they do, and what they did until the last minute that has ended."""

    # All kinds of a fleet share its clock, queues and store.

    def __init__(
        self,
        kind: Kind,
        demand: Demand,
        reach: FloatArray,
        store: Store,
        queues: tuple[Queue, ...],
        rng: np.random.Generator,
        batch: BatchQueue | None,
    ) -> None:
        fleet = kind.fleet
        replace(fleet.limits, floor=0).check(fleet.units)
        self.name, self.services, self.region = kind.name, kind.services, kind.region
        self.chips_per_unit, self.economics = fleet.chips_per_unit, kind.economics
        self.costs, self.limits, self.blocks = fleet.costs, fleet.limits, fleet.blocks
        # (pools,): requests that a unit can serve relative to one of the first kind; 0 if it never
        # does
        self.reach = reach
        # (services, minutes): requests that one unit serves at saturation, at that minute's prompt
        # and output lengths [1/s]
        self.rate_max_per_s = rates_max(demand, kind.services)
        # (services,): round trip of a service's requests to this region and back [s]
        trips_s = [kind.round_trip_s.get(each.region, 0.0) for each in kind.services]
        self.round_trip_s: FloatArray = np.array(trips_s)
        self.env, self.store, self.queues, self.rng = store.env, store, queues, rng
        self.horizon_ms, self.pools = demand.minutes * MINUTE_MS, pools_from(kind.services)
        self.ledger = Ledger(fleet.units, len(self.pools), fleet.servers)
        jobs, self.evaluation = kind.jobs_in_order()
        shared = self.env, self.ledger, self.costs, self.horizon_ms, store
        self.gangs = tuple(Gang(number, job, *shared) for number, job in enumerate(jobs))
        self.batch = batch if kind.serves else None  # where units of this kind may do batch work
        self.batch_urgent = 0  # units that the deadlines of batch work need, which training yields
        self.heading = np.full(fleet.units, NOBODY, np.int16)  # pool a unit is on its way to
        # (minutes + 1, accounts): server-time spent until each minute begins, by role, then by pool
        self.spent_server_ms = np.zeros((demand.minutes + 1, self.ledger.accounts), np.int64)
        # (minutes, services): mean number of units that worked for each service; units of a pool
        # answer all its services
        self.service_units: FloatArray = np.zeros((demand.minutes, len(kind.services)))
        # (pools,): units that come for others due for maintenance, and units of the first kind got
        # from other regions, less those given
        self.surge = np.zeros(len(self.pools), np.int64)
        self.moved: FloatArray = np.zeros(len(self.pools))
        self.changes: list[Change] = []
        # Failures by what failed: a server, a rack, a scale-up domain, a power feed, a switch, an
        # optical link, software
        self.failures = Counter[str]()
        # Most units that may train or evaluate, and that the site's power lets compute in this
        # minute; None for any number
        self.training_limit: int | None = None
        self.power_limit: int | None = None
        # Most units of jobs by name, where a policy sets such limits
        self.job_limits: Mapping[str, int] = {}
        self.joining = Counter[Role]()  # units on their way to evaluation and batch work, by role
        self.maintained = 0  # units that have been out for maintenance
        self.maintenance_late_ms = 0  # largest delay of a window, until the one before had ended
        self.due_ms: list[int] = []  # begins of windows that have not begun
        self.worth = 1.0  # tokens that a unit trains relative to one of the first kind
        self.tickets = itertools.count(1)

    def __getstate__(self) -> dict[str, Any]:
        live = ("env", "store", "tickets")  # as of a gang
        return {name: each for name, each in vars(self).items() if name not in live}

    @property
    def now(self) -> int:
        """Milliseconds since the start."""
        return int(self.env.now)

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.ledger)

    @property
    def servers(self) -> int:
        """Servers of a unit where each fails on its own; else 1."""
        return self.ledger.servers

    @cached_property
    def own(self) -> IntArray:
        """For each pool, the pool of this region with the same weights; (pools,)."""
        here = {
            pool.weights: number
            for number, pool in enumerate(self.pools)
            if pool.region == self.region
        }
        return np.array(
            [
                number if pool.region == self.region else here[pool.weights]
                for number, pool in enumerate(self.pools)
            ]
        )

    @cached_property
    def speed(self) -> FloatArray:
        """Requests that a unit serves relative to one of the first kind, 0 elsewhere; (pools,)."""
        return np.where(self.own == np.arange(len(self.own)), self.reach, 0.0)

    def helpers(self, service: int) -> list[int]:
        """Services of this region whose units can answer a service of another one."""
        pool = next(n for n, each in enumerate(self.pools) if service in each.services)
        if not self.serves or self.own[pool] == pool:
            return []
        return list(self.pools[self.own[pool]].services)

    @cached_property
    def home(self) -> int:
        """Pool whose weights evaluation and batch work use."""
        return int(self.own[0])

    @cached_property
    def serves(self) -> bool:
        """Return whether units of this kind may serve."""
        return bool(self.speed.any())

    @property
    def jobs(self) -> tuple[tuple[TrainingJob, Tally], ...]:
        """Training jobs without evaluation, each with its account."""
        return tuple((gang.job, gang.tally) for gang in self.gangs)

    @cached_property
    def unit_busy_w(self) -> float:
        """Draw of the site for a unit that computes [W]."""
        return self.economics.busy_w * (self.chips_per_unit * self.economics.pue)

    @cached_property
    def unit_idle_w(self) -> float:
        """Draw of the site for a unit that does not compute [W]."""
        return self.economics.idle_w * (self.chips_per_unit * self.economics.pue)

    @cached_property
    def rest_units(self) -> int:
        """Most units that evaluation and batch work can use beside training jobs."""
        if self.batch is not None:
            return len(self.ledger)
        return self.evaluation.units if self.evaluation else 0

    @cached_property
    def lead_s(self) -> float:
        """Expected time until a unit that trained serves [s]."""
        return to_serving_s(self.costs, self.services)

    def lent(self) -> int:
        """Units that train, evaluate or do batch work, or are on their way there."""
        gangs = sum(gang.size + gang.joining for gang in self.gangs)
        return gangs + sum(self.joining[role] + self.ledger.count(role) for role in SINGLE)

    def shares(self, minute: int) -> Iterator[tuple[int, int, float, float]]:
        """Yield pool, service, its share of the pool's unit-time, and requests of a unit [1/s]."""
        # The unit-time of a pool is divided among its services in proportion to their work, as if
        # their requests waited in one line: any unit of the pool can answer any of them.
        for number, pool in enumerate(self.pools):
            services = list(pool.services)
            if len(services) == 1:
                yield number, services[0], 1.0, float(self.rate_max_per_s[services[0], minute])
                continue
            rates = self.rate_max_per_s[services, minute].tolist()
            queues = [self.queues[service] for service in services]
            work = [queue.waiting + int(queue.arrivals[minute]) for queue in queues]
            work_s = [count / rate for count, rate in zip(work, rates, strict=True)]
            whole_s = sum(work_s)
            for service, part_s, rate in zip(services, work_s, rates, strict=True):
                share = part_s / whole_s if whole_s else 1 / len(services)
                yield number, service, share, rate

    def room_to_train(self) -> int:
        """Units that may still be lent under the limits on training, below 0 beyond them."""
        limits = [each for each in (self.training_limit, self.power_limit) if each is not None]
        return min(limits) - self.lent() if limits else len(self.ledger)

    def room_for_urgent(self) -> int:
        """Units that may still do batch work by its deadlines, for which gangs wait in place."""
        room, units = self.room_to_train(), self.in_or_to_batch()
        if self.power_limit is None:
            return room
        policy = len(self.ledger) if self.training_limit is None else self.training_limit
        evaluating = self.ledger.count(Role.EVALUATION) + self.joining[Role.EVALUATION]
        without_gangs = min(policy - self.lent(), self.power_limit - evaluating - units)
        return max(room, min(without_gangs, self.batch_urgent - units))

    def in_or_to_batch(self) -> int:
        """Units that do batch work or are on their way to it."""
        return self.ledger.count(Role.BATCH) + self.joining[Role.BATCH]

    def fits(self, gang: Gang, units: int) -> int:
        """Largest size that a job can take of some units within its limit and quota, or 0."""
        job = gang.job
        units = min(units, self.job_limits.get(job.name, units))
        if job.team_units:
            mates = (each for each in self.gangs if each.job.team == job.team and each is not gang)
            held = sum(each.size + len(each.paused) + each.joining for each in mates)
            units = min(units, max(0, job.team_units - held))
        return job.fits(units)

    def settled(self, role: Role) -> IntArray:
        """Units in a role that are in no role change."""
        # Most roles are empty most of the time, and the ledger's count says so without a search.
        if not self.ledger.count(role):
            return NONE
        units = self.ledger.of(role)
        # Roles are bytes and tickets words, so that only the tickets of these units are compared.
        return np.asarray(units[self.ledger.ticket[units] == 0])

    def beyond_deadlines(self) -> IntArray:
        """Units that do batch work beyond what its deadlines need."""
        return self.settled(Role.BATCH)[self.batch_urgent :]

    def whole(self, units: IntArray) -> IntArray:
        """Units that have all their servers: only these can be in a gang."""
        return np.asarray(units[self.ledger.lost[units] == 0])

    def serving(self) -> npt.NDArray[np.int64]:
        """Units that serve, by pool."""
        return self.ledger.counts[len(Role) :].copy()

    def coming(self) -> npt.NDArray[np.int64]:
        """Units on their way to each pool."""
        return np.array(
            [np.count_nonzero(self.heading == number) for number in range(len(self.pools))]
        )

    def take_ticket(self, units: IntArray, heading: int = NOBODY) -> int:
        """Mark units as under way in one role change, and return its number."""
        ticket = next(self.tickets)
        self.ledger.events += 1
        self.ledger.ticket[units] = ticket
        self.heading[units] = heading
        return ticket

    def still(self, units: IntArray, ticket: int) -> IntArray:
        """Units of a cohort that have not broken on the way."""
        return np.asarray(units[self.ledger.ticket[units] == ticket])

    def arrive(self, units: IntArray, ticket: int) -> IntArray:
        """End a role change, and return the units of the cohort that have not broken."""
        left = self.still(units, ticket)
        self.ledger.events += 1
        self.ledger.ticket[left] = 0
        self.heading[left] = NOBODY
        return left
