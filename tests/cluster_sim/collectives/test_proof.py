"""The proof of a collective finds every kind of damage."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from cluster_sim import collectives
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.schedule.table import Codes, Edges
from tests.support.collective_cases import algorithm_names
from topologies.clusters.names import cluster

MACHINES = ("trn2.48xlarge", "ring:4", "mesh:4", "switch:4")


def named(machine):
    links = {"bandwidth": "1GB/s", "latency": "1us"} if ":" in machine else {}
    return cluster(machine, **links)


@cache
def composed(machine, op, algorithm):
    return collectives.compose(Call(op, collectives.whole(named(machine)), 4096), algorithm)


def check(collective, **changes):
    return collectives.prove(replace(collective, schedule=replace(collective.schedule, **changes)))


def check_labels(collective, **changes):
    return check(collective, labels={**collective.schedule.labels, **changes})


def without_edges(edges, dropped):
    keep = ~np.isin(np.arange(len(edges)), dropped)
    return Edges.from_pairs(
        len(edges.ptr) - 1, edges.sources()[keep], edges.dst[keep], edges.lag_ps[keep]
    )


def with_edge(edges, source, target):
    return Edges.from_pairs(
        len(edges.ptr) - 1, np.append(edges.sources(), source), np.append(edges.dst, target),
        np.append(edges.lag_ps, 0),
    )  # fmt: skip


def words(collective):
    return np.array(list(collective.schedule.labels["what"]))


def at_barrier(collective):
    """Edges into and out of the barrier between phases; several of them say the same."""
    what, edges = words(collective), collective.schedule.edges
    return (what[edges.sources()] == "join") | (what[edges.dst] == "join")


CASES = [
    (machine, op, algorithm)
    for machine in MACHINES
    for op in collectives.KINDS
    for algorithm in algorithm_names(op, collectives.whole(named(machine)))
]
IN_ONE_STEP = {
    "ring:4 permute direct", "mesh:4 all-reduce single-step-mesh", "mesh:4 all-gather mesh",
    "mesh:4 reduce-scatter mesh", "mesh:4 all-to-all direct", "mesh:4 broadcast mesh",
    "mesh:4 permute direct",
}  # fmt: skip
"""Cases in which no op waits for another."""


@pytest.mark.parametrize(("machine", "op", "algorithm"), CASES)
def test_dropped_edges_and_wrong_ranks_are_caught(machine, op, algorithm):
    collective = composed(machine, op, algorithm)
    case = f"{machine} {op} {algorithm}"
    rng = np.random.default_rng([*case.encode()])
    edges, labels, what = collective.schedule.edges, collective.schedule.labels, words(collective)
    ranks = len(collective.group_of_rank)
    carries = what[edges.dst] != "done"
    if algorithm == "per-axis":
        carries &= ~at_barrier(collective)
    dropped = rng.permutation(np.flatnonzero(carries))[:2]
    assert (len(dropped) == 0) == (case in IN_ONE_STEP)
    for edge in dropped:
        with pytest.raises(collectives.ProofError):
            check(collective, edges=without_edges(edges, [edge]))
    moves = rng.permutation(np.flatnonzero(np.isin(what, ["copy", "reduce"])))[:2]
    assert len(moves) == 2
    for wrong in moves:
        peer = labels["peer"].copy()
        peer[wrong] = (peer[wrong] + 1) % ranks
        with pytest.raises(collectives.ProofError):
            check_labels(collective, peer=peer)
    first, swapped = np.flatnonzero(what != "done")[:40], labels["rank"].copy()
    one, other = swapped[first[0]], (swapped[first[0]] + 1) % ranks
    swapped[first] = np.select(
        [swapped[first] == one, swapped[first] == other], [other, one], swapped[first]
    )
    with pytest.raises(collectives.ProofError):
        check_labels(collective, rank=swapped)


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_a_dropped_barrier_is_caught(op):
    collective = composed("trn2.48xlarge", op, "per-axis")
    barrier = np.flatnonzero(at_barrier(collective))
    with pytest.raises(collectives.ProofError):
        check(collective, edges=without_edges(collective.schedule.edges, barrier))


@pytest.mark.parametrize("algorithm", ["ring", "multi-ring"])
def test_a_sum_that_replaces_instead_of_adding_is_caught(algorithm):
    collective = composed("trn2.48xlarge", "reduce-scatter", algorithm)
    what = collective.schedule.labels["what"]
    code = what.code.copy()
    code[np.flatnonzero(code == what.names.index("reduce"))[7]] = what.names.index("copy")
    with pytest.raises(collectives.ProofError):
        check_labels(collective, what=Codes(code, what.names))


def test_a_contribution_added_twice_is_named():
    collective = composed("ring:4", "reduce-scatter", "ring")
    labels = collective.schedule.labels
    rank, chunk, step = labels["rank"], labels["chunk"], labels["step"]
    early = int(np.flatnonzero((step == 0) & (chunk == 0))[0])
    target = int(np.flatnonzero((step == 1) & (chunk == 0))[0])
    assert rank[target] == labels["peer"][early]
    with pytest.raises(collectives.ProofError, match="chunk 0 counts a contribution twice"):
        check(collective, edges=with_edge(collective.schedule.edges, early, target))


def test_a_cycle_of_edges_is_named():
    collective = composed("ring:4", "all-gather", "ring")
    edges = collective.schedule.edges
    with pytest.raises(collectives.ProofError, match=r"^4 of 16 ops wait for one another"):
        check(collective, edges=with_edge(edges, edges.dst[0], 0))


def test_what_a_rank_does_not_have_cannot_be_sent():
    collective = composed("ring:4", "all-gather", "ring")
    chunk = collective.schedule.labels["chunk"].copy()
    chunk[0] = (chunk[0] + 1) % 4
    with pytest.raises(collectives.ProofError, match="by a rank that does not have it"):
        check_labels(collective, chunk=chunk)


def test_gaps_of_routes_and_wrong_numbers_of_bytes_are_caught():
    collective = composed("trn2.48xlarge", "all-to-all", "direct")
    resource = collective.schedule.resource.copy()
    hop = int(np.flatnonzero(words(collective) == "pass")[0])
    resource[hop] = (resource[hop] + 9) % 64
    with pytest.raises(collectives.ProofError, match="does not"):
        check(collective, resource=resource)
    collective = composed("ring:4", "all-reduce", "ring")
    size = collective.schedule.size_bytes.copy()
    size[3] -= 1
    with pytest.raises(collectives.ProofError, match="op 3 moves 1023 B, its chunks have 1024 B"):
        check(collective, size_bytes=size)
