"""A model in service on the fleet, and how long a unit takes to get there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.fleet.inputs.costs import ChangeCosts
from workloads.serving.capacity import Capacity


@dataclass(frozen=True, eq=False)
class Service:
    """One service of the fleet: a model that answers one kind of request.

    Attributes
    ----------
    name : str
    capacity : Capacity
        Of one unit.
    weights_bytes : float
        What a unit loads before it can serve, all its replicas together [B].
    patience_s : float
        The queue holds at most so much work; what comes on top is shed [s].
    replicas : int
        In a unit. Where each lies within a server, a unit works on without one of its servers.
    """

    name: str
    capacity: Capacity
    weights_bytes: float = 0.0
    patience_s: float = 600.0
    replicas: int = 1


def lead_s(costs: ChangeCosts, services: Sequence[Service]) -> float:
    """Expected time until a unit that trained serves, with the heaviest weights [s]."""
    return costs.to_serving_s(max((service.weights_bytes for service in services), default=0.0))
