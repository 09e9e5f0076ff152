"""Every field of every algorithm agrees with the schedule built from its messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from cluster_sim.collectives import ALGORITHMS, KINDS, Algorithm, CollectiveCall, Group, compose
from cluster_sim.collectives.algorithms.registry import suitable
from cluster_sim.collectives.messages import Channels, Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts, communication_costs
from cluster_sim.trace.trace import run
from experiments.cli.main import run as command
from tests.support.algorithm_fields import CALLS, check_fields
from tests.support.collective_cases import named
from topologies.errors import InputError
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


RING = replace(ALGORITHMS["ring"], stands_for=lambda call, costs: None)


def _changed(**changes: Callable[[Messages], Any]) -> Algorithm:
    """A ring of one's own whose messages have one column moved, or another number of ranks."""

    def messages(call: CollectiveCall, costs: CommunicationCosts) -> Messages:
        table = RING.messages(call, costs)
        return replace(table, **{name: change(table) for name, change in changes.items()})

    return replace(RING, name="mine", messages=messages)


WRONG = {
    "the peer of channel 7 is rank 8, and there are ranks 0 to 7": _changed(
        channels=lambda table: Channels.table(table.channels.src, np.arange(1, 9))
    ),
    "the source of channel 0 is rank -1, and there are ranks 0 to 7": _changed(
        channels=lambda table: Channels.table(np.arange(-1, 7), table.channels.dst)
    ),
    "the channel of message 7 is channel 8, and there are channels 0 to 7": _changed(
        channel=lambda table: table.channel + 1
    ),
    "the first chunk of message 8 is chunk 8, and there are chunks 0 to 7": _changed(
        first=lambda table: np.arange(len(table)) % 9
    ),
    "the last chunk of message 0 is chunk 8, and there are chunks 0 to 7": _changed(
        first=lambda table: 0 * table.first, count=lambda table: 0 * table.count + 9
    ),
    "the target of edge 0 is message 112, and there are messages 0 to 111": _changed(
        edges=lambda table: replace(table.edges, dst=0 * table.edges.dst + len(table))
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_an_own_algorithm_that_refers_to_nothing_is_refused_in_one_line(fault: str) -> None:
    ring = cs.cluster("ring:8", bandwidth="100GB/s", latency="1us")
    for front in (cs.collective, cs.collective_time):
        with pytest.raises(InputError) as caught:
            front("all-reduce", ring, size_bytes=2**20, algorithm=WRONG[fault])
        assert str(caught.value) == f"algorithm mine: {fault}. Correct its messages."


def test_an_own_algorithm_of_another_number_of_ranks_is_refused() -> None:
    with pytest.raises(InputError, match="algorithm mine writes messages of 9 ranks, and the call"):
        compose(CALLS[0], _changed(ranks=lambda table: 9))


def test_a_registered_algorithm_that_is_wrong_ends_a_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = next(iter(WRONG))
    monkeypatch.setitem(ALGORITHMS, "ring", replace(WRONG[fault], name="ring"))
    line = "collective all-reduce ring:8 --bandwidth 1GB/s --latency 1us --size 1KiB --algorithm"
    assert command([*line.split(), "ring"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"cluster-sim: algorithm ring: {fault}. Correct its messages.\n"
