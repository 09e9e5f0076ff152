"""Registry of algorithms: those that can run a call, and the one that a name stands for."""

from __future__ import annotations

from collections.abc import Sequence

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.algorithms.all_to_all import DIMENSION_ORDERED, DIRECT
from cluster_sim.collectives.algorithms.auto import automatic
from cluster_sim.collectives.algorithms.footprint import fits, ops_foreseen
from cluster_sim.collectives.algorithms.hierarchical import HIERARCHICAL
from cluster_sim.collectives.algorithms.kangaring import KANGARING
from cluster_sim.collectives.algorithms.mesh import MESH, SINGLE_STEP_MESH
from cluster_sim.collectives.algorithms.per_axis import PER_AXIS
from cluster_sim.collectives.algorithms.rdh import RDH
from cluster_sim.collectives.algorithms.ring import BIDIRECTIONAL_RING, MULTI_RING, RING
from cluster_sim.collectives.algorithms.torus import TORUS
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.errors import InputError, suggestion
from topologies.registry import by_name

AUTO, BEST = "auto", "best"
"""Names that stand for an algorithm: the one that the runtime would choose; the fastest of all."""

ALGORITHMS: dict[str, Algorithm] = by_name(
    "algorithm",
    (
        RING,
        BIDIRECTIONAL_RING,
        MULTI_RING,
        TORUS,
        PER_AXIS,
        HIERARCHICAL,
        MESH,
        SINGLE_STEP_MESH,
        RDH,
        KANGARING,
        DIRECT,
        DIMENSION_ORDERED,
    ),
)


def suitable(call: CollectiveCall) -> list[Algorithm]:
    """List the algorithms that can run a call and make sense for its group.

    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> ring = whole(cluster("ring:6", bandwidth="100GB/s", latency="1us"))
    >>> [one.name for one in suitable(CollectiveCall("all-to-all", ring, 2**20))]
    ['direct', 'dimension-ordered']
    """
    return [algorithm for algorithm in ALGORITHMS.values() if algorithm.runs(call)]


def fitting_algorithms(calls: Sequence[CollectiveCall]) -> list[Algorithm]:
    """List the suitable algorithms whose schedules fit in memory; if none fits, all suitable."""
    sensible = suitable(calls[0])
    return [algorithm for algorithm in sensible if fits_by(calls, algorithm)] or sensible


def fits_by(calls: Sequence[CollectiveCall], algorithm: Algorithm) -> bool:
    """Return whether the schedule of an algorithm fits in the memory of this machine."""
    return fits(ops_foreseen(calls, algorithm, communication_costs(calls[0].group.cluster)))


def choose_algorithm(call: CollectiveCall, algorithm: str | Algorithm = AUTO) -> Algorithm:
    """Return the algorithm that runs a call: itself, that of a name, or the one behind ``auto``."""
    if isinstance(algorithm, Algorithm) and algorithm.runs(call):
        return algorithm
    sensible = suitable(call)
    if algorithm == AUTO:
        return automatic(call, sensible)
    names = [each.name for each in sensible]
    if isinstance(algorithm, Algorithm):
        raise InputError(_senseless(algorithm.name, call, names))
    choices = (AUTO, BEST, *ALGORITHMS)
    if algorithm not in choices:
        raise InputError(
            f"unknown algorithm {algorithm[:40]!r}.{suggestion(algorithm, choices)} "
            f"For {call.kind} on {call.group.cluster.name} "
            f"there are {', '.join((AUTO, BEST, *names))}."
        )
    if algorithm not in names:
        raise InputError(_senseless(algorithm, call, names))
    return ALGORITHMS[algorithm]


def _senseless(name: str, call: CollectiveCall, sensible: Sequence[str]) -> str:
    return (
        f"{name} does not make sense for {call.kind} on {len(call.group.chips)} chips of "
        f"{call.group.cluster.name}; these do: {AUTO}, {BEST}, {', '.join(sensible)}"
    )
