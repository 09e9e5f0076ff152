"""Rule 8: resources that slow down, die and revive under the ops in flight, on both engines."""

from __future__ import annotations

import pytest

from cluster_sim.engine import (
    DONE,
    DOOMED,
    FAILED,
    READY,
    FaultError,
    Faults,
    HorizonError,
    Times,
    simulate,
)
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, HORIZON_PS, JOIN, Edges, Resources, Schedule
from tests.support.engine_schedules import ENGINES, PS, fixed, flow_schedule, times_of

Instants = list[tuple[int, int, int]]


def attempts_of(times: Times) -> Instants:
    rows = times.attempts
    return list(zip(rows.op.tolist(), rows.start_ps.tolist(), rows.end_ps.tolist(), strict=True))


def forwarded(duration: list[int], resource: list[int], lag: int) -> Schedule:
    """Fixed ops of which the second follows the start of the first."""
    return fixed(
        duration, resource, Edges.from_pairs(len(duration), [0], [1], lag_ps=lag, from_start=True)
    )


CAPACITY = [PS, 4 * PS, 4 * PS]
CASES: dict[str, tuple[Schedule, Faults, Instants, Instants]] = {
    # 5 of 10 ps remain at 2/3 of the speed: 7.5 ps, so 8.
    "what remains takes longer and is rounded up": (
        fixed([10]), Faults.table([5], 0, 2, 3), [(0, 0, 13)], [],
    ),
    # 10 ps: 2 at full speed, 4 at half (2 ps of work), then the other 6 at full speed again.
    "speeds follow one another": (
        fixed([10, 3]), Faults.table([2, 6], 0, [1, 1], [2, 1]), [(0, 0, 12), (0, 12, 15)], [],
    ),
    "an op that starts on a slow resource takes longer from its start": (
        fixed([10]), Faults.table([0], 0, 3, 4), [(0, 0, 14)], [],  # 13 1/3, rounded up
    ),
    "an end comes before a fault of the same instant": (
        fixed([5]), Faults.table([5], 0, 0), [(0, 0, 5)], [],
    ),
    "a fault comes before a start of the same instant": (
        fixed([5, 5]), Faults.table([5, 9], 0, [0, 1]), [(0, 0, 5), (0, 9, 14)], [],
    ),
    # Op 0 is lost at 3. When the engine revives at 8, op 1 is ready too, but later than op 0.
    "a lost op restarts with its first ready time": (
        fixed([6, 2, 1], [0, 0, 1], Edges.from_pairs(3, [2], [1])),
        Faults.table([3, 8], 0, [0, 1]), [(0, 8, 14), (1, 14, 16)], [(0, 0, 3)],
    ),
    "busy time is durations and attempts": (
        fixed([6, 6], slots=2), Faults.table([1, 2, 4, 5], 0, [0, 1, 0, 1]),
        [(0, 5, 11)] * 2, [(0, 0, 1), (1, 0, 1), (0, 2, 4), (1, 2, 4)],
    ),
    "a slow hop lets the next begin later so that nothing leaves too early": (
        forwarded([10, 10], [0, 1], 2), Faults.table([0], 0, 1, 3),
        [(0, 0, 30), (22, 22, 32)], [],
    ),
    # The last op waits for the engine of the two before it all the same.
    "an edge from a lost start counts again from the next": (
        forwarded([10, 10, 8, 3], [0, 1, 1, 1], 5), Faults.table([5, 20], 0, [0, 1]),
        [(0, 20, 30), (25, 25, 35), (0, 0, 8), (0, 8, 11)], [(0, 0, 5)],
    ),
    "what has left before the loss is not called back": (
        forwarded([10, 10], [0, 1], 2), Faults.table([5, 20], 0, [0, 1]),
        [(0, 20, 30), (2, 2, 12)], [(0, 0, 5)],
    ),
    "a slower shared resource divides less": (
        flow_schedule([10, 10], [[0], [0]], [2 * PS]), Faults.table([4], 0, 1, 2),
        [(0, 0, 16)] * 2, [],  # 4 bytes at full speed, 6 at half of it
    ),
    "a flow on a slow slot has a lower cap": (
        flow_schedule([10, 10], [[1], [2]], CAPACITY, cap=[PS, PS], resource=[0, -1]),
        Faults.table([4], 0, 1, 2), [(0, 0, 16), (0, 0, 10)], [],
    ),
    # Both flows hold the engine in turn; the first also crosses the link, which dies.
    "a flow over a dead resource gives its slot up and begins anew": (
        flow_schedule([10, 10], [[1, 2], [1]], [PS, PS, PS], resource=[0, 0]),
        Faults.table([4, 20], 2, [0, 1]), [(0, 20, 30), (0, 4, 14)], [(0, 0, 4)],
    ),
}  # fmt: skip
"""Schedule, faults, times of the first ops, and attempts that were lost."""


@ENGINES
@pytest.mark.parametrize("case", CASES)
def test_ops_under_faults(engine: str, case: str) -> None:
    table, faults, expected, lost = CASES[case]
    times = simulate(table, engine=engine, faults=faults)
    assert times_of(times)[: len(expected)] == expected
    assert attempts_of(times) == lost
    assert times.dead.tolist() == ([0] if faults.numerator[-1] == 0 else [])


@ENGINES
def test_what_failed_and_all_that_it_leads_to_never_runs(engine: str) -> None:
    # 0 → 1 → 2 (a join) → 3; op 4 has nothing to do with it and shares the engine of op 1.
    ops = schedule(
        OpColumns(
            kind=[FIXED, FIXED, JOIN, FIXED, FIXED],
            duration_ps=[4, 4, 0, 4, 4],
            resource=[0, 1, -1, 0, 1],
        ),
        edges=Edges.from_pairs(5, [0, 1, 2], [1, 2, 3]),
        resources=Resources.table("engine", [0, 1]),
    )
    times = simulate(ops, engine=engine, faults=Faults.table([2], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, DOOMED, DOOMED, DOOMED, DONE]
    assert times_of(times) == [(0, -1, -1), *[(-1, -1, -1)] * 3, (0, 0, 4)]
    assert attempts_of(times) == [(0, 0, 2)]
    assert not times.blocked.any()


@ENGINES
def test_what_was_not_in_flight_waits_for_a_revival_even_where_ops_fail(engine: str) -> None:
    faults = Faults.table([2, 6], 0, [0, 1], fails=True)
    times = simulate(fixed([4, 4]), engine=engine, faults=faults)
    assert times.status.tolist() == [FAILED, DONE]
    assert times_of(times)[1] == (0, 6, 10)


@ENGINES
def test_work_for_a_dead_resource_is_blocked_unless_a_stop_cuts_its_revival_off(
    engine: str,
) -> None:
    times = simulate(fixed([4, 4]), engine=engine, faults=Faults.table([2], 0, 0))
    assert times.status.tolist() == [READY, READY]
    assert times.blocked.all()
    assert times.dead.tolist() == [0]
    revived = Faults.table([2, 100], 0, [0, 1])
    times = simulate(fixed([4]), engine=engine, faults=revived, until_ps=50)
    assert times.stopped_ps == 50
    assert not times.blocked.any()


@ENGINES
def test_what_cuts_through_a_failing_hop_is_lost_with_it(engine: str) -> None:
    ops = forwarded([10, 10, 1], [0, 1, 1], 2)
    times = simulate(ops, engine=engine, faults=Faults.table([5], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, DOOMED, DONE]
    assert attempts_of(times) == [(0, 0, 5), (1, 2, 5)]
    assert times_of(times)[2] == (0, 0, 1)


@ENGINES
@pytest.mark.parametrize("first", [0, 1])
def test_all_that_a_dying_resource_holds_fails_together(engine: str, first: int) -> None:
    # Two hops of one message on one resource with two slots, numbered either way round.
    edges = Edges.from_pairs(2, [first], [1 - first], lag_ps=2, from_start=True)
    ops = fixed([10, 10], edges=edges, slots=2)
    times = simulate(ops, engine=engine, faults=Faults.table([5], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, FAILED]
    assert sorted(attempts_of(times)) == sorted([(first, 0, 5), (1 - first, 2, 5)])


@ENGINES
def test_a_revived_op_past_the_horizon_is_refused(engine: str) -> None:
    with pytest.raises(HorizonError, match="op 0"):
        simulate(fixed([HORIZON_PS // 2]), engine=engine, faults=Faults.table([5], 0, 1, 3))


def test_rows_are_ordered_and_in_lowest_terms() -> None:
    faults = Faults.table([9, 5], [0, 1], [4, 0], [6, 7], fails=[True, False])
    columns = ("time_ps", "resource", "numerator", "denominator", "fails")
    assert [getattr(faults, column).tolist() for column in columns] == [
        [5, 9], [1, 0], [0, 2], [1, 3], [False, True],
    ]  # fmt: skip
    assert not len(Faults.none())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([-1], 0, 0), r"fault 0 \(resource 0 at -1 ps, speed 0/1\) is before the run begins"),
        (([2**62 + 1], 0, 0), r"is past the horizon of 2\*\*62 ps"),
        (([1], 0, -1), r"speed -1/1\) has a numerator outside 0 … 32768"),
        (([1], 0, 1, 0), r"speed 1/0\) has a denominator outside 1 … 32768"),
        (([1], 0, 1, 2**15 + 1), r"has a denominator outside 1 … 32768"),
        (([1], 0, 3, 2), r"speed 3/2\) is above nominal: give ops a shorter duration instead"),
        (([3, 4, 3], [0, 0, 0], 0), r"fault 2 .* is the second for its resource at its instant"),
        (([0], 4, 0), "fault 0: resource 4; the schedule has 1"),
    ],
)
def test_faults_that_cannot_be_are_refused(rows: tuple, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        simulate(fixed([1]), faults=Faults.table(*rows))
