"""Every field of every algorithm agrees with the schedule built from its messages."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from cluster_sim.collectives import ALGORITHMS, KINDS, Algorithm, CollectiveCall, compose
from cluster_sim.collectives.algorithms.registry import suitable
from cluster_sim.collectives.messages import Channels, Messages
from cluster_sim.hardware.communication_costs import CommunicationCosts
from experiments.cli.main import run as command
from tests.support.algorithm_fields import CALLS, check_fields
from topologies.errors import InputError
from topologies.registry import by_name

CASES = [
    pytest.param(call, one, id=f"{one.name}-{call.kind}-{call.group.cluster.name}-{call.ranks}")
    for call in CALLS
    for one in suitable(call)
    if one.runs(call)
]


@pytest.mark.parametrize(("call", "algorithm"), CASES)
def test_fields_agree_with_the_built_schedule(call, algorithm):
    check_fields(call, algorithm)


def test_every_algorithm_is_tested_and_named_once():
    tested = {case.values[1].name for case in CASES}
    assert tested == set(ALGORITHMS) == {one.name for one in ALGORITHMS.values()}
    assert all(one.summary and set(one.kinds) <= set(KINDS) for one in ALGORITHMS.values())
    ring = ALGORITHMS["ring"]
    with pytest.raises(ValueError, match="algorithm ring: 'allreduce' is no operation"):
        replace(ring, kinds=("allreduce",))
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
def test_an_own_algorithm_that_refers_to_nothing_is_refused_in_one_line(fault):
    ring = cs.cluster("ring:8", bandwidth="100GB/s", latency="1us")
    for front in (cs.collective, cs.collective_time):
        with pytest.raises(InputError) as caught:
            front("all-reduce", ring, size_bytes=2**20, algorithm=WRONG[fault])
        assert str(caught.value) == f"algorithm mine: {fault}. Correct its messages."
    with pytest.raises(InputError, match="algorithm mine writes messages of 9 ranks, and the call"):
        compose(CALLS[0], _changed(ranks=lambda table: 9))


def test_a_registered_algorithm_that_is_wrong_ends_a_command_in_one_line(monkeypatch, capsys):
    fault = next(iter(WRONG))
    monkeypatch.setitem(ALGORITHMS, "ring", replace(WRONG[fault], name="ring"))
    line = "collective all-reduce ring:8 --bandwidth 1GB/s --latency 1us --size 1KiB --algorithm"
    assert command([*line.split(), "ring"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"cluster-sim: algorithm ring: {fault}. Correct its messages.\n"
