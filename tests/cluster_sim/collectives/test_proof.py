"""The proof of a collective finds every kind of damage to its schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import KINDS, ProofError, compose, prove, whole
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.schedule.table import Codes, Edges
from tests.support.collective_cases import algorithm_names
from tests.support.examples import examples
from topologies.clusters.names import cluster

MACHINES = ("trn2.48xlarge", "ring:4", "mesh:4", "switch:4")


def composed(machine, op, algorithm, size=4096):
    links = {"bandwidth": "1GB/s", "latency": "1us"} if ":" in machine else {}
    return compose(Call(op, whole(cluster(machine, **links)), size), algorithm)


def check(collective, **changes):
    return prove(replace(collective, schedule=replace(collective.schedule, **changes)))


def without_edges(edges, dropped):
    keep = ~np.isin(np.arange(len(edges)), dropped)
    return Edges.from_pairs(
        len(edges.ptr) - 1, edges.sources()[keep], edges.dst[keep], edges.lag_ps[keep]
    )


def all_cases():
    for machine in MACHINES:
        links = {"bandwidth": "1GB/s", "latency": "1us"} if ":" in machine else {}
        group = whole(cluster(machine, **links))
        for op in KINDS:
            for algorithm in algorithm_names(op, group):
                yield machine, op, algorithm


CASES = list(all_cases())


def _at_barrier(collective, algorithm):
    """Edges into and out of the barrier between phases; several of them say the same."""
    what = np.array(list(collective.schedule.labels["what"]))
    source, target = what[collective.schedule.edges.sources()], what[collective.schedule.edges.dst]
    return (algorithm == "per-axis") & ((source == "join") | (target == "join"))


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_dropped_barrier_is_caught(op):
    collective = composed("trn2.48xlarge", op, "per-axis")
    barrier = np.flatnonzero(_at_barrier(collective, "per-axis")).tolist()
    with pytest.raises(ProofError):
        check(collective, edges=without_edges(collective.schedule.edges, barrier))


@pytest.mark.parametrize(("machine", "op", "algorithm"), CASES)
@given(data=st.data())
@examples(5)
def test_a_dropped_data_edge_is_caught(machine, op, algorithm, data):
    collective = composed(machine, op, algorithm)
    what = np.array(list(collective.schedule.labels["what"]))
    target = what[collective.schedule.edges.dst]
    carries = np.flatnonzero((target != "done") & ~_at_barrier(collective, algorithm))
    if not len(carries):
        return
    edge = data.draw(st.sampled_from(carries.tolist()))
    with pytest.raises(ProofError):
        check(collective, edges=without_edges(collective.schedule.edges, [edge]))


@pytest.mark.parametrize(("machine", "op", "algorithm"), CASES)
@given(data=st.data())
@examples(5)
def test_a_message_to_the_wrong_rank_is_caught(machine, op, algorithm, data):
    collective = composed(machine, op, algorithm)
    labels = collective.schedule.labels
    last = np.flatnonzero(np.isin(list(labels["what"]), ["copy", "reduce"]))
    wrong = data.draw(st.sampled_from(last.tolist()))
    peer = labels["peer"].copy()
    peer[wrong] = (peer[wrong] + 1) % len(collective.group_of_rank)
    with pytest.raises(ProofError):
        check(collective, labels={**labels, "peer": peer})


@pytest.mark.parametrize(("machine", "op", "algorithm"), CASES)
def test_two_exchanged_ranks_are_caught(machine, op, algorithm):
    collective = composed(machine, op, algorithm)
    labels = collective.schedule.labels
    what = np.array(list(labels["what"]))
    first = np.flatnonzero(what != "done")[:40]
    swapped = labels["rank"].copy()
    one, other = swapped[first[0]], (swapped[first[0]] + 1) % len(collective.group_of_rank)
    swapped[first] = np.select(
        [swapped[first] == one, swapped[first] == other], [other, one], swapped[first]
    )
    with pytest.raises(ProofError):
        check(collective, labels={**labels, "rank": swapped})


@pytest.mark.parametrize("algorithm", ["ring", "multi-ring"])
def test_a_sum_that_replaces_instead_of_adding_is_caught(algorithm):
    collective = composed("trn2.48xlarge", "reduce-scatter", algorithm)
    what = collective.schedule.labels["what"]
    code = what.code.copy()
    code[np.flatnonzero(code == what.names.index("reduce"))[7]] = what.names.index("copy")
    with pytest.raises(ProofError):
        check(collective, labels={**collective.schedule.labels, "what": Codes(code, what.names)})


def test_a_contribution_added_twice_is_named():
    collective = composed("ring:4", "reduce-scatter", "ring")
    edges, labels = collective.schedule.edges, collective.schedule.labels
    rank, chunk, step = labels["rank"], labels["chunk"], labels["step"]
    early = int(np.flatnonzero((step == 0) & (chunk == 0))[0])
    target = int(np.flatnonzero((step == 1) & (chunk == 0))[0])
    doubled = Edges.from_pairs(
        len(collective.schedule),
        np.append(edges.sources(), early),
        np.append(edges.dst, target),
        np.append(edges.lag_ps, 0),
    )
    assert rank[target] == labels["peer"][early]
    with pytest.raises(ProofError, match="chunk 0 counts a contribution twice"):
        check(collective, edges=doubled)


def test_a_cycle_of_edges_is_named():
    collective = composed("ring:4", "all-gather", "ring")
    edges = collective.schedule.edges
    looped = Edges.from_pairs(
        len(collective.schedule),
        np.append(edges.sources(), edges.dst[0]),
        np.append(edges.dst, 0),
        np.append(edges.lag_ps, 0),
    )
    with pytest.raises(ProofError, match="wait for one another in a cycle"):
        check(collective, edges=looped)


def test_what_a_rank_does_not_have_cannot_be_sent():
    collective = composed("ring:4", "all-gather", "ring")
    chunk = collective.schedule.labels["chunk"].copy()
    chunk[0] = (chunk[0] + 1) % 4
    with pytest.raises(ProofError, match="by a rank that does not have it"):
        check(collective, labels={**collective.schedule.labels, "chunk": chunk})


def test_a_route_with_a_gap_is_caught():
    collective = composed("trn2.48xlarge", "all-to-all", "direct")
    what = np.array(list(collective.schedule.labels["what"]))
    hop = int(np.flatnonzero(what == "pass")[0])
    resource = collective.schedule.resource.copy()
    resource[hop] = (resource[hop] + 9) % 64
    with pytest.raises(ProofError, match="does not"):
        check(collective, resource=resource)


def test_bytes_that_are_not_those_of_the_chunks_are_caught():
    collective = composed("ring:4", "all-reduce", "ring")
    size = collective.schedule.size_bytes.copy()
    size[3] -= 1
    with pytest.raises(ProofError, match="op 3 moves 1023 B, its chunks have 1024 B"):
        check(collective, size_bytes=size)
