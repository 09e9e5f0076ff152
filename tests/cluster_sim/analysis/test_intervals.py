"""Algebra of intervals: gaps, and instants by category."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.analysis import stretches as intervals
from cluster_sim.analysis.stretches import Intervals, attribute_ps, gaps, stable_order

rows = st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 8), st.integers(0, 2))


def _on_at(table: list[tuple[int, int, int, int]], group: int, instant: int) -> list[int]:
    """Categories on in a group at an instant, by the definition."""
    return [c for g, start, length, c in table if g == group and start <= instant < start + length]


def _columns(table: list[tuple[int, int, int, int]]) -> tuple[Intervals, np.ndarray]:
    group, start, length, category = np.array(table, np.int64).reshape(-1, 4).T
    return Intervals(group, start, start + length, 4), category


@given(table=st.lists(rows, max_size=25), total=st.integers(0, 30))
def test_every_instant_goes_to_the_first_category_that_is_on(table, total):
    expected = np.zeros((4, 4), np.int64)
    for group in range(4):
        for instant in range(total):
            expected[group, min(_on_at(table, group, instant), default=3)] += 1
    columns, category = _columns(table)
    assert np.array_equal(attribute_ps(columns, category, 3, total), expected)


def union_ps(intervals: Intervals) -> np.ndarray:
    """Time in which at least one interval of a group is active [ps], (groups,)."""
    return attribute_ps(intervals, np.zeros(len(intervals), np.int8), 1)[:, 0]


@given(table=st.lists(rows, max_size=25))
def test_gaps_and_intervals_make_up_the_whole(table):
    columns, _ = _columns(table)
    rest, _ = gaps(columns, 40)
    assert np.array_equal(union_ps(columns) + union_ps(rest), np.full(4, 40))


def test_intervals_of_zero_length_and_no_intervals_count_for_nothing():
    none = Intervals(*(np.empty(0, np.int64) for _ in range(3)), 2)
    assert attribute_ps(none, np.empty(0, np.int64), 1, 9).tolist() == [[0, 9], [0, 9]]
    assert len(gaps(none, 9)[0]) == 2
    empty = Intervals(np.array([1]), np.array([3]), np.array([3]), 2)
    assert union_ps(empty).tolist() == [0, 0]


@pytest.mark.parametrize("rows_a_block", [7, 2**20])
def test_many_blocks_and_long_horizons_stay_exact(rows_a_block, monkeypatch):
    monkeypatch.setattr(intervals, "BLOCK_ROWS", rows_a_block)
    rng = np.random.default_rng(1)
    group, category = rng.integers(0, 50, 400), rng.integers(0, 3, 400)
    start = rng.integers(0, 2**61, 400)
    many = Intervals(group, start, start + rng.integers(0, 2**60, 400), 50)
    parts = attribute_ps(many, category, 3, 2**62 - 1)
    assert np.all(parts >= 0)
    assert np.all(parts.sum(1) == 2**62 - 1)
    for k in (0, 17, 49):
        alone = many.group == k
        one = Intervals(np.zeros(alone.sum(), int), start[alone], many.end_ps[alone], 1)
        assert attribute_ps(one, category[alone], 3, 2**62 - 1)[0].tolist() == parts[k].tolist()


@pytest.mark.parametrize(("most", "width"), [(100, "i1"), (30_000, "i2"), (200_000, "i4")])
def test_a_stable_order_by_code_of_any_width(most, width):
    codes = np.random.default_rng(0).integers(0, most, 5_000).astype(width)
    assert np.array_equal(stable_order(codes), np.argsort(codes, kind="stable"))


@given(table=st.lists(rows, max_size=25), block=st.sampled_from([1, 4, 2**20]))
def test_a_gap_knows_the_first_row_that_ends_it(table, block):
    columns, _ = _columns(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "BLOCK_ROWS", block)
        free, row = gaps(columns, 40)
    for group, end, first in zip(free.group, free.end_ps, row, strict=True):
        starting = (k for k, row in enumerate(table) if row[:2] == (group, end) and row[2])
        assert first == min(starting, default=-1)
