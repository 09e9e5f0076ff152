"""Services of the fleet, the pools of units that share weights, and the time to start serving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from workloads.confidence.kinds import Prediction
from workloads.demand.trace import Demand
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.serving.capacity import Capacity
from workloads.serving.disaggregated import Pools


@dataclass(frozen=True)
class Choice:
    """Reasons for the way in which prompts run, where it was searched.

    ``binds``: cause that keeps a unit from a higher rate, see
        :func:`workloads.serving.highest_rate.what_binds`.
    ``runner_up``: best of the other ways, such as ``2:2`` or ``separate``; empty where no other
        keeps the SLO.
    ``runner_up_share``: its rate within the SLO over that of the chosen way.
    """

    binds: str
    runner_up: str = ""
    runner_up_share: float = 0.0


@dataclass(frozen=True, eq=False)
class Service:
    """One service of the fleet: a model that answers one kind of request.

    ``weights_bytes``: bytes that a unit loads before it can serve, all its replicas together [B].
    ``patience_s``: most work in the queue [s]; requests beyond it are shed.
    ``weights``: name of the weights. Services with the same weights share their units; by default a
        service has weights of its own.
    ``precision``: precision of the weights; empty where a stated rate replaces the model.
    ``replica_chips``: chips of a replica; 0 where a stated rate replaces the model.
    ``expert_groups``: groups of ranks among which the experts of a mixture are divided while
        prompts run.
    ``chunk_tokens``: tokens of the pieces into which a replica cuts prompts; 0 for whole prompts.
    ``prediction``: features of the prediction of the capacity, from which its interval follows.
    ``cold_s``: time that a unit loses while its prefix cache fills after a change of role [s].
    ``apart``: prefill and decode replicas of a group that serves together; by default every replica
        does both.
    """

    name: str
    capacity: Capacity
    weights_bytes: float = 0.0
    patience_s: float = 600.0
    replicas: int = 1
    weights: str = ""
    precision: str = ""
    replica_chips: int = 0
    expert_groups: int = 1
    chunk_tokens: int = 0
    prediction: Prediction | None = None
    cold_s: float = 0.0
    apart: Pools | None = None
    choice: Choice | None = None

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
    """Units that hold the same weights, and the services that any of them can answer.

    ``name``: name of the weights, or of the service where it is the only one.
    ``services``: numbers of the services.
    ``weights_bytes``: bytes that a unit loads before it can answer the services [B].
    ``cold_s``: time that a unit loses while its prefix cache fills after a change of role [s].
    """

    name: str
    services: tuple[int, ...]
    weights_bytes: float
    cold_s: float = 0.0


def pools_from(services: Sequence[Service]) -> tuple[Pool, ...]:
    """Group services by their weights, in the order of their first service."""
    members: dict[str, list[int]] = {}
    for number, service in enumerate(services):
        key = f"weights {service.weights}" if service.weights else f"service {number}"
        members.setdefault(key, []).append(number)
    return tuple(
        Pool(
            services[numbers[0]].weights if len(numbers) > 1 else services[numbers[0]].name,
            tuple(numbers),
            max(services[number].weights_bytes for number in numbers),
            max(services[number].cold_s for number in numbers),
        )
        for numbers in members.values()
    )


def by_pool(values: FloatArray, pools: Sequence[Pool]) -> FloatArray:
    """Sum rows of services to rows of pools; (services, …) to (pools, …)."""
    if all(pool.services == (number,) for number, pool in enumerate(pools)):
        return values.copy()
    result: FloatArray = np.stack([values[list(pool.services)].sum(axis=0) for pool in pools])
    return result


def lead_s(costs: ChangeCosts, services: Sequence[Service]) -> float:
    """Expected time until a unit that trained serves, with the heaviest weights [s]."""
    return to_serving_s(costs, services, 1)


def to_serving_s(costs: ChangeCosts, services: Sequence[Service], units: int) -> float:
    """Time until ``units`` units, changed from training together, serve at their full rate [s]."""
    heaviest = max((service.weights_bytes for service in services), default=0.0)
    cold_s = max((service.cold_s for service in services), default=0.0)
    return costs.to_serving_s(heaviest, units) + cold_s


def units_needed(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Units that each minute's demand needs under the SLO; (services, minutes)."""
    if len(services) != len(demand.services):
        raise InputError(
            f"{len(services)} services for a demand of {len(demand.services)} "
            f"({', '.join(demand.services)}); give one for each."
        )
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(demand.requests[number] / 60.0 * work / service.capacity.rate_slo_per_s)
    return np.array(rows)


def rates_max(demand: Demand, services: Sequence[Service]) -> FloatArray:
    """Requests that one unit serves at saturation [1/s]; (services, minutes)."""
    rows = []
    for number, service in enumerate(services):
        work = service.capacity.work(demand.prompt_tokens[number], demand.output_tokens[number])
        rows.append(service.capacity.rate_max_per_s / work)
    return np.array(rows)
