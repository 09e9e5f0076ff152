"""Overlays of the catalogue: rows that replace and add, bad ones, and limits of memory."""

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refusal_by
from topologies.catalogue.catalogue import Catalogue, choose, shipped_catalogue
from topologies.catalogue.reader import COLUMNS
from topologies.support import memory_limit
from topologies.support.arrays import distinct
from topologies.support.errors import InputError

HEADER = ",".join(COLUMNS)


@pytest.fixture(scope="module")
def shipped() -> Catalogue:
    return shipped_catalogue()


def overlay(path: Path, *lines: str, header: str = HEADER) -> Path:
    (file := path / "mine.csv").write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return file


def test_an_overlay_replaces_adds_and_keeps_variants(tmp_path, shipped):
    file = overlay(
        tmp_path, "trn2,link_latency,,250,ns,measured,own bench,,200,300",
        "trn2,link_latency,slow,1,us,assumed,guess,,,", "mychip,cores,,4,count,stated,me,,,",
    )  # fmt: skip
    mine = shipped.with_variants({"trn2.cc_cores": "kernel-guide"}).with_overlay(file)
    assert mine.ps("trn2", "link_latency") == 250_000
    assert mine.entry("trn2", "link_latency").source == "own bench"
    assert mine.with_variants({"trn2.link_latency": "slow"}).ps("trn2", "link_latency") == 10**6
    assert (mine.integer("mychip", "cores"), mine.integer("trn2", "cc_cores")) == (4, 20)
    assert "mychip" in mine.parts()
    assert "mychip" not in shipped.parts()
    slow = choose(overlay=file, variants=["trn2.link_latency=slow"])
    assert slow.value("trn2", "link_latency") == pytest.approx(1e-6)


def test_columns_ends_of_ranges_and_names_of_own_parts(tmp_path, shipped):
    header = "source,grade,unit,value,quantity,part"
    file = overlay(
        tmp_path,
        "me,measured,W,480,tdp,trn2",
        # A thousandth is exact in a file, and no binary fraction.
        "me,measured,ratio,0.001,collective_efficiency,trn2",
        "me,stated,count,4,cores,mychip",
        "me,measured,ratio,0.5,gemm_sustained_mychip,kernels.trainium",
        # Parts that are named almost as others.
        *("own,stated,name,trainium,family,trn2b", "own,stated,TFLOP/s,700,bf16_peak,trn2b"),
        *("own,stated,name,trn2,chip,trn2.49xlarge", "own,stated,count,16,chips,trn2.49xlarge"),
        header=header,
    )
    mine = shipped.with_overlay(file)
    assert (mine.value("trn2", "tdp"), mine.entry("trn2", "tdp").note) == (480.0, "")
    assert mine.value("trn2", "collective_efficiency") == 0.001
    assert mine.value("kernels.trainium", "gemm_sustained_mychip") == 0.5
    assert mine.has("trn2b", "bf16_peak")
    assert mine.has("trn2.49xlarge", "chips")


def test_the_digest_follows_values_not_words(tmp_path, shipped):
    same = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,0.5,kW,measured,me,new note,,"))
    assert same == shipped
    assert hash(same) == hash(shipped)
    other = shipped.with_overlay(overlay(tmp_path, "trn2,tdp,,501,W,measured,me,,,"))
    assert other != shipped


@pytest.mark.parametrize(("line", "message"), [
    ("trn2,tdp,,480,W,guess,me,,,", "line 2: grade 'guess' is none of stated, "),
    ("trn2,tdp,,many,W,stated,me,,,", "line 2: value: 'many' is not a number."),
    ("trn2,tdp,,nan,W,stated,me,,,", "line 2: value: 'nan' is not a number."),
    ("trn2,tdp,,1e99,W,stated,me,,,", "line 2: value: 1e99 is beyond 1e±40."),
    ("trn2,tdp,,480,watts,stated,me,,,", "line 2: value: unknown unit watts."),
    ("trn2,tdp,,480,W,stated,,,,", "line 2: source is empty."),
    ("trn2,tdp,,480,,stated,me,,,", "line 2: unit is empty."),
    ("trn2,tdp,,-1,W,stated,me,,,", "line 2: value -1 is negative; the least is 0."),
    ("trn2,tdp,,480,W,stated,me,,490,500", "outside its range, 490 to 500."),
    ("trn2,tdp,,480,W,stated,me,,,low", "line 2: high: 'low' is not a number."),
    ("trn2,tdp,,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, and it is a quantity in W."),
    ("new,hbm_bytes,,144,TB/s,stated,me,,,", "new hbm_bytes is in B/s, and it is a quantity in B."),
    ("new,like,,trn22,name,stated,me,,,",
     "line 2: new is like 'trn22', which is no part. Did you mean trn2?"),
    ("trn2,tdp,x,480,GB,stated,me,,,", "line 2: trn2 tdp is in B, and it is a quantity in W."),
    ("trn2,zebra,x,1,W,stated,me,,,", "line 2: trn2 zebra: the variant 'x' has no default"),
    (
        "trn2,link_latnecy,,1,us,stated,me,,,",
        "line 2: trn2 link_latnecy: no command reads a quantity of that name. Did you mean "
        "link_latency? Correct it",
    ),
    ("trm2,link_bandwidth,,64,GB/s,stated,own,,,", "no part 'trm2'. Did you mean trn2? Corr"),
    ("trn2,tdp,,480", "line 2: it has not as many cells as the header has columns."),
    ("trn2,tdp,,480,W,stated,me,,,,,", "line 2: it has not as many cells as the header"),
    ('trn2,tdp,,480,W,"stated,me,,,', "not CSV (unexpected end of data)."),
    ("trn2,tdp,,1,W,stated,me,,,\ntrn2,tdp,,2,W,stated,me,,,",
     "line 3: trn2 tdp is also in line 2; keep one."),
])  # fmt: skip
def test_a_bad_row_is_refused_with_file_and_line(tmp_path, shipped, line, message):
    file = overlay(tmp_path, line)
    text = refusal_by(shipped.with_overlay, file)
    assert text.startswith(f"{file} line ")
    assert message in text


@pytest.mark.parametrize(("content", "message"), [
    (b"part,value\n",
     f" line 1: no column quantity, unit, grade, source; a catalogue has {HEADER}."),
    (HEADER.encode() + b"\n", " holds no rows. Add rows to it, or leave the file out."),
    (HEADER.encode() + b",notes\n", " line 1 has no 'notes'. Did you mean note?"),
    (b"", " line 1: no column part, quantity, value, unit, grade, source;"),
    (b"x" * 5_000_001, " is over the limit of 5 MB."),
    (HEADER.encode() + b"\ntrn2,\xff\xfe\n", " line 2: not UTF-8 text. Save it in UTF-8."),
    (HEADER.encode() + b"\n" + b"\x00" * 100 + b"\n", " line 2"),
])  # fmt: skip
def test_a_bad_file_is_refused_by_name(tmp_path, shipped, content, message):
    (path := tmp_path / "bad.csv").write_bytes(content)
    assert refusal_by(shipped.with_overlay, path).startswith(f"{path}{message}")


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(HEADER.encode() + b"\n" + content)
    try:
        outcome = shipped_catalogue().with_overlay(file).digest
    except InputError as refusal:
        outcome = str(refusal)
    assert "\n" not in outcome
    assert outcome


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_the_limits_of_the_process_count(monkeypatch, kind):
    usual = memory_limit.machine_bytes()

    def limits(limit: int) -> tuple[int, int]:
        return (10**6 if limit == kind else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    monkeypatch.setattr(memory_limit.resource, "getrlimit", limits)
    assert memory_limit.machine_bytes() == 10**6 < usual


def test_the_limit_of_a_container_counts(monkeypatch, tmp_path):
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory_limit, "CGROUP_LIMIT", group)
    for text, limited in (("123456\n", True), ("max\n", False)):
        group.write_text(text)
        assert (memory_limit.machine_bytes() == 123456) is limited


def test_work_that_needs_more_is_refused_with_what_would_do():
    memory_limit.check_memory("nothing", 0, "")
    with pytest.raises(InputError, match=r"the graph needs about 1 EB, and this .* Leave it out\."):
        memory_limit.check_memory("the graph", 10**18, "Leave it out.")


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values):
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()
