"""Ops of messages follow the rules of lowering, for one message, one hop and one edge at a time."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cluster_sim.collectives import CollectiveCall, whole
from cluster_sim.collectives.algorithms.registry import ALGORITHMS
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.messages import Messages
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import Fabric, fabric
from cluster_sim.schedule.table import FIXED, FLOW, JOIN, Schedule, transfer_ps
from topologies.arrays import IntArray
from topologies.clusters.names import cluster

PLAIN = {"bandwidth": "7GB/s", "latency": "3ns"}
SHAPES = ("torus:2x3x4", "torus:4x5", "switch:6")
CASES = [
    ("torus:2x3x4", 1, "all-to-all", "dimension-ordered"),
    ("torus:2x3x4", 1, "all-to-all", "torus"),
    ("torus:4x5", 1, "all-reduce", "ring"),
    ("switch:6", 1, "all-to-all", "direct"),
    ("trn2.48xlarge", 1, "all-to-all", "direct"),
    ("trn2.48xlarge", 4, "all-reduce", "kangaring"),
    ("trn2.48xlarge:2", 1, "all-gather", "ring"),
    ("dgx-h100:2", 1, "all-to-all", "direct"),
]

SAMPLE = 200
"""Messages that are looked at, from the first to the last."""

Hop = tuple[int, int, int]
"""Resource, time on it [ps], and latency behind it [ps]."""


@pytest.mark.parametrize(("name", "cores", "kind", "algorithm"), CASES)
@given(size_bytes=st.one_of(st.integers(1, 5000), st.integers(10**6, 10**9)))
@settings(max_examples=3, phases=[Phase.generate])
def test_each_message_is_its_hops_one_after_the_other(
    name: str, cores: int, kind: str, algorithm: str, size_bytes: int
) -> None:
    machine = cluster(
        name, **(PLAIN if ":" in name and name[0] in "ts" and "trn" not in name else {})
    )
    call = CollectiveCall(kind, whole(machine, cores), size_bytes)
    messages = ALGORITHMS[algorithm].messages(call, communication_costs(machine))
    covered = fabric(machine)
    chips = call.group.chip_of_rank
    schedule = lower(messages, chips, covered, {})
    what, sizes = list(schedule.labels["what"]), messages.size_bytes()
    first = _first_ops(what, messages)
    counts_from_start = schedule.edges.start_mask()
    waits = set(messages.edges.dst.tolist())
    for send in np.linspace(0, len(messages) - 1, SAMPLE, dtype=int).tolist():
        op = first[send]
        hops = list(_hops(messages, send, chips, covered, sizes[send], send not in waits))
        for number, (resource, lasts_ps, lag_ps) in enumerate(hops):
            at, is_last = op + number, number + 1 == len(hops)
            assert schedule.size_bytes[at] == sizes[send]
            if schedule.kind[at] == FLOW:
                assert is_last
            else:
                assert schedule.kind[at] == (FIXED if lasts_ps else JOIN)
                assert schedule.duration_ps[at] == lasts_ps
            if lasts_ps:
                assert schedule.resource[at] == resource
            if is_last:
                assert _successors(schedule, at) == _waiting(messages, send, first, schedule)
            else:
                assert _successors(schedule, at) == [at + 1]
            edge = schedule.edges.ptr[at]
            passed_on = (
                not is_last
                and what[at] != "issue"
                and lasts_ps > 0
                and hops[number + 1][0] >= 0
                and covered.forwards[resource]
            )
            assert counts_from_start[edge] == passed_on
            if passed_on:
                lag_ps = max(1, lag_ps + max(0, lasts_ps - hops[number + 1][1]))
            assert schedule.edges.lag_ps[edge] == lag_ps


def _first_ops(what: list[str], messages: Messages) -> list[int]:
    """First op of each message: the one behind the last hop of the message before."""
    last = [at for at, word in enumerate(what) if word in ("copy", "reduce", "join")]
    assert len(last) == len(messages)
    return [0, *(at + 1 for at in last[:-1])]


def _hops(
    messages: Messages, send: int, chips: IntArray, covered: Fabric, size: int, starts: bool
) -> Iterator[Hop]:
    channels, costs = messages.channels, covered.costs
    channel = int(messages.channel[send])
    source, target = chips[channels.src[channel]], chips[channels.dst[channel]]
    if costs.issue_ps and not channels.joins[channel]:
        handshakes = bool((chips != chips[0]).any()) and (starts or messages.handshakes)
        start = costs.launch_ps * starts + costs.handshake_ps * handshakes
        yield (
            int(covered.of_chip("cc", source)),
            costs.issue_ps,
            costs.step_ps - costs.issue_ps + start,
        )
    paths = covered.route([source], [target])
    if channels.ptr is not None and channels.ptr[channel] < channels.ptr[channel + 1]:
        begin, end = channels.ptr[channel], channels.ptr[channel + 1]
        paths = covered.along([source], np.array([0, end - begin]), channels.link[begin:end])
    if not len(paths.resource):
        yield -1, 0, 0
    for resource, latency_ps in zip(paths.resource, paths.latency_ps, strict=True):
        yield resource, int(transfer_ps(size, covered.rate[resource])) * (size > 0), latency_ps


def _successors(schedule: Schedule, op: int) -> list[int]:
    return schedule.edges.dst[schedule.edges.ptr[op] : schedule.edges.ptr[op + 1]].tolist()


def _waiting(messages: Messages, send: int, first: list[int], schedule: Schedule) -> list[int]:
    """First ops of the messages that wait for one, or the last op of the rank that it reaches."""
    edges = messages.edges
    waiting = edges.dst[edges.ptr[send] : edges.ptr[send + 1]].tolist()
    receiver = len(schedule) - messages.ranks + int(messages.channels.dst[messages.channel[send]])
    return [first[each] for each in waiting] or [receiver]
