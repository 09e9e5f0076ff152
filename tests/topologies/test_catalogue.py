"""The catalogue: rows are complete, sourced and exact, variants switch, parts make totals."""

import csv
import doctest
import pickle
from math import prod
from pathlib import Path

import pytest

import topologies
from tests.support.refusals import refusal_by, refused
from topologies.catalogue.catalogue import choose, shipped_catalogue
from topologies.catalogue.reader import GRADES, read_entries
from topologies.clusters.machines import machines

GB = 10**9
TRAINIUM = ("trn1", "inf2", "trn2", "trn3")
GPUS = ("a100-40gb", "a100-80gb", "h100", "h200", "b200", "gb200")
SHIPPED = shipped_catalogue()
MACHINES = [name for name in machines(SHIPPED) if SHIPPED.has(name, "hbm_bytes")]
FABRICS = ("efa-v1", "efa-v2", "efa-v3", "efa-v4", "infiniband-hdr", "infiniband-ndr")


@pytest.fixture(scope="module")
def shipped():
    return shipped_catalogue()


@pytest.mark.parametrize("chip", TRAINIUM)
def test_a_trainium_chip_is_the_sum_of_its_cores_and_engines(shipped, chip):
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


def test_trn2_links_add_up_both_ways(shipped):
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
def test_links_add_up_both_ways(shipped, chip):
    one_way = shipped.integer(chip, "links") * shipped.integer(chip, "link_bandwidth")
    assert shipped.integer(chip, "scale_up_bandwidth") == one_way
    assert shipped.integer(chip, "scale_up_headline") == 2 * one_way


def test_inf2_runs_the_kernels_of_trn1(shipped):
    constants = shipped.quantities("kernels.trainium")
    names = [name.removesuffix("_trn1") for name in constants if name.endswith("_trn1")]
    assert names
    for name in names:
        as_trn1 = shipped.value("kernels.trainium", f"{name}_trn1")
        assert shipped.value("kernels.trainium", f"{name}_inf2") == as_trn1, name
    for name in shipped.quantities("serving.trn1"):
        assert shipped.value("serving.inf2", name) == shipped.value("serving.trn1", name), name


@pytest.mark.parametrize(("variant", "total"), [("", 1152), ("vendor-tiers", 704)])
def test_trn3_tiers_add_up(shipped, variant, total):
    contested = ("board_bandwidth", "backplane_bandwidth", "scale_up_bandwidth")
    chosen = shipped.with_variants({f"trn3.{quantity}": variant for quantity in contested})
    tiers = ("board_bandwidth", "backplane_bandwidth", "cross_rack_bandwidth")
    assert sum(chosen.integer("trn3", tier) for tier in tiers) == total * GB
    assert chosen.integer("trn3", "scale_up_bandwidth") == total * GB


def test_trn3_lanes_make_its_tiers(shipped):
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
    names = ("servers", "racks", "sled_switches", "planes", "switches_per_plane")
    servers, racks, in_sled, planes, in_plane = (shipped.integer("trn3-gen2", n) for n in names)
    switches = planes * in_plane + servers // racks * in_sled
    assert switches == shipped.integer("trn3-gen2", "switches_per_rack") == 184


def test_figures_of_gpus_are_dense(shipped):
    for chip in GPUS:
        has = [peak for peak in ("fp16_peak", "fp8_peak", "fp4_peak") if shipped.has(chip, peak)]
        dense = max(shipped.value(chip, peak) for peak in has)
        assert shipped.value(chip, "sparse_peak") == pytest.approx(2 * dense, rel=2e-3), chip
    for chip, multiply_adds in [("a100-80gb", 256), ("h100", 512), ("h200", 512)]:
        rate = shipped.value(chip, "cores") * 4 * multiply_adds * 2
        peak = rate * shipped.value(chip, "tensor_clock")
        assert peak == pytest.approx(shipped.value(chip, "bf16_peak"), rel=2e-3)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_is_the_sum_of_its_chips(shipped, machine):
    chip, fabric = (shipped.name(machine, key, "") for key in ("chip", "fabric"))
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
    if fabric and not machine.startswith(("trn3", "tpu")):
        adapters = shipped.integer(machine, "nics") * shipped.integer(fabric, "nic_bandwidth")
        assert shipped.integer(machine, "nic_bandwidth") == adapters
    if shipped.has(chip, "nic_bandwidth") and machine not in ("trn1.2xlarge", "trn1n.32xlarge"):
        total = chips * shipped.integer(chip, "nic_bandwidth")
        assert shipped.integer(machine, "nic_bandwidth") == total


def test_an_ultraserver_is_four_instances(shipped):
    for quantity in ("chips", "vcpus", "host_bytes", "hbm_bytes", "nics", "nic_bandwidth"):
        four = 4 * shipped.integer("trn2.48xlarge", quantity)
        assert shipped.integer("trn2-ultraserver", quantity) == four
    price = 4 * shipped.value("trn2.48xlarge", "price")
    assert shipped.value("trn2-ultraserver", "price") == pytest.approx(price)
    power = 64 * shipped.value("trn2", "power_with_host")
    assert shipped.value("trn2-ultraserver", "power") == power


def test_rainier_closes(shipped):
    domains = shipped.integer("rainier", "domains")
    assert domains * 64 == shipped.integer("rainier", "chips") == 499_968
    assert domains * 4 == shipped.integer("rainier", "servers")
    announced = shipped.with_variants({"rainier.chips": "announced"}).value("rainier", "chips")
    power = announced * shipped.value("trn2", "power_with_host")
    assert power == shipped.value("rainier", "it_power") == 375e6
    assert 400e6 < power * shipped.value("rainier", "pue") < 455e6


def test_collective_constants_agree(shipped):
    for chip in TRAINIUM:
        step = shipped.ps(chip, "link_latency") + shipped.ps(chip, "collective_step")
        assert step == shipped.ps("neuron-runtime", "neighbour_step") == 1_500_000

    third = pytest.approx(1 / 3)
    for operation, fewer in (("all_gather", 0.25), ("reduce_scatter", third)):
        names = (f"{name}_{operation}_hbm_accesses" for name in ("ring", "kangaring"))
        ring, kanga = (shipped.value("neuron-runtime", name) for name in names)
        assert 1 - kanga / ring == fewer
    assert shipped.integer("neuron-runtime", "mesh_up_to") == 2**20
    assert shipped.integer("neuron-runtime", "rdh_below") == 56 * 10**6
    assert 64 * shipped.integer("neuron-runtime", "rdh_below_a_rank") == 56 * 10**6


@pytest.mark.parametrize("fabric", FABRICS)
def test_a_fabric_has_what_a_clos_needs(shipped, fabric):
    ports = shipped.integer(fabric, "radix") * shipped.integer(fabric, "port_bandwidth")
    assert shipped.integer(fabric, "tor_bandwidth") == ports
    climbs = ("same_tor", "same_pod", "same_building", "same_campus")
    latencies = [shipped.ps(fabric, f"{climb}_latency") for climb in climbs]
    assert latencies == sorted(latencies)
    assert latencies[0] == 0
    assert 0 < shipped.value(fabric, "efficiency") <= 1
    assert shipped.ps(fabric, "step_latency") >= shipped.ps(fabric, "packet_latency")


DATA = Path(topologies.__file__).parent / "data"

HARDWARE = ("trn4", "trainium", "gpus", "machines", "gpu_machines", "fabrics", "neuron")
"""Files whose rows the glossary explains and whose sources are keys; the others, of fits and of the
fleet, are described where they are used."""


GLOSSARY = Path(__file__).parents[2] / "docs" / "background" / "catalogue.md"


@pytest.fixture(scope="module")
def hardware():
    files = [DATA / f"{name}.csv" for name in HARDWARE]
    return [row for file in files for _, row in read_entries(file, file.name)]


def test_no_value_without_unit_grade_and_source(shipped):
    assert len(shipped.rows) > 800
    for row in shipped.rows:
        assert row.unit, row
        assert row.grade in GRADES, row
        assert row.source, row
        assert row.value >= 0, row
        assert row.unit == shipped.entry(row.part, row.quantity).unit, row
    rows = [(row.part, row.quantity, row.variant) for row in shipped.rows]
    assert len(rows) == len(set(rows))
    assert {row[:2] for row in rows} == {row[:2] for row in rows if not row[2]}


def keys(rows):
    return {source.partition(":")[0] for row in rows for source in row.source.split("; ")}


def test_every_source_is_a_known_key_and_every_key_is_used(shipped, hardware):
    with (DATA / "sources.csv").open(encoding="utf-8") as stream:
        citations = {row["key"]: row["citation"] for row in csv.DictReader(stream)}
    assert all(citations.values())
    assert keys(hardware) <= set(citations)
    assert set(citations) <= keys(shipped.rows)


def test_what_is_assumed_has_a_range_and_what_is_derived_says_how(hardware):
    for row in hardware:
        sources = row.source.split("; ")
        if row.grade == "assumed" and row.value:
            assert None not in (row.low, row.high), row
        if row.grade == "derived":
            assert row.note, row
            assert {"D", "A"} & set(sources), row
        if row.grade in ("stated", "measured"):
            assert set(sources) - {"D", "A"}, row


def test_a_default_with_alternatives_gives_its_reason_or_its_place(shipped):
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


def test_the_glossary_explains_every_part_and_quantity_and_no_other(hardware):
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    words = [line.split("|")[1] for line in lines if line.startswith("| `")]
    explained = [name.strip(" `") for cell in words for name in cell.split(",")]
    assert len(explained) == len(set(explained))
    assert set(explained) == {row.quantity for row in hardware} | {row.part for row in hardware}


def test_the_examples_of_the_page_run():
    text = GLOSSARY.read_text(encoding="utf-8").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, GLOSSARY.name, None, None)
    outcome = doctest.DocTestRunner().run(examples)
    assert outcome.attempted >= 7
    assert outcome.failed == 0


def test_values_are_in_si_and_exact(shipped):
    assert shipped.value("trn2", "hbm_bandwidth") == 2.9e12
    assert shipped.integer("trn2", "nic_bandwidth") == 25 * GB
    assert shipped.value("trn2", "price") * 3600 == pytest.approx(2.235)
    assert shipped.ps("trn2", "dma_descriptor") == 600_000
    entry = shipped.entry("trn2", "hbm_bandwidth")
    assert (entry.unit, entry.written, entry.grade) == ("B/s", "2.9 TB/s", "stated")
    assert shipped.entry("trn2", "family").value == 0  # a name is no number
    step = shipped.entry("trn2", "collective_step")
    assert (step.low, step.high) == (0.7e-6, 1.7e-6)


def test_a_default_stands_for_what_the_catalogue_lacks_and_for_nothing_else(shipped):
    for part in ("trn2", "trn5"):
        assert not shipped.has(part, "zebra")
        defaults = (shipped.value(part, "zebra", 0.5), shipped.integer(part, "zebra", 0))
        assert defaults == (0.5, 0)
        assert (shipped.ps(part, "zebra", 7), shipped.name(part, "zebra", "")) == (7, "")
    for read, quantity, default, value in (
        ("value", "hbm_bandwidth", 0.5, 2.9e12), ("integer", "nic_bandwidth", 0, 25 * GB),
        ("ps", "dma_descriptor", 0, 600_000), ("name", "family", "", "trainium"),
    ):  # fmt: skip
        assert getattr(shipped, read)("trn2", quantity, default) == value


@pytest.mark.parametrize(("read", "part", "quantity", "message"), [
    ("value", "trn5", "cores", r"the catalogue has no part 'trn5'\. Did you mean trn"),
    ("value", "trn2", "hbm_bandwith", r"no 'hbm_bandwith' of trn2\. Did you mean hbm_band"),
    ("value", "trn2", "zebra", r"the catalogue has no 'zebra' of trn2\."),
    ("value", "trn2", "family", "trn2 family is 'trainium', a name and no number"),
    ("name", "trn2", "cores", "trn2 cores is 8 count, a number and no name"),
    ("integer", "trn2", "collective_efficiency", r"efficiency is 0\.77 ratio, which is"),
    ("integer", "trn2", "link_latency", r"^trn2 link_latency is 0\.3 us, which is not near"),
    ("ps", "trn2", "hbm_bytes", r"^trn2 hbm_bytes is 96 GiB, not a time\. State it in s\.$"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(shipped, read, part, quantity, message):
    refused(message, getattr(shipped, read), part, quantity)


def test_a_variant_switches_one_value_and_back(shipped):
    switched = shipped.with_variants({"trn2.hbm_bandwidth": "kernel-guide"})
    assert switched.value("trn2", "hbm_bandwidth") == 3.0e12
    assert shipped.value("trn2", "hbm_bandwidth") == 2.9e12
    assert switched.value("trn3", "hbm_bandwidth") == shipped.value("trn3", "hbm_bandwidth")
    assert switched != shipped
    assert switched.digest != shipped.digest
    assert switched.chosen == (("trn2", "hbm_bandwidth", "kernel-guide"),)
    assert switched.with_variants({"trn2.hbm_bandwidth": ""}) == shipped
    both = switched.with_variants({"trn2.cc_cores": "kernel-guide"})
    assert (both.integer("trn2", "cc_cores"), both.value("trn2", "hbm_bandwidth")) == (20, 3.0e12)
    spot = choose(["trn2.48xlarge.price=spot"])  # a part with dots
    assert spot.value("trn2.48xlarge", "price") * 3600 == pytest.approx(12.97)
    alternatives = [row for row in shipped.rows if row.variant]
    assert len(alternatives) > 50
    for row in alternatives[::9]:
        other = shipped.with_variants({f"{row.part}.{row.quantity}": row.variant})
        assert other.entry(row.part, row.quantity) is row
    assert shipped_catalogue() is shipped
    assert pickle.loads(pickle.dumps(switched)) == switched


def test_a_factor_scales_a_value_and_its_range():
    shipped = shipped_catalogue().entry("trn2", "link_latency")
    row = choose(["trn2.link_latency=x2.5"]).entry("trn2", "link_latency")
    assert (row.value, row.exact) == (2.5 * shipped.value, shipped.exact * 5 / 2)
    assert (row.low, row.high) == (2.5 * shipped.low, 2.5 * shipped.high)
    assert (row.grade, row.written) == ("assumed", f"x2.5 of {shipped.written}")


def test_a_factor_holds_for_one_part_and_all_its_alternatives():
    """A chip may take a value from the one that it is like, which keeps it."""
    shipped, part, price = shipped_catalogue(), "trn2.48xlarge", "trn2.48xlarge.price"
    changed = choose(["b300.bf16_matmul=x0.5", f"{price}=x0.5"])
    assert changed.entry("b200", "bf16_matmul") is shipped.entry("b300", "bf16_matmul")
    scaled = changed.value("b300", "bf16_matmul")
    assert scaled == shipped.value("b200", "bf16_matmul") / 2
    before, after = (each.variants(part, "price") for each in (shipped, changed))
    assert [row.value * 2 for row in after] == [row.value for row in before]
    assert [row.variant for row in after] == [row.variant for row in before]
    both = choose(["trn2.hbm_bandwidth=x2", "trn2.hbm_bandwidth=x2"])
    assert both.value("trn2", "hbm_bandwidth") == 2 * shipped.value("trn2", "hbm_bandwidth")
    refusal = refusal_by(choose, ["trn2.hbm_bandwidth=x2", "trn2.hbm_bandwidth=x3"])
    assert refusal == "trn2.hbm_bandwidth is both x2 and x3. Keep one."


@pytest.mark.parametrize(("text", "message"), [
    ("trn2.bf16_peak=zebra", "trn2.bf16_peak has no variant 'zebra'; there are semi"),
    ("trn2.tdp=zebra", "trn2.tdp has no variant 'zebra'; it has none."),
    ("trn2.tdp=x0", "trn2.tdp is 500 W, and cannot be scaled by x0."),
    ("trn2.family=x2", "trn2.family is trainium, and cannot be scaled by x2."),
    ("trn2.bf16_peak=x0.5", "=x0.5: bf16_peak is x0.5 of 667 TFLOP/s, less than bf16_matmul of 6"),
    ("trn2.zebra=x", "the catalogue has no 'zebra' of trn2."),
    ("tron.tdp=x", "the catalogue has no part 'tron'."),
    ("trn2.bf16_peak", "variant 'trn2.bf16_peak' is not of the form PART.QUANTITY=NAME."),
    ("bf16=x", "variant 'bf16=x' is not of the form PART.QUANTITY=NAME."),
])  # fmt: skip
def test_a_wrong_variant_is_refused_with_what_there_is(text, message):
    assert message in refusal_by(choose, [text])
