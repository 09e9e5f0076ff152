"""Calls of all kinds on small groups, and the check of an algorithm's fields on one."""

import numpy as np
import pytest

from cluster_sim.collectives import KINDS, Algorithm, CollectiveCall, Group, compose
from cluster_sim.collectives.algorithms.algorithm import ops_foreseen
from cluster_sim.collectives.verify.proof import prove
from cluster_sim.hardware.communication_costs import communication_costs
from tests.support.collective_cases import named

GROUPS = (
    ("ring:1", (0,), 1),
    ("ring:2", (0, 1), 1),
    ("ring:5", (0, 1, 2, 3, 4), 1),
    ("ring:5", (3, 0, 4), 1),
    ("torus:3x4", tuple(range(12)), 1),
    ("torus:2x2x3", tuple(range(12)), 1),
    ("mesh:5", tuple(range(5)), 1),
    ("switch:4", tuple(range(4)), 1),
    ("trn2.48xlarge", tuple(range(16)), 1),
    ("trn2.48xlarge", (0, 1, 4, 5), 2),
    ("trn2.48xlarge", tuple(range(16)), 4),
    ("trn2.48xlarge", (0, 2), 1),
    ("trn2.48xlarge:3", (0, 1, 16, 17, 32, 33), 1),
    ("trn2.48xlarge:3", (0, 1, 4, 5, 16, 17, 20, 21), 4),
    ("trn2.48xlarge:3", (0, 16, 32), 1),
    ("trn3-gen1", tuple(range(8)), 1),
)


CALLS = [
    CollectiveCall(kind, Group(named(machine), chips, cores), 1 << 20)
    for machine, chips, cores in GROUPS
    for kind in KINDS
]


def check_fields(call: CollectiveCall, algorithm: Algorithm) -> None:
    """Compare what an algorithm says of itself with what its messages are."""
    costs = communication_costs(call.group.cluster)
    messages = algorithm.messages(call, costs)
    assert algorithm.message_count(call, costs) == len(messages)
    built = compose(call, algorithm, contended=True)
    assert algorithm.rounds(call, costs) == built.steps
    accesses = pytest.approx(_accesses(messages, costs), rel=1e-9)
    assert algorithm.memory_accesses(call, costs) * call.size_bytes == accesses
    foreseen = ops_foreseen([call], algorithm, costs)
    assert 0.45 * len(built.schedule) - call.ranks <= foreseen <= 2.5 * len(built.schedule)
    if call.group.cluster.plain:
        assert algorithm.streamed_ops(call, costs) in (0, len(built.schedule))
    if built.chunks.is_tracked:
        assert prove(built) == "proven"


def _accesses(messages, costs) -> float:
    """Accesses of memories that each message of a table costs, all together [B]."""
    channels, size = messages.channels, messages.size_bytes()
    fused = np.zeros(len(channels), np.bool_) if channels.fused is None else channels.fused
    is_fused = fused[messages.channel]
    copied = np.where(is_fused, costs.fused_copy_accesses, costs.copy_accesses)
    added = np.where(is_fused, costs.fused_reduce_accesses, costs.reduce_accesses)
    each = np.where(messages.reduce, added, copied)
    return float((size * np.where(channels.joins[messages.channel], 0, each)).sum())
