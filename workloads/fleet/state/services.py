"""Services, the kinds of units that answer them, how these fail, and the queues of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError
from workloads.confidence.kinds import Prediction
from workloads.demand.trace import MINUTES_PER_DAY, Demand
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.inputs.reservations import Block
from workloads.fleet.policies.view import Limits
from workloads.options.windows import Window
from workloads.serving.deployment import Pools
from workloads.serving.other_precision import OtherPrecision
from workloads.serving.tables import Capacity


@dataclass(frozen=True)
class Choice:
    """Reasons for the way in which prompts run, where it was searched."""

    binds: str  # cause that keeps a unit from a higher rate, see ``what_binds``
    # Best of the other ways, such as ``2:2`` or ``separate``; empty where no other keeps the SLO
    runner_up: str = ""
    runner_up_share: float = 0.0  # its rate within the SLO over that of the chosen way


@dataclass(frozen=True, eq=False)
class Service:
    """One service of the fleet: a model that answers one kind of request."""

    name: str
    capacity: Capacity
    # Bytes that a unit loads before it can serve, all its replicas together [B]
    weights_bytes: float = 0.0
    patience_s: float = 600.0  # most work in the queue [s]; requests beyond it are shed
    replicas: int = 1
    # Name of the weights. Services with the same weights share their units; by default a service
    # has weights of its own
    weights: str = ""
    precision: str = ""  # precision of the weights; empty where a stated rate replaces the model
    replica_chips: int = 0  # chips of a replica; 0 where a stated rate replaces the model
    # Groups of ranks among which the experts of a mixture are divided while prompts run
    expert_groups: int = 1
    # Tokens of the pieces into which a replica cuts prompts; 0 for whole prompts
    chunk_tokens: int = 0
    # Features of the prediction of the capacity, from which its interval follows
    prediction: Prediction | None = None
    # Time that a unit loses while its prefix cache fills after a change of role [s]
    cold_s: float = 0.0
    # Prefill and decode replicas of a group that serves together; by default every replica does
    # both
    apart: Pools | None = None
    choice: Choice | None = None
    other_precision: OtherPrecision | None = None  # weights that would serve more, if any do
    region: str = ""  # region of its users, in a fleet of several

    @property
    def group(self) -> int:
        """Number of replicas that serve together: one, or those of prefill and decode."""
        return self.apart.prefill + self.apart.decode if self.apart else 1

    @property
    def units_together(self) -> int:
        """Number of units that a group takes: one, unless its replicas need more."""
        return -(-self.group // self.replicas)

    def lives_in_a_server(self, servers: int) -> bool:
        """Return whether every group lies within a server, so that a server can fail alone."""
        return self.replicas % (self.group * servers) == 0


@dataclass(frozen=True)
class Pool:
    """Units that hold the same weights, and the services that any of them can answer."""

    name: str  # name of the weights, or of the service where it is the only one
    services: tuple[int, ...]  # numbers of the services
    weights_bytes: float  # bytes that a unit loads before it can answer the services [B]
    # Time that a unit loses while its prefix cache fills after a change of role [s]
    cold_s: float = 0.0
    weights: str = ""  # as of its services
    region: str = ""  # region of the users, in a fleet of several


def pools_from(services: Sequence[Service]) -> tuple[Pool, ...]:
    """Group services of a region by their weights, in the order of their first service."""
    members: dict[tuple[str, str | int], list[int]] = {}
    for number, service in enumerate(services):
        members.setdefault((service.region, service.weights or number), []).append(number)
    return tuple(
        Pool(
            services[numbers[0]].weights if len(numbers) > 1 else services[numbers[0]].name,
            tuple(numbers),
            max(services[number].weights_bytes for number in numbers),
            max(services[number].cold_s for number in numbers),
            services[numbers[0]].weights,
            services[numbers[0]].region,
        )
        for numbers in members.values()
    )


def by_pool(values: FloatArray, pools: Sequence[Pool]) -> FloatArray:
    """Sum rows of services to rows of pools; (services, …) to (pools, …)."""
    if all(pool.services == (number,) for number, pool in enumerate(pools)):
        return values.copy()
    return np.asarray(np.stack([values[list(pool.services)].sum(axis=0) for pool in pools]))


def to_serving_s(costs: ChangeCosts, services: Sequence[Service], units: int = 1) -> float:
    """Time until ``units`` units, changed from training together, serve at their full rate [s]."""
    heaviest = max(service.weights_bytes for service in services)
    cold_s = max(service.cold_s for service in services)
    return costs.to_serving_s(heaviest, units) + cold_s


def units_needed(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Units that each minute's demand needs under the SLO; (services, minutes)."""
    if len(services) != len(demand.services):
        raise InputError(
            f"{len(services)} services for a demand of {len(demand.services)} "
            f"({', '.join(demand.services)}); give one for each."
        )
    slo = np.array([[service.capacity.rate_slo_per_s] for service in services])
    return np.asarray(demand.requests / 60.0 * _work(demand, services) / slo)


def rates_max(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Requests that one unit serves at saturation [1/s]; (services, minutes)."""
    most = np.array([[service.capacity.rate_max_per_s] for service in services])
    return np.asarray(most / _work(demand, services))


def _work(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Work of a request of each minute; (services, minutes)."""
    lengths = zip(services, demand.prompt_tokens, demand.output_tokens, strict=True)
    return np.array([each.capacity.work(prompt, output) for each, prompt, output in lengths])


@dataclass
class Queue:
    """Requests of one service by outcome; all counts are integers."""

    arrivals: IntArray
    # Most work in the queue, in minutes of its capacity; requests beyond it are shed
    patience_minutes: float
    # served, shed, capacity: (minutes,): requests served and refused in the minute, and those that
    # could have been served
    served: IntArray = field(init=False)
    shed: IntArray = field(init=False)
    # (minutes,): requests that wait at the end of the minute
    backlog: IntArray = field(init=False)
    capacity: IntArray = field(init=False)
    waiting: int = 0

    def __post_init__(self) -> None:
        for name in ("served", "shed", "backlog", "capacity"):
            setattr(self, name, np.zeros(len(self.arrivals), np.int64))

    def finish(self, minute: int, capacity: int) -> None:
        """End a minute in which ``capacity`` requests could have been served."""
        came = int(self.arrivals[minute])
        work = self.waiting + came
        served = min(work, capacity)
        room = int(self.patience_minutes * capacity)
        shed = min(came, max(0, work - served - room))
        self.waiting = work - served - shed
        self.served[minute] = served
        self.shed[minute] = shed
        self.backlog[minute] = self.waiting
        self.capacity[minute] = capacity


def waits_s(queue: Queue) -> FloatArray:
    """Wait of the middle request of each minute [s]; (minutes,)."""
    # Requests are served in order of arrival: the n-th one admitted is served when n have been,
    # interpolated within a minute. Requests still waiting at the end are served afterwards as fast
    # as the last minute could, or count the time until then if it could serve none.
    admitted = np.concatenate([[0], np.cumsum(queue.arrivals - queue.shed)]).astype(float)
    served = np.concatenate([[0], np.cumsum(queue.served)]).astype(float)
    edges = np.arange(len(admitted), dtype=float)
    middle = (admitted[1:] + admitted[:-1]) / 2
    last = int(queue.capacity[-1])
    later = np.maximum(middle - served[-1], 0.0) / last if last else np.zeros(len(middle))
    turn = edges[-1] + later
    after = np.searchsorted(served, middle, side="left")
    inside = after < len(served)
    rows = np.maximum(after[inside], 1)
    step = served[rows] - served[rows - 1]
    part = np.where(step > 0, (middle[inside] - served[rows - 1]) / np.where(step > 0, step, 1), 0)
    turn[inside] = edges[rows - 1] + part
    came = edges[:-1] + 0.5
    return np.asarray(np.maximum(turn - came, 0.0) * 60.0)


def split_tokens(queue: Queue, tokens: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Divide each minute's tokens into served, waiting at its end, and shed; exact integers."""
    # Returns ``served, waiting, shed`` (minutes,): ``tokens.sum() == served.sum() + waiting[-1] +
    # shed.sum()``.
    came = np.maximum(queue.arrivals, 1)
    shed = tokens * queue.shed // came
    admitted_tokens = np.concatenate([[0], np.cumsum(tokens - shed)])
    admitted = np.concatenate([[0], np.cumsum(queue.arrivals - queue.shed)])
    done = np.cumsum(queue.served)
    row = np.clip(np.searchsorted(admitted, done, side="right") - 1, 0, len(came) - 1)
    count = np.maximum(admitted[row + 1] - admitted[row], 1)
    inside = (admitted_tokens[row + 1] - admitted_tokens[row]) * (done - admitted[row]) // count
    done_tokens = admitted_tokens[row] + inside
    served = np.diff(done_tokens, prepend=0)
    return served, admitted_tokens[1:] - done_tokens, shed


@dataclass
class BatchQueue:
    """The batch tier of a running fleet: requests in the order of their deadlines, in integers."""

    # All requests have the same time from arrival to deadline, so the oldest one has the earliest
    # deadline. A request that has not been served by its deadline expires.

    arrivals: IntArray
    # (minutes,): prompt and output tokens of all requests that arrive in the minute
    tokens: IntArray
    # A request that arrives in minute i has to be served by the end of minute i +
    # ``deadline_minutes``
    deadline_minutes: int
    # (minutes,): requests that one saturated unit answers [1/s]
    rate_per_s: FloatArray = field(default_factory=lambda: np.empty(0))
    # served, late, waiting: (minutes,): requests served and expired in the minute, and waiting at
    # its end
    served: IntArray = field(init=False)
    late: IntArray = field(init=False)
    waiting: IntArray = field(init=False)
    done: int = 0
    carry: float = 0.0  # part of a request that the last minute has begun

    def __post_init__(self) -> None:
        for name in ("served", "late", "waiting"):
            setattr(self, name, np.zeros(len(self.arrivals), np.int64))
        self._sums: IntArray = np.concatenate([[0], np.cumsum(self.arrivals)]).astype(np.int64)

    def waits(self, minute: int) -> int:
        """Requests that wait when a minute begins."""
        return int(self._sums[minute]) - self.done

    def came(self, minute: int, minutes: int) -> float:
        """Requests expected within ``minutes`` minutes: as many as came in the last ones."""
        passed = min(minute, minutes)
        return float(self._sums[minute] - self._sums[minute - passed]) * minutes / max(passed, 1)

    def due(self, minute: int) -> IntArray:
        """Waiting requests that have to be served within 1, 2 … minutes; (deadline_minutes,).

        Two requests came in minute 0 and three in minute 1, with three minutes' time:

        >>> BatchQueue(np.array([2, 3, 0, 0]), np.array([2, 3, 0, 0]), 3).due(2).tolist()
        [0, 2, 5]
        """
        arrived = minute - self.deadline_minutes + np.arange(1, self.deadline_minutes + 1)
        return np.maximum(self._sums[np.clip(arrived, 0, minute)] - self.done, 0)

    def finish(self, minute: int, capacity: int) -> None:
        """End a minute in which ``capacity`` requests could be served."""
        served = min(capacity, self.waits(minute + 1))
        self.done += served
        over = int(self._sums[max(0, minute + 1 - self.deadline_minutes)])
        late = max(0, over - self.done)
        self.done += late
        self.served[minute], self.late[minute] = served, late
        self.waiting[minute] = self.waits(minute + 1)

    def serve(self, minute: int, unit_s: float) -> None:
        """End a minute in which units worked for ``unit_s`` unit-seconds."""
        possible = unit_s * float(self.rate_per_s[minute]) + self.carry
        self.finish(minute, int(possible))
        self.carry = possible % 1.0 if self.waiting[minute] else 0.0

    def tokens_before(self, requests: IntArray) -> IntArray:
        """Tokens of the first ``requests`` requests, rounded down."""
        sums = np.concatenate([[0], np.cumsum(self.tokens)])
        row = np.searchsorted(self._sums, requests, side="right") - 1
        row = np.clip(row, 0, len(self.arrivals) - 1)
        count = np.maximum(self.arrivals[row], 1)
        inside = self.tokens[row] * (requests - self._sums[row]) // count
        return np.asarray(sums[row] + inside)

    def arrived_minute(self, requests: FloatArray) -> IntArray:
        """Minute in which the requests of these numbers arrived."""
        return np.asarray(np.searchsorted(self._sums, requests, side="right") - 1)


MINUTE_S = 60.0


@dataclass(frozen=True, eq=False)
class BatchTier:
    """Requests that may wait, and for how long."""

    share: float = 0.0
    # Requests that may wait and arrive on top of the demand, instead of a share of it
    demand: Demand | None = None
    # Time within which a request has to be answered; after it the request expires [s]
    deadline_s: float = MINUTES_PER_DAY * MINUTE_S

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1 or (self.share > 0) == (self.demand is not None):
            raise InputError(
                f"a batch tier of {self.share:.3g} of the requests"
                f"{' and of a demand of its own' if self.demand is not None else ''}; give a share "
                "above 0 and below 1, or a demand."
            )
        if not self.deadline_s >= MINUTE_S or self.deadline_s == float("inf"):
            raise InputError(
                f"a batch deadline of {self.deadline_s:g} s must be at least a minute, such as 24h."
            )

    @property
    def deadline_minutes(self) -> int:
        """Whole minutes within which a request has to be answered."""
        return int(self.deadline_s // MINUTE_S)


@dataclass(frozen=True, eq=False)
class BatchWork:
    """Requests of a batch tier in a run."""

    demand: Demand  # one service, as long as the run
    # (minutes,): requests that one saturated unit answers, at the prompt and output lengths of that
    # minute [1/s]
    rate_per_s: FloatArray
    deadline_minutes: int = MINUTES_PER_DAY


@dataclass(frozen=True)
class Domain:
    """A part of the fleet whose units, or servers of one unit, fail together."""

    name: str
    # mtbf_s, repair_s: mean time between failures of one such part, and mean time to its repair [s]
    mtbf_s: float
    repair_s: float
    units: int = 1
    servers: int = 1  # servers that a unit loses where the part is smaller than a unit

    def count(self, units: int, servers: int) -> int:
        """Number of such parts in a fleet of ``units`` units with ``servers`` servers each."""
        if self.units:
            return -(-units // self.units)
        return units * max(1, servers // self.servers)


@dataclass(frozen=True)
class Failures:
    """Exponential times between failures of a unit, and to its repair [s]."""

    unit_mtbf_s: float
    repair_s: float
    # Servers of a unit, which fail one by one; with 1 a failure takes the whole unit out
    servers: int = 1
    domains: tuple[Domain, ...] = ()
    # Faults that stop training and take nothing out of service, by name: mean time between such
    # faults in the whole fleet [s]; with infinity there are none
    interruptions: Mapping[str, float] = field(default_factory=dict)

    def units_out(self, units: int) -> dict[int, float]:
        """Return the mean number of parts under repair in a fleet, by their size in units."""
        means = {1: units * self.repair_s / self.unit_mtbf_s / self.servers}
        for domain in self.domains:
            parts = domain.count(units, self.servers) * domain.repair_s / domain.mtbf_s
            share = 1.0 if domain.units else domain.servers / self.servers
            size = max(domain.units, 1)
            means[size] = means.get(size, 0.0) + parts * share
        return means


@dataclass(frozen=True, eq=False)
class Fleet:
    """Units of a fleet, and the rules of their changes and failures."""

    # units, chips_per_unit: number of UltraServers, or other units that change role as a whole, and
    # their chips
    units: int
    chips_per_unit: int = 64
    costs: ChangeCosts = field(default_factory=ChangeCosts)  # by default changes take no time
    limits: Limits = field(default_factory=Limits)
    failures: Failures | None = None  # by default nothing breaks
    maintenance: tuple[Window, ...] = ()
    blocks: tuple[Block, ...] = ()  # the last units are only there for these times

    @property
    def steady_units(self) -> int:
        """Units that are there all the time."""
        return self.units - max((block.units for block in self.blocks), default=0)

    @property
    def servers(self) -> int:
        """Servers of a unit where each fails on its own; else 1."""
        return self.failures.servers if self.failures else 1


UNKNOWN = Economics(0.0, 0.0)
"""Power and price of a chip of which neither is known."""


@dataclass(frozen=True, eq=False)
class Kind:
    """Units of one kind in a fleet."""

    name: str
    # One for each service of the demand, with the capacity of a unit of this kind
    services: tuple[Service, ...]
    fleet: Fleet
    jobs: tuple[TrainingJob, ...] = ()  # jobs that run on this kind
    economics: Economics = UNKNOWN  # power and price of a chip
    serves: bool = True  # whether units of this kind may serve
    region: str = ""  # region of the units, in a fleet of several
    # Round trip of requests from each region, by its name [s]; none from one that is not stated
    round_trip_s: Mapping[str, float] = field(default_factory=dict)

    def jobs_in_order(self) -> tuple[list[TrainingJob], TrainingJob | None]:
        """Return the training jobs, the first to start first, and the evaluation, if any."""
        evaluations = [job for job in self.jobs if job.evaluation]
        if len(evaluations) > 1:
            raise InputError(f"{len(evaluations)} evaluation jobs; join them into one.")
        jobs = [job for job in self.jobs if not job.evaluation]
        for job in jobs:
            if job.min_units > self.fleet.units:
                raise InputError(
                    f"job {job.name} needs {job.min_units:,} units, {self.name} has "
                    f"{self.fleet.units:,} units; make the job smaller."
                )
        return sorted(jobs, key=lambda job: job.priority), next(iter(evaluations), None)


def speeds_of(demand: Demand, kinds: Sequence[Kind]) -> FloatArray:
    """Requests that a unit of each kind serves, relative to one of the first; (kinds, pools)."""
    needs = [
        by_pool(units_needed(demand, kind.services), pools_from(kind.services)).sum(axis=1)
        for kind in kinds
    ]
    result = np.array(
        [np.where(need > 0, needs[0] / np.maximum(need, 1e-300), 1.0) for need in needs]
    )
    result[[not kind.serves for kind in kinds]] = 0.0
    return result


def serving_units(demand: Demand, kinds: Sequence[Kind]) -> float:
    """Units that may serve, in units of the first kind, for the mix of a demand."""
    needs = [float(units_needed(demand, kind.services).sum()) for kind in kinds]
    return sum(
        kind.fleet.steady_units * (needs[0] / need if need else 1.0)
        for kind, need in zip(kinds, needs, strict=True)
        if kind.serves
    )
