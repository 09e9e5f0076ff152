"""A model in service on the fleet, and how long a unit takes to get there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from workloads.confidence import Prediction
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.serving.capacity import Capacity
from workloads.serving.disaggregated import Pools


@dataclass(frozen=True, eq=False)
class Service:
    """One service of the fleet: a model that answers one kind of request.

    Attributes
    ----------
    name : str
    capacity : Capacity
        Capacity of one unit.
    weights_bytes : float
        Bytes that a unit loads before it can serve, all its replicas together [B].
    patience_s : float
        The queue holds at most so much work; what comes on top is shed [s].
    replicas : int
        In a unit.
    weights : str
        Name of the weights. Services of the same weights share their units; by default a service
        has weights of its own.
    precision : str
        Precision of the weights; empty where a rate stands for the model.
    replica_chips : int
        Chips of a replica; 0 where a rate stands for the model.
    expert_groups : int
        Groups of ranks that divide the experts of a mixture while prompts run.
    prediction : Prediction, optional
        Kind of prediction that the capacity is, for its interval.
    cold_s : float
        Time that a unit loses while its prefix cache fills after a change of role [s].
    apart : Pools, optional
        Prefill and decode replicas of a group that serves together; by default every replica does
        both.
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
    prediction: Prediction | None = None
    cold_s: float = 0.0
    apart: Pools | None = None

    @property
    def group(self) -> int:
        """Replicas that serve together: one, or those of prefill and of decode."""
        return self.apart.prefill + self.apart.decode if self.apart else 1

    @property
    def units_together(self) -> int:
        """Units that a group takes: one, but where its replicas need more."""
        return -(-self.group // self.replicas)

    def lives_in_a_server(self, servers: int) -> bool:
        """Say whether every group lies within a server, so that others work on without one."""
        return self.replicas % (self.group * servers) == 0


@dataclass(frozen=True)
class Pool:
    """Units that hold the same weights, and the services that any of them can answer.

    Attributes
    ----------
    name : str
        The weights', or the service's where it is alone.
    services : tuple of int
        Numbers of the services.
    weights_bytes : float
        Bytes that a unit loads before it can serve any of them [B].
    cold_s : float
        Time that a unit loses while its prefix cache fills after a change of role [s].
    """

    name: str
    services: tuple[int, ...]
    weights_bytes: float
    cold_s: float = 0.0


def pools_from(services: Sequence[Service]) -> tuple[Pool, ...]:
    """Group services by their weights, in the order in which these first stand."""
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
    result: FloatArray = np.stack([values[list(pool.services)].sum(axis=0) for pool in pools])
    return result


def lead_s(costs: ChangeCosts, services: Sequence[Service]) -> float:
    """Expected time until a unit that trained serves, with the heaviest weights [s].

    A prefix cache that has to fill counts as the time that it costs.
    """
    return to_serving_s(costs, services, 1)


def to_serving_s(costs: ChangeCosts, services: Sequence[Service], units: int) -> float:
    """Time until so many units, changed at once from training, serve as well as any [s]."""
    heaviest = max((service.weights_bytes for service in services), default=0.0)
    cold_s = max((service.cold_s for service in services), default=0.0)
    return costs.to_serving_s(heaviest, units) + cold_s
