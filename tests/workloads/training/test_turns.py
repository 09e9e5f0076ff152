"""Messages of collectives that meet on a link take turns, part by part, and alone lose nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, Group, compose
from cluster_sim.schedule.build import merge
from cluster_sim.schedule.table import Schedule
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.names import cluster
from workloads.training.execution.chunk_level import call_schedule
from workloads.training.execution.turns import LEAST_TURN_BYTES, PARTS, in_turns, turn_bytes

MACHINES = ("trn2.48xlarge", "trn1.32xlarge", "trn2.48xlarge:2", "trn3-ultraserver")
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send")
TRN2 = cluster("trn2.48xlarge")


def _collective(kind: str, chips: list[int], size_bytes: int) -> Schedule:
    return call_schedule(Group(TRN2, np.array(chips)), kind, size_bytes)


@given(drawn=st.data())
@examples(30)
def test_alone_a_collective_in_turns_takes_the_time_of_whole_messages(drawn: st.DataObject) -> None:
    machine, kind = (drawn.draw(st.sampled_from(names)) for names in (MACHINES, KINDS))
    ranks = 2 if kind == "send" else drawn.draw(st.sampled_from([2, 4, 8]))
    fabric = cluster(machine)
    chips = drawn.draw(st.permutations(range(fabric.chips)))[:ranks]
    group = Group(fabric, np.array(sorted(chips)))
    whole = call_schedule(group, kind, drawn.draw(st.integers(0, 2**25)))
    longest = int(whole.size_bytes.max())
    cut = in_turns(whole, drawn.draw(st.integers(longest // 16 + 1, longest + 1)))
    times, engine = run(whole).times, drawn.draw(st.sampled_from(["fast", "reference"]))
    parts = run(cut, engine=engine).times
    assert parts.total_ps == times.total_ps
    assert set(times.end_ps.tolist()) <= set(parts.end_ps.tolist())
    assert cut.size_bytes.sum() == whole.size_bytes.sum()
    assert cut.duration_ps.sum() == whole.duration_ps.sum()


def test_a_short_message_waits_for_a_part_of_a_long_queue_and_not_for_all_of_it() -> None:
    """A pipeline's send begins in the middle of a gather, all of whose blocks are queued."""
    gather, send = _collective("all-gather", [0, 1], 2**26), _collective("send", [0, 1], 2**18)
    alone_ps, whole_ps = run(send).total_ps, run(gather).total_ps
    for turns, most in ((False, 1.01), (True, 0.05)):
        both = [in_turns(each, 2**16) if turns else each for each in (gather, send)]
        ends = run(merge(*both)).times.end_ps[len(both[0]) :]
        waits_ps = int(ends.max()) - alone_ps
        assert 0 < waits_ps <= most * whole_ps
        assert turns or waits_ps > 0.9 * whole_ps


def test_parts_are_a_quarter_of_the_shortest_messages_and_no_less_than_a_packet() -> None:
    exchanges = [
        [_collective("send", [0, 1], size) for size in sizes]
        for sizes in ([8], [2**21, 2**10], [2**24])
    ]
    assert turn_bytes(exchanges) == 2**21 // PARTS
    assert turn_bytes(exchanges[:1]) == LEAST_TURN_BYTES
    assert turn_bytes([*exchanges, [_collective("send", [0, 1], 2**17)]]) == LEAST_TURN_BYTES


def test_priorities_of_one_collective_are_none_against_another() -> None:
    """Late slices of stages come after early ones of their own, not after a ring's messages."""
    call = CollectiveCall("all-reduce", Group(TRN2, np.arange(16)), 2**22)
    staged = compose(call, "torus").schedule
    assert staged.priority.max() > 0
    ring = _collective("all-gather", [0, 4], 2**27)
    cut = [in_turns(each, 2**16) for each in (ring, staged)]
    ends = run(merge(*cut)).times.end_ps
    assert ends[len(cut[0]) :].max() < 0.6 * ends[: len(cut[0])].max()
