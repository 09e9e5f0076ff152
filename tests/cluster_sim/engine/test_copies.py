"""Copies of a schedule run one after the other in the same buffers, each as if run alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_sim.engine import simulate
from cluster_sim.engine.copies import simulate_copies
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.picoseconds import transfer_ps
from cluster_sim.schedule.table import FIXED, JOIN, Edges, IntArray, Resources, Schedule


def ring(ranks: int, steps: int, sizes: list[int]) -> Schedule:
    """A ring of ranks, each sending on what came; a join a rank behind the last step."""
    ops = ranks * steps
    op = np.arange(ops)
    following = (op // ranks + 1) * ranks + (op + 1) % ranks
    return schedule(
        OpColumns(
            kind=[FIXED] * ops + [JOIN] * ranks,
            resource=np.append(op % ranks, np.full(ranks, -1)),
            duration_ps=np.append(np.ones(ops, np.int64), np.zeros(ranks, np.int64)),
            size_bytes=np.append(np.resize(sizes, ops), np.zeros(ranks, np.int64)),
        ),
        resources=Resources.table("link", np.arange(ranks), (np.arange(ranks) + 1) % ranks),
        edges=Edges.from_pairs(ops + ranks, op, following),
    )


def written(pattern: Schedule, kind: IntArray, rate: IntArray, latency_ps: IntArray) -> Schedule:
    """One copy, as a schedule of its own."""
    fixed = pattern.kind == FIXED
    on = kind[pattern.resource]
    duration = np.where(fixed, transfer_ps(pattern.size_bytes, rate[on]), 0)
    src = pattern.edges.sources()
    lag = np.where(fixed[src], latency_ps[on[src]], pattern.edges.lag_ps)
    return replace(pattern, duration_ps=duration, edges=replace(pattern.edges, lag_ps=lag))


@given(st.data())
@settings(max_examples=40)
def test_every_copy_is_the_schedule_that_it_stands_for(data: st.DataObject) -> None:
    numbers = st.integers(1, 10**9)
    ranks, kinds = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    sizes = data.draw(st.lists(numbers, min_size=1, max_size=3))
    rate = data.draw(st.lists(st.integers(10**4, 10**9), min_size=kinds, max_size=kinds))
    latency = data.draw(st.lists(st.integers(0, 10**6), min_size=kinds, max_size=kinds))
    seed = data.draw(st.integers(0, 99))
    kind = np.random.default_rng(seed).integers(0, kinds, (data.draw(st.integers(1, 9)), ranks))
    pattern = ring(ranks, data.draw(st.integers(1, 6)), sizes)
    ends = simulate_copies(pattern, kind, rate, latency, threads=data.draw(st.integers(1, 3)))
    expected = [
        simulate(
            written(pattern, row, np.array(rate), np.array(latency)), engine="reference"
        ).total_ps
        for row in kind
    ]
    assert ends.tolist() == expected


def test_the_pattern_is_left_as_it_was() -> None:
    pattern = ring(3, 2, [7])
    simulate_copies(pattern, np.zeros((4, 3), int), [1], [5])
    assert set(pattern.duration_ps.tolist()) == {0, 1}
    assert not pattern.edges.lag_ps.any()


def test_no_copies_end_never() -> None:
    assert simulate_copies(ring(3, 2, [7]), np.zeros((0, 3), int), [1], [5]).tolist() == []


def test_schedules_that_cannot_be_copied_are_refused() -> None:
    pattern = ring(3, 2, [7])
    with pytest.raises(ValueError, match=r"^kind is \(4, 2\), not copies × 3 links$"):
        simulate_copies(pattern, np.zeros((4, 2), int), [1], [5])
    with pytest.raises(ValueError, match=r"^kind reaches from 1 to 1, outside 1 kinds$"):
        simulate_copies(pattern, np.ones((4, 3), int), [1], [5])
    circle = replace(pattern, edges=Edges.from_pairs(len(pattern), [0, 1], [1, 0]))
    with pytest.raises(ValueError, match=r"^copy \d leaves ops over$"):
        simulate_copies(circle, np.zeros((4, 3), int), [1], [5])
