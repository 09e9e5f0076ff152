"""Estimates of the memory of a schedule before it is built, to refuse one that is too large."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import Algorithm
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import CommunicationCosts
from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.memory_limit import machine_bytes
from topologies.routing.domain import routes
from topologies.shapes.basic import Shape, Torus
from topologies.shapes.links import coordinates
from topologies.units import format_bytes

BYTES_AN_OP = 115
"""Peak memory of building and running a schedule for each op [B]: measured as 113 B for the 154 M
ops of a ring of 4,096 chips of Trn2, and 102 B on plain wire."""
SAMPLED_PAIRS = 1024  # pairs of chips from whose mean distance that of all pairs is estimated


def check_op_count(
    kind: str, algorithm: str, ranks: int, ops: int, others: Sequence[str] = ()
) -> None:
    """Refuse a schedule larger than this machine's memory, and name ``others`` that would fit."""
    remedy = f"--algorithm {' or '.join(others)}" if others else "another algorithm"
    if not fits(ops):
        raise InputError(
            f"{kind} by {algorithm} on {ranks:,} ranks is about {ops:.1e} ops and needs "
            f"{format_bytes(ops * BYTES_AN_OP)}; this machine has {format_bytes(machine_bytes())}. "
            f"Use fewer ranks or {remedy}."
        )


def fits(ops: int) -> bool:
    """Return whether this number of ops can be built and run in the memory of this machine."""
    return ops * BYTES_AN_OP <= machine_bytes()


def ops_foreseen(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, costs: CommunicationCosts
) -> int:
    """Estimate the number of ops of calls of one size, within a factor of two.

    ``calls``: calls of one kind and size; the first one stands for all.
    """
    first = calls[0]
    hops = _hops(first.group) if algorithm.crosses_links else 1.0
    issued = 1 if costs.issue_ps else 0  # a CC-Core's op before the hops of each message
    return len(calls) * int(algorithm.message_count(first, costs) * (issued + hops))


def hop_counts(shape: Shape, src: IntArray, dst: IntArray) -> IntArray:
    """Count the links between chips of a domain, int64 (pairs,); on a torus in closed form."""
    if not isinstance(shape, Torus):
        return np.asarray(routes(shape, src, dst).hops)
    hops = np.zeros(len(src), np.int64)
    for at, to, axis in zip(
        coordinates(shape, src), coordinates(shape, dst), shape.axes, strict=True
    ):
        apart = np.abs(at - to)
        hops += np.minimum(apart, axis.size - apart) if axis.wrap else apart
    return hops


def _hops(group: Group) -> float:
    """Estimate the ops that a message crosses links by: one inside a chip, two between domains."""
    step = max(1, len(group.chips) ** 2 // SAMPLED_PAIRS)
    pair = np.arange(0, len(group.chips) ** 2, step)
    src, dst = group.chips[pair // len(group.chips)], group.chips[pair % len(group.chips)]
    per_domain = group.cluster.chips_per_domain
    inside = src // per_domain == dst // per_domain
    hops = hop_counts(group.cluster.shape, src[inside] % per_domain, dst[inside] % per_domain)
    return float(np.maximum(1, hops).sum() + 2 * (~inside).sum()) / len(pair)
