"""Sensitivity: exact elasticities of a known answer, ranges, and numbers without effect."""

from __future__ import annotations

import functools

import pytest

from experiments.figures.sensitivity import tornado
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.errors import InputError
from workloads.confidence.sensitivity import STEP, WIDE_STEP, noting, sensitivity, sensitivity_frame


def _transfer_s(catalogue: Catalogue) -> float:
    """A latency and a transfer, and a number that is read for nothing."""
    catalogue.value("trn2", "hbm_bytes")
    return catalogue.value("trn2", "link_latency") + 3e6 / catalogue.value("trn2", "link_bandwidth")


def test_elasticities_are_those_of_the_formula() -> None:
    rows = {row.input: row for row in sensitivity(_transfer_s, shipped_catalogue())}
    catalogue = shipped_catalogue()
    latency, total = catalogue.value("trn2", "link_latency"), _transfer_s(catalogue)
    assert rows.keys() == {"trn2.link_latency", "trn2.link_bandwidth"}
    assert rows["trn2.link_latency"].elasticity == pytest.approx(latency / total)
    moved = (1 / 1.01 - 1) * (total - latency) / total
    assert rows["trn2.link_bandwidth"].elasticity == pytest.approx(moved / 0.01)


def test_an_answer_that_jumps_takes_wider_steps() -> None:
    """An answer in proportion to a number, less one step of five per cent on the way."""

    def jumping_s(catalogue: Catalogue) -> float:
        latency = catalogue.value("trn2", "link_latency") / shipped.value("trn2", "link_latency")
        return 100 * latency - 5 * (latency > 1.005)

    shipped = shipped_catalogue()
    narrow, wide = (sensitivity(jumping_s, shipped, step=step)[0] for step in (STEP, WIDE_STEP))
    assert narrow.elasticity == pytest.approx(-4)
    assert wide.elasticity == pytest.approx(0.5)


def test_a_range_is_walked_to_both_ends() -> None:
    row = next(
        row for row in sensitivity(_transfer_s, shipped_catalogue()) if "latency" in row.input
    )
    entry, total = (
        shipped_catalogue().entry("trn2", "link_latency"),
        _transfer_s(shipped_catalogue()),
    )
    assert (row.low, row.high) == (entry.low, entry.high)
    assert entry.low is not None
    assert row.change_low == pytest.approx((entry.low - entry.value) / total)
    assert row.change_low < 0 < (row.change_high or 0)


def test_the_largest_swing_comes_first() -> None:
    rows = sensitivity(_transfer_s, shipped_catalogue())
    assert [row.swing for row in rows] == sorted((row.swing for row in rows), reverse=True)
    frame = sensitivity_frame(rows)
    assert list(frame.columns)[:4] == ["input", "low", "high", "change_low"]


def test_a_refused_end_is_left_empty() -> None:
    lowest = shipped_catalogue().entry("trn2", "link_latency").low

    def picky(catalogue: Catalogue) -> float:
        if catalogue.value("trn2", "link_latency") == lowest:
            raise InputError("too fast")
        return _transfer_s(catalogue)

    row = next(row for row in sensitivity(picky, shipped_catalogue()) if "latency" in row.input)
    assert row.change_low is None
    assert row.change_high is not None


def test_a_noting_catalogue_has_the_same_numbers_under_another_digest() -> None:
    noted = noting(shipped_catalogue())
    assert noted.value("trn2", "cores") == shipped_catalogue().value("trn2", "cores")
    assert list(noted.read) == [("trn2", "cores", "")]
    assert noted != shipped_catalogue()


def test_reads_are_recorded_again_where_an_answer_is_cached_by_its_catalogue() -> None:
    """A second ranking in a process, as of a notebook, ranks as many numbers as the first."""
    cached = functools.cache(_transfer_s)
    first, second = (sensitivity(cached, shipped_catalogue()) for _ in range(2))
    assert len(first) == 2
    assert second == first


def test_the_tornado_labels_every_bar_with_its_range_and_grade() -> None:
    figure = tornado(sensitivity(_transfer_s, shipped_catalogue()), "a transfer")
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert any(label.startswith("trn2.link_latency") and "assumed" in label for label in labels)
    assert any("±10 %" in label for label in labels)


def test_numbers_of_a_variant_that_the_answer_chooses_are_ranked() -> None:
    """As a framework does, whose variants were read without being recorded."""
    chosen = {"trn2.hbm_bandwidth": "kernel-guide"}

    def stream_s(catalogue: Catalogue) -> float:
        return 1e12 / catalogue.with_variants(chosen).value("trn2", "hbm_bandwidth")

    (row,) = sensitivity(stream_s, shipped_catalogue())
    assert row.input == "trn2.hbm_bandwidth"
    assert row.elasticity == pytest.approx((1 / 1.01 - 1) / 0.01)
