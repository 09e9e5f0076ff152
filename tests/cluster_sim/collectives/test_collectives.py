"""Collectives: exact times of small cases, proofs, bounds, groups, folding and refusals."""

import numpy as np
import pytest
from hypothesis import given

from cluster_sim.collectives import (
    ALGORITHMS,
    Group,
    compose,
    duration_ps,
    few_ranks,
    lower_bound,
    prove,
    rows,
    whole,
)
from cluster_sim.collectives import (
    CollectiveCall as Call,
)
from cluster_sim.collectives.algorithms import hierarchical as two_levels
from cluster_sim.collectives.algorithms import stages
from cluster_sim.collectives.algorithms.hierarchical import hierarchical, time_from_two_domains_ps
from cluster_sim.collectives.lowering import lower
from cluster_sim.collectives.messages import cut, shards, share
from cluster_sim.collectives.results import first_ranks
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.table import transfer_ps
from cluster_sim.trace.trace import run
from tests.support.collective_cases import ENGINES, algorithm_names, collectives
from tests.support.conservation import violations
from tests.support.examples import examples
from topologies.clusters.names import cluster
from topologies.errors import InputError

GIB = 2**30
US = 10**6


def plain(text: str, rate: str = "100GB/s", latency: str = "1us"):
    return cluster(text, bandwidth=rate, latency=latency)


def busbw(op, machine, algorithm, size=GIB):
    return float(rows(op, whole(machine), [size], algorithm, ideal=True).busbw_bytes_per_s[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_ring_all_reduce_is_alpha_beta_to_the_picosecond(engine):
    schedule = compose(Call("all-reduce", whole(plain("ring:8")), GIB), "ring").schedule
    assert run(schedule, engine=engine).total_ps == 14 * (
        US + int(transfer_ps(GIB // 8, 100 * 10**9))
    )


@pytest.mark.parametrize(("op", "steps"), [("all-gather", 6), ("reduce-scatter", 6)])
@pytest.mark.parametrize("size", [0, 1, 6, 7, 1000, 123_457])
def test_half_rings_take_ranks_less_one_steps_of_the_largest_chunk(op, steps, size):
    schedule = compose(Call(op, whole(plain("ring:7")), size), "ring")
    chunks = cut(size, 7)
    assert schedule.steps == steps
    least = steps * US + sum(
        int(transfer_ps(chunk, 100 * 10**9)) for chunk in sorted(chunks)[1:] if chunk
    )
    most = steps * (US + int(transfer_ps(chunks.max(), 100 * 10**9)))
    assert least <= run(schedule.schedule).total_ps <= most


def test_both_ways_halve_the_blocks():
    one = run(compose(Call("all-reduce", whole(plain("ring:8")), GIB), "ring").schedule).total_ps
    two = run(
        compose(Call("all-reduce", whole(plain("ring:8")), GIB), "bidirectional-ring").schedule
    ).total_ps
    assert two - 14 * US == (one - 14 * US) // 2


def test_op_count_of_a_ring_all_reduce():
    schedule = compose(Call("all-reduce", whole(plain("ring:64")), GIB), "ring").schedule
    assert len(schedule) == 2 * 63 * 64 + 64
    assert schedule.nbytes <= 100 * len(schedule)


@pytest.mark.parametrize("engine", ENGINES)
@given(case=collectives())
@examples(60)
def test_every_collective_is_proven_conserved_and_above_its_bound(engine, case):
    schedule = compose(Call(case.op, case.group, case.size), case.algorithm, ideal=case.ideal)
    assert prove(schedule) == "proven"
    trace = run(schedule.schedule, engine=engine)
    assert violations(trace) == []
    call = Call(case.op, case.group, case.size)
    assert trace.total_ps >= lower_bound(call, ideal=case.ideal).time_ps


def test_wire_rate_of_the_4x4_torus():
    machine = cluster("trn2.48xlarge")
    assert busbw("all-reduce", machine, "multi-ring") > 0.98 * 512e9
    assert busbw("all-to-all", machine, "dimension-ordered") > 0.99 * 240e9


def test_wire_rate_of_the_4x4x4_torus():
    machine = cluster("trn2-ultraserver")
    assert busbw("all-reduce", machine, "multi-ring") > 0.99 * 640e9
    assert busbw("all-to-all", machine, "dimension-ordered") > 0.99 * 126e9


def test_a_step_between_neighbours_costs_the_core_the_hop_and_the_wire():
    machine = cluster("trn2.48xlarge")
    group = Group(machine, [0, 1])
    rate = int(128 * 10**9 * machine.catalogue.entry("trn2", "collective_efficiency").exact)
    start = 900_000 + 2_800_000
    expected = start + 1_200_000 + 300_000 + int(transfer_ps(1, rate))
    assert run(compose(Call("all-gather", group, 2), "ring").schedule).total_ps == expected


def test_a_step_between_servers_takes_fifteen_microseconds_and_the_adapter():
    machine = cluster("trn2.48xlarge:4")
    group = Group(machine, [0, 16])
    ps = run(compose(Call("all-gather", group, 2), "ring", ideal=True).schedule).total_ps
    assert ps == 15 * US + int(transfer_ps(1, 25 * 10**9))


def test_a_bad_rank_order_costs():
    machine = plain("torus:4x4")
    good = run(compose(Call("all-reduce", whole(machine), GIB), "ring").schedule).total_ps
    shuffled = Group(machine, np.random.default_rng(1).permutation(16))
    assert run(compose(Call("all-reduce", shuffled, GIB), "ring").schedule).total_ps > 1.5 * good


def test_a_route_over_three_links_is_three_ops():
    machine = plain("ring:8")
    schedule = compose(Call("all-gather", Group(machine, [3, 0]), 2), "ring").schedule
    frame = run(schedule).frame(ranks=0, resources="link")
    assert frame.resource.tolist() == ["link:3-2", "link:2-1", "link:1-0"]
    assert run(schedule).total_ps == 3 * (US + 10)


def test_disjoint_groups_run_at_once_and_do_not_disturb_each_other():
    machine = cluster("trn2-ultraserver")
    planes = [Group(machine, range(16 * z, 16 * z + 16)) for z in range(4)]
    alone = run(compose(Call("all-reduce", planes[2], 2**20), "multi-ring").schedule).total_ps
    calls = [Call("all-reduce", plane, 2**20) for plane in planes]
    schedule = compose(calls, "multi-ring")
    assert run(schedule.schedule).total_ps == alone
    assert prove(schedule) == "proven"
    assert schedule.schedule.facts["groups"] == 4


def test_equal_groups_share_one_run():
    machine = cluster("rainier")
    one = duration_ps(Call("all-reduce", Group(machine, np.arange(32)), 2**24))
    other = duration_ps(Call("all-reduce", Group(machine, 64 * 4000 + 32 + np.arange(32)), 2**24))
    assert one == other


FOLDED = [
    ("ring", 32, [0], 1, 2**20),
    ("rdh", 32, [0], 1, 2**17),
    ("hierarchical", 32, [0, 32], 1, 2**22),
    ("hierarchical", 32, range(16), 1, 2**10),
    ("hierarchical", 32, range(16), 1, 2**22),
    ("hierarchical", 32, [0, 1, 4, 5], 2, 2**17),
    ("hierarchical", 32, [0, 1, 2], 1, 2**22),
    ("hierarchical", 60, [0], 1, 2**20),
    ("hierarchical", 45, [0, 32], 1, 2**16),
]


@pytest.mark.parametrize("op", ["all-reduce", "all-gather", "reduce-scatter"])
@pytest.mark.parametrize(("algorithm", "domains", "places", "cores", "each_bytes"), FOLDED)
def test_a_folded_collective_equals_the_whole_one(
    op, algorithm, domains, places, cores, each_bytes
):
    group = Group(
        cluster("trn2-ultraserver:64"),
        np.add.outer(64 * np.arange(domains), list(places)).ravel(),
        cores,
    )
    size = group.ranks * each_bytes
    call, costs = Call(op, group, size), communication_costs(group.cluster)
    folded = ALGORITHMS[algorithm].stands_for(call, costs)
    if len(places) * domains > 32 and each_bytes > 2**20:
        slices = 4  # the whole of 16 slices would take a second
        folded = time_from_two_domains_ps(call, slices, costs)
        messages = hierarchical(call, slices)
        schedule = lower(
            messages, group.chip_of_rank, fabric(group.cluster, np.arange(domains)), {}
        )
    else:
        schedule = compose(Call(op, group, size), algorithm).schedule
    odd = 1e-5 if algorithm == "rdh" else 0  # five parts of a power of two differ by a byte
    assert folded == pytest.approx(run(schedule).total_ps, rel=odd, abs=0)


def test_blocks_and_climbs_that_differ_are_folded_closely():
    machine = cluster("trn2.48xlarge:24")
    group = Group(machine, 16 * np.arange(17))
    call, costs = Call("all-reduce", group, 5 * 2**20), communication_costs(machine)
    whole_ps = run(compose(call, "ring").schedule).total_ps
    folded = ALGORITHMS["ring"].stands_for(call, costs)
    assert folded == pytest.approx(whole_ps, rel=0.001)
    wide = Group(machine, np.arange(16 * 24))
    call = Call("all-reduce", wide, 10**8 + 1)
    whole_ps = run(compose(call, "hierarchical").schedule).total_ps
    folded = ALGORITHMS["hierarchical"].stands_for(call, costs)
    assert folded == pytest.approx(whole_ps, rel=0.05)


@pytest.mark.parametrize(
    ("domains", "places", "cores", "size"),
    [
        (1736, [0], 1, 6 * 10**9),
        (868, [0, 32], 1, 6 * 10**9),
        (434, range(16), 1, 6 * 10**9),
        (7812, range(64), 1, 2**26),
        (4096, [0], 1, 2**25),
        pytest.param(7812, range(64), 4, 2**26, marks=pytest.mark.slow),
    ],
)
def test_groups_of_all_of_rainier_take_few_ops(domains, places, cores, size, monkeypatch):
    ops = []
    for module in (few_ranks, two_levels, stages):
        monkeypatch.setattr(
            module, "run", lambda schedule: ops.append(len(schedule)) or run(schedule)
        )
    group = Group(
        cluster("rainier"), np.add.outer(64 * np.arange(domains), list(places)).ravel(), cores
    )
    total = duration_ps(Call("all-reduce", group, size))
    injected = 2 * size * (domains - 1) / domains / len(places) / 25e9
    assert total >= injected * 1e12
    assert 0 < max(ops) < 4_000_000


def test_groups_whose_hops_take_equally_long_are_simulated_once(monkeypatch):
    simulated = []
    monkeypatch.setattr(
        two_levels, "run", lambda schedule: simulated.append(len(schedule)) or run(schedule)
    )
    two_levels._simulated_ps.cache_clear()
    rainier = cluster("rainier")
    strided = [64 * (begin + 62 * np.arange(120)) for begin in range(62)]
    times = [duration_ps(Call("all-reduce", Group(rainier, chips), 2**26)) for chips in strided]
    assert len(simulated) == len(set(times)) == 1
    near = Group(rainier, 64 * np.arange(64))  # under one leaf switch
    assert duration_ps(Call("all-reduce", near, 2**26)) < times[0]


def test_a_ring_over_all_of_rainier_answers_at_once():
    machine = cluster("rainier")
    group = Group(machine, 64 * np.arange(7812))
    steps = 2 * 7811
    assert duration_ps(Call("all-reduce", group, 2**30), "ring") >= steps * 15 * US


@pytest.mark.parametrize("size", [0, 1, 5, 2**30 + 3])
def test_pieces_add_up_and_differ_by_a_byte(size):
    assert int(share(size, [3, 1, 2]).sum()) == size
    pieces = shards(size, 5, [1, 1, 1])
    assert int(pieces.sum()) == size
    assert pieces.max() - pieces.min() <= 1


def test_boxes_of_a_torus():
    machine = cluster("trn2-ultraserver")
    half = Group(machine, range(32)).filled_box
    assert half is not None
    assert (half.sizes, half.wraps) == ((2, 4, 4), (False, True, True))
    assert half.rates == (64 * 10**9, 128 * 10**9, 128 * 10**9)
    assert Group(machine, [0, 1, 2, 5]).filled_box is None
    across = Group(machine, [3, 0]).filled_box
    assert across is not None
    assert across.sizes == (2,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: Group(m, [0, 0]), "chip 0 is named twice"),
        (lambda m: Group(m, [16]), "chip 16 is not one of the 16 of trn2.48xlarge"),
        (lambda m: Group(m, []), "a group has no chips"),
        (lambda m: compose(Call("all-reduse", whole(m), 1)).schedule, "Did you mean all-reduce"),
        (lambda m: compose(Call("all-reduce", whole(m), -1)).schedule, "a size of -1 B"),
        (
            lambda m: compose(Call("all-reduce", whole(m), 1), "direct").schedule,
            "these do: auto, best, ring",
        ),
        (lambda m: compose([Call("all-reduce", whole(m), 1)] * 2).schedule, "groups share a chip"),
        (lambda m: first_ranks(m, 17), "17 ranks on trn2.48xlarge"),
        (lambda m: first_ranks(m, 3, 2), "use 2"),
    ],
)
def test_mistakes_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call(cluster("trn2.48xlarge"))


def test_sensible_algorithms_depend_on_the_fabric():
    assert "dimension-ordered" not in algorithm_names("all-to-all", whole(plain("switch:4")))
    assert "dimension-ordered" in algorithm_names("all-to-all", whole(plain("torus:4x4")))


def test_best_is_the_fastest_and_is_named():
    node = whole(cluster("trn2.48xlarge"))
    table, names = rows("all-reduce", node, [GIB], "best"), algorithm_names("all-reduce", node)
    assert table.time_s[0] == min(rows("all-reduce", node, [GIB], one).time_s[0] for one in names)
    assert table.algorithm[0] in names


def test_best_is_never_slower_than_nccl_on_its_machines():
    node = whole(cluster("dgx-h100"))
    table = rows("all-reduce", node, [GIB], "best")
    assert table.algorithm[0] == "nccl"
    assert table.time_s[0] == rows("all-reduce", node, [GIB]).time_s[0]
