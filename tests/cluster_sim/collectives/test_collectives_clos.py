"""Collectives over a Clos: incast, oversubscribed racks, flows, buildings and sites."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from cluster_sim.collectives import (
    CollectiveCall,
    Group,
    compose,
    duration_ps,
    lower_bound,
    results,
    whole,
)
from cluster_sim.collectives import CollectiveCall as Call
from cluster_sim.collectives.duration.duration import exchange, flows_over
from cluster_sim.collectives.few_ranks import far_stages_ps, with_latency_of_stages
from cluster_sim.hardware.communication_costs import communication_costs
from cluster_sim.trace.trace import run
from tests.support.conservation import violations
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import cluster
from topologies.routing import scale_out_paths
from topologies.shapes.basic import Switch
from topologies.shapes.scale_out import Place, ScaleOut

MB = 10**6


def exchange_ps(call: Call) -> int:
    """Time of the part of an all-to-all that goes between domains [ps]."""
    return run(exchange(call)).total_ps


def racks(oversubscription, radix=128, servers=16):
    machine = cluster(f"trn2.48xlarge:{servers}")
    scale_out = replace(machine.scale_out, oversubscription=Fraction(oversubscription), radix=radix)
    return replace(machine, scale_out=scale_out)


def traffic(machine, src, dst, size):
    """Schedule messages between chips of different domains, each as a flow and its arrival."""
    return flows_over(machine, scale_out_paths(machine, src, dst), size)


def seconds(machine, src, dst, size):
    return run(traffic(machine, src, dst, size)).total_s


@pytest.mark.parametrize("senders", [2, 8])
def test_incast_shares_the_adapter_of_the_receiver(senders):
    machine = racks(1)
    one = seconds(machine, [16], [0], 1000 * MB)
    many = seconds(machine, 16 * np.arange(1, senders + 1), np.zeros(senders, int), 1000 * MB)
    assert many == pytest.approx(senders * one, rel=1e-3)


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_oversubscribed_racks_cost_what_they_lack(ratio):
    machine = racks(ratio, radix=16)
    chips = 16  # below one switch of 16 ports
    src = np.arange(chips)
    out = seconds(machine, src, src + 128, 1000 * MB)
    usable = communication_costs(machine).scale_out_bytes_per_s
    nominal = machine.scale_out.bandwidth_bytes_per_s / ratio
    assert out == pytest.approx(10**9 / min(usable, nominal), rel=2e-3)


@pytest.mark.parametrize("ratio", [1, 2])
@pytest.mark.parametrize("servers", [4, 8])
def test_flows_of_racks_counted_together_equal_all_messages(ratio, servers):
    machine = racks(ratio, radix=16, servers=servers)
    domain = np.arange(machine.chips) // 16
    src, dst = np.nonzero(domain[:, None] != domain)
    together = exchange_ps(Call("all-to-all", whole(machine), machine.chips * MB))
    assert together == pytest.approx(run(traffic(machine, src, dst, MB)).total_ps, rel=1e-4)


@pytest.mark.parametrize("machine", ["trn3-gen2:4", "trn4-ultraserver:5"])
def test_a_domain_below_several_switches_exchanges_inside_itself(machine):
    """144 chips of Trn3 are below three switches of 64: all-to-all of 512 ranks was a fault."""
    group = Group(cluster(machine), np.arange(0, cluster(machine).chips, 4))
    one, other = np.nonzero(group.domain[:, None] != group.domain)
    together = exchange_ps(Call("all-to-all", group, group.ranks * MB))
    each = run(traffic(group.cluster, group.chips[one], group.chips[other], MB))
    # Unlike parts of racks count as one flow each, so that the larger ones end later.
    assert 0.999 * each.total_ps <= together <= 1.06 * each.total_ps


def test_a_large_all_to_all_between_domains_is_run_as_flows():
    machine = racks(2, servers=64)
    across = exchange_ps(Call("all-to-all", whole(machine), 2**30))
    start = 900_000 + 2_800_000 + 1_200_000
    assert duration_ps(Call("all-to-all", whole(machine), 2**30)) == across + start


def test_a_large_all_to_all_is_measured_by_the_flows_of_racks(monkeypatch):
    """All messages of 8,192 ranks took minutes and 9 GB."""
    call = Call("all-to-all", whole(cluster("trn2.48xlarge:33")), 2**26)
    written_out, _ = results.measure(call, watched=False)
    monkeypatch.setattr(results, "FOLDED_FROM", 100_000)
    flows, trace = results.measure(call, watched=False)
    assert trace.total_ps == duration_ps(call)
    assert flows["time_s"] == pytest.approx(written_out["time_s"], rel=0.03)
    assert (flows["ops"], flows["algorithm"]) == (call.ranks + 2, "direct")
    assert results.measure(call)[0]["ops"] == written_out["ops"]


@pytest.mark.parametrize("machine", ["trn2.48xlarge:32", "trn3-gen1:8"])
def test_the_last_message_of_a_short_all_to_all_has_its_way_to_go(machine):
    """512 ranks took 30 us by flows, where all messages take 45 and 448 ranks took 41."""
    call = Call("all-to-all", whole(cluster(machine)), 2**16)
    written_out = run(compose(call).schedule).total_ps
    assert duration_ps(call) == pytest.approx(written_out, rel=0.03)


def test_chunks_between_oversubscribed_racks_wait_for_their_uplinks():
    ratio, size = 4, 2**28
    machine = racks(ratio, radix=16, servers=8)
    uplink = 16 * machine.scale_out.bandwidth_bytes_per_s / ratio
    between = 2 * (7 / 8) * size / uplink  # each server's shards, round a ring of eight, both ways
    schedule = compose(Call("all-reduce", whole(machine), size), "hierarchical").schedule
    trace = run(schedule)
    assert between < trace.total_s < 1.1 * between + 0.4e-3
    assert not violations(trace)
    out = size * (112 / 128) * 16 / uplink
    exchanged = duration_ps(Call("all-to-all", whole(machine), size // 4)) / 1e12
    assert exchanged == pytest.approx(out / 4, rel=0.05)
    assert lower_bound(Call("all-to-all", whole(machine), size)).what == "cut around a ToR"


@pytest.mark.parametrize(("ratio", "radix"), [(4, 16), (4, 40)])
@pytest.mark.parametrize("op", ["all-gather", "all-reduce"])
def test_folded_domains_feel_thin_racks_as_all_of_them_do(ratio, radix, op):
    group = whole(racks(ratio, radix=radix, servers=16))
    unfolded = run(compose(Call(op, group, 2**27), "hierarchical").schedule).total_ps
    assert duration_ps(Call(op, group, 2**27), "hierarchical") == pytest.approx(unfolded, rel=0.03)


@pytest.mark.parametrize(("servers", "cores"), [(2, 1), (2, 4), (3, 1)])
def test_no_two_chips_send_to_one_at_the_same_time(servers, cores):
    group = whole(cluster(f"trn2.48xlarge:{servers}"), cores)
    size, other = 2**24, (servers - 1) / servers
    wire_s = size * cores * other / (0.8 * 25e9)  # efficiency of efa-v3
    assert wire_s < duration_ps(Call("all-to-all", group, size), "direct") / 1e12 < 1.08 * wire_s


GB = 10**9
RATE, LATENCY_PS, AWAY_PS = 10 * GB, 1_000_000, 50_000_000
BUILDING = 4  # domains of one chip


def two_buildings(ratio: int) -> Cluster:
    """Eight domains of one chip, four of them in a building under one switch."""
    places = (Place(BUILDING, Fraction(ratio)),)
    fabric = ScaleOut("own", RATE, LATENCY_PS, 4, RATE, climb_ps=(0, AWAY_PS), places=places)
    return Cluster("own", Switch(1, RATE, 0), "", 8, fabric, plain=True)


@pytest.mark.parametrize("ratio", [1, 2, 7])
def test_the_far_stage_takes_longer_by_what_leaves_a_building(ratio):
    """The third of three halvings has an eighth of the bytes, there and back."""
    where = two_buildings(ratio)
    even = with_latency_of_stages(Group(where, range(8)), np.arange(8), [2, 2, 2])
    assert even.scale_out.latency_ps == -(-(3 * LATENCY_PS + AWAY_PS) // 3)  # one stage of three
    call = CollectiveCall("all-reduce", Group(where, range(8)), 8 * GB)
    costs = communication_costs(where)
    longer_ps = far_stages_ps(call, costs, np.arange(8)[:, None], [2, 2, 2])
    expected_s = 2 * GB * (ratio / RATE - 1 / RATE)
    assert longer_ps == pytest.approx(expected_s * 1e12, rel=1e-9)
