"""Shared rates (rule 7) as they are defined: max-min fair in whole bytes a second.

The level of all flows rises together. A resource is full at the level that its spare capacity,
divided by the weights of the flows that still rise on it, allows, rounded down; a flow is full at
its own cap. Whatever is full at the lowest of these levels stays there, and the rest rises on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Demand:
    """The rate cap of a flow, and the resources that it crosses.

    Attributes
    ----------
    cap : int
        Highest rate that the flow can have [B/s].
    weights : tuple of (resource, weight)
        Each resource on the flow's path, and how many B/s of it 1 B/s of the flow takes.
    """

    cap: int
    weights: tuple[tuple[int, int], ...]


def max_min_rates(demands: Mapping[int, Demand], capacity: Mapping[int, int]) -> dict[int, int]:
    """Share the capacities of resources among flows, max-min fair.

    Parameters
    ----------
    demands : mapping of flow to Demand
    capacity : mapping of resource to int
        Rate that each resource divides [B/s].

    Returns
    -------
    dict of flow to int
        The rate of each flow [B/s].

    Examples
    --------
    One flow crosses two resources, and each of these has another flow to itself:

    >>> paths = {0: ((0, 1), (1, 1)), 1: ((0, 1),), 2: ((1, 1),)}
    >>> max_min_rates({flow: Demand(99, path) for flow, path in paths.items()}, {0: 100, 1: 60})
    {0: 30, 1: 70, 2: 30}
    """
    rates: dict[int, int] = {}
    spare, weight = dict(capacity), dict.fromkeys(capacity, 0)
    flows_on: dict[int, list[int]] = defaultdict(list)
    for flow, demand in demands.items():
        for resource, taken in demand.weights:
            weight[resource] += taken
            flows_on[resource].append(flow)
    while len(rates) < len(demands):
        # The lowest level at which a resource or a flow is full.
        rising = [flow for flow in demands if flow not in rates]
        full_at = {
            resource: spare[resource] // weight[resource]
            for resource in flows_on
            if weight[resource]
        }
        level = min([*full_at.values(), *(demands[flow].cap for flow in rising)])
        # All flows that are full there, by their caps or on a full resource, keep this rate.
        full = {flow for flow in rising if demands[flow].cap == level}
        for resource, resource_level in full_at.items():
            if resource_level == level:
                full.update(flow for flow in flows_on[resource] if flow not in rates)
        for flow in full:
            rates[flow] = level
            for resource, taken in demands[flow].weights:
                spare[resource] -= taken * level
                weight[resource] -= taken
    return {flow: rates[flow] for flow in demands}
