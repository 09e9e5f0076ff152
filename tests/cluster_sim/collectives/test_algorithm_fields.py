"""Every field of every algorithm agrees with the schedule built from its messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives import ALGORITHMS, KINDS, Algorithm, CollectiveCall, Group, compose
from cluster_sim.collectives.algorithms.footprint import ops_foreseen
from cluster_sim.collectives.algorithms.registry import suitable
from cluster_sim.collectives.verify.proof import prove
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.collective_cases import named
from topologies.registry import by_name

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
    CollectiveCall(kind, Group(named(machine), chips, cores), size)
    for machine, chips, cores in GROUPS
    for kind in KINDS
    for size in (1 << 20,)
]


def cases(algorithms: list[Algorithm] | None = None):
    """Every call with every algorithm that can run it."""
    for call in CALLS:
        for algorithm in suitable(call) if algorithms is None else algorithms:
            if algorithm.runs(call):
                yield pytest.param(call, algorithm, id=_id(call, algorithm))


def _id(call: CollectiveCall, algorithm: Algorithm) -> str:
    return f"{algorithm.name}-{call.kind}-{call.group.cluster.name}-{call.ranks}"


def check_fields(call: CollectiveCall, algorithm: Algorithm) -> None:
    """Compare what an algorithm says of itself with what its messages are."""
    costs = communication_costs(call.group.cluster)
    messages = algorithm.messages(call, costs)
    assert algorithm.message_count(call, costs) == len(messages)
    built = compose(call, algorithm, contended=True)
    assert algorithm.rounds(call, costs) == built.steps
    assert algorithm.memory_accesses(call, costs) * call.size_bytes == pytest.approx(
        _accesses(messages, costs), rel=1e-9
    )
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
    own = fused[messages.channel]
    copied = np.where(own, costs.fused_copy_accesses, costs.copy_accesses)
    added = np.where(own, costs.fused_reduce_accesses, costs.reduce_accesses)
    each = np.where(messages.reduce, added, copied)
    return float((size * np.where(channels.joins[messages.channel], 0, each)).sum())


@pytest.mark.parametrize(("call", "algorithm"), list(cases()))
def test_fields_agree_with_the_built_schedule(call, algorithm):
    check_fields(call, algorithm)


def test_every_algorithm_is_tested_and_named_once():
    tested = {case.values[1].name for case in cases()}
    assert tested == set(ALGORITHMS) == {one.name for one in ALGORITHMS.values()}
    assert all(one.summary and set(one.kinds) <= set(KINDS) for one in ALGORITHMS.values())


@pytest.mark.parametrize("name", ["ring", "rdh", "hierarchical"])
def test_few_ranks_that_stand_for_all_are_close_where_some_steps_climb_higher(name):
    machine, domains = named("trn2.48xlarge:16"), 16
    chips = 16 * np.arange(domains)
    call = CollectiveCall("all-reduce", Group(machine, chips), domains * 2**17)
    few = ALGORITHMS[name].stands_for(call, communication_costs(machine))
    assert few == pytest.approx(run(compose(call, name).schedule).total_ps, rel=0.05)


def test_an_algorithm_of_an_unknown_operation_is_refused() -> None:
    with pytest.raises(ValueError, match="algorithm ring: 'allreduce' is no operation"):
        replace(ALGORITHMS["ring"], kinds=("allreduce",))


def test_two_algorithms_of_one_name_are_refused() -> None:
    ring = ALGORITHMS["ring"]
    with pytest.raises(ValueError, match="two entries are registered as algorithm ring"):
        by_name("algorithm", (ring, ALGORITHMS["mesh"], replace(ring, summary="another")))
