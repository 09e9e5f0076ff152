"""The catalogue: every row is complete and sourced, sums agree, variants and overlays switch."""

import csv
import doctest
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import topologies
from topologies.catalogue import Catalogue, Entry, catalogue, choose
from topologies.catalogue_file import COLUMNS, GRADES, read_entries
from topologies.errors import InputError

DATA = Path(topologies.__file__).parent / "data"
HARDWARE = ("trainium", "gpus", "machines", "gpu_machines", "fabrics", "neuron")
"""Files whose rows the glossary explains and whose sources are keys; the others, of fits and of the
fleet, are described where they are used."""
GLOSSARY = Path(__file__).parents[1] / "docs" / "catalogue.md"
HEADER = ",".join(COLUMNS)
GB, GiB = 10**9, 2**30

TRAINIUM = ("trn1", "trn2", "trn3")
GPUS = ("a100-40gb", "a100-80gb", "h100", "h200", "b200", "gb200")
CHIP_OF = {
    "trn1.2xlarge": "trn1",
    "trn1.32xlarge": "trn1",
    "trn1n.32xlarge": "trn1",
    "trn2.3xlarge": "trn2",
    "trn2.48xlarge": "trn2",
    "trn2-ultraserver": "trn2",
    "trn3-gen1": "trn3",
    "trn3-gen2": "trn3",
    "p4de.24xlarge": "a100-80gb",
    "p5.48xlarge": "h100",
    "p5en.48xlarge": "h200",
    "dgx-a100": "a100-80gb",
    "dgx-a100-40gb": "a100-40gb",
    "dgx-h100": "h100",
    "dgx-h200": "h200",
    "dgx-b200": "b200",
    "gb200-nvl72": "gb200",
}
FABRICS = ("efa-v1", "efa-v2", "efa-v3", "efa-v4", "infiniband-hdr", "infiniband-ndr")


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return catalogue()


@pytest.fixture(scope="module")
def hardware() -> list[Entry]:
    files = [DATA / f"{name}.csv" for name in HARDWARE]
    return [row for file in files for _, row in read_entries(file, file.name)]


# Every row


def test_no_value_without_unit_grade_and_source(shipped: Catalogue) -> None:
    assert len(shipped.rows) > 800
    for row in shipped.rows:
        assert row.unit, row
        assert row.grade in GRADES, row
        assert row.source, row
        assert row.value >= 0, row


def keys(rows: Iterable[Entry]) -> set[str]:
    return {source.partition(":")[0] for row in rows for source in row.source.split("; ")}


def test_every_source_is_a_known_key_and_every_key_is_used(
    shipped: Catalogue, hardware: list[Entry]
) -> None:
    with (DATA / "sources.csv").open(encoding="utf-8") as stream:
        citations = {row["key"]: row["citation"] for row in csv.DictReader(stream)}
    assert all(citations.values())
    assert keys(hardware) <= set(citations)
    assert set(citations) <= keys(shipped.rows)


def test_a_row_stands_once_and_every_quantity_has_a_default(shipped: Catalogue) -> None:
    rows = [(row.part, row.quantity, row.variant) for row in shipped.rows]
    assert len(rows) == len(set(rows))
    assert {row[:2] for row in rows} == {row[:2] for row in rows if not row[2]}


def test_alternatives_measure_the_same_thing(shipped: Catalogue) -> None:
    for row in shipped.rows:
        assert row.unit == shipped.entry(row.part, row.quantity).unit, row


def test_what_is_assumed_has_a_range_and_what_is_derived_says_how(hardware: list[Entry]) -> None:
    for row in hardware:
        sources = row.source.split("; ")
        if row.grade == "assumed" and row.value:
            assert row.low is not None, row
            assert row.high is not None, row
        if row.grade == "derived":
            assert row.note, row
            assert {"D", "A"} & set(sources), row
        if row.grade in ("stated", "measured"):
            assert set(sources) - {"D", "A"}, row


def test_a_default_with_alternatives_gives_its_reason_or_its_place(shipped: Catalogue) -> None:
    for part, quantity, reason in [
        ("trn2", "bf16_peak", "vendor states it"),
        ("trn2", "hbm_bandwidth", "three others agree"),
        ("trn2", "cc_cores", "8 cores x 2 = 16"),
        ("trn2-ultraserver", "power", "750 W a chip"),
        ("trn1", "scale_up_headline", "0.67 to 0.72"),
        ("trn3", "board_bandwidth", "adds up to the vendor's headline"),
        ("efa-v3", "step_latency", "end points"),
    ]:
        entries = shipped.variants(part, quantity)
        assert "Default: " in entries[0].note or "Default because" in entries[0].note
        assert reason in entries[0].note
        assert len(entries) > 1


def test_the_glossary_explains_every_part_and_quantity_and_no_other(hardware: list[Entry]) -> None:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    words = [line.split("|")[1] for line in lines if line.startswith("| `")]
    explained = [name.strip(" `") for cell in words for name in cell.split(",")]
    assert len(explained) == len(set(explained))
    assert set(explained) == {row.quantity for row in hardware} | {row.part for row in hardware}


def test_the_page_lists_every_contested_value_as_it_is(
    shipped: Catalogue, hardware: list[Entry]
) -> None:
    _, _, table = GLOSSARY.read_text(encoding="utf-8").partition("## Contested values")
    listed = [line for line in table.splitlines() if line.startswith("|")][2:]
    expected = []
    for part, quantity in dict.fromkeys((row.part, row.quantity) for row in hardware):
        default, *others = shipped.variants(part, quantity)
        if others:
            names = "; ".join(f"{other.variant}: {other.written}" for other in others)
            expected.append(f"| {part}.{quantity} | {default.written} | {names} |")
    assert sorted(listed) == sorted(expected)


def test_the_examples_of_the_page_run() -> None:
    text = GLOSSARY.read_text(encoding="utf-8").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, GLOSSARY.name, None, None)
    outcome = doctest.DocTestRunner().run(examples)
    assert outcome.attempted >= 7
    assert outcome.failed == 0


# Sums


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


def test_trn1_links_add_up_both_ways(shipped: Catalogue) -> None:
    one_way = shipped.integer("trn1", "links") * shipped.integer("trn1", "link_bandwidth")
    assert one_way == shipped.integer("trn1", "scale_up_bandwidth") == 192 * GB
    assert 2 * one_way == shipped.integer("trn1", "scale_up_headline") == 384 * GB


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


@pytest.mark.parametrize("chip", GPUS)
def test_gpu_links_add_up_both_ways(shipped: Catalogue, chip: str) -> None:
    one_way = shipped.integer(chip, "links") * shipped.integer(chip, "link_bandwidth")
    assert shipped.integer(chip, "scale_up_bandwidth") == one_way
    assert shipped.integer(chip, "scale_up_headline") == 2 * one_way


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
def test_gpu_figures_are_dense(
    shipped: Catalogue,
    chip: str,
    bf16: float,
    fp8: float | None,
    fp32: float,
    hbm_tb_s: float,
    scale_up_gb_s: float,
    tdp: float,
) -> None:
    def close(quantity: str, scale: float, expected: float) -> None:
        assert shipped.value(chip, quantity) / scale == pytest.approx(expected, rel=2e-3)

    close("bf16_peak", 1e12, bf16)
    close("fp32_peak", 1e12, fp32)
    close("hbm_bandwidth", 1e12, hbm_tb_s)
    close("scale_up_headline", 1e9, scale_up_gb_s)
    close("tdp", 1, tdp)
    assert shipped.has(chip, "fp8_peak") == (fp8 is not None)
    if fp8 is not None:
        close("fp8_peak", 1e12, fp8)
    widest = max(
        shipped.value(chip, peak)
        for peak in ("fp16_peak", "fp8_peak", "fp4_peak")
        if shipped.has(chip, peak)
    )
    close("sparse_peak", widest, 2)


def test_tensor_cores_times_clock_are_the_dense_figure(shipped: Catalogue) -> None:
    for chip, multiply_adds in [("a100-80gb", 256), ("h100", 512), ("h200", 512)]:
        rate = shipped.value(chip, "cores") * 4 * multiply_adds * 2
        peak = rate * shipped.value(chip, "tensor_clock")
        assert peak == pytest.approx(shipped.value(chip, "bf16_peak"), rel=2e-3)


def test_printed_gb_of_gpus_are_nearly_gib(shipped: Catalogue) -> None:
    for chip in GPUS:
        ratio = shipped.value(chip, "hbm_usable_bytes") / shipped.value(chip, "hbm_bytes")
        assert 1.05 < ratio <= GiB / GB


@pytest.mark.parametrize("machine", CHIP_OF)
def test_a_machine_is_the_sum_of_its_chips(shipped: Catalogue, machine: str) -> None:
    chip, chips = CHIP_OF[machine], shipped.integer(machine, "chips")
    assert chips % shipped.integer(machine, "servers") == 0
    assert shipped.integer(machine, "hbm_bytes") == chips * shipped.integer(chip, "hbm_bytes")
    for quantity in ("bf16_peak", "fp8_peak", "fp32_peak", "sparse_peak", "hbm_bandwidth"):
        if shipped.has(machine, quantity):
            total = chips * shipped.value(chip, quantity)
            assert shipped.value(machine, quantity) == pytest.approx(total, rel=4e-3), quantity
    if shipped.has(machine, "rows"):
        sides = (name for name in ("layers", "rows", "columns") if shipped.has(machine, name))
        product = 1
        for side in sides:
            product *= shipped.integer(machine, side)
        assert product == chips
    if shipped.has(machine, "price") and shipped.has(chip, "price") and machine != "trn1n.32xlarge":
        total = chips * shipped.value(chip, "price")
        assert shipped.value(machine, "price") == pytest.approx(total)


def test_adapters_add_up(shipped: Catalogue) -> None:
    for machine, fabric in [
        ("trn1.32xlarge", "efa-v2"),
        ("trn1n.32xlarge", "efa-v2"),
        ("trn2.48xlarge", "efa-v3"),
        ("trn2-ultraserver", "efa-v3"),
        ("p4de.24xlarge", "efa-v1"),
        ("p5.48xlarge", "efa-v2"),
        ("p5en.48xlarge", "efa-v3"),
        ("dgx-a100", "infiniband-hdr"),
        ("dgx-a100-40gb", "infiniband-hdr"),
        ("dgx-h100", "infiniband-ndr"),
        ("dgx-h200", "infiniband-ndr"),
        ("dgx-b200", "infiniband-ndr"),
        ("gb200-nvl72", "infiniband-ndr"),
    ]:
        adapters = shipped.integer(machine, "nics") * shipped.integer(fabric, "nic_bandwidth")
        assert shipped.integer(machine, "nic_bandwidth") == adapters, machine
    for machine, chip in CHIP_OF.items():
        if shipped.has(chip, "nic_bandwidth") and machine not in ("trn1.2xlarge", "trn1n.32xlarge"):
            total = shipped.integer(machine, "chips") * shipped.integer(chip, "nic_bandwidth")
            assert shipped.integer(machine, "nic_bandwidth") == total, machine


def test_an_ultraserver_is_four_instances(shipped: Catalogue) -> None:
    for quantity in ("chips", "vcpus", "host_bytes", "hbm_bytes", "nics", "nic_bandwidth"):
        four = 4 * shipped.integer("trn2.48xlarge", quantity)
        assert shipped.integer("trn2-ultraserver", quantity) == four
    price = 4 * shipped.value("trn2.48xlarge", "price")
    assert shipped.value("trn2-ultraserver", "price") == pytest.approx(price)
    assert shipped.value("trn2-ultraserver", "power") == 64 * shipped.value(
        "trn2", "power_with_host"
    )


def test_trn3_racks_hold_their_switches(shipped: Catalogue) -> None:
    sleds = shipped.integer("trn3-gen2", "servers") // shipped.integer("trn3-gen2", "racks")
    in_planes = shipped.integer("trn3-gen2", "planes") * shipped.integer(
        "trn3-gen2", "switches_per_plane"
    )
    in_sleds = sleds * shipped.integer("trn3-gen2", "sled_switches")
    assert in_planes + in_sleds == shipped.integer("trn3-gen2", "switches_per_rack") == 184


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
    assert shipped.integer("neuron-runtime", "mesh_below") == 10**6
    assert shipped.integer("neuron-runtime", "rdh_below") == 56 * 10**6


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


# Access


def test_values_are_in_si_and_exact(shipped: Catalogue) -> None:
    assert shipped.value("trn2", "hbm_bandwidth") == 2.9e12
    assert shipped.integer("trn2", "nic_bandwidth") == 25 * GB
    assert shipped.value("trn2", "price") * 3600 == pytest.approx(2.235)
    assert shipped.ps("trn2", "dma_descriptor") == 600_000
    entry = shipped.entry("trn2", "hbm_bandwidth")
    assert (entry.unit, entry.written, entry.grade) == ("B/s", "2.9 TB/s", "stated")
    step = shipped.entry("trn2", "collective_step")
    assert (step.low, step.high) == (0.7e-6, 1.7e-6)


@pytest.mark.parametrize(
    ("part", "quantity", "message"),
    [
        ("trn5", "cores", "the catalogue has no part 'trn5'. Did you mean trn"),
        ("trn2", "hbm_bandwith", "no 'hbm_bandwith' of trn2. Did you mean hbm_bandwidth?"),
        ("trn2", "zebra", "the catalogue has no 'zebra' of trn2."),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(
    shipped: Catalogue, part: str, quantity: str, message: str
) -> None:
    assert not shipped.has(part, quantity)
    with pytest.raises(InputError) as caught:
        shipped.value(part, quantity)
    assert message in str(caught.value)


def test_what_is_no_whole_number_is_not_rounded_to_one(shipped: Catalogue) -> None:
    with pytest.raises(InputError, match=r"^trn2 collective_efficiency is 0\.55 ratio, which is"):
        shipped.integer("trn2", "collective_efficiency")
    with pytest.raises(InputError, match=r"^trn2 link_latency is 0\.3 us, which is not near"):
        shipped.integer("trn2", "link_latency")
    with pytest.raises(InputError, match=r"^trn2 hbm_bytes is 96 GiB, not a time\.$"):
        shipped.ps("trn2", "hbm_bytes")


# Variants


def test_a_variant_switches_one_value_and_back(shipped: Catalogue) -> None:
    switched = shipped.with_variants({"trn2.hbm_bandwidth": "kernel-guide"})
    assert switched.value("trn2", "hbm_bandwidth") == 3.0e12
    assert shipped.value("trn2", "hbm_bandwidth") == 2.9e12
    assert switched.value("trn3", "hbm_bandwidth") == shipped.value("trn3", "hbm_bandwidth")
    assert switched != shipped
    assert switched.digest != shipped.digest
    assert switched.chosen == (("trn2", "hbm_bandwidth", "kernel-guide"),)
    assert switched.with_variants({"trn2.hbm_bandwidth": ""}) == shipped
    both = switched.with_variants({"trn2.cc_cores": "kernel-guide"})
    assert both.integer("trn2", "cc_cores") == 20
    assert both.value("trn2", "hbm_bandwidth") == 3.0e12


def test_every_alternative_can_be_switched_on(shipped: Catalogue) -> None:
    alternatives = [row for row in shipped.rows if row.variant]
    assert len(alternatives) > 50
    for row in alternatives:
        switched = shipped.with_variants({f"{row.part}.{row.quantity}": row.variant})
        assert switched.entry(row.part, row.quantity) is row


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trn2.bf16_peak=zebra", "trn2.bf16_peak has no variant 'zebra'; there are semi"),
        ("trn2.tdp=zebra", "trn2.tdp has no variant 'zebra'; it has none."),
        ("trn2.zebra=x", "the catalogue has no 'zebra' of trn2."),
        ("tron.tdp=x", "the catalogue has no part 'tron'."),
        ("trn2.bf16_peak", "variant 'trn2.bf16_peak' is not of the form PART.QUANTITY=NAME."),
        ("bf16=x", "variant 'bf16=x' is not of the form PART.QUANTITY=NAME."),
    ],
)
def test_a_wrong_variant_is_refused_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        choose([text])
    assert message in str(caught.value)


def test_parts_with_dots_have_variants_too() -> None:
    chosen = choose(["trn2.48xlarge.price=spot"])
    assert chosen.value("trn2.48xlarge", "price") * 3600 == pytest.approx(12.97)


# Overlays


def overlay(path: Path, *lines: str, header: str = HEADER) -> Path:
    file = path / "mine.csv"
    file.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


def test_an_overlay_replaces_adds_and_keeps_variants(tmp_path: Path, shipped: Catalogue) -> None:
    file = overlay(
        tmp_path,
        "trn2,link_latency,,250,ns,measured,own bench,,200,300",
        "trn2,link_latency,slow,1,us,assumed,guess,,,",
        "mychip,cores,,4,count,stated,me,,,",
    )
    mine = shipped.with_variants({"trn2.cc_cores": "kernel-guide"}).with_overlay(file)
    assert mine.ps("trn2", "link_latency") == 250_000
    assert mine.entry("trn2", "link_latency").source == "own bench"
    assert mine.with_variants({"trn2.link_latency": "slow"}).ps("trn2", "link_latency") == 10**6
    assert mine.integer("mychip", "cores") == 4
    assert mine.integer("trn2", "cc_cores") == 20
    assert "mychip" in mine.parts()
    assert "mychip" not in shipped.parts()
    assert choose(overlay=file, variants=["trn2.link_latency=slow"]).value(
        "trn2", "link_latency"
    ) == pytest.approx(1e-6)


def test_columns_may_lack_and_stand_in_any_order(tmp_path: Path, shipped: Catalogue) -> None:
    header = "source,grade,unit,value,quantity,part"
    mine = shipped.with_overlay(overlay(tmp_path, "me,measured,W,480,tdp,trn2", header=header))
    assert mine.value("trn2", "tdp") == 480.0
    assert mine.entry("trn2", "tdp").note == ""


def test_the_digest_follows_values_not_words(tmp_path: Path, shipped: Catalogue) -> None:
    same = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,0.5,kW,measured,me,new note,,"))
    assert same == shipped
    assert hash(same) == hash(shipped)
    other = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,501,W,measured,me,,,"))
    assert other != shipped


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trn2,tdp,,480,W,guess,me,,,", "line 2: unknown grade 'guess'; the grades are stated, "),
        ("trn2,tdp,,many,W,stated,me,,,", "line 2: value: 'many' is not a number."),
        ("trn2,tdp,,nan,W,stated,me,,,", "line 2: value: 'nan' is not a number."),
        ("trn2,tdp,,1e99,W,stated,me,,,", "line 2: value: 1e99 is beyond 1e±40."),
        ("trn2,tdp,,480,watts,stated,me,,,", "line 2: value: unknown unit watts."),
        ("trn2,tdp,,480,W,stated,,,,", "line 2: source is empty."),
        ("trn2,tdp,,480,,stated,me,,,", "line 2: unit is empty."),
        ("trn2,tdp,,-1,W,stated,me,,,", "line 2: value -1 is negative or outside its range, any"),
        ("trn2,tdp,,480,W,stated,me,,490,500", "outside its range, 490 to 500."),
        ("trn2,tdp,,480,W,stated,me,,,low", "line 2: high: 'low' is not a number."),
        ("trn2,tdp,,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, elsewhere in W."),
        ("trn2,tdp,x,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, elsewhere in W."),
        ("trn2,zebra,x,1,W,stated,me,,,", "line 2: trn2 zebra: the variant 'x' has no default"),
        ("trn2,tdp,,480", "line 2: it has not as many cells as the header has columns."),
        ("trn2,tdp,,480,W,stated,me,,,,,", "line 2: it has not as many cells as the header"),
        ('trn2,tdp,,480,W,"stated,me,,,', "not CSV (unexpected end of data)."),
        (
            "trn2,tdp,,1,W,stated,me,,,\ntrn2,tdp,,2,W,stated,me,,,",
            "line 3: trn2 tdp is also in line 2; keep one.",
        ),
    ],
)
def test_a_bad_row_is_refused_with_file_and_line(
    tmp_path: Path, shipped: Catalogue, line: str, message: str
) -> None:
    file = overlay(tmp_path, line)
    with pytest.raises(InputError) as caught:
        shipped.with_overlay(file)
    assert str(caught.value).startswith(f"{file} line ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_file_is_refused_by_name(tmp_path: Path, shipped: Catalogue) -> None:
    def refused(content: bytes) -> str:
        (tmp_path / "bad.csv").write_bytes(content)
        with pytest.raises(InputError) as caught:
            shipped.with_overlay(tmp_path / "bad.csv")
        assert str(caught.value).startswith(str(tmp_path / "bad.csv"))
        return str(caught.value).removeprefix(str(tmp_path / "bad.csv"))

    assert refused(b"part,value\n") == (
        f" line 1: no column quantity, unit, grade, source; a catalogue has {HEADER}."
    )
    assert refused(HEADER.encode() + b",notes\n") == (
        " line 1: unknown column 'notes'. Did you mean note?"
    )
    assert refused(b"").startswith(" line 1: no column part, quantity, value, unit, grade, source;")
    assert refused(b"x" * 5_000_001) == " is over the limit of 5 MB."
    assert refused(HEADER.encode() + b"\ntrn2,\xff\xfe\n") == " line 2: not UTF-8 text."
    assert "line 2" in refused(HEADER.encode() + b"\n" + b"\x00" * 100 + b"\n")
    with pytest.raises(InputError, match=r"none\.csv cannot be read: No such file or directory\.$"):
        shipped.with_overlay(tmp_path / "none.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        shipped.with_overlay(tmp_path)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(HEADER.encode() + b"\n" + content)
    try:
        outcome = catalogue().with_overlay(file).digest
    except InputError as refusal:
        outcome = str(refusal)
    assert "\n" not in outcome
    assert outcome


# As a value


def test_a_catalogue_can_be_shared_and_sent(shipped: Catalogue) -> None:
    assert catalogue() is shipped
    copy = pickle.loads(pickle.dumps(shipped))
    assert copy == shipped
    assert copy.value("trn2", "tdp") == shipped.value("trn2", "tdp")
    with pytest.raises(AttributeError):
        shipped.digest = "x"  # type: ignore[misc]
    assert repr(shipped) == f"Catalogue(digest='{shipped.digest}', chosen=())"
