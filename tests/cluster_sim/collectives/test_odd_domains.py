"""Groups over any number of domains, the last less full, or over tiers of several kinds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster_sim import train
from cluster_sim.collectives import (
    KINDS,
    CollectiveCall,
    compose,
    lower_bound,
    measure,
    prove,
    results,
    suitable,
    whole,
)
from cluster_sim.collectives.algorithms.hierarchical import evened, radices, timed_radices
from cluster_sim.collectives.duration.duration import FEW_RANKS, collective_time
from cluster_sim.collectives.group import Group
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.examples import examples
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.shapes.basic import Tier, Tiered

MACHINE = cluster("trn2-ultraserver:4200")
PLACES = (0, 32)
"""Chips of a domain on which a data-parallel group has a rank, as with tp 32."""


def _group(domains: int, missing: int = 0) -> Group:
    chips = [64 * domain + place for domain in range(domains) for place in PLACES]
    return Group(MACHINE, np.array(chips[: len(chips) - missing]))


def _ms(group: Group, size_bytes: int = 2**30, kind: str = "all-gather") -> float:
    return collective_time(kind, group, size_bytes=size_bytes).time_s * 1e3


def test_a_short_domain_is_evened_and_its_ranks_stand_for_several() -> None:
    even = evened(_group(20, missing=1))
    assert even is not None
    # A byte in 40 chips of full domains is 19/40 outside, in 39 for the lone rank 38/39.
    assert (even[0].ranks, even[1]) == (40, Fraction(19, 40) / Fraction(38, 39))
    assert evened(_group(20)) is None
    lopsided = np.array([0, 32, 64, 97, 128])  # full domains have chips at unlike places
    assert evened(Group(MACHINE, lopsided)) is None


@pytest.mark.parametrize("domains", [17, 31])
def test_a_measured_collective_takes_what_a_step_is_told(domains: int) -> None:
    """Few messages are no reason to run a ring over a prime number of domains."""
    group = whole(cluster(f"trn2.48xlarge:{domains}"))
    call = CollectiveCall("all-reduce", group, 2**24)
    measured = measure(call, watched=False)[0]["time_s"]
    assert measured == collective_time("all-reduce", group, size_bytes=2**24).time_s


@pytest.mark.parametrize("domains", [16, 17, 100, 1024, 4096])
def test_a_missing_rank_costs_at_most_its_adapters_and_no_ring_over_all(domains: int) -> None:
    """One rank carries what two carry elsewhere, and rounds grow with the logarithm."""
    even, odd = _ms(_group(domains)), _ms(_group(domains, missing=1))
    assert even < odd < 2.05 * even
    assert odd < 1.2 * _ms(_group(16, missing=1))


def test_what_a_lone_rank_takes_longer_no_algorithm_can_save() -> None:
    """Two stages of 1,025 replicas by two a domain share one: an odd number has no other way.

    All 64 groups gather the buffer over its 64 adapters, where 32 do so over those of a full one.
    """
    odd, even = _group(513, missing=1), _group(512)
    adapter_bytes_per_s = communication_costs(MACHINE).scale_out_bytes_per_s
    for group, gathers in ((odd, 64), (even, 32)):
        outside = 2**30 * (1 - np.bincount(group.domain).min() / group.ranks)
        least_ms = gathers * outside / (64 * adapter_bytes_per_s) * 1e3
        assert least_ms <= _ms(group) <= 1.03 * least_ms


@pytest.mark.parametrize("missing", [1, 2, 3])
@pytest.mark.parametrize("domains", [2, 3, 9, 15, 16, 17, 100])
def test_a_short_domain_costs_what_its_adapters_take_in_and_no_more(
    domains: int, missing: int
) -> None:
    chips = np.array(
        [64 * domain + place for domain in range(domains) for place in (0, 16, 32, 48)]
    )
    group = Group(MACHINE, chips[: len(chips) - missing])
    outside = 2**30 * (1 - (4 - missing) / group.ranks) / (4 - missing)
    least_ms = outside / communication_costs(MACHINE).scale_out_bytes_per_s * 1e3
    assert least_ms <= _ms(group) <= 1.07 * least_ms


@pytest.mark.parametrize("kind", ["all-gather", "reduce-scatter", "all-reduce"])
def test_one_domain_more_costs_what_both_neighbours_cost(kind: str) -> None:
    draw = np.random.default_rng(7)
    for domains in draw.integers(17, 4096, 12).tolist():
        before, here, after = (_ms(_group(domains + step), kind=kind) for step in (-1, 0, 1))
        assert here <= 1.05 * max(before, after), domains


SHAPES = {
    "kind": st.sampled_from(["all-gather", "reduce-scatter", "all-reduce"]),
    "members": st.sampled_from([1, 2, 4, 8, 16]),
    "size_bytes": st.integers(2**12, 2**31),
}


def _cliff(domains: int, kind: str, members: int, size_bytes: int) -> float:
    """Time over some domains, relative to the slower of one domain fewer and one more."""
    machine = cluster("trn2-ultraserver:16385")
    places = np.arange(0, 64, 64 // members)

    def seconds(number: int) -> float:
        chips = (64 * np.arange(number)[:, None] + places).ravel()
        return collective_time(kind, Group(machine, chips), size_bytes=size_bytes).time_s

    return seconds(domains) / max(seconds(domains - 1), seconds(domains + 1))


@examples(60)
@given(domains=st.one_of(st.integers(17, 300), st.integers(17, 16384)), **SHAPES)
@example(domains=1289, kind="all-reduce", members=1, size_bytes=35749)
@example(domains=164, kind="reduce-scatter", members=16, size_bytes=9310)
@example(domains=128, kind="all-reduce", members=1, size_bytes=2**20)
@example(domains=31, kind="all-reduce", members=2, size_bytes=246295514)
def test_no_number_of_domains_takes_longer_than_both_its_neighbours(
    domains: int, kind: str, members: int, size_bytes: int
) -> None:
    """A prime number of domains with one rank each took 99 times as long as its neighbours."""
    assert _cliff(domains, kind, members, size_bytes) <= 1.05


@pytest.mark.slow
@pytest.mark.parametrize("members", [1, 4])
def test_no_number_up_to_4096_takes_longer_than_both_its_neighbours(members: int) -> None:
    for domains in range(17, 4097):
        assert _cliff(domains, "all-reduce", members, 2**20) <= 1.05, domains


def test_a_named_algorithm_is_timed_itself_over_a_short_domain() -> None:
    group = _group(17, missing=1)
    usual, named = (
        collective_time("all-gather", group, size_bytes=2**30, **how)
        for how in ({}, {"algorithm": "ring"})
    )
    assert (usual.algorithm, usual.method) == ("hierarchical", FEW_RANKS)
    assert named.algorithm == "ring"
    assert named.method != FEW_RANKS


def test_a_prime_number_of_domains_is_timed_like_a_number_of_small_factors() -> None:
    assert radices(_group(1021)) == [1021]
    assert timed_radices(_group(1021)) == [2, 2, 2, 5, 5, 5]
    assert timed_radices(_group(251)) == [2, 5, 5, 5]
    assert timed_radices(_group(253)) == [2, 5, 5, 5]
    assert timed_radices(_group(13)) == [13]  # few enough to run all messages
    assert timed_radices(_group(1024)) == [2] * 10


def test_steps_on_an_odd_number_of_ultraservers_cost_what_the_even_ones_do() -> None:
    fields = {"tp": 32, "pp": 2, "recompute": "full", "zero": 1, "seq": 8192}
    steps = [
        train("llama-3.1-405b", f"trn2-ultraserver:{domains}", framework="neuronx", **fields).time_s
        for domains in (1024, 1025, 1026)
    ]
    assert steps[1] <= 1.05 * max(steps[0], steps[2])


def _row(domains: int, size_bytes: int, *, watched: bool = False) -> dict[str, float]:
    group = whole(cluster(f"trn2-ultraserver:{domains}"))
    return measure(CollectiveCall("all-reduce", group, size_bytes), watched=watched)[0]


def test_short_buffers_over_hundreds_of_domains_are_folded_and_have_no_cliffs() -> None:
    """Written out, 257 domains take 156 million ops, and a ring of 257 takes 27 times as long."""
    rows = {domains: _row(domains, 4096) for domains in (257, 258, 259, 264, 265, 266, 1116)}
    assert all(row["ops"] == 64 * domains + 2 for domains, row in rows.items())
    for domains in (258, 265):
        around = rows[domains - 1]["time_s"], rows[domains + 1]["time_s"]
        assert rows[domains]["time_s"] <= 1.05 * max(around)


def test_a_folded_measurement_has_the_time_of_all_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    written_out = _row(16, 2**22)
    monkeypatch.setattr(results, "FOLDED_FROM", 1)
    folded, messages = _row(16, 2**22), _row(16, 2**22, watched=True)
    assert messages["time_s"] == written_out["time_s"]
    assert folded["time_s"] == pytest.approx(messages["time_s"], rel=1e-3)
    assert (folded["ops"], messages["ops"]) == (1026, written_out["ops"])


GB = 10**9
MIXED = Cluster(
    "mixed",
    Tiered(
        (
            Tier("pod", 3, 25 * GB, 1_000_000, switches=1),
            Tier("board", 2, 50 * GB, 700_000),
            Tier("ring", 4, 200 * GB, 500_000, ring=True),
        )
    ),
    plain=True,
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chips", [range(24), (0, 1, 2, 3), (0, 1, 4, 5), (0, 2, 8, 10)],
    ids=["all", "ring", "part of rings", "gaps"],
)  # fmt: skip
def test_every_algorithm_is_proven_and_equal_on_both_engines(
    kind: str, chips: Sequence[int]
) -> None:
    call = CollectiveCall(kind, Group(MIXED, np.array(chips)), 24 * 2**20)
    bound = lower_bound(call).time_ps
    algorithms = suitable(call)
    assert algorithms
    for algorithm in algorithms:
        built = compose(call, algorithm)
        assert prove(built) == "proven", algorithm.name
        fast, reference = (
            run(built.schedule, engine=engine).total_ps for engine in ("fast", "reference")
        )
        assert fast == reference >= bound, algorithm.name


def test_a_ring_of_a_tier_takes_the_time_of_a_ring_alone() -> None:
    """Four chips of one ring use the links of a torus of four, and no others."""
    alone = cluster("ring:4", bandwidth="100GB/s", latency="500ns")
    for kind in ("all-reduce", "all-gather", "reduce-scatter"):
        times = [
            run(
                compose(CollectiveCall(kind, Group(machine, np.arange(4)), 2**22)).schedule
            ).total_ps
            for machine in (MIXED, alone)
        ]
        assert times[0] == times[1], kind
