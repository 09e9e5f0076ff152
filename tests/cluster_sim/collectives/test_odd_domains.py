"""Groups over any number of domains, the last less full, or over tiers of several kinds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster_sim.collectives import KINDS, CollectiveCall, Group, compose, measure, results, whole
from cluster_sim.collectives.algorithms import hierarchical
from cluster_sim.collectives.algorithms.hierarchical import (
    evened,
    hierarchical_ps,
    radices,
    timed_radices,
)
from cluster_sim.collectives.algorithms.registry import suitable
from cluster_sim.collectives.duration.duration import FEW_RANKS
from cluster_sim.collectives.verify.bounds import lower_bound
from cluster_sim.collectives.verify.proof import prove
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Tier, Tiered
from workloads.front import collective_time

MACHINE = cluster("trn2-ultraserver:16385")


def _group(domains: int, missing: int = 0, places: Sequence[int] = (0, 32)) -> Group:
    """Some chips of each domain, by default those of tp 32; the last lacks some."""
    chips = np.add.outer(64 * np.arange(domains), places).ravel()
    return Group(MACHINE, chips[: len(chips) - missing])


def _ms(group: Group, size_bytes: int = 2**30, kind: str = "all-gather") -> float:
    return collective_time(kind, group, size_bytes=size_bytes).time_s * 1e3


def test_a_short_domain_is_evened_and_its_ranks_stand_for_several():
    even = evened(_group(20, missing=1))
    assert even is not None
    # A byte in 40 chips of full domains is 19/40 outside, in 39 for the lone rank 38/39.
    assert (even[0].ranks, even[1]) == (40, Fraction(19, 40) / Fraction(38, 39))
    assert evened(_group(20)) is None
    lopsided = np.array([0, 32, 64, 97, 128])  # full domains have chips at unlike places
    assert evened(Group(MACHINE, lopsided)) is None


@pytest.mark.parametrize("domains", [17, 31])
def test_a_measured_collective_takes_what_a_step_is_told(domains):
    """Few messages are no reason to run a ring over a prime number of domains."""
    group = whole(cluster(f"trn2.48xlarge:{domains}"))
    measured = measure(CollectiveCall("all-reduce", group, 2**24), watched=False)[0]["time_s"]
    assert measured == collective_time("all-reduce", group, size_bytes=2**24).time_s


def test_what_a_lone_rank_takes_longer_no_algorithm_can_save():
    """Two stages of 1,025 replicas by two a domain share one: an odd number has no other way.

    All 64 groups gather the buffer over its 64 adapters, where 32 do so over those of a full one.
    """
    odd, even = _group(513, missing=1), _group(512)
    adapter_bytes_per_s = communication_costs(MACHINE).scale_out_bytes_per_s
    for group, gathers in ((odd, 64), (even, 32)):
        outside = 2**30 * (1 - np.bincount(group.domain).min() / group.ranks)
        least_ms = gathers * outside / (64 * adapter_bytes_per_s) * 1e3
        assert least_ms <= _ms(group) <= 1.03 * least_ms


@pytest.mark.parametrize("missing", [1, 3])
@pytest.mark.parametrize("domains", [2, 3, 9, 16, 17, 100])
def test_a_short_domain_costs_what_its_adapters_take_in_and_no_more(domains, missing):
    group = _group(domains, missing, (0, 16, 32, 48))
    outside = 2**30 * (1 - (4 - missing) / group.ranks) / (4 - missing)
    least_ms = outside / communication_costs(MACHINE).scale_out_bytes_per_s * 1e3
    assert least_ms <= _ms(group) <= 1.07 * least_ms


def _cliff(domains: int, kind: str, members: int, size_bytes: int) -> float:
    """Time over some domains, relative to the slower of one domain fewer and one more."""
    places = np.arange(0, 64, 64 // members)
    groups = (_group(domains + step, places=places) for step in (-1, 0, 1))
    before, here, after = (_ms(group, size_bytes, kind) for group in groups)
    return here / max(before, after)


@examples(45)
@given(
    domains=st.one_of(st.integers(3, 40), st.integers(3, 300), st.integers(3, 16384)),
    kind=st.sampled_from(["all-gather", "reduce-scatter", "all-reduce"]),
    members=st.sampled_from([1, 2, 4, 8, 16]),
    size_bytes=st.integers(2**12, 2**31),
)
@example(domains=1289, kind="all-reduce", members=1, size_bytes=35749)
@example(domains=164, kind="reduce-scatter", members=16, size_bytes=9310)
@example(domains=128, kind="all-reduce", members=1, size_bytes=2**20)
@example(domains=31, kind="all-reduce", members=2, size_bytes=246295514)
@example(domains=7, kind="all-gather", members=16, size_bytes=1380403)
@example(domains=13, kind="all-gather", members=1, size_bytes=2057244)
@example(domains=15, kind="all-reduce", members=4, size_bytes=2**12)
def test_no_number_of_domains_takes_longer_than_both_its_neighbours(
    domains, kind, members, size_bytes
):
    """A prime number of domains with one rank each took 99 times as long as its neighbours."""
    assert _cliff(domains, kind, members, size_bytes) <= 1.05


def _first_chips(domains: int, each: int) -> list[int]:
    return [16 * domain + chip for domain in range(domains) for chip in range(each)]


@pytest.mark.parametrize("size_bytes", [2**10, 2**12, 2**16, 2**20, 2**26])
@pytest.mark.parametrize("each", [1, 2, 16])
def test_broadcasts_have_no_cliffs_between_numbers_of_servers(each, size_bytes):
    """Three servers went round a ring for 2.8 times as long as the tree of four."""
    machine = cluster("trn2.48xlarge:9")
    times = [
        collective_time(
            "broadcast", Group(machine, _first_chips(servers, each)), size_bytes=size_bytes
        ).time_ps
        for servers in range(2, 10)
    ]
    for before, here, after in zip(times, times[1:], times[2:], strict=False):
        assert here <= 1.05 * max(before, after)


@pytest.mark.parametrize(("servers", "each"), [(1, 12), (3, 4), (5, 3), (6, 1), (7, 16)])
@pytest.mark.parametrize("step", [1, -1])
def test_a_tree_of_any_number_gives_each_server_the_buffer_once(servers, each, step):
    chips = _first_chips(servers, each)[::step]
    call = CollectiveCall("broadcast", Group(cluster("trn2.48xlarge:7"), chips, 2), 2**20)
    built = compose(call, "rdh")
    assert prove(built) == "proven"
    assert built.steps == sum(math.ceil(math.log2(number)) for number in (servers, each, 2))
    fast, reference = (run(built.schedule, engine=engine) for engine in ("fast", "reference"))
    assert (fast.times.end_ps == reference.times.end_ps).all()
    if servers > 1:
        assert fast.frame(resources="tx").size_bytes.sum() == (servers - 1) * call.size_bytes


def test_the_second_hop_of_a_tree_is_that_of_the_fourth_server():
    """Rank 0 sends to the second and third server, one after the other; the fourth waits."""
    machine = cluster("trn2.48xlarge:4")
    three, four = (
        run(compose(CollectiveCall("broadcast", Group(machine, chips), 2**10), "rdh").schedule)
        for chips in ([0, 16, 32], [0, 16, 32, 48])
    )
    assert four.total_ps - three.total_ps == machine.scale_out.latency_ps


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 4])
def test_no_number_up_to_4096_takes_longer_than_both_its_neighbours(members):
    for domains in range(3, 4097):
        assert _cliff(domains, "all-reduce", members, 2**20) <= 1.05, domains


def test_a_named_algorithm_is_timed_itself_over_a_short_domain():
    group = _group(17, missing=1)
    usual = collective_time("all-gather", group, size_bytes=2**30)
    named = collective_time("all-gather", group, size_bytes=2**30, algorithm="ring")
    assert (usual.algorithm, usual.method) == ("hierarchical", FEW_RANKS)
    assert (named.algorithm, named.method == FEW_RANKS) == ("ring", False)


def test_a_prime_number_of_domains_is_timed_like_a_number_of_small_factors():
    assert radices(_gather(1021)) == [1021]
    for domains, factors in (
        (1021, [2, 2, 2, 5, 5, 5]),
        (251, [2, 5, 5, 5]),
        (253, [2, 5, 5, 5]),
        (13, [13]),  # few enough to run all messages
        (12, [12]),  # as many rounds as two, two and three, in one stage
        (15, [15]),  # a round fewer than three and five
        (18, [2, 3, 3]),
        (1024, [2] * 10),
    ):
        assert timed_radices(_gather(domains)) == factors


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
@pytest.mark.parametrize("domains", [5, 11, 19])
@pytest.mark.parametrize("members", [1, 2])
def test_a_prime_number_of_domains_exchanges_by_doubled_distances(domains, members, kind):
    """Rounds are those of the next power of two, each byte is sent once, and engines agree."""
    group = _group(domains, places=range(members))
    call = CollectiveCall(kind, group, 2**20)
    built = compose(call, "hierarchical")
    assert prove(built) == "proven"
    assert built.steps == call.ways * (math.ceil(math.log2(domains)) + members - 1)
    fast = run(built.schedule)
    if domains < 15:  # the same rounds of fewer domains, which take SimPy less long
        reference = run(built.schedule, engine="reference")
        assert (fast.times.end_ps == reference.times.end_ps).all()
    sent_bytes = fast.frame(resources="tx").size_bytes.sum()
    assert sent_bytes == call.ways * call.size_bytes * (domains - 1)
    # The last of a rank's rounds begins when the one before has arrived.
    hop_ps = MACHINE.scale_out.latency_ps
    assert fast.total_ps >= call.ways * math.ceil(math.log2(domains)) * hop_ps


@pytest.mark.parametrize("domains", [3, 5, 7, 13, 15])
def test_few_domains_of_many_chips_are_timed_by_two_of_them(domains, monkeypatch):
    """Fifteen domains of 72 ranks took 4 s to write out, at sizes that are cut into slices."""
    call = CollectiveCall("all-reduce", _group(domains, places=range(16)), 2**22)
    costs = communication_costs(MACHINE)
    assert hierarchical_ps(call, costs) is None
    monkeypatch.setattr(hierarchical, "MOST_OPS", 1000)
    whole_ps = run(compose(call, "hierarchical").schedule).total_ps
    assert hierarchical_ps(call, costs) == pytest.approx(whole_ps, rel=0.05)


def test_a_ring_is_cut_into_as_many_slices_as_may_be_run(monkeypatch):
    """Two ways of 2 ranks by 4 parts over 16 domains are 768 ops a slice: 4,000 leave five."""
    cut, staged = [], hierarchical.staged_by_few
    monkeypatch.setattr(hierarchical, "MOST_OPS", 4000)
    monkeypatch.setattr(
        hierarchical, "staged_by_few", lambda *call: cut.append(call[-1]) or staged(*call)
    )
    call = CollectiveCall("all-reduce", whole(_thin(16, 16)), 2**34)
    hierarchical._simulated_ps.cache_clear()
    hierarchical_ps(call, communication_costs(call.group.cluster))
    assert cut == [5]


@pytest.mark.parametrize("domains", [17, 31, 251, 4093])
def test_below_thin_uplinks_a_prime_number_of_domains_is_as_its_neighbours(domains):
    """Primes ran in stages where others went round a ring: 4,093 domains took a tenth of 4,092."""
    sizes = 2**16, 2**30
    ms = np.array(
        [
            [_ms(whole(_thin(number)), size, "all-reduce") for size in sizes]
            for number in (domains - 1, domains, domains + 1)
        ]
    )
    assert (ms[1] >= 0.9 * ms[0]).all()
    assert (ms[1] <= 1.05 * ms.max(axis=0)).all()


def test_below_thin_uplinks_long_buffers_go_round_a_ring_and_short_ones_in_stages():
    """A ring crosses an uplink once and has a round a domain."""
    short, long = (
        CollectiveCall("all-reduce", whole(_thin(16, 16)), size) for size in (2**12, 2**34)
    )
    assert (radices(short), radices(long)) == ([2] * 4, [16])
    for call in (short, long):
        written_out = run(compose(call, "hierarchical").schedule).total_ps
        taken = collective_time(call.kind, call.group, size_bytes=call.size_bytes).time_ps
        assert taken == pytest.approx(written_out, rel=0.1)


def _thin(domains: int, ratio: int = 2) -> Cluster:
    """Servers of Trn2 below switches whose uplinks carry less than their adapters."""
    machine = cluster(f"trn2.48xlarge:{domains}")
    fabric = replace(machine.scale_out, oversubscription=Fraction(ratio))
    return replace(machine, scale_out=fabric)


def _gather(domains: int) -> CollectiveCall:
    return CollectiveCall("all-gather", _group(domains), 2**20)


def _row(domains: int, size_bytes: int, *, watched: bool = False) -> dict[str, float]:
    group = whole(cluster(f"trn2-ultraserver:{domains}"))
    return measure(CollectiveCall("all-reduce", group, size_bytes), watched=watched)[0]


def test_short_buffers_over_hundreds_of_domains_are_folded_and_have_no_cliffs():
    """Written out, 257 domains take 156 million ops, and a ring of 257 takes 27 times as long."""
    rows = {domains: _row(domains, 4096) for domains in (257, 258, 259)}
    assert all(row["ops"] == 64 * domains + 2 for domains, row in rows.items())
    assert rows[258]["time_s"] <= 1.05 * max(rows[257]["time_s"], rows[259]["time_s"])


def test_a_folded_measurement_has_the_time_of_all_messages(monkeypatch):
    written_out = _row(16, 2**22)
    monkeypatch.setattr(results, "FOLDED_FROM", 1)
    folded, messages = _row(16, 2**22), _row(16, 2**22, watched=True)
    assert messages["time_s"] == written_out["time_s"]
    assert folded["time_s"] == pytest.approx(messages["time_s"], rel=1e-3)
    assert (folded["ops"], messages["ops"]) == (1026, written_out["ops"])


GB = 10**9
TIERS = (
    Tier("pod", 2, 25 * GB, 1_000_000, switches=1),
    Tier("board", 2, 50 * GB, 700_000),
    Tier("ring", 4, 200 * GB, 500_000, ring=True),
)
MIXED = Cluster("mixed", Tiered(TIERS), plain=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chips", [range(16), (0, 1, 2, 3), (0, 1, 4, 5), (0, 2, 8, 10)],
    ids=["all", "ring", "part of rings", "gaps"],
)  # fmt: skip
def test_every_algorithm_is_proven_and_equal_on_both_engines(kind, chips):
    call = CollectiveCall(kind, Group(MIXED, np.array(chips)), 24 * 2**15)
    algorithms = suitable(call)
    assert algorithms
    for algorithm in algorithms:
        built = compose(call, algorithm)
        assert prove(built) == "proven", algorithm.name
        fast, reference = (run(built.schedule, engine=e).total_ps for e in ("fast", "reference"))
        assert fast == reference >= lower_bound(call).time_ps, algorithm.name


def test_a_ring_of_a_tier_takes_the_time_of_a_ring_alone():
    """Four chips of one ring use the links of a torus of four, and no others."""
    alone = cluster("ring:4", bandwidth="100GB/s", latency="500ns")
    for kind in ("all-reduce", "all-gather", "reduce-scatter"):
        calls = [CollectiveCall(kind, Group(each, np.arange(4)), 2**22) for each in (MIXED, alone)]
        assert len({run(compose(call).schedule).total_ps for call in calls}) == 1, kind


@pytest.mark.parametrize(("name", "size_bytes"), [
    ("trn2-ultraserver:2", 2**22), ("trn2.48xlarge:3", 2**20), ("trn2.48xlarge:4", 2**20),
    ("trn1.32xlarge:4", 2**18),
])  # fmt: skip
def test_a_broadcast_between_domains_takes_the_fastest_of_tree_rings_and_sum(name, size_bytes):
    """Rings send slices through two adapters, a tree whole buffers, a sum a share through all."""
    chosen, *each_way = (
        collective_time("broadcast", name, size_bytes=size_bytes, algorithm=each).time_s
        for each in ("auto", "rdh", "multi-ring", "hierarchical")
    )
    assert chosen == min(each_way)
