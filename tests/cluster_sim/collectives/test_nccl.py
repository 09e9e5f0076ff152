"""NCCL's closed form against published peaks, and exchanges of experts by a library's kernels."""

from dataclasses import replace
from math import hypot

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.collectives import KINDS, Group, duration_ps, measure, whole
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.duration.expert_library import known, library_s, visited
from cluster_sim.collectives.duration.nccl import (
    PROTOCOLS,
    bound_with_switch,
    constants,
    covers,
    in_switch_s,
    load_of,
    nccl_ps,
    reduces_in_switch,
    ring_s,
    seconds,
    uneven_load,
    uneven_ps,
)
from cluster_sim.collectives.results import measure_v, skewed
from cluster_sim.collectives.verify.bounds import AROUND, bounds
from cluster_sim.hardware.faults import parse_fault
from cluster_sim.schedule.table import PS_PER_S
from experiments.validation.predictions.collectives import predict
from tests.support.conservation import violations
from tests.support.refusals import refused
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster


def gpus(name, **how):
    return whole(cluster(name, **how))


def test_loads_follow_the_algorithms():
    ring = load_of(Call("all-reduce", gpus("dgx-h100"), 800))
    assert (ring.inside, ring.in_switch, ring.steps, ring.far_steps) == (1400, 800, 14, 0)
    two, four = gpus("dgx-h100:2"), gpus("dgx-h100:4")
    for kind, group, size, outside in (
        ("all-reduce", two, 800, 100),
        ("all-reduce", four, 800, 193.75),
        ("all-gather", four, 3200, 3100 / 8),
        ("all-to-all", two, 1600, 800),
        ("all-gather", Group(four.cluster, np.arange(4) * 8), 400, 300),
    ):
        assert load_of(Call(kind, group, size)).outside == pytest.approx(outside), kind
    for each, few in ((1, 1), (3, 1), (4, 0), (8, 0)):  # few where under half a server
        group = Group(two.cluster, [*range(each), *range(8, 8 + each)])
        assert load_of(Call("all-reduce", group, 2**20)).beside == few


def test_without_trees_an_all_reduce_goes_round_rings():
    """As with NCCL_ALGO=Ring: no tree between servers, and no reduction in their switches."""
    numbers = shipped_catalogue().with_variants({"nccl-tuner.trees": "none"})
    for machine in ("dgx-a100:2", "dgx-h100"):
        usual, rings = gpus(machine), gpus(machine, catalogue=numbers)
        for size in (2**20, 2**30):
            asked_for = load_of(Call("all-reduce", usual, size), rings=True)
            assert load_of(Call("all-reduce", rings, size)) == asked_for
            gathered = {nccl_ps(Call("all-gather", group, size)) for group in (usual, rings)}
            assert len(gathered) == 1
    # A ring of 16 ranks carries 30/16 of the buffer through the adapters, a tree all of it once.
    two, rings = gpus("dgx-a100:2"), gpus("dgx-a100:2", catalogue=numbers)
    loads = [load_of(Call("all-reduce", group, 1600)).outside for group in (two, rings)]
    assert loads == [1600 / 8, 30 / 16 * 1600 / 8]


def test_times_have_the_right_limits():
    eight = gpus("dgx-a100")
    costs = constants(eight.cluster)
    assert nccl_ps(Call("all-reduce", eight, 0)) == 0
    assert nccl_ps(Call("all-reduce", Group(eight.cluster, np.arange(1)), 10**6)) == 0
    assert uneven_ps(eight, np.zeros((8, 8), np.int64)) == 0
    smallest = nccl_ps(Call("all-reduce", eight, 8)) / 1e12
    assert smallest == pytest.approx(costs.chip["launch"] + 14 * costs.chip["step"], rel=0.01)
    rate = 1.75 * 2**36 / (nccl_ps(Call("all-reduce", eight, 2**36)) / 1e12)
    assert rate == pytest.approx(costs.chip["efficiency"] * costs.port, rel=0.06)


MACHINES = (
    *("p4de.24xlarge", "p5.48xlarge", "p5en.48xlarge", "dgx-a100", "dgx-a100-40gb", "dgx-h100"),
    *("dgx-h200", "dgx-b200", "gb200-nvl72", "mi300x-platform"),
)


@given(
    st.sampled_from(KINDS), st.sampled_from(MACHINES),
    st.sampled_from([2, 3, 4, 5, 8, 12, 16, 64, 72, 128, 512]), st.booleans(),
    st.floats(3, 34).map(lambda power: int(2**power)), st.integers(1, 2**24),
)  # fmt: skip
def test_times_grow_with_size_and_keep_to_the_bounds(op, name, ranks, spread, size, more):
    each = cluster(name).chips
    machine = cluster(f"{name}:{-(-ranks // each)}")
    chips = np.arange(machine.domains) * each if spread and ranks > each else np.arange(ranks)
    group = Group(machine, chips)
    now = nccl_ps(Call(op, group, size))
    assert nccl_ps(Call(op, group, size + more)) >= now
    assert now >= bound_with_switch(Call(op, group, size)).time_ps
    if load_of(Call("all-gather", group, size)).way == "ring":
        calls = (Call(kind, group, size) for kind in ("all-reduce", "all-gather"))
        reduced, gathered = map(by_protocol, calls)
        assert all(one >= other for one, other in zip(reduced, gathered, strict=True))
        assert min(gathered) * 1e12 <= nccl_ps(Call("all-gather", group, size)) + 1


def by_protocol(call):
    """Time round rings in each protocol [s]; which one NCCL picks by its own beliefs is another
    matter: 4 B200 gather 8 MiB in 47 us, where they reduce and gather in 45."""
    load, costs = load_of(call, rings=True), constants(call.group.cluster)
    return [float(ring_s(load, costs, protocol)) for protocol in PROTOCOLS]


def ways_s(op, name, number, size, spread):
    """Time of each way in which NCCL may run a call on some ranks, or on some whole servers [s]."""
    ranks = number * cluster(name).chips if spread else number
    machine = cluster(f"{name}:{-(-ranks // cluster(name).chips)}")
    load, costs = load_of(Call(op, Group(machine, np.arange(ranks)), size)), constants(machine)
    if load.way == "ring":
        return [
            *(ring_s(load, costs, protocol) for protocol in PROTOCOLS),
            in_switch_s(load, costs),
        ]
    return [seconds(load, costs)]


@given(
    st.sampled_from([kind for kind in KINDS if kind != "all-to-all"]), st.sampled_from(MACHINES),
    st.integers(4, 160), st.floats(10, 33).map(lambda power: int(2**power)), st.booleans(),
)  # fmt: skip
def test_no_way_takes_longer_on_a_number_of_ranks_than_on_both_its_neighbours(
    op, name, number, size, spread
):
    """What NCCL picks does, as measured: A100 gather 2 MiB in 38, 53 and 33 us on 2, 4 and 8."""
    before, here, after = (ways_s(op, name, number + more, size, spread) for more in (-1, 0, 1))
    if len(before) == len(here) == len(after):  # else a ring becomes a tree
        assert (np.array(here) <= 1.05 * np.maximum(before, after)).all()


@pytest.mark.parametrize(
    ("racks", "mib", "measured_s"),
    [(2, 512, 0.0021568), (2, 4096, 0.011469), (20, 512, 0.0071084), (20, 4096, 0.024782)],
)
def test_all_reduces_over_racks_are_near_those_measured(racks, mib, measured_s):
    """Of 144 and 1,440 GB200 (``nccl_racks.csv``); with 16 channels those of 512 MiB were -22 %."""
    time_ps = nccl_ps(Call("all-reduce", gpus(f"gb200-nvl72:{racks}"), mib * 2**20))
    assert time_ps / 1e12 == pytest.approx(measured_s, rel=0.1)


def tree_filling_s(machine, size):
    """Time that filling a tree over all servers of a machine takes [s]."""
    call = Call("all-reduce", gpus(machine), size)
    costs = constants(call.group.cluster)
    at_once = replace(costs, fabric={**costs.fabric, "slice": 0.0})
    return float(seconds(load_of(call), costs)) - float(seconds(load_of(call), at_once))


@pytest.mark.parametrize(
    ("machine", "whole_mib"), [("dgx-h100:8", 16), ("dgx-h100:2", 32), ("dgx-a100:2", 16)]
)
def test_filling_a_tree_grows_until_its_chunks_are_whole(machine, whole_mib):
    """NCCL halves chunks from four servers on where switches reduce, which those of A100 do not."""
    filled = tree_filling_s(machine, whole_mib * 2**20)
    assert tree_filling_s(machine, whole_mib * 2**18) == pytest.approx(filled / 2, rel=0.2)
    assert tree_filling_s(machine, whole_mib * 2**28) == pytest.approx(filled, rel=0.2)


FILE = """chip: h100
scale_up: {{shape: switch, size: 8, bandwidth: {port}, latency: {link}}}
domains: {domains}
scale_out: {{like: infiniband-ndr, latency: {step}, oversubscription: {over}}}
"""
AS_SOLD = {"port": "450GB/s", "link": "0.25us", "domains": 1, "step": "5us", "over": 1}


def file_cluster(folder, **changes):
    """A cluster file of H100, which differs from DGX H100 in the changes only."""
    (path := folder / "own.yaml").write_text(FILE.format(**{**AS_SOLD, **changes}))
    return cluster(str(path))


def mesh(path, latency="0.5us", chip="mi300x", domains=1):
    """A cluster file of meshes of eight chips, by default those of the MI300X platform."""
    file = path / f"mesh-{latency}-{chip}.yaml"
    file.write_text(
        f"chip: {chip}\nscale_up: {{shape: mesh, size: 8, bandwidth: 64GB/s, latency: {latency}}}\n"
        f"domains: {domains}\n"
        "scale_out: {like: infiniband-ndr, name: infiniband-ndr, bandwidth_per_chip: 200GB/s}\n"
    )
    return cluster(str(file))


def test_a_file_with_the_numbers_of_a_machine_takes_as_long(tmp_path):
    pairs = [(file_cluster(tmp_path, domains=n), cluster(f"dgx-h100:{n}")) for n in (1, 2)]
    for pair in (*pairs, (mesh(tmp_path), cluster("mi300x-platform"))):
        for kind in ("all-reduce", "all-to-all"):
            for size in (1024, 2**26):
                times = {nccl_ps(Call(kind, whole(each), size)) for each in pair}
                assert len(times) == 1, (pair[1].name, kind, size)


def test_a_file_says_how_fast_ports_links_and_fabric_are(tmp_path):
    """A ring of 8 takes 14 steps, each of which crosses two links; two servers add far steps."""

    def time_ps(size, **changes):
        return nccl_ps(Call("all-gather", whole(file_cluster(tmp_path, **changes)), size))

    assert time_ps(2**30, port="90GB/s") > 4 * time_ps(2**30)
    assert time_ps(1024, link="1.25us") - time_ps(1024) == pytest.approx(7 * 2 * 10**6, abs=2)
    later = time_ps(1024, domains=2, step="105us") - time_ps(1024, domains=2)
    assert later >= 100 * 10**6
    meshes = (whole(mesh(tmp_path, latency)) for latency in ("0.5us", "1us"))
    soon, late = (nccl_ps(Call("all-gather", each, 4096)) for each in meshes)
    assert late - soon == pytest.approx(7 * 500_000, abs=2)  # a hop of a mesh is one link


@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "all-to-all"])
def test_thin_uplinks_add_to_what_was_measured_what_they_add_to_messages(tmp_path, kind):
    """Racks of 128 servers at 1:1; nothing leaves the first, and 256 servers are two at least."""
    for servers, size in ((4, 2**16), (4, 2**26), (160, 2**26), (160, 2**30)):
        groups = [whole(file_cluster(tmp_path, domains=servers, over=over)) for over in (1, 2, 4)]
        calls = [Call(kind, group, size) for group in groups]
        free, *thin = times = [duration_ps(call) for call in calls]
        assert free == nccl_ps(calls[0])
        assert times == sorted(times)
        crossed = kind == "all-to-all" and servers == 160
        assert (thin[-1] > free) == crossed
        for call, time_ps in zip(calls, times, strict=True):
            row, trace = measure(call)
            assert (row["algorithm"], trace.total_ps) == ("nccl", time_ps)
    slow = parse_fault("link:0@0s:slow=1/2")  # messages alone would be faster than a healthy NCCL
    refused("NCCL", measure, calls[0], faults=[slow])
    refused("NCCL", measure, calls[-1], faults=[slow])


def test_other_shapes_are_run_on_their_links_and_racks_may_block(tmp_path):
    assert covers(file_cluster(tmp_path, domains=2))
    assert covers(file_cluster(tmp_path, domains=1, over=2))  # a fabric that nothing crosses
    assert not covers(file_cluster(tmp_path, domains=2, over=2))
    path = tmp_path / "torus.yaml"
    path.write_text(
        "chip: h100\nscale_up:\n  shape: torus\n  axes:\n"
        "    - {name: x, size: 8, bandwidth: 9GB/s, latency: 1us}\n"
    )
    plain = cluster("switch:8", bandwidth="100GB/s", latency="1us")
    assert not any(map(covers, (cluster(str(path)), plain, cluster("trn2.48xlarge"))))


def test_a_group_of_a_mesh_has_the_links_to_its_own_members():
    """Each of 8 chips has seven links, of which a group of four uses three and a pair one."""
    server = cluster("mi300x-platform")
    port = constants(server).port
    for op in ("all-gather", "all-to-all", "permute"):
        for ranks in (2, 4, 8):
            sent = load_of(Call(op, Group(server, np.arange(ranks)), 840)).inside / port
            each_s = 840 / (1 if op == "permute" else ranks) / (port / 7)
            assert sent == pytest.approx(each_s), (op, ranks)


def test_no_switch_of_a_mesh_reduces(tmp_path):
    server = mesh(tmp_path, "0.25us", "h100")
    call = Call("all-reduce", whole(server), 2**34)
    assert 1.75 * 2**34 / (nccl_ps(call) / 1e12) < 7 * 64e9
    assert not reduces_in_switch(server)
    assert bound_with_switch(call) == max(bounds(call), key=lambda bound: bound.time_ps)


def test_exchanges_of_a_mesh_keep_to_the_link_of_each_pair(tmp_path):
    """What goes to other domains takes no link of the mesh; what goes to one chip takes one."""
    eight, two = mesh(tmp_path), mesh(tmp_path, domains=2)
    size, link = 2**28, 64e9
    moved = np.zeros((8, 8), np.int64)
    moved[np.arange(8), np.arange(1, 9) % 8] = size
    for load in (
        uneven_load(whole(eight), moved),
        load_of(Call("permute", whole(eight), size)),
        load_of(Call("permute", whole(two), size)),
    ):
        assert load.inside / (7 * link) == pytest.approx(size / link)
    for ranks in (2, 8):  # equal parts of all ranks
        chips = [domain * 8 + chip for domain in range(2) for chip in range(ranks // 2)]
        load = load_of(Call("all-to-all", Group(two, chips), size))
        assert load.inside / (7 * link) == pytest.approx((ranks > 2) * size / ranks / link)
        even = uneven_load(Group(two, chips), np.full((ranks, ranks), size // ranks))
        assert (even.inside, even.outside) == pytest.approx((load.inside, load.outside))


def test_a_domain_s_adapters_bound_what_its_switches_reduce():
    """A server's buffer of 256 MiB leaves over 8 adapters of 50 GB/s, whoever reduces it."""
    groups = (gpus(name) for name in ("p5.48xlarge", "p5.48xlarge:4"))
    inside, across = (bound_with_switch(Call("all-reduce", group, 2**28)) for group in groups)
    assert (inside.what, across.what) == ("injection, reduced in the switch", AROUND)
    assert 2**28 / 400e9 < across.time_ps / 1e12 < 2**28 / 400e9 + 20e-6


@pytest.mark.parametrize("name", ["p5.48xlarge", "dgx-a100:4"])
@pytest.mark.parametrize("size", [2**16, 2**26])
def test_equal_parts_are_the_all_to_all(name, size):
    group = gpus(name)
    row, trace = measure_v(group, skewed(group.ranks, size, 0.0))
    assert trace.total_ps == duration_ps(Call("all-to-all", group, size))
    assert (row["collective"], row["algorithm"]) == ("all-to-all-v", "nccl")


def test_the_busiest_port_is_that_of_the_rank_that_most_is_sent_to():
    group = gpus("dgx-h100:2")
    sent = np.zeros((16, 16), np.int64)
    sent[:, 3] = 100
    load = uneven_load(group, sent)
    assert (load.inside, load.outside, load.shard, load.size) == (1500, 800, 100, 1600)
    even = load_of(Call("all-to-all", group, 100))
    assert (load.steps, load.far_steps, load.messages) == (even.steps, 1, 8)
    assert uneven_ps(group, sent) == uneven_ps(group, sent.T.copy())


@pytest.mark.parametrize("op", ["all-reduce", "all-to-all"])
@pytest.mark.parametrize("engine", ["fast", "reference"])
@pytest.mark.parametrize("machine", ["dgx-h100", "p5.48xlarge:2"])
def test_auto_on_nvidia_takes_the_time_that_training_is_charged(op, engine, machine):
    call = Call(op, gpus(machine), 2**26)
    row, trace = measure(call, engine=engine)
    assert trace.total_ps == duration_ps(call) == nccl_ps(call) != duration_ps(call, ideal=True)
    assert (row["algorithm"], row["semantics"]) == ("nccl", "not-checked")
    assert row["ops"] == call.ranks + 2
    assert 0 < row["lower_bound_s"] <= row["time_s"]
    assert not violations(trace)


def test_reduction_in_the_switch_halves_what_a_rank_must_send():
    group = gpus("dgx-h100")
    ring, _ = measure(Call("all-reduce", group, 2**30), "ring")
    nccl, _ = measure(Call("all-reduce", group, 2**30))
    assert (ring["algorithm"], ring["semantics"]) == ("ring", "proven")
    assert nccl["lower_bound_s"] == pytest.approx(ring["lower_bound_s"] / 2)
    assert nccl["lower_bound_s"] < nccl["time_s"] < ring["lower_bound_s"] * 1.05
    calls = [Call("all-reduce", group, size) for size in (2**24, 2**33)]
    small, large = (1.75 * call.size_bytes / nccl_ps(call) * 1e12 for call in calls)
    assert small < 300e9
    assert 440e9 < large < 500e9


def test_a_small_group_keeps_part_of_its_adapters_beside_others():
    """One or two chips of each server leave adapters to other groups; half of a server does not."""
    servers, size = cluster("dgx-h100:4"), 2**32

    def rate(each):
        chips = (np.arange(4)[:, None] * 8 + np.arange(each)).ravel()
        over_adapters = size * (len(chips) - 1) / len(chips) / each
        time_ps = duration_ps(Call("all-gather", Group(servers, chips), size))
        return over_adapters / (time_ps / PS_PER_S)

    kept = shipped_catalogue().value("nccl-beside", "efficiency")
    assert 0.9 * kept * 50e9 < rate(1) < kept * 50e9
    assert 0.9 * kept * 50e9 < rate(2) < kept * 50e9
    assert rate(4) > 0.85 * 50e9


SENT = 2.0**26


def exchange_s(library, servers, way="dispatch", experts=8):
    group = Group(cluster(f"dgx-h100:{servers}"), np.arange(8 * servers), 1)
    return library_s(shipped_catalogue(), library, way, group, SENT, experts)


def row(**changes):
    usual = {
        "collective": "all-to-all", "cluster": "dgx-h100", "chips": 16, "ranks": 16,
        "size_bytes": 2**26, "algorithm": "", "source": "mine",
    }  # fmt: skip
    return {**usual, **changes}


def constant(library, name, way="dispatch"):
    return shipped_catalogue().value(f"experts.{library}.h100.{way}", name)


def test_a_token_crosses_the_network_once_for_each_server_or_each_expert():
    for library, places, crossing in (
        ("deepep", visited(32, 8), visited(4, 8)),
        ("deepep-low-latency", 8.0, 8.0),
    ):
        moved = places * SENT / constant(library, "copy_rate")
        away = crossing * 0.75 * SENT / constant(library, "network_rate")
        begun = constant(library, "launch") + constant(library, "network_start")
        assert exchange_s(library, 4) == pytest.approx(begun + hypot(moved, away))
        for way in ("dispatch", "combine"):  # within a server, at the kernels' rate
            copies = visited(8, 8) if library == "deepep" else 8
            inside = copies * SENT / constant(library, "copy_rate", way)
            alone = constant(library, "launch", way) + inside
            assert exchange_s(library, 1, way) == pytest.approx(alone)
    assert exchange_s("deepep", 4, experts=2) < exchange_s("deepep", 4) < exchange_s("deepep", 8)


def test_rows_are_known_by_their_library_or_tool():
    named = predict(row(library="deepep", way="combine", experts_per_token=8))
    assert named.predicted == predict(row(tool="deepep", what="normal combine")).predicted
    nothing = predict(row(library="deepep"))
    both = [predict(row(library="deepep", way=way)) for way in ("dispatch", "combine")]
    mean = sum(one.predicted["time_s"] for one in both) / 2
    assert nothing.predicted["time_s"] == pytest.approx(mean)
    assert nothing.provenance["exchange"].startswith("assumed")


def test_other_operations_and_chips_are_told():
    refused("Use collective all-to-all", predict, row(library="deepep", collective="all-gather"))
    assert not known(shipped_catalogue(), "deepep", "a100-80gb")
    assert "were not measured" in predict(row(library="deepep", cluster="dgx-a100")).why
