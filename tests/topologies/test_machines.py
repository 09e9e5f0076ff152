"""Every form of a cluster's name, and the sizes of the named machines."""

import pytest

from tests.support.refusals import refusal_by, refused
from tests.support.small_shapes import GB
from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import cluster, machine
from topologies.routing import routes
from topologies.shapes.basic import Switch, Tiered
from topologies.shapes.scale_out import layers


@pytest.mark.parametrize("name", machines(shipped_catalogue()))
def test_named_machines_are_those_of_the_catalogue(name):
    numbers, machine, fabric = shipped_catalogue(), cluster(name), cluster(name).scale_out
    assert (machine.chip, machine.domains, machine.plain) == (numbers.name(name, "chip"), 1, False)
    counted = (numbers.integer(name, "chips"), numbers.integer(name, "servers"))
    assert (machine.chips, machine.servers) == counted
    assert (fabric is not None) == numbers.has(name, "fabric")
    if fabric is not None:
        rate = numbers.integer(name, "nic_bandwidth") // machine.chips
        adapters = numbers.integer(name, "nics") // machine.servers
        assert (fabric.bandwidth_bytes_per_s, fabric.adapters_per_server) == (rate, adapters)


def test_counts_and_other_names():
    assert cluster("trn2-ultraserver:16").chips == 1024
    for name, domains in (("rainier", 7812), ("rainier:1000000", 15_625)):
        assert (cluster(name).domains, cluster(name).chips) == (domains, domains * 64)
    assert cluster("rainier:64").shape == cluster("trn2-ultraserver").shape
    for alias, usual in (("NL32x2", "trn3-gen1"), ("NL72x2:2", "trn3-gen2:2")):
        assert cluster(alias) == cluster(usual)
    plain = cluster("torus:4x4", bandwidth="100GB/s", latency="1us")
    assert (plain.chip, plain.plain, plain.domains, plain.servers) == ("", True, 1, 1)
    assert plain.scale_out is None
    assert machine("trn2-ultraserver:2") == cluster("trn2-ultraserver:2")


def test_links_of_machines():
    shape = cluster("trn2-ultraserver").shape
    rates = [(axis.name, axis.size, axis.bandwidth_bytes_per_s // GB) for axis in shape.axes]
    assert rates == [("Z", 4, 64), ("Y", 4, 128), ("X", 4, 128)]
    assert {axis.latency_ps for axis in shape.axes} == {300_000}
    assert cluster("dgx-h100").shape == Switch(8, 450 * GB, 250_000, 18)
    assert cluster("gb200-nvl72").shape == Switch(72, 900 * GB, 250_000, 18)


@pytest.mark.parametrize(
    ("name", "sizes", "switches"), [("trn3-gen1", (2, 16, 2), 32), ("trn3-gen2", (2, 18, 4), 368)]
)
def test_the_tiers_of_trn3_agree_with_the_catalogue(name, sizes, switches):
    shape, catalogue = cluster(name).shape, shipped_catalogue()
    assert (type(shape), shape.sizes, shape.switches) == (Tiered, sizes, switches)
    racks = catalogue.integer(name, "racks")
    assert shape.planes[1] == racks * catalogue.integer(name, "planes")
    assert sum(tier.bandwidth_bytes_per_s for tier in shape.tiers) == 1152 * GB
    if catalogue.has(name, "switches_per_rack"):
        assert shape.switches == racks * catalogue.integer(name, "switches_per_rack")


def test_rainier_in_one_building_and_in_several():
    """A building holds 18 leaf groups of 64 UltraServers; one more lies in another building."""
    whole, more, every = map(cluster, ("rainier:73728", "rainier:73792", "rainier"))
    for each, us in ((whole, (0, 1, 2)), (more, (0, 1, 2, 7.5)), (every, (0, 1, 2, 7.5))):
        joined = layers(each.scale_out, each.chips, each.chips_per_server)
        assert each.scale_out.climb_ps[: len(joined)] == tuple(int(1e6 * added) for added in us)
    assert whole.scale_out == cluster("trn2-ultraserver:1152").scale_out


def test_what_leaves_a_building_or_a_site_has_the_stated_rate():
    changes = ["rainier.building_oversubscription=seven-to-one", "rainier.sites=three-campuses"]
    there = cluster("rainier", catalogue=choose(changes))
    fabric = there.scale_out
    joined = layers(fabric, there.chips, there.chips_per_server)
    assert [each.name for each in joined] == ["ToR", "leaf", "spine", "campus", "region"]
    assert [each.groups for each in joined] == [7812, 123, 7, 3, 1]
    rate = fabric.bandwidth_bytes_per_s
    ratios = [each.chips * rate / each.up_bytes_per_s for each in joined[:-1]]
    assert ratios == pytest.approx([1, 1, 7, 8])
    assert fabric.climb_ps[-2:] == (7_500_000, 500_000_000)


def test_a_variant_of_the_catalogue_is_honoured():
    tiers = [f"trn3.{name}_bandwidth=vendor-tiers" for name in ("board", "backplane")]
    numbers = choose([*tiers, "efa-v3.oversubscription=two-to-one"])
    shape = cluster("trn3-gen2", catalogue=numbers).shape
    assert [tier.bandwidth_bytes_per_s // GB for tier in shape.tiers] == [128, 320, 256]
    assert cluster("trn2.48xlarge", catalogue=numbers).scale_out.oversubscription == 2
    tiered = cluster("trn3-gen2", variant=tiers)
    assert tiered.shape.tiers == shape.tiers
    halved = cluster("trn3-gen2", catalogue=numbers, variant="trn3.board_bandwidth=x0.5")
    pairs = zip(halved.shape.tiers, shape.tiers, strict=True)
    ratios = [one.bandwidth_bytes_per_s / other.bandwidth_bytes_per_s for one, other in pairs]
    assert sorted(ratios) == [0.5, 1, 1]
    refused("variant is 2", cluster, "trn3-gen2", variant=2)
    assert hash(cluster("rainier")) == hash(cluster("rainier"))
    assert cluster("trn2.48xlarge", catalogue=numbers) != cluster("trn2.48xlarge")


@pytest.mark.parametrize(("text", "message"), [
    ("trn2.48xlarge/100GB/s", "--bandwidth and --latency are for plain shapes"),
    ("rong:4/100GB/s", "unknown cluster 'rong:4'"),
    ("trn2.48xlrge", "unknown cluster 'trn2.48xlrge'. Did you mean trn2.48xlarge?"),
    ("", "unknown cluster ''. There are trn1.2xlarge"),
    ("H100:8", "H100 is a chip, of p5.48xlarge, dgx-h100. Write p5.48xlarge, or"),
    ("p5e.48xlarge:2", "the nearest machine here is p5en.48xlarge, of the same chips; its net"),
    ("trn2-ultraserver:", "the count must be a whole number of 1 to 16,777,216, as"),
    ("trn2-ultraserver:0", "trn2-ultraserver:0: a count of 0 is not between 1 and 16,777,216"),
    ("trn2-ultraserver:1000000", "1000000x64 has 64,000,000 chips; at most 16,777,216"),
    ("rainier:100", "100 chips are not whole UltraServers of 64; use rainier:128"),
    ("rainier:99999999", "has 99,999,999 chips; at most 16,777,216"),
    ("ring:8", "ring:8 needs the bandwidth and latency of a directed link"),
    ("nowhere.yaml", "nowhere.yaml cannot be read: there is no such file"),
    ("setup.cfg", "setup.cfg is a file, but clusters are read from YAML and from graphs"),
    ("x" * 10_000, "unknown cluster 'xxxx"),
])  # fmt: skip
def test_bad_names_are_refused_in_one_line(text, message):
    name, _, bandwidth = text.partition("/")
    refusal = refusal_by(cluster, name, bandwidth=bandwidth or None)
    assert message in refusal
    assert len(refusal) < 650
    refused("ring:8 is a plain shape without chips, so nothing can", machine, "ring:8")


def test_a_rack_of_the_ualink_generation_is_one_switch_away():
    shape = cluster("NL72x2-UALink").shape
    assert [tier.size for tier in shape.tiers] == [2, 72, 1]
    assert routes(shape, [0], [71]).hops.tolist() == [2]
    assert shape.tiers[1].bandwidth_bytes_per_s == 1024 * 10**9


@pytest.mark.parametrize(("name", "changed", "message"), [
    ("trn2-ultraserver", "rows=x2", "64 chips and 4 servers, and its torus has 128 chips"),
    ("trn3-gen1", "board_chips=x1.5", "64 chips and 4 servers, and its tiered has 60 chips"),
    ("trn4-ultraserver", "servers=x0.888889", "72 chips and 16 servers, and its switch has 72"),
])  # fmt: skip
def test_sizes_of_a_machine_that_do_not_make_its_chips_are_refused(name, changed, message):
    refused(f"{name} has rows of {message}", cluster, name, variant=f"{name}.{changed}")
    halves = cluster("trn4-ultraserver", variant="trn4-ultraserver.servers=x2")
    assert (halves.servers, halves.chips_per_server) == (36, 2)
