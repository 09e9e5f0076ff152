"""State that the processes of a run share, and its records."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import simpy

from topologies.arrays import IntArray
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.policies.view import Limits
from workloads.fleet.state.gangs import NONE, Gang
from workloads.fleet.state.ledger import NOBODY, Ledger, Role
from workloads.fleet.state.queues import Batch, Queue
from workloads.fleet.state.services import Pool, Service, lead_s
from workloads.fleet.state.store import Store


@dataclass
class Change:
    """One ordered role change of a cohort of units; ``ready_ms`` is -1 while it is under way.

    ``arrived`` counts the units that did not break on the way.
    """

    ordered_ms: int
    units: int
    source: str
    target: str
    ready_ms: int = -1
    arrived: int = 0


@dataclass
class World:
    """A running fleet.

    ``heading`` holds the pool that each unit is on its way to, or ``NOBODY``. ``training_limit`` is
    the most units that may train or evaluate, None for any number; ``job_limits`` are the most
    units of jobs by name, where a policy sets such limits.
    """

    env: simpy.Environment
    ledger: Ledger
    store: Store
    costs: ChangeCosts
    limits: Limits
    services: tuple[Service, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    gangs: tuple[Gang, ...]
    evaluation: TrainingJob | None
    rng: np.random.Generator
    horizon_ms: int
    heading: npt.NDArray[np.int16]
    changes: list[Change] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    training_limit: int | None = None
    job_limits: Mapping[str, int] = field(default_factory=dict)
    batch: Batch | None = None
    tickets: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def now(self) -> int:
        """Milliseconds since the start."""
        return int(self.env.now)

    @cached_property
    def lead_s(self) -> float:
        """Expected time until a unit that trained serves [s]."""
        return lead_s(self.costs, self.services)

    def lent(self) -> int:
        """Units that train, evaluate or do batch work, or are on their way there."""
        gangs = sum(gang.size + gang.joining for gang in self.gangs)
        joining = 0 if self.batch is None else self.batch.joining
        return gangs + joining + self.ledger.count(Role.EVALUATION) + self.ledger.count(Role.BATCH)

    def room_to_train(self) -> int:
        """Units that may still be lent under the limit on training."""
        if self.training_limit is None:
            return len(self.ledger)
        return max(0, self.training_limit - self.lent())

    def fits(self, gang: Gang, units: int) -> int:
        """Largest size that a job can take out of ``units`` units within its limit, or 0."""
        return gang.job.fits(min(units, self.job_limits.get(gang.job.name, units)))

    def free(self) -> IntArray:
        """Spare units that are in no role change."""
        return self._settled(Role.SPARE)

    def evaluating(self) -> IntArray:
        """Units that evaluate and are in no role change."""
        return self._settled(Role.EVALUATION)

    def in_batch(self) -> IntArray:
        """Units that do batch work and are in no role change."""
        return self._settled(Role.BATCH)

    def _settled(self, role: Role) -> IntArray:
        # Most roles are empty most of the time, and the ledger's count says so without a search.
        if not self.ledger.count(role):
            return NONE
        units = self.ledger.of(role)
        # Roles are bytes and tickets words, so that only the tickets of these units are compared.
        return np.asarray(units[self.ledger.ticket[units] == 0])

    def beyond_deadlines(self) -> IntArray:
        """Units that do batch work beyond what its deadlines need."""
        urgent = 0 if self.batch is None else self.batch.urgent
        return self.in_batch()[urgent:]

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
        self.ledger.ticket[units] = ticket
        self.heading[units] = heading
        return ticket

    def still(self, units: IntArray, ticket: int) -> IntArray:
        """Units of a cohort that have not broken on the way."""
        return np.asarray(units[self.ledger.ticket[units] == ticket])

    def arrive(self, units: IntArray, ticket: int) -> IntArray:
        """End a role change, and return the units of the cohort that have not broken."""
        left = self.still(units, ticket)
        self.ledger.ticket[left] = 0
        self.heading[left] = NOBODY
        return left
