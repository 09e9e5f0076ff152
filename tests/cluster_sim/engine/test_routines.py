"""A routine that runs in place has the times of one that is written out for each call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_sim.engine import Faults, HorizonError, Times, simulate
from cluster_sim.engine.repeats import simulate_calls
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.repeats import Routines, calls_written_out
from cluster_sim.schedule.table import (
    FIXED,
    JOIN,
    Edges,
    Flows,
    IntArray,
    Resources,
    Schedule,
    ScheduleError,
)
from tests.support.examples import examples
from tests.support.schedules import schedules
from tests.support.written_rules import check_routines

WORK, CALL, RETURN = range(3)
COLUMNS = ("ready_ps", "start_ps", "end_ps", "status")


def chains(body: Schedule, delays: list[list[int]]) -> tuple[Schedule, Routines]:
    """Chains of work, call and return; every chain calls a routine of its own of the same ops."""
    turns = [delay for chain in delays for delay in chain]
    outside, ops = 3 * len(turns), len(body) + 1
    first = outside + ops * np.arange(len(delays) + 1)
    calls = outside // 3
    routine = np.repeat(np.arange(len(delays)), [len(chain) for chain in delays])
    op = np.arange(outside)
    leads = (op % 3 == WORK) | (
        (op % 3 == RETURN)
        & (np.append(routine, -1)[op // 3] == np.append(routine, -1)[op // 3 + 1])
    )
    columns = {
        "kind": [FIXED, JOIN, JOIN] * calls,
        "resource": [-1] * outside,
        "duration_ps": [ps for delay in turns for ps in (delay, 0, 0)],
        "size_bytes": [0] * outside,
        "priority": [0] * outside,
    }
    whole = {
        name: np.concatenate([column, *[np.append(getattr(body, name), end)] * len(delays)])
        for (name, column), end in zip(columns.items(), (JOIN, -1, 0, 0, 0), strict=True)
    }
    pairs = [np.stack([op[leads], op[leads] + 1, 0 * op[leads], 0 * op[leads]])]
    pairs += [_body(body) + np.array([[at], [at], [0], [0]]) for at in first[:-1].tolist()]
    src, dst, lag, starts = np.concatenate(pairs, axis=1)
    table = schedule(
        OpColumns(**whole),
        edges=Edges.from_pairs(int(first[-1]), src, dst, lag, starts > 0),
        resources=body.resources,
        flows=_flows(body, first[:-1]),
    )
    return table, Routines(first, 3 * np.arange(calls) + CALL, routine)


def _body(body: Schedule) -> IntArray:
    """Edges of a routine's ops, and from the last of them to its end."""
    edges = body.edges
    last = np.flatnonzero(np.diff(edges.ptr) == 0)
    to_end = np.stack([last, np.full(len(last), len(body)), 0 * last, 0 * last])
    within = np.stack([edges.sources(), edges.dst, edges.lag_ps, edges.start_mask()])
    return np.concatenate([within, to_end], axis=1)


def _flows(body: Schedule, first: IntArray) -> Flows:
    flows, copies = body.flows, len(first)
    return Flows(
        np.add.outer(first, flows.op).ravel().astype(np.int32),
        np.tile(flows.cap_bytes_per_s, copies),
        np.append(0, np.cumsum(np.tile(np.diff(flows.ptr), copies))).astype(np.int64),
        np.tile(flows.resource, copies),
        np.tile(flows.weight, copies),
    )


def outcome(times: Times, outside: int) -> dict[str, list[int]]:
    return {name: getattr(times, name)[:outside].tolist() for name in COLUMNS}


@examples(120)
@given(st.data())
def test_a_routine_is_its_ops_once_a_call(data: st.DataObject) -> None:
    """SimPy and the compiled engine on the schedule written out, and the routine in place."""
    body = data.draw(schedules(most_ops=8, blocked=False))
    delays = st.lists(st.integers(1, 9), min_size=1, max_size=4)
    whole, routines = chains(body, data.draw(st.lists(delays, min_size=1, max_size=3)))
    check_routines(whole, routines)
    plain = calls_written_out(whole, routines)
    assert len(plain) == routines.ops
    try:
        expected = outcome(simulate(plain, engine="reference"), routines.outside)
    except HorizonError:
        with pytest.raises(HorizonError):
            simulate_calls(whole, routines)
        return
    assert outcome(simulate(plain), routines.outside) == expected
    for engine in ("fast", "reference"):
        times = simulate_calls(whole, routines, engine=engine)
        assert outcome(times, routines.outside) == expected
        assert len(times) == routines.outside


def one_transfer() -> Schedule:
    """5 ps on a link."""
    return schedule(
        OpColumns(kind=[FIXED], resource=0, duration_ps=5),
        edges=Edges.from_pairs(1, np.empty(0, int), np.empty(0, int)),
        resources=Resources.table("link", [0], [1]),
    )


def test_calls_wait_for_links_and_for_each_other() -> None:
    """Work of 1 ps, then 5 ps on the one link, twice on each of two chains: the second waits."""
    times = simulate_calls(*chains(one_transfer(), [[1, 1], [1, 2]]))
    assert times.end_ps[RETURN::3].tolist() == [6, 16, 11, 21]


def test_faults_strike_calls() -> None:
    """At half speed from 3 ps on: 1 + 2 + 6."""
    whole, routines = chains(one_transfer(), [[1]])
    slow = Faults.table([3], [0], [1], [2])
    for engine in ("fast", "reference"):
        times = simulate_calls(whole, routines, engine=engine, faults=slow)
        assert times.end_ps.tolist() == [1, 1, 9]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"caller": np.array([1, 1])}, "two are of one"),
        ({"caller": np.array([0, 3])}, "a call is of no join"),
        ({"first": np.array([6, 7, 8])}, "does not end in a join"),
        ({"first": np.array([6, 9])}, "routines end at op 9 of 8"),
    ],
)
def test_routines_that_break_their_rules_are_refused(changes: dict, message: str) -> None:
    whole, routines = chains(one_transfer(), [[1, 1]])
    with pytest.raises(ScheduleError, match=message):
        check_routines(whole, replace(routines, **changes))


def test_routines_that_are_led_into_or_called_twice_at_once_are_refused() -> None:
    whole, routines = chains(one_transfer(), [[1, 1]])
    with pytest.raises(ScheduleError, match="an edge leads into a routine"):
        check_routines(replace(whole, edges=Edges.from_pairs(8, [0], [6])), routines)
    both = Routines(routines.first, routines.caller, np.zeros(2, int))
    at_once = replace(whole, edges=Edges.from_pairs(8, [0, 3, 6], [1, 4, 7]))
    with pytest.raises(ValueError, match="routine 0 is called while it runs"):
        simulate_calls(at_once, both)
