"""The catalogue: totals are the sums of their parts, figures are dense, sources agree."""

from math import prod

import pytest

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue

GB, GiB = 10**9, 2**30

TRAINIUM = ("trn1", "inf2", "trn2", "trn3")
GPUS = ("a100-40gb", "a100-80gb", "h100", "h200", "b200", "gb200")

MACHINES = [
    ("trn1.2xlarge", "trn1", None),
    ("trn1.32xlarge", "trn1", "efa-v2"),
    ("trn1n.32xlarge", "trn1", "efa-v2"),
    ("inf2.48xlarge", "inf2", None),
    ("trn2.3xlarge", "trn2", None),
    ("trn2.48xlarge", "trn2", "efa-v3"),
    ("trn2-ultraserver", "trn2", "efa-v3"),
    ("trn3-gen1", "trn3", None),
    ("trn3-gen2", "trn3", None),
    ("tpu-v4-pod", "tpu-v4", None),
    ("p4de.24xlarge", "a100-80gb", "efa-v1"),
    ("p5.48xlarge", "h100", "efa-v2"),
    ("p5en.48xlarge", "h200", "efa-v3"),
    ("p6-b200.48xlarge", "b200", "efa-v4"),
    ("dgx-a100", "a100-80gb", "infiniband-hdr"),
    ("dgx-a100-40gb", "a100-40gb", "infiniband-hdr"),
    ("dgx-h100", "h100", "infiniband-ndr"),
    ("dgx-h200", "h200", "infiniband-ndr"),
    ("dgx-b200", "b200", "infiniband-ndr"),
    ("gb200-nvl72", "gb200", "infiniband-ndr"),
]
"""Machine, chip, and fabric whose adapters it is stated to have."""
FABRICS = sorted({fabric for *_, fabric in MACHINES if fabric})


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return shipped_catalogue()


@pytest.mark.parametrize("chip", TRAINIUM + GPUS)
def test_a_chip_has_what_a_simulator_asks_for(shipped: Catalogue, chip: str) -> None:
    for quantity in (
        *("bf16_peak", "bf16_matmul", "fp32_peak", "fp32_matmul", "vector_peak"),
        *("hbm_bytes", "hbm_bandwidth", "scale_up_bandwidth", "scale_up_headline"),
        *("link_latency", "collective_step", "collective_efficiency", "tdp", "idle_power_share"),
    ):
        assert shipped.value(chip, quantity) > 0
    assert shipped.value(chip, "bf16_matmul") <= shipped.value(chip, "bf16_peak")


@pytest.mark.parametrize("chip", TRAINIUM)
def test_a_trainium_chip_is_the_sum_of_its_cores_and_engines(shipped: Catalogue, chip: str) -> None:
    cores = shipped.integer(chip, "cores")
    for precision in ("bf16", "fp8", "fp32"):
        core = shipped.integer(chip, f"core_{precision}_matmul")
        assert shipped.integer(chip, f"{precision}_matmul") == cores * core
    for memory in ("sbuf", "psum"):
        core = shipped.integer(chip, f"core_{memory}_bytes")
        assert shipped.integer(chip, f"{memory}_bytes") == cores * core
    assert shipped.integer(chip, "dma_engines") == 16 * cores
    engines, rate = (shipped.integer(chip, f"dma_engine{end}") for end in ("s", "_bandwidth"))
    assert shipped.integer(chip, "dma_bandwidth") == engines * rate
    lnc = shipped.integer(chip, "lnc_default")
    assert shipped.integer(chip, "ranks_per_chip") == cores // lnc
    array = shipped.integer(chip, "array_rows") * shipped.integer(chip, "array_columns")
    engine = 2 * array * shipped.integer(chip, "tensor_clock")
    assert engine == pytest.approx(shipped.value(chip, "core_bf16_matmul"), rel=0.01)


def test_the_headline_is_not_the_matmul_roofline(shipped: Catalogue) -> None:
    assert 8 * 79 == 632 == shipped.value("trn2", "bf16_matmul") / 1e12
    assert 8 * 158 == 1264 == shipped.value("trn2", "fp8_matmul") / 1e12
    assert 128 * 23 == 2944 == shipped.value("trn2", "dma_bandwidth") / 1e9
    for chip in TRAINIUM:
        rest = shipped.value(chip, "bf16_peak") - shipped.value(chip, "bf16_matmul")
        assert rest <= shipped.value(chip, "vector_peak")


def test_trn2_links_add_up_both_ways(shipped: Catalogue) -> None:
    links, z_links = shipped.integer("trn2", "links"), shipped.integer("trn2", "z_links")
    xy, z = shipped.integer("trn2", "link_bandwidth"), shipped.integer("trn2", "z_link_bandwidth")
    assert 2 * (links * xy + z_links * z) == 1280 * GB
    assert shipped.integer("trn2", "scale_up_headline") == 1280 * GB
    assert shipped.integer("trn2", "scale_up_bandwidth") == links * xy + z_links * z
    assert shipped.integer("trn2-ultraserver", "scale_up_bandwidth") == 640 * GB
    assert shipped.integer("trn2.48xlarge", "scale_up_bandwidth") == links * xy == 512 * GB
    assert shipped.integer("trn2.48xlarge", "scale_up_headline") == 1024 * GB
    lane = shipped.integer("trn2", "lane_bandwidth")
    assert xy == lane * shipped.integer("trn2", "link_lanes")
    assert z == lane * shipped.integer("trn2", "z_link_lanes")


@pytest.mark.parametrize("chip", ["trn1", "inf2", *GPUS])
def test_links_add_up_both_ways(shipped: Catalogue, chip: str) -> None:
    one_way = shipped.integer(chip, "links") * shipped.integer(chip, "link_bandwidth")
    assert shipped.integer(chip, "scale_up_bandwidth") == one_way
    assert shipped.integer(chip, "scale_up_headline") == 2 * one_way


def test_inf2_runs_the_kernels_of_trn1(shipped: Catalogue) -> None:
    constants = shipped.quantities("kernels.trainium")
    names = [name.removesuffix("_trn1") for name in constants if name.endswith("_trn1")]
    assert names
    for name in names:
        as_trn1 = shipped.value("kernels.trainium", f"{name}_trn1")
        assert shipped.value("kernels.trainium", f"{name}_inf2") == as_trn1, name
    for name in shipped.quantities("serving.trn1"):
        assert shipped.value("serving.inf2", name) == shipped.value("serving.trn1", name), name


@pytest.mark.parametrize(("variant", "total"), [("", 1152), ("vendor-tiers", 704)])
def test_trn3_tiers_add_up(shipped: Catalogue, variant: str, total: int) -> None:
    contested = ("board_bandwidth", "backplane_bandwidth", "scale_up_bandwidth")
    chosen = shipped.with_variants({f"trn3.{quantity}": variant for quantity in contested})
    tiers = ("board_bandwidth", "backplane_bandwidth", "cross_rack_bandwidth")
    assert sum(chosen.integer("trn3", tier) for tier in tiers) == total * GB
    assert chosen.integer("trn3", "scale_up_bandwidth") == total * GB


def test_trn3_lanes_make_its_tiers(shipped: Catalogue) -> None:
    lane, lanes = shipped.integer("trn3", "lane_bandwidth"), 0
    for tier, rate in [("board", 512), ("backplane", 512), ("cross_rack", 128)]:
        lanes += shipped.integer("trn3", f"{tier}_lanes")
        assert shipped.integer("trn3", f"{tier}_lanes") * lane == rate * GB
    assert lanes == 144
    assert shipped.integer("trn3", "scale_up_headline") == 2 * lanes * lane == 2304 * GB
    built = shipped.with_variants({"trn3.backplane_lanes": "built"})
    spare = built.integer("trn3", "backplane_lanes") - shipped.integer("trn3", "backplane_lanes")
    headline = built.with_variants({"trn3.scale_up_headline": "vendor-chip"})
    assert 2 * (lanes + spare) * lane == headline.integer("trn3", "scale_up_headline")
    rack = {
        name: shipped.integer("trn3-gen2", name)
        for name in ("servers", "racks", "planes", "switches_per_plane", "sled_switches")
    }
    in_planes = rack["planes"] * rack["switches_per_plane"]
    in_sleds = rack["servers"] // rack["racks"] * rack["sled_switches"]
    assert in_planes + in_sleds == shipped.integer("trn3-gen2", "switches_per_rack") == 184


@pytest.mark.parametrize(
    ("chip", "bf16", "fp8", "fp32", "hbm_tb_s", "scale_up_gb_s", "tdp"),
    [
        ("a100-40gb", 312, None, 19.5, 1.555, 600, 400),
        ("a100-80gb", 312, None, 19.5, 2.039, 600, 400),
        ("h100", 989, 1979, 67, 3.35, 900, 700),
        ("h200", 989, 1979, 67, 4.8, 900, 700),
        ("b200", 2250, 4500, 80, 8, 1800, 1000),
        ("gb200", 2500, 5000, 90, 8, 1800, 1200),
    ],
)
def test_gpu_figures_are_dense(shipped, chip, bf16, fp8, fp32, hbm_tb_s, scale_up_gb_s, tdp):
    has = {peak for peak in ("fp16_peak", "fp8_peak", "fp4_peak") if shipped.has(chip, peak)}
    assert ("fp8_peak" in has) == (fp8 is not None)
    for quantity, scale, expected in (
        ("bf16_peak", 1e12, bf16),
        ("fp8_peak", 1e12, fp8),
        ("fp32_peak", 1e12, fp32),
        ("hbm_bandwidth", 1e12, hbm_tb_s),
        ("scale_up_headline", 1e9, scale_up_gb_s),
        ("tdp", 1, tdp),
        ("sparse_peak", max(shipped.value(chip, peak) for peak in has), 2),
    ):
        if expected is not None:
            value = shipped.value(chip, quantity) / scale
            assert value == pytest.approx(expected, rel=2e-3), quantity


def test_tensor_cores_times_clock_are_the_dense_figure(shipped: Catalogue) -> None:
    for chip, multiply_adds in [("a100-80gb", 256), ("h100", 512), ("h200", 512)]:
        rate = shipped.value(chip, "cores") * 4 * multiply_adds * 2
        peak = rate * shipped.value(chip, "tensor_clock")
        assert peak == pytest.approx(shipped.value(chip, "bf16_peak"), rel=2e-3)


def test_printed_gb_of_gpus_are_nearly_gib(shipped: Catalogue) -> None:
    for chip in GPUS:
        ratio = shipped.value(chip, "hbm_usable_bytes") / shipped.value(chip, "hbm_bytes")
        assert 1.05 < ratio <= GiB / GB


@pytest.mark.parametrize(("machine", "chip", "fabric"), MACHINES)
def test_a_machine_is_the_sum_of_its_chips(
    shipped: Catalogue, machine: str, chip: str, fabric: str | None
) -> None:
    chips = shipped.integer(machine, "chips")
    assert chips % shipped.integer(machine, "servers") == 0
    assert shipped.integer(machine, "hbm_bytes") == chips * shipped.integer(chip, "hbm_bytes")
    for quantity in ("bf16_peak", "fp8_peak", "fp32_peak", "sparse_peak", "hbm_bandwidth"):
        if shipped.has(machine, quantity):
            total = chips * shipped.value(chip, quantity)
            assert shipped.value(machine, quantity) == pytest.approx(total, rel=4e-3), quantity
    if shipped.has(machine, "rows"):
        sides = [name for name in ("layers", "rows", "columns") if shipped.has(machine, name)]
        assert prod(shipped.integer(machine, side) for side in sides) == chips
    if shipped.has(machine, "price") and shipped.has(chip, "price") and machine != "trn1n.32xlarge":
        total = chips * shipped.value(chip, "price")
        assert shipped.value(machine, "price") == pytest.approx(total)
    if fabric:
        adapters = shipped.integer(machine, "nics") * shipped.integer(fabric, "nic_bandwidth")
        assert shipped.integer(machine, "nic_bandwidth") == adapters
    if shipped.has(chip, "nic_bandwidth") and machine not in ("trn1.2xlarge", "trn1n.32xlarge"):
        total = chips * shipped.integer(chip, "nic_bandwidth")
        assert shipped.integer(machine, "nic_bandwidth") == total


def test_an_ultraserver_is_four_instances(shipped: Catalogue) -> None:
    for quantity in ("chips", "vcpus", "host_bytes", "hbm_bytes", "nics", "nic_bandwidth"):
        four = 4 * shipped.integer("trn2.48xlarge", quantity)
        assert shipped.integer("trn2-ultraserver", quantity) == four
    price = 4 * shipped.value("trn2.48xlarge", "price")
    assert shipped.value("trn2-ultraserver", "price") == pytest.approx(price)
    assert shipped.value("trn2-ultraserver", "power") == 64 * shipped.value(
        "trn2", "power_with_host"
    )


def test_rainier_closes(shipped: Catalogue) -> None:
    domains = shipped.integer("rainier", "domains")
    assert domains * 64 == shipped.integer("rainier", "chips") == 499_968
    assert domains * 4 == shipped.integer("rainier", "servers")
    announced = shipped.with_variants({"rainier.chips": "announced"}).value("rainier", "chips")
    power = announced * shipped.value("trn2", "power_with_host")
    assert power == shipped.value("rainier", "it_power") == 375e6
    assert 400e6 < power * shipped.value("rainier", "pue") < 455e6


def test_collective_constants_agree(shipped: Catalogue) -> None:
    for chip in TRAINIUM:
        step = shipped.ps(chip, "link_latency") + shipped.ps(chip, "collective_step")
        assert step == shipped.ps("neuron-runtime", "neighbour_step") == 1_500_000

    def fewer(operation: str) -> float:
        ring, kanga = (
            shipped.value("neuron-runtime", f"{name}_{operation}_hbm_accesses")
            for name in ("ring", "kangaring")
        )
        return 1 - kanga / ring

    assert fewer("all_gather") == 0.25
    assert fewer("reduce_scatter") == pytest.approx(1 / 3)
    assert shipped.integer("neuron-runtime", "mesh_up_to") == 2**20
    assert shipped.integer("neuron-runtime", "rdh_below") == 56 * 10**6
    assert 64 * shipped.integer("neuron-runtime", "rdh_below_a_rank") == 56 * 10**6


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_fabric_has_what_a_clos_needs(shipped: Catalogue, fabric: str) -> None:
    ports = shipped.integer(fabric, "radix") * shipped.integer(fabric, "port_bandwidth")
    assert shipped.integer(fabric, "tor_bandwidth") == ports
    climbs = ("same_tor", "same_pod", "same_building", "same_campus")
    latencies = [shipped.ps(fabric, f"{climb}_latency") for climb in climbs]
    assert latencies == sorted(latencies)
    assert latencies[0] == 0
    assert 0 < shipped.value(fabric, "efficiency") <= 1
    assert shipped.ps(fabric, "step_latency") >= shipped.ps(fabric, "packet_latency")
