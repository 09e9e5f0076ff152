"""Rounds that are held a few at a time have the times of the schedule that is written out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import HorizonError, repeats, simulate
from cluster_sim.engine.repeats import simulate_rounds
from cluster_sim.schedule.build import OpColumns, check, merge, schedule
from cluster_sim.schedule.repeats import LargerBlocks, Rounds, rounds_written_out
from cluster_sim.schedule.table import (
    FIXED,
    HORIZON_PS,
    JOIN,
    Edges,
    Flows,
    Resources,
    Schedule,
    ScheduleError,
)
from tests.support.examples import examples
from tests.support.schedules import schedules
from tests.support.written_rules import check_rounds


def in_rounds(body: Schedule, count: int, final: int, across: list[tuple[int, int]]) -> Schedule:
    """Rounds of a body, each a little slower than the one before, and final joins.

    Each op leads to itself in the round that follows, and ``across`` to others there.
    """
    ops, edges = len(body), body.edges
    body_edges = np.stack([edges.sources(), edges.dst, edges.lag_ps, edges.start_mask()])
    same = np.arange(ops)
    ahead = np.array(across, np.int64).reshape(-1, 2).T
    src, to = np.concatenate([same, ahead[0]]), np.concatenate([same, ahead[1]])
    pairs = [body_edges + np.array([[k * ops], [k * ops], [k], [0]]) for k in range(count)]
    for k in range(count):
        there = (k + 1) * ops + (to if k < count - 1 else to % final)
        pairs.append(np.stack([k * ops + src, there, src % 3, 0 * src]))
    src, dst, lag, starts = np.concatenate(pairs, axis=1)
    slower = np.repeat(np.arange(count), ops)
    kind = np.tile(body.kind, count)
    flows = body.flows
    return schedule(
        OpColumns(
            kind=np.append(kind, [JOIN] * final),
            resource=np.append(np.tile(body.resource, count), [-1] * final),
            duration_ps=np.append(
                np.tile(body.duration_ps, count) + slower * (kind == FIXED), [0] * final
            ),
            size_bytes=np.append(np.tile(body.size_bytes, count) + slower, [0] * final),
            priority=np.append(np.tile(body.priority, count), [0] * final),
        ),
        edges=Edges.from_pairs(len(kind) + final, src, dst, lag, starts > 0),
        resources=body.resources,
        flows=Flows(
            np.add.outer(np.arange(count) * ops, flows.op).ravel().astype(np.int32),
            np.tile(flows.cap_bytes_per_s, count) + np.repeat(np.arange(count), len(flows)),
            np.append(0, np.cumsum(np.tile(np.diff(flows.ptr), count))).astype(np.int64),
            np.tile(flows.resource, count),
            np.tile(flows.weight, count),
        ),
    )


@examples(100)
@given(st.data())
def test_a_window_of_rounds_is_the_schedule_written_out(data: st.DataObject) -> None:
    """SimPy and the compiled engine on all ops, and windows of any length."""
    body = data.draw(schedules(most_ops=6, blocked=False))
    repeats = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    op = st.integers(0, len(body) - 1)
    across = data.draw(st.lists(st.tuples(op, op), max_size=4))
    # Where the last round is repeated, what leads to its next repeat leads to the final ops.
    final = data.draw(st.integers(1, len(body))) if repeats[-1] == 1 else len(body)
    few = Rounds(
        in_rounds(body, len(repeats), final, across), len(body), np.array(repeats, np.int64)
    )
    check_rounds(few)
    plain = rounds_written_out(few)
    check(plain)
    assert len(plain) == few.all_ops
    times = simulate(plain, engine="reference")
    for window in (1, 2, data.draw(st.integers(1, 12)), None):
        if times.blocked.any():  # a flow to which a resource gives less than 1 B/s
            with pytest.raises(ValueError, match="some ops of the rounds never run"):
                simulate_rounds(few, window=window)
        else:
            assert simulate_rounds(few, window=window) == times.total_ps


def chains(durations: list[int], times: int, *, linked: bool = False) -> Rounds:
    """Chains of transfers, each on a link of its own; linked ones wait for the one before too."""
    count = len(durations)
    link = np.arange(count)
    follower = [link, (link + 1) % count] if linked else [link]
    table = schedule(
        OpColumns(
            kind=[FIXED] * count + [JOIN] * count,
            resource=np.append(link, np.full(count, -1)),
            duration_ps=[*durations, *[0] * count],
        ),
        edges=Edges.from_pairs(
            2 * count, np.tile(link, len(follower)), np.concatenate(follower) + count
        ),
        resources=Resources.table("link", link, link + count),
    )
    return Rounds(table, count, np.array([times]))


def windows_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The length of each window that is opened from now on."""
    opened: list[int] = []

    class Counted(repeats._Window):
        def __init__(self, few: Rounds, length: int):
            opened.append(length)
            super().__init__(few, length)

    monkeypatch.setattr(repeats, "_Window", Counted)
    return opened


def test_a_window_moves_on_and_doubles_until_the_fastest_chain_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = windows_of(monkeypatch)
    assert simulate_rounds(chains([7], 3)) == 21
    assert opened == []  # few rounds are written out
    assert simulate_rounds(chains([5, 4, 1], 1000, linked=True), window=12) == 5000
    assert opened == [12]  # it moves on through all rounds
    opened.clear()
    assert simulate_rounds(chains([1000, 1], 100), window=4) == 100_000
    assert opened == [4, 8, 16, 32, 64]  # then the schedule is written out: 100 rounds fit in 128


def test_ops_that_wait_out_of_order_move_on_with_the_window() -> None:
    """When the window moves, the second op waits in the queue's list and the third in its heap.

    The first op has ended by then, and the fourth has just started.
    """
    each = np.repeat(np.arange(4), 4)
    table = schedule(
        OpColumns(
            kind=[FIXED] * 4 + [JOIN] * 4,
            resource=[0] * 4 + [-1] * 4,
            duration_ps=[5, 7, 9, 11, 0, 0, 0, 0],
            priority=[0, 3, 2, 1, 0, 0, 0, 0],
        ),
        edges=Edges.from_pairs(8, each, np.tile([4, 5, 6, 7], 4)),
        resources=Resources.table("link", [0], [1]),
    )
    assert simulate_rounds(Rounds(table, 4, np.array([100])), window=8) == 3200


@pytest.mark.parametrize("window", [3, None])
def test_a_run_past_the_horizon_is_refused(window: int | None) -> None:
    with pytest.raises(HorizonError, match="op 4 would end"):
        simulate_rounds(chains([HORIZON_PS // 4 - 1], 10), window=window)


@pytest.mark.parametrize("window", [4, None])
def test_rounds_that_never_run_are_refused(window: int | None) -> None:
    """Both ops of each round wait for each other."""
    table = schedule(
        OpColumns(kind=[JOIN] * 4),
        edges=Edges.from_pairs(4, [0, 0, 1, 1], [1, 2, 0, 3]),
        resources=Resources.none(),
    )
    with pytest.raises(ValueError, match="some ops of the rounds never run"):
        simulate_rounds(Rounds(table, 2, np.array([9])), window=window)


def joins(ops: int, src: list[int], dst: list[int]) -> Schedule:
    return schedule(
        OpColumns(kind=[JOIN] * ops),
        edges=Edges.from_pairs(ops, src, dst),
        resources=Resources.none(),
    )


@pytest.mark.parametrize(
    ("table", "ops", "repeats", "message"),
    [
        (joins(2, [0], [1]), 1, [0], r"repeated \[0\] times, the least is 1"),
        (joins(3, [0, 1], [1, 2]), 1, [1], "3 ops are not 1 rounds of 1 ops"),
        (joins(3, [0, 0, 1], [1, 1, 2]), 1, [1, 1], "differ in their number of edges"),
        (joins(3, [0, 1], [2, 2]), 1, [1, 1], "another round than its own"),
        (joins(4, [0, 1], [2, 2]), 2, [1], "behind the first round waits for none"),
        (joins(3, [0, 1], [2, 2]), 2, [2], "behind the first round waits for none"),
    ],
)
def test_schedules_that_are_no_rounds_are_refused(
    table: Schedule, ops: int, repeats: list[int], message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        check_rounds(Rounds(table, ops, np.array(repeats)))


def test_rounds_whose_larger_blocks_lead_elsewhere_are_refused() -> None:
    few, other = joins(3, [0, 1], [1, 2]), joins(3, [0, 0], [1, 2])
    larger = LargerBlocks(merge(few, other), np.array([[True, False]]), np.array([0]))
    with pytest.raises(ScheduleError, match="edges of larger blocks lead to other ops"):
        check_rounds(Rounds(few, 1, np.array([1, 1]), larger))
