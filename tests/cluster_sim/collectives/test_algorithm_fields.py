"""Every field of every algorithm agrees with the schedule built from its messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.collectives import ALGORITHMS, KINDS, Algorithm, CollectiveCall, Group, compose
from cluster_sim.collectives.algorithms.registry import suitable
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.algorithm_fields import CALLS, check_fields
from tests.support.collective_cases import named
from topologies.registry import by_name


def cases(algorithms: list[Algorithm] | None = None):
    """Every call with every algorithm that can run it."""
    for call in CALLS:
        for algorithm in suitable(call) if algorithms is None else algorithms:
            if algorithm.runs(call):
                yield pytest.param(call, algorithm, id=_id(call, algorithm))


def _id(call: CollectiveCall, algorithm: Algorithm) -> str:
    return f"{algorithm.name}-{call.kind}-{call.group.cluster.name}-{call.ranks}"


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
