"""Rounds held a few at a time, and routines in place, have the times of what is written out."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import Faults, HorizonError, repeats, simulate
from cluster_sim.engine.repeats import simulate_calls, simulate_rounds
from cluster_sim.schedule.build import OpColumns, check, merge, schedule
from cluster_sim.schedule.repeats import (
    LargerBlocks,
    Rounds,
    Routines,
    calls_written_out,
    rounds_written_out,
)
from cluster_sim.schedule.table import (
    FIXED,
    HORIZON_PS,
    JOIN,
    Edges,
    Flows,
    Resources,
    ScheduleError,
)
from tests.support.examples import examples
from tests.support.schedules import schedules
from tests.support.written_rules import check_rounds, check_routines


def in_rounds(body, count, final, across):
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
def test_a_window_of_rounds_is_the_schedule_written_out(data):
    """SimPy and the compiled engine on all ops, and windows of any length."""
    body = data.draw(schedules(most_ops=6, blocked=False))
    repeats = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    op = st.integers(0, len(body) - 1)
    across = data.draw(st.lists(st.tuples(op, op), max_size=4))
    # Where the last round is repeated, what leads to its next repeat leads to the final ops.
    final = data.draw(st.integers(1, len(body))) if repeats[-1] == 1 else len(body)
    table = in_rounds(body, len(repeats), final, across)
    few = Rounds(table, len(body), np.array(repeats, np.int64))
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


def chains(durations, times, *, linked=False):
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


def windows_of(monkeypatch):
    """The length of each window that is opened from now on."""
    opened = []

    class Counted(repeats._Window):
        def __init__(self, few, length):
            opened.append(length)
            super().__init__(few, length)

    monkeypatch.setattr(repeats, "_Window", Counted)
    return opened


def test_a_window_moves_on_and_doubles_until_the_fastest_chain_fits(monkeypatch):
    opened = windows_of(monkeypatch)
    assert simulate_rounds(chains([7], 3)) == 21
    assert opened == []  # few rounds are written out
    assert simulate_rounds(chains([5, 4, 1], 1000, linked=True), window=12) == 5000
    assert opened == [12]  # it moves on through all rounds
    opened.clear()
    assert simulate_rounds(chains([1000, 1], 100), window=4) == 100_000
    assert opened == [4, 8, 16, 32, 64]  # then the schedule is written out: 100 rounds fit in 128


def test_ops_that_wait_out_of_order_move_on_with_the_window():
    """When the window moves, the second op waits in the queue's list and the third in its heap.

    The first op has ended by then, and the fourth has just started.
    """
    each = np.repeat(np.arange(4), 4)
    table = schedule(
        OpColumns(
            kind=[FIXED] * 4 + [JOIN] * 4, resource=[0] * 4 + [-1] * 4,
            duration_ps=[5, 7, 9, 11, 0, 0, 0, 0], priority=[0, 3, 2, 1, 0, 0, 0, 0],
        ),
        edges=Edges.from_pairs(8, each, np.tile([4, 5, 6, 7], 4)),
        resources=Resources.table("link", [0], [1]),
    )  # fmt: skip
    assert simulate_rounds(Rounds(table, 4, np.array([100])), window=8) == 3200


@pytest.mark.parametrize("window", [3, None])
def test_a_run_past_the_horizon_is_refused(window):
    with pytest.raises(HorizonError, match="op 4 would end"):
        simulate_rounds(chains([HORIZON_PS // 4 - 1], 10), window=window)


@pytest.mark.parametrize("window", [4, None])
def test_rounds_that_never_run_are_refused(window):
    """Both ops of each round wait for each other."""
    table = joins((0, 1), (0, 2), (1, 0), (1, 3), ops=4)
    with pytest.raises(ValueError, match="some ops of the rounds never run"):
        simulate_rounds(Rounds(table, 2, np.array([9])), window=window)


WORK, CALL, RETURN = range(3)
COLUMNS = ("ready_ps", "start_ps", "end_ps", "status")


def calling_chains(body, delays):
    """Chains of work, call and return; every chain calls a routine of its own of the same ops."""
    turns = [delay for chain in delays for delay in chain]
    outside, ops = 3 * len(turns), len(body) + 1
    first = outside + ops * np.arange(len(delays) + 1)
    calls = outside // 3
    routine = np.repeat(np.arange(len(delays)), [len(chain) for chain in delays])
    op = np.arange(outside)
    of_call = np.append(routine, -1)
    goes_on = of_call[op // 3] == of_call[op // 3 + 1]
    leads = (op % 3 == WORK) | ((op % 3 == RETURN) & goes_on)
    columns = {
        "kind": [FIXED, JOIN, JOIN] * calls, "resource": [-1] * outside,
        "duration_ps": [ps for delay in turns for ps in (delay, 0, 0)],
        "size_bytes": [0] * outside, "priority": [0] * outside,
    }  # fmt: skip
    whole = {
        name: np.concatenate([column, *[np.append(getattr(body, name), end)] * len(delays)])
        for (name, column), end in zip(columns.items(), (JOIN, -1, 0, 0, 0), strict=True)
    }
    pairs = [np.stack([op[leads], op[leads] + 1, 0 * op[leads], 0 * op[leads]])]
    pairs += [_body(body) + np.array([[at], [at], [0], [0]]) for at in first[:-1].tolist()]
    src, dst, lag, starts = np.concatenate(pairs, axis=1)
    table = schedule(
        OpColumns(**whole), edges=Edges.from_pairs(int(first[-1]), src, dst, lag, starts > 0),
        resources=body.resources, flows=_flows(body, first[:-1]),
    )  # fmt: skip
    return table, Routines(first, 3 * np.arange(calls) + CALL, routine)


def _body(body):
    """Edges of a routine's ops, and from the last of them to its end."""
    edges = body.edges
    last = np.flatnonzero(np.diff(edges.ptr) == 0)
    to_end = np.stack([last, np.full(len(last), len(body)), 0 * last, 0 * last])
    within = np.stack([edges.sources(), edges.dst, edges.lag_ps, edges.start_mask()])
    return np.concatenate([within, to_end], axis=1)


def _flows(body, first):
    flows, copies = body.flows, len(first)
    return Flows(
        np.add.outer(first, flows.op).ravel().astype(np.int32),
        np.tile(flows.cap_bytes_per_s, copies),
        np.append(0, np.cumsum(np.tile(np.diff(flows.ptr), copies))).astype(np.int64),
        np.tile(flows.resource, copies),
        np.tile(flows.weight, copies),
    )


def times_outside(times, outside):
    return {name: getattr(times, name)[:outside].tolist() for name in COLUMNS}


@examples(120)
@given(st.data())
def test_a_routine_is_its_ops_once_a_call(data):
    """SimPy and the compiled engine on the schedule written out, and the routine in place."""
    body = data.draw(schedules(most_ops=8, blocked=False))
    delays = st.lists(st.integers(1, 9), min_size=1, max_size=4)
    whole, routines = calling_chains(body, data.draw(st.lists(delays, min_size=1, max_size=3)))
    check_routines(whole, routines)
    plain = calls_written_out(whole, routines)
    assert len(plain) == routines.ops
    try:
        expected = times_outside(simulate(plain, engine="reference"), routines.outside)
    except HorizonError:
        with pytest.raises(HorizonError):
            simulate_calls(whole, routines)
        return
    assert times_outside(simulate(plain), routines.outside) == expected
    for engine in ("fast", "reference"):
        times = simulate_calls(whole, routines, engine=engine)
        assert times_outside(times, routines.outside) == expected
        assert len(times) == routines.outside


def one_transfer():
    return schedule(
        OpColumns(kind=[FIXED], resource=0, duration_ps=5),
        edges=Edges.from_pairs(1, np.empty(0, int), np.empty(0, int)),
        resources=Resources.table("link", [0], [1]),
    )


def test_calls_wait_for_links_and_for_each_other():
    """Work of 1 ps, then 5 ps on the one link, twice on each of two chains: the second waits."""
    times = simulate_calls(*calling_chains(one_transfer(), [[1, 1], [1, 2]]))
    assert times.end_ps[RETURN::3].tolist() == [6, 16, 11, 21]


def test_faults_strike_calls():
    """At half speed from 3 ps on: 1 + 2 + 6."""
    whole, routines = calling_chains(one_transfer(), [[1]])
    slow = Faults.table([3], [0], [1], [2])
    for engine in ("fast", "reference"):
        times = simulate_calls(whole, routines, engine=engine, faults=slow)
        assert times.end_ps.tolist() == [1, 1, 9]


def test_a_routine_that_is_called_twice_at_once_is_refused():
    whole, routines = calling_chains(one_transfer(), [[1, 1]])
    both = Routines(routines.first, routines.caller, np.zeros(2, int))
    at_once = replace(whole, edges=Edges.from_pairs(8, [0, 3, 6], [1, 4, 7]))
    with pytest.raises(ValueError, match="routine 0 is called while it runs"):
        simulate_calls(at_once, both)


def joins(*edges, ops=3):
    src, dst = zip(*edges, strict=True)
    edges = Edges.from_pairs(ops, src, dst)
    return schedule(OpColumns(kind=[JOIN] * ops), edges=edges, resources=Resources.none())


IN_TURN = joins((0, 1), (1, 2))
ELSEWHERE = LargerBlocks(merge(IN_TURN, joins((0, 1), (0, 2))), np.array([[True]]), np.array([0]))
WHOLE, ROUTINES = calling_chains(one_transfer(), [[1, 1]])


@pytest.mark.parametrize(("check_rules", "broken", "message"), [
    (check_rounds, Rounds(joins((0, 1), (0, 1), (1, 2)), 1, np.array([1, 1])),
     "differ in their number of edges"),
    (check_rounds, Rounds(joins((0, 2), (1, 2)), 1, np.array([1, 1])), "another round than"),
    (check_rounds, Rounds(joins((0, 2), (1, 2), ops=4), 2, np.array([1])), "waits for none"),
    (check_rounds, Rounds(IN_TURN, 1, np.array([1, 1]), ELSEWHERE), "larger blocks lead to"),
    (check_routines, replace(ROUTINES, caller=ROUTINES.caller[[0, 0]]), "two are of one"),
    (check_routines, replace(ROUTINES, first=np.array([6, 7, 8])), "does not end in a join"),
])  # fmt: skip
def test_the_rules_find_what_breaks_them(check_rules, broken, message):
    with pytest.raises(ScheduleError, match=message):
        check_rules(*([WHOLE] if isinstance(broken, Routines) else []), broken)
