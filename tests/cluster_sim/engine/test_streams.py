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
from topologies.clusters.names import cluster
from topologies.errors import InputError

MIB = 2**20


def ends(trace):
    """End of each stream [ps]."""
    stream = trace.schedule.labels["stream"]
    return [trace.times.end_ps[stream == number].max() for number in np.unique(stream)]


@pytest.mark.parametrize(
    ("machine", "cores", "size"),
    [
        ("trn2.48xlarge", 1, 1024),
        ("trn2.48xlarge", 4, 1024),
        ("trn2.48xlarge", 1, 64 * MIB),
        ("trn1.32xlarge", 2, MIB),
        ("trn3-gen1", 1, MIB),
    ],
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
    many = [
        compose(Call("all-to-all", rows[0], 4096), "direct", contended=True).schedule
        for _ in range(8)
    ]
    assert run(merge(*many)).total_ps > run(one).total_ps + 800_000


def test_both_engines_agree_on_streams_and_kernels():
    group = Group(cluster("trn2.48xlarge:2"), [0, 1, 4, 5, 16, 17, 20, 21], 2)
    parts = [
        compose(Call("all-reduce", group, MIB), name, contended=True).schedule
        for name in ("ring", "mesh")
    ]
    schedule = merge(*parts, memory_kernel(group.cluster, group.chips, 64 * MIB))
    fast, reference = simulate(schedule), simulate(schedule, engine="reference")
    np.testing.assert_array_equal(fast.start_ps, reference.start_ps)
    np.testing.assert_array_equal(fast.end_ps, reference.end_ps)


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


def test_a_collective_in_scratchpads_leaves_memory_to_the_kernel():
    node = cluster("trn2.48xlarge")
    gathered = compose(
        Call("all-gather", whole(node, 4), 32 * MIB), sbuf=True, contended=True
    ).schedule
    kernel = memory_kernel(node, range(16), 10**8)
    both = run(merge(kernel, gathered))
    assert ends(both) == [run(kernel).total_ps, run(gathered).total_ps]


def test_streams_of_other_domains_and_labels_are_numbered_on():
    two = cluster("trn2.48xlarge:2")
    here, there = (
        compose(Call("all-gather", Group(two, [k, k + 1]), MIB)).schedule for k in (0, 16)
    )
    schedule = merge(here, there)
    assert run(schedule).total_ps == run(here).total_ps
    assert len(schedule.resources) == len(here.resources) + len(there.resources)
    np.testing.assert_array_equal(
        schedule.labels["what"].code[: len(here)], here.labels["what"].code
    )


def test_schedules_of_different_machines_are_refused():
    ranks = [0, 1]
    one = compose(Call("all-gather", Group(cluster("trn2.48xlarge"), ranks), MIB)).schedule
    other = compose(Call("all-gather", Group(cluster("trn1.32xlarge"), ranks), MIB)).schedule
    with pytest.raises(InputError, match=r"cc:0 has slots 16 in one schedule and 6 in another"):
        merge(one, other)


def test_a_kernel_needs_a_memory_and_bytes():
    with pytest.raises(InputError, match="what its memory gives is not known; use Trainium"):
        memory_kernel(cluster("dgx-h100"), [0], 10**9)
    with pytest.raises(InputError, match="a kernel of 3 B at 100 B/s; use at least 1 B"):
        memory_kernel(cluster("trn2.48xlarge"), [0], 3, 100)


@pytest.mark.parametrize(
    ("machine", "cores", "op", "size", "message"),
    [
        ("trn2.48xlarge", 4, "all-gather", 57 * MIB, "57 MiB does not fit .* a rank, 56 MiB"),
        ("trn2.48xlarge", 8, "all-gather", 29 * MIB, "29 MiB does not fit .* a rank, 28 MiB"),
        ("trn1.32xlarge", 2, "broadcast", 25 * MIB, "25 MiB does not fit .* a rank, 24 MiB"),
        ("trn2.48xlarge", 1, "all-to-all", MIB, "all-to-all in SBUF: .* operands in HBM"),
        ("dgx-h100", 1, "all-gather", MIB, "dgx-h100 has no scratchpads"),
    ],
)
def test_what_does_not_fit_in_scratchpads_is_refused(machine, cores, op, size, message):
    with pytest.raises(InputError, match=message):
        compose(Call(op, whole(cluster(machine), cores), size), sbuf=True)
