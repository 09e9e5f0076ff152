"""Registry of algorithms: those that can run a call, and the one that a name stands for.

``auto`` is on Trainium what the Neuron runtime runs, elsewhere what is usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    drives_pairs,
    fits,
    goes_from_mesh_to_rings,
    halves_and_doubles,
    is_short,
    is_trainium,
    one_step_wins,
    ops_foreseen,
    sum_wins,
    tree_wins,
)
from cluster_sim.collectives.algorithms.direct import (
    DIMENSION_ORDERED,
    DIRECT,
    MESH,
    SINGLE_STEP_MESH,
    whole_messages_win,
)
from cluster_sim.collectives.algorithms.hierarchical import HIERARCHICAL
from cluster_sim.collectives.algorithms.ring import BIDIRECTIONAL_RING, MULTI_RING, RING
from cluster_sim.collectives.algorithms.stages import KANGARING, RDH
from cluster_sim.collectives.algorithms.torus import PER_AXIS, TORUS
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.hardware.communication_costs import communication_costs
from topologies.shapes.basic import Torus
from topologies.support.errors import InputError, suggestion
from topologies.support.registry import by_name

MESH_FIRST_RANKS = 64
"""Ranks beyond which halving and doubling is preferred to a mesh, whose messages CC-Cores issue one
after the other: the ranks of a Trn2 server, for which the runtime's meshes are documented. With one
rank in each domain a mesh stays preferred."""
MOST_MESH_RANKS = 512
"""Ranks beyond which no mesh is chosen: its messages grow with the square of the ranks."""

MOST_CYCLE_RANKS = 1024
"""Ranks beyond which a torus other than Trainium is run axis by axis: a cycle through all chips
takes a step for each of them, and its schedule grows with the square of their number."""

Preferences = tuple[Algorithm, ...]  # algorithms in order of preference


def _preferences(call: CollectiveCall) -> Preferences:
    """List algorithms that are preferred for a call, whether they make sense for it or not."""
    group = call.group
    if call.kind in ("all-to-all", "permute"):
        return (DIRECT,) if whole_messages_win(call) else (DIMENSION_ORDERED, DIRECT)
    if call.kind == "broadcast" and is_trainium(group.cluster):
        return _broadcast(call)
    domains = len(group.domains)
    if domains > 1:
        first = (HIERARCHICAL,) if domains < group.ranks else ()
        return (*first, *_by_size(call, HIERARCHICAL, RING))
    if not isinstance(group.cluster.shape, Torus):
        return _by_size(call, TORUS, MULTI_RING)
    if drives_pairs(group):
        return _by_size(call, KANGARING, MULTI_RING)
    # TPUs are taken to go axis by axis; cycles of a plain torus have a little more bandwidth.
    by_axis = group.ranks > MOST_CYCLE_RANKS or group.cluster.chip
    if by_axis and not is_trainium(group.cluster):
        return (TORUS, MULTI_RING)
    return _by_size(call, MULTI_RING)


def _by_size(call: CollectiveCall, *large: Algorithm) -> Preferences:
    """Prefer a mesh for small buffers, halving and doubling for larger ones, then ``large``."""
    group, size_bytes = call.group, call.size_bytes
    if not is_trainium(group.cluster):
        return large
    short = is_short(group, size_bytes)
    if short and group.ranks <= MESH_FIRST_RANKS:
        # Two ranks exchange as many bytes in one step as in two.
        one = group.ranks == 2 or (len(group.domains) == 1 and one_step_wins(group, size_bytes))
        single = call.kind == "all-reduce" and one
        return (SINGLE_STEP_MESH, MESH) if single else (MESH,)
    if goes_from_mesh_to_rings(group):
        return large
    mesh = (MESH,) if short and group.ranks <= MOST_MESH_RANKS else ()
    if not halves_and_doubles(group, size_bytes):
        return large
    # With one rank in each domain a mesh comes first, as for numbers that are no power of two.
    alone = len(group.domains) == group.ranks
    return (*mesh, RDH, *large) if alone else (RDH, *mesh, *large)


def _broadcast(call: CollectiveCall) -> Preferences:
    """Prefer single messages, a sum, a tree, or slices along rings; none is documented."""
    group, size_bytes = call.group, call.size_bytes
    if one_step_wins(group, size_bytes):
        return (MESH,)
    others = (RDH if tree_wins(group, size_bytes) else MULTI_RING,)
    if not HIERARCHICAL.suits(call):
        return others
    rounds = HIERARCHICAL.rounds(call, communication_costs(group.cluster))
    return (HIERARCHICAL, *others) if sum_wins(group, size_bytes, rounds) else others


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
    """List the algorithms that can run a call and make sense for its group."""
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
        return next(each for each in (*_preferences(call), *sensible) if each in sensible)
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


NEAR = 4  # factor in bytes within which a switch counts as near


def switched(call: CollectiveCall) -> tuple[str, ...]:
    """Name the algorithms that ``auto`` chooses at this size and at sizes near it."""
    if not is_trainium(call.group.cluster):
        return (choose_algorithm(call).name,)
    # The runtime chooses by length alone, so just below a switch it may take longer than just
    # above.
    lengths = [call.size_bytes, max(1, call.size_bytes // NEAR), call.size_bytes * NEAR]
    names = [choose_algorithm(replace(call, size_bytes=length)).name for length in lengths]
    return tuple(dict.fromkeys(names))
