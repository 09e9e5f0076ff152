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
from cluster_sim.schedule.table import FIXED, HORIZON_PS, JOIN, Edges, Resources
from tests.support.engine_schedules import ENGINES, PS, fixed, flow_schedule, times_of


def attempts_of(times: Times) -> list[tuple[int, int, int]]:
    rows = times.attempts
    return list(zip(rows.op.tolist(), rows.start_ps.tolist(), rows.end_ps.tolist(), strict=True))


@ENGINES
def test_what_remains_takes_longer_and_is_rounded_up(engine: str) -> None:
    # 5 of 10 ps remain at 2/3 of the speed: 7.5 ps, so 8.
    times = simulate(fixed([10]), engine=engine, faults=Faults.table([5], 0, 2, 3))
    assert times_of(times) == [(0, 0, 13)]


@ENGINES
def test_speeds_follow_one_another(engine: str) -> None:
    # 10 ps: 2 at full speed, 4 at half (2 ps of work), then the other 6 at full speed again.
    faults = Faults.table([2, 6], 0, [1, 1], [2, 1])
    times = simulate(fixed([10, 3]), engine=engine, faults=faults)
    assert times_of(times) == [(0, 0, 12), (0, 12, 15)]


@ENGINES
def test_an_op_that_starts_on_a_slow_resource_takes_longer_from_its_start(engine: str) -> None:
    times = simulate(fixed([10]), engine=engine, faults=Faults.table([0], 0, 3, 4))
    assert times_of(times) == [(0, 0, 14)]  # 13 1/3, rounded up


@ENGINES
def test_an_end_comes_before_a_fault_of_the_same_instant(engine: str) -> None:
    times = simulate(fixed([5]), engine=engine, faults=Faults.table([5], 0, 0))
    assert times_of(times) == [(0, 0, 5)]
    assert not len(times.attempts)
    assert times.dead.tolist() == [0]


@ENGINES
def test_a_fault_comes_before_a_start_of_the_same_instant(engine: str) -> None:
    times = simulate(fixed([5, 5]), engine=engine, faults=Faults.table([5, 9], 0, [0, 1]))
    assert times_of(times) == [(0, 0, 5), (0, 9, 14)]


@ENGINES
def test_a_lost_op_restarts_with_its_first_ready_time(engine: str) -> None:
    # Op 0 is lost at 3. When the engine revives at 8, op 1 is ready too, but later than op 0.
    ops = fixed([6, 2, 1], [0, 0, 1], Edges.from_pairs(3, [2], [1]))
    times = simulate(ops, engine=engine, faults=Faults.table([3, 8], 0, [0, 1]))
    assert times_of(times)[:2] == [(0, 8, 14), (1, 14, 16)]
    assert attempts_of(times) == [(0, 0, 3)]


@ENGINES
def test_busy_time_is_durations_and_attempts(engine: str) -> None:
    ops = fixed([6, 6], slots=2)
    faults = Faults.table([1, 2, 4, 5], 0, [0, 1, 0, 1])
    times = simulate(ops, engine=engine, faults=faults)
    assert times.end_ps.tolist() == [11, 11]
    assert attempts_of(times) == [(0, 0, 1), (1, 0, 1), (0, 2, 4), (1, 2, 4)]


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
    times = simulate(
        fixed([4, 4]), engine=engine, faults=Faults.table([2, 6], 0, [0, 1], fails=True)
    )
    assert times.status.tolist() == [FAILED, DONE]
    assert times_of(times)[1] == (0, 6, 10)


@ENGINES
def test_work_for_a_dead_resource_is_blocked_and_the_resource_named(engine: str) -> None:
    times = simulate(fixed([4, 4]), engine=engine, faults=Faults.table([2], 0, 0))
    assert times.status.tolist() == [READY, READY]
    assert times.blocked.all()
    assert times.dead.tolist() == [0]


@ENGINES
def test_a_revival_that_a_stop_cuts_off_does_not_block(engine: str) -> None:
    faults = Faults.table([2, 100], 0, [0, 1])
    times = simulate(fixed([4]), engine=engine, faults=faults, until_ps=50)
    assert times.stopped_ps == 50
    assert not times.blocked.any()


def forwarded(duration: list[int], lag: int) -> Edges:
    return Edges.from_pairs(len(duration), [0], [1], lag_ps=lag, from_start=True)


@ENGINES
def test_a_slow_hop_lets_the_next_begin_later_so_that_nothing_leaves_too_early(engine: str) -> None:
    ops = fixed([10, 10], [0, 1], forwarded([10, 10], 2))
    times = simulate(ops, engine=engine, faults=Faults.table([0], 0, 1, 3))
    assert times_of(times) == [(0, 0, 30), (22, 22, 32)]


@ENGINES
def test_an_edge_from_a_lost_start_counts_again_from_the_next(engine: str) -> None:
    # The last op waits for the engine of the two before it all the same.
    ops = fixed([10, 10, 8, 3], [0, 1, 1, 1], forwarded([10, 10, 8, 3], 5))
    faults = Faults.table([5, 20], 0, [0, 1])
    times = simulate(ops, engine=engine, faults=faults)
    assert times_of(times) == [(0, 20, 30), (25, 25, 35), (0, 0, 8), (0, 8, 11)]


@ENGINES
def test_what_has_left_before_the_loss_is_not_called_back(engine: str) -> None:
    ops = fixed([10, 10], [0, 1], forwarded([10, 10], 2))
    faults = Faults.table([5, 20], 0, [0, 1])
    times = simulate(ops, engine=engine, faults=faults)
    assert times_of(times) == [(0, 20, 30), (2, 2, 12)]


@ENGINES
def test_what_cuts_through_a_failing_hop_is_lost_with_it(engine: str) -> None:
    ops = fixed([10, 10, 1], [0, 1, 1], forwarded([10, 10, 1], 2))
    times = simulate(ops, engine=engine, faults=Faults.table([5], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, DOOMED, DONE]
    assert attempts_of(times) == [(0, 0, 5), (1, 2, 5)]
    assert times_of(times)[2] == (0, 0, 1)


@ENGINES
@pytest.mark.parametrize("first", [0, 1])
def test_all_that_a_dying_resource_holds_fails_together(engine: str, first: int) -> None:
    # Two hops of one message on one resource with two slots, numbered either way round.
    edges = Edges.from_pairs(2, [first], [1 - first], lag_ps=2, from_start=True)
    times = simulate(
        fixed([10, 10], edges=edges, slots=2),
        engine=engine,
        faults=Faults.table([5], 0, 0, fails=True),
    )
    assert times.status.tolist() == [FAILED, FAILED]
    assert sorted(attempts_of(times)) == sorted([(first, 0, 5), (1 - first, 2, 5)])


@ENGINES
def test_a_slower_shared_resource_divides_less(engine: str) -> None:
    ops = flow_schedule([10, 10], [[0], [0]], [2 * PS])
    times = simulate(ops, engine=engine, faults=Faults.table([4], 0, 1, 2))
    assert times.end_ps.tolist() == [16, 16]  # 4 bytes at full speed, 6 at half of it


@ENGINES
def test_a_flow_on_a_slow_slot_has_a_lower_cap(engine: str) -> None:
    capacity = [PS, 4 * PS, 4 * PS]
    ops = flow_schedule([10, 10], [[1], [2]], capacity, cap=[PS, PS], resource=[0, -1])
    times = simulate(ops, engine=engine, faults=Faults.table([4], 0, 1, 2))
    assert times.end_ps.tolist() == [16, 10]


@ENGINES
def test_a_flow_over_a_dead_resource_gives_its_slot_up_and_begins_anew(engine: str) -> None:
    # Both flows hold the engine in turn; the first also crosses the link, which dies.
    ops = flow_schedule([10, 10], [[1, 2], [1]], [PS, PS, PS], resource=[0, 0])
    faults = Faults.table([4, 20], 2, [0, 1])
    times = simulate(ops, engine=engine, faults=faults)
    assert times_of(times) == [(0, 20, 30), (0, 4, 14)]
    assert attempts_of(times) == [(0, 0, 4)]


@ENGINES
def test_a_revived_op_past_the_horizon_is_refused(engine: str) -> None:
    ops = fixed([HORIZON_PS // 2])
    with pytest.raises(HorizonError, match="op 0"):
        simulate(ops, engine=engine, faults=Faults.table([5], 0, 1, 3))


def test_rows_are_ordered_and_in_lowest_terms() -> None:
    faults = Faults.table([9, 5], [0, 1], [4, 0], [6, 7], fails=[True, False])
    assert faults.time_ps.tolist() == [5, 9]
    assert faults.resource.tolist() == [1, 0]
    assert faults.numerator.tolist() == [0, 2]
    assert faults.denominator.tolist() == [1, 3]
    assert faults.fails.tolist() == [False, True]
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
    ],
)
def test_faults_that_cannot_be_are_refused(rows: tuple, message: str) -> None:
    with pytest.raises(FaultError, match=message):
        Faults.table(*rows)


def test_a_fault_of_an_unknown_resource_is_refused() -> None:
    with pytest.raises(FaultError, match="fault 0: resource 4; the schedule has 1"):
        simulate(fixed([1]), faults=Faults.table([0], 4, 0))
