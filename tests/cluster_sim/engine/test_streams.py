"""Several collectives and kernels at once on the same chips."""

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives import Group, compose, whole
from cluster_sim.engine import simulate
from cluster_sim.schedule.build import merge
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from tests.support.memory_kernel import memory_kernel
from tests.support.refusals import refused
from topologies.clusters.names import cluster

MIB = 2**20


def ends(trace):
    """End of each stream [ps]."""
    stream = trace.schedule.labels["stream"]
    return [trace.times.end_ps[stream == number].max() for number in np.unique(stream)]


@pytest.mark.parametrize(
    ("machine", "cores", "size"),
    [("trn2.48xlarge", 4, 1024), ("trn2.48xlarge", 1, 64 * MIB), ("trn1.32xlarge", 2, MIB)],
)
def test_two_streams_slow_each_other_and_beat_one_after_the_other(machine, cores, size):
    one = compose(Call("all-reduce", whole(cluster(machine), cores), size), contended=True).schedule
    alone, both = run(one).total_ps, run(merge(one, one))
    assert alone < both.total_ps < 2 * alone
    assert min(ends(both)) >= alone  # of equal messages those of the first stream go first
    assert not violations(both)


def test_streams_queue_for_cc_cores_even_where_their_links_are_apart():
    node = cluster("trn2.48xlarge")
    rows = [Group(node, 4 * np.arange(4) + column) for column in (0, 1)]
    one, other, mine = (
        compose(Call("all-to-all", group, 4096), "direct", contended=True).schedule
        for group in (rows[0], Group(node, [0, 1, 2, 3]), rows[1])
    )
    apart, crossing = run(merge(one, mine)), run(merge(one, other))
    assert apart.total_ps == run(one).total_ps
    assert crossing.total_ps == run(one).total_ps  # six messages of chip 0, sixteen CC-Cores
    assert run(merge(*[one] * 8)).total_ps > run(one).total_ps + 800_000


def test_a_kernel_takes_what_memory_gives_and_no_more_than_asked():
    node = cluster("trn2.48xlarge")
    assert run(memory_kernel(node, [3], 10**9)).total_s == pytest.approx(1 / 2262, rel=1e-6)
    slow = run(memory_kernel(node, [3, 5], 10**9, bytes_per_s=10**12))
    assert slow.total_s == pytest.approx(1e-3, rel=1e-6)


def test_a_kernel_and_a_collective_slow_each_other():
    node = cluster("trn2.48xlarge")
    gathered = compose(Call("all-gather", whole(node, 4), 2**29), contended=True).schedule
    kernel = memory_kernel(node, range(16), 2 * 10**9)
    alone = run(kernel).total_ps, run(gathered).total_ps
    both = run(merge(kernel, gathered))
    slower = [end / by for end, by in zip(ends(both), alone, strict=True)]
    assert slower[0] > 2
    assert slower[1] > 1.005  # copies inside a chip hide most of the wait for memory
    assert both.total_ps < sum(alone)
    assert not violations(both)
    call = Call("all-gather", whole(node, 4), 32 * MIB)
    in_sbuf = compose(call, sbuf=True, contended=True).schedule
    short = memory_kernel(node, range(16), 10**8)  # to which scratchpads leave the memory
    both = run(merge(short, in_sbuf))
    assert ends(both) == [run(short).total_ps, run(in_sbuf).total_ps]
    reference = simulate(both.schedule, engine="reference")
    np.testing.assert_array_equal(both.times.end_ps, reference.end_ps)
    assert not violations(both)


def test_streams_of_other_domains_and_labels_are_numbered_on():
    two = cluster("trn2.48xlarge:2")
    calls = (Call("all-gather", Group(two, [k, k + 1]), MIB) for k in (0, 16))
    here, there = (compose(call).schedule for call in calls)
    schedule = merge(here, there)
    assert run(schedule).total_ps == run(here).total_ps
    assert len(schedule.resources) == len(here.resources) + len(there.resources)
    what, of_here = schedule.labels["what"].code, here.labels["what"].code
    np.testing.assert_array_equal(what[: len(here)], of_here)


def gathered(machine, chips, cores=1, size=MIB, op="all-gather", **how):
    return compose(Call(op, Group(cluster(machine), range(chips), cores), size), **how).schedule


@pytest.mark.parametrize(("make", "message"), [
    (lambda: merge(gathered("trn2.48xlarge", 2), gathered("trn1.32xlarge", 2)),
     "cc:0 has slots 16 in one schedule and 6 in another"),
    (lambda: memory_kernel(cluster("dgx-h100"), [0], 10**9),
     "what its memory gives is not known; use Trainium"),
    (lambda: memory_kernel(cluster("trn2.48xlarge"), [0], 3, 100),
     "a kernel of 3 B at 100 B/s; use at least 1 B"),
    (lambda: gathered("trn2.48xlarge", 16, 4, 57 * MIB, sbuf=True),
     "57 MiB does not fit .* a rank, 56 MiB"),
    (lambda: gathered("trn2.48xlarge", 16, 8, 29 * MIB, sbuf=True),
     "29 MiB does not fit .* a rank, 28 MiB"),
    (lambda: gathered("trn1.32xlarge", 16, 2, 25 * MIB, "broadcast", sbuf=True),
     "25 MiB does not fit .* a rank, 24 MiB"),
    (lambda: gathered("trn2.48xlarge", 16, op="all-to-all", sbuf=True),
     "all-to-all in SBUF: .* operands in HBM"),
    (lambda: gathered("dgx-h100", 8, sbuf=True), "dgx-h100 has no scratchpads"),
])  # fmt: skip
def test_what_cannot_be_merged_or_held_is_refused(make, message):
    refused(message, make)
