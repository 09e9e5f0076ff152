"""The catalogue: every row is complete and sourced, values are exact, variants switch."""

import csv
import doctest
import pickle
from collections.abc import Iterable
from pathlib import Path

import pytest

import topologies
from topologies.catalogue.catalogue import Catalogue, Entry, choose, shipped_catalogue
from topologies.catalogue.reader import GRADES, read_entries
from topologies.errors import InputError

DATA = Path(topologies.__file__).parent / "data"


HARDWARE = ("trn4", "trainium", "gpus", "machines", "gpu_machines", "fabrics", "neuron")
"""Files whose rows the glossary explains and whose sources are keys; the others, of fits and of the
fleet, are described where they are used."""


GLOSSARY = Path(__file__).parents[2] / "docs" / "background" / "catalogue.md"


GB = 10**9


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return shipped_catalogue()


@pytest.fixture(scope="module")
def hardware() -> list[Entry]:
    files = [DATA / f"{name}.csv" for name in HARDWARE]
    return [row for file in files for _, row in read_entries(file, file.name)]


def test_no_value_without_unit_grade_and_source(shipped: Catalogue) -> None:
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


def test_the_examples_of_the_page_run() -> None:
    text = GLOSSARY.read_text(encoding="utf-8").replace("```", "")
    examples = doctest.DocTestParser().get_doctest(text, {}, GLOSSARY.name, None, None)
    outcome = doctest.DocTestRunner().run(examples)
    assert outcome.attempted >= 7
    assert outcome.failed == 0


def test_values_are_in_si_and_exact(shipped: Catalogue) -> None:
    assert shipped.value("trn2", "hbm_bandwidth") == 2.9e12
    assert shipped.integer("trn2", "nic_bandwidth") == 25 * GB
    assert shipped.value("trn2", "price") * 3600 == pytest.approx(2.235)
    assert shipped.ps("trn2", "dma_descriptor") == 600_000
    entry = shipped.entry("trn2", "hbm_bandwidth")
    assert (entry.unit, entry.written, entry.grade) == ("B/s", "2.9 TB/s", "stated")
    step = shipped.entry("trn2", "collective_step")
    assert (step.low, step.high) == (0.7e-6, 1.7e-6)


def test_a_default_stands_for_what_the_catalogue_lacks_and_for_nothing_else(
    shipped: Catalogue,
) -> None:
    for part in ("trn2", "trn5"):
        assert not shipped.has(part, "zebra")
        defaults = (shipped.value(part, "zebra", 0.5), shipped.integer(part, "zebra", 0))
        assert (*defaults, shipped.ps(part, "zebra", 7), shipped.name(part, "zebra", "")) == (
            *(0.5, 0, 7, ""),
        )
    assert shipped.value("trn2", "hbm_bandwidth", 0.5) == 2.9e12
    assert shipped.integer("trn2", "nic_bandwidth", 0) == 25 * GB
    assert shipped.ps("trn2", "dma_descriptor", 0) == 600_000
    assert shipped.name("trn2", "family", "") == "trainium"


@pytest.mark.parametrize(
    ("read", "part", "quantity", "message"),
    [
        ("value", "trn5", "cores", r"the catalogue has no part 'trn5'\. Did you mean trn"),
        ("value", "trn2", "hbm_bandwith", r"no 'hbm_bandwith' of trn2\. Did you mean hbm_band"),
        ("value", "trn2", "zebra", r"the catalogue has no 'zebra' of trn2\."),
        ("value", "trn2", "family", "trn2 family is 'trainium', a name and no number"),
        ("name", "trn2", "cores", "trn2 cores is 8 count, a number and no name"),
        ("integer", "trn2", "collective_efficiency", r"efficiency is 0\.77 ratio, which is"),
        ("integer", "trn2", "link_latency", r"^trn2 link_latency is 0\.3 us, which is not near"),
        ("ps", "trn2", "hbm_bytes", r"^trn2 hbm_bytes is 96 GiB, not a time\. State it in s\.$"),
    ],
)
def test_what_cannot_be_read_is_refused(
    shipped: Catalogue, read: str, part: str, quantity: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        getattr(shipped, read)(part, quantity)


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
    spot = choose(["trn2.48xlarge.price=spot"])  # a part with dots
    assert spot.value("trn2.48xlarge", "price") * 3600 == pytest.approx(12.97)
    alternatives = [row for row in shipped.rows if row.variant]
    assert len(alternatives) > 50
    for row in alternatives[::9]:
        other = shipped.with_variants({f"{row.part}.{row.quantity}": row.variant})
        assert other.entry(row.part, row.quantity) is row
    assert shipped_catalogue() is shipped
    assert pickle.loads(pickle.dumps(switched)) == switched


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
