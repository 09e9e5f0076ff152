"""The command ``list``."""

from tests.support.commands import document_of, printed_by
from workloads.confidence.residuals import shipped_residuals
from workloads.training.frameworks.framework import names


def test_causes_of_jitter_are_listed_and_each_with_its_source():
    rows = document_of("list jitter")["rows"]
    assert [row["name"] for row in rows] == ["chips", "servers", "hosts", "heat", "network"]
    assert all(row["low"] < row["high"] and row["source"] and row["note"] for row in rows)
    assert "whiskers of box plots" in " ".join(printed_by("list jitter chips").split())


def test_variants_are_listed_by_part_until_one_is_named():
    short, named = printed_by("list variants"), printed_by("list variants trn2.BF16")
    assert "trn2.bf16_peak=tensor-engine" not in short
    assert next(line for line in short.splitlines() if line.startswith("trn2 "))
    assert "trn2.bf16_peak=tensor-engine" in named
    assert "632 TFLOP/s" in named


def test_frameworks_are_listed_with_the_errors_of_their_rows():
    rows = {row["name"]: row for row in document_of("list frameworks")["rows"]}
    assert tuple(rows) == names()
    assert all(row["measured_rows"] > 0 for row in rows.values())
    titan = rows["torchtitan"]
    residuals = [row for row in shipped_residuals().rows if row.framework == "torchtitan"]
    assert 0 < titan["measured_rows"] < len(residuals)  # each at one level of what was told
    assert 0 < titan["median_error"] < 1
    assert titan["plan"] == "zero 3, overlap dp, attention fused"
    assert {"h100", "mi300x"} <= set(titan["chips"].split(", "))
    assert "trn2" not in titan["chips"]
    assert rows["neuronx"]["chips"].split(", ")[0] == "trn1"
    short, whole = (printed_by("list frameworks"), printed_by("list frameworks deepspeed"))
    assert len(short.splitlines()) < 3 * len(names())
    assert ("500-watt" in short, "500-watt" in whole) == (False, True)
    assert "measured rows" in whole
