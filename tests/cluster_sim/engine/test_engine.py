"""The rules of time (docs/design.md), with one small schedule for each, on both engines."""

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.engine import FaultError, Faults, HorizonError, reference, simulate
from cluster_sim.engine.fast.loop import advance
from cluster_sim.engine.times import DONE, DOOMED, FAILED, READY, RUNNING, WAITING, Attempts, Times
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FIXED, HORIZON_PS, JOIN, Edges, Resources, Schedule
from tests.support.engine_schedules import ENGINES, PS, fixed, flow_schedule, no_edges, times_of


def chained(duration: list[int], lag: int = 0) -> Schedule:
    """Fixed ops on one engine, each of which waits for the one before."""
    before = list(range(len(duration) - 1))
    return fixed(duration, edges=Edges.from_pairs(len(duration), before, np.add(before, 1), lag))


def with_joins(kind: list[int], duration: list[int], edges: Edges) -> Schedule:
    columns = OpColumns(kind=kind, duration_ps=duration)
    return schedule(columns, edges=edges, resources=Resources.none())


SIZE, RATE = 9 * 10**12, 9 * 10**15 - 1
RULES: dict[str, tuple[Schedule, list[tuple[int, int, int]]]] = {
    "an op is ready when its last edge has elapsed": (
        fixed([5, 7, 2], [0, 1, 0], Edges.from_pairs(3, [0, 1], [2, 2], lag_ps=[9, 1])),
        [(0, 0, 5), (0, 0, 7), (14, 14, 16)],
    ),
    "an edge from a start lets the next hop begin before the end": (
        fixed([10, 10], [0, 1], Edges.from_pairs(2, [0], [1], lag_ps=3, from_start=True)),
        [(0, 0, 10), (3, 3, 13)],
    ),
    "slots are all used and no more": (
        fixed([4, 4, 4, 4, 4], slots=2),
        [(0, 0, 4), (0, 0, 4), (0, 4, 8), (0, 4, 8), (0, 8, 12)],
    ),
    # Op 0 holds the engine until 10; 1 … 4 are ready at 0, 3, 3, 5, with priorities 1, 1, 0, 1.
    "the smallest priority, then ready time, then number starts first": (
        fixed(
            [10, 1, 1, 1, 1, 3, 3, 5], [0, 0, 0, 0, 0, 1, 2, 3],
            Edges.from_pairs(8, [5, 6, 7], [2, 3, 4]), priority=[0, 1, 1, 0, 1, 0, 0, 0],
        ),
        [(0, 0, 10), (0, 11, 12), (3, 12, 13), (3, 10, 11), (5, 13, 14)],
    ),
    # At 5 the engine is free and op 1 has waited; op 2 is ready at 5 too and more urgent.
    "a late arrival of the same instant may still go first": (
        fixed([5, 1, 1, 5], [0, 0, 0, 1], Edges.from_pairs(4, [3], [2]), priority=[0, 1, 0, 0]),
        [(0, 0, 5), (0, 6, 7), (5, 5, 6)],
    ),
    "a join keeps the lag of its edges": (
        with_joins([FIXED, JOIN], [4, 0], Edges.from_pairs(2, [0], [1], lag_ps=6)),
        [(0, 0, 4), (10, 10, 10)],
    ),
    "the horizon itself can be reached": (
        chained([HORIZON_PS - 1, 1]),
        [(0, 0, HORIZON_PS - 1), (HORIZON_PS - 1, HORIZON_PS - 1, HORIZON_PS)],
    ),
    "nothing takes no time": (with_joins([], [], no_edges(0)), []),
    # Alone, each needs 10 ps; the last is ready at the instant at which the first has lag to spare.
    "a flow that starts alone has the whole rate": (
        flow_schedule(
            [10, 10, 6], [[0], [1], [1]], [PS, PS], edges=Edges.from_pairs(3, [0], [2], lag_ps=2)
        ),
        [(0, 0, 10), (0, 0, 10), (12, 12, 18)],
    ),
    "a flow that ends when another starts leaves it the whole rate": (
        flow_schedule([10, 6], [[0], [0]], [PS], edges=Edges.from_pairs(2, [0], [1])),
        [(0, 0, 10), (10, 10, 16)],
    ),
    # Half the rate each until 8 ps (4 bytes done), then the long one alone: 6 bytes more.
    "a flow speeds up when the other is done": (
        flow_schedule([10, 4], [[0], [0]], [PS]),
        [(0, 0, 14), (0, 0, 8)],
    ),
    "the end is the first picosecond at which the work is done": (
        flow_schedule([10], [[0]], [3 * PS]),
        [(0, 0, 4)],  # 3 1/3 ps
    ),
    "weights bound a flow": (flow_schedule([12], [[0]], [3 * PS], weight=[[3]]), [(0, 0, 12)]),
    "caps bound a flow": (flow_schedule([12], [[0]], [3 * PS], cap=[2 * PS]), [(0, 0, 6)]),
    "a flow holds its slot until its work is done": (
        flow_schedule([5, 5], [[1], [1]], [PS, PS], resource=0),
        [(0, 0, 5), (0, 5, 10)],
    ),
    "the largest rates and sizes keep every digit": (
        flow_schedule([SIZE], [[0]], [RATE]),
        [(0, 0, -(-SIZE * PS // RATE))],
    ),
    "the lowest rate is one byte a second": (flow_schedule([4], [[0]], [1]), [(0, 0, 4 * PS)]),
}  # fmt: skip


@ENGINES
@pytest.mark.parametrize("rule", RULES)
def test_rules_of_time(engine, rule):
    table, expected = RULES[rule]
    times = simulate(table, engine=engine)
    assert times_of(times)[: len(expected)] == expected
    assert times.total_ps == max(times.end_ps, default=0)
    assert times.stopped_ps is None
    assert set(times.status.tolist()) <= {DONE}


@ENGINES
def test_joins_end_when_ready_and_chains_of_them_within_one_instant(engine):
    ops = 1000
    kind = [FIXED, *[JOIN] * (ops - 2), FIXED]
    order = np.r_[0, np.arange(ops - 2, 0, -1), ops - 1]  # against the numbers
    edges = Edges.from_pairs(ops, order[:-1], order[1:])
    times = simulate(with_joins(kind, [4, *[0] * (ops - 2), 4], edges), engine=engine)
    assert set(times.end_ps[1:-1].tolist()) == {4}
    assert times_of(times)[-1] == (4, 4, 8)


@ENGINES
@pytest.mark.parametrize("until", [None, 50])
def test_a_circle_is_left_over_and_said_so(engine, until):
    table = fixed([1, 1, 1], edges=Edges.from_pairs(3, [0, 1], [1, 0]))
    times = simulate(table, engine=engine, until_ps=until)
    assert times.blocked.tolist() == [True, True, False]
    assert times.status.tolist() == [WAITING, WAITING, DONE]
    assert times_of(times)[0] == (-1, -1, -1)


@ENGINES
@pytest.mark.parametrize("table", [
    chained([2**61, 2**61, 1]),
    chained([5, 5, 5], 2**61),
    chained([1, 1, 1], 2**62),
    flow_schedule([10**10], [[0]], [1]),
])  # fmt: skip
def test_a_run_past_the_horizon_is_refused(engine, table):
    with pytest.raises(HorizonError, match=r"op [012] would end or be ready after 2\*\*62 ps"):
        simulate(table, engine=engine)


@ENGINES
def test_a_run_stops_when_an_instant_is_complete(engine):
    times = simulate(fixed([4, 4, 4]), engine=engine, until_ps=4)
    assert times_of(times) == [(0, 0, 4), (0, 4, -1), (0, -1, -1)]
    assert times.status.tolist() == [DONE, RUNNING, READY]
    assert times.stopped_ps == 4
    assert not times.blocked.any()
    between = simulate(chained([4, 4], lag=3), engine=engine, until_ps=5)
    assert times_of(between) == [(0, 0, 4), (-1, -1, -1)]
    assert between.status.tolist() == [DONE, WAITING]
    first_of_two = simulate(fixed([4, 9, 4], [0, 1, 0]), engine=engine, until_ops=[2, 1])
    assert (first_of_two.stopped_ps, first_of_two.end_ps.tolist()) == (8, [4, -1, 8])
    after_the_end = simulate(fixed([4]), engine=engine, until_ps=100, until_ops=[0])
    assert (after_the_end.stopped_ps, after_the_end.total_ps) == (None, 4)


@pytest.mark.parametrize(("options", "message"), [
    ({"engine": "quick"}, 'engine "quick" is unknown. Use "fast" or "reference".'),
    ({"until_ps": -1}, "until_ps is -1; a run begins at 0"),
    ({"until_ops": [7]}, "until_ops names op 7; the schedule has 1 ops"),
    ({"until_ops": [-1]}, "until_ops names op -1; the schedule has 1 ops"),
])  # fmt: skip
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        simulate(fixed([1]), **options)


def test_every_slot_has_a_simpy_process_named_as_its_resource():
    resources = Resources.concat(
        [
            Resources.table("engine", [0, 1]),
            Resources.table("cc", [0], slots=2),
            Resources.table("link", [0, 1, 0], [1, 0, 1], lane=[0, 0, 1]),
            Resources.table("hbm", [0], slots=0, capacity=100),
        ]
    )
    columns = OpColumns(kind=[FIXED] * 3, resource=[3, 2, 2], duration_ps=1)
    run = reference.Run(schedule(columns, edges=no_edges(3), resources=resources))
    names = ["engine:0", "engine:1", "cc:0", "cc:0", "link:0-1", "link:1-0", "link:0-1.1"]
    assert [process.name for process in run.processes] == names
    run.env.run()
    assert run.end == [1, 1, 1]
    assert all(process.is_alive for process in run.processes)


@ENGINES
def test_any_layout_of_the_columns_gives_the_same(engine):
    table = chained([4, 5, 6], lag=2)
    odd = replace(
        table,
        duration_ps=np.repeat(table.duration_ps, 2)[::2].astype(">i8"),
        priority=table.priority.astype(np.int64),
        edges=replace(table.edges, ptr=table.edges.ptr.astype(np.int32)),
    )
    odd.kind.setflags(write=False)
    assert times_of(simulate(odd, engine=engine)) == times_of(simulate(table, engine=engine))
    assert len(advance.by_types) <= 1  # compiled for one layout


@ENGINES
def test_a_rate_of_zero_is_blocked_not_a_loop(engine):
    times = simulate(flow_schedule([1, 1, 1], [[0], [0], [0]], [2]), engine=engine)
    assert times.status.tolist() == [RUNNING] * 3
    assert times.blocked.all()


Instants = list[tuple[int, int, int]]


def attempts_of(times: Times) -> Instants:
    rows = times.attempts
    return list(zip(rows.op.tolist(), rows.start_ps.tolist(), rows.end_ps.tolist(), strict=True))


def forwarded(duration: list[int], resource: list[int], lag: int) -> Schedule:
    """Fixed ops of which the second follows the start of the first."""
    return fixed(duration, resource, Edges.from_pairs(len(duration), [0], [1], lag, True))


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
def test_ops_under_faults(engine, case):
    table, faults, expected, lost = CASES[case]
    times = simulate(table, engine=engine, faults=faults)
    assert times_of(times)[: len(expected)] == expected
    assert attempts_of(times) == lost
    assert times.dead.tolist() == ([0] if faults.numerator[-1] == 0 else [])


@ENGINES
def test_what_failed_and_all_that_it_leads_to_never_runs(engine):
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
def test_what_was_not_in_flight_waits_for_a_revival_even_where_ops_fail(engine):
    faults = Faults.table([2, 6], 0, [0, 1], fails=True)
    times = simulate(fixed([4, 4]), engine=engine, faults=faults)
    assert times.status.tolist() == [FAILED, DONE]
    assert times_of(times)[1] == (0, 6, 10)


@ENGINES
def test_work_for_a_dead_resource_is_blocked_unless_a_stop_cuts_its_revival_off(engine):
    times = simulate(fixed([4, 4]), engine=engine, faults=Faults.table([2], 0, 0))
    assert times.status.tolist() == [READY, READY]
    assert times.blocked.all()
    assert times.dead.tolist() == [0]
    revived = Faults.table([2, 100], 0, [0, 1])
    times = simulate(fixed([4]), engine=engine, faults=revived, until_ps=50)
    assert times.stopped_ps == 50
    assert not times.blocked.any()


@ENGINES
def test_what_cuts_through_a_failing_hop_is_lost_with_it(engine):
    ops = forwarded([10, 10, 1], [0, 1, 1], 2)
    times = simulate(ops, engine=engine, faults=Faults.table([5], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, DOOMED, DONE]
    assert (attempts_of(times), times_of(times)[2]) == ([(0, 0, 5), (1, 2, 5)], (0, 0, 1))


@ENGINES
@pytest.mark.parametrize("first", [0, 1])
def test_all_that_a_dying_resource_holds_fails_together(engine, first):
    # Two hops of one message on one resource with two slots, numbered either way round.
    edges = Edges.from_pairs(2, [first], [1 - first], lag_ps=2, from_start=True)
    ops = fixed([10, 10], edges=edges, slots=2)
    times = simulate(ops, engine=engine, faults=Faults.table([5], 0, 0, fails=True))
    assert times.status.tolist() == [FAILED, FAILED]
    assert sorted(attempts_of(times)) == sorted([(first, 0, 5), (1 - first, 2, 5)])


@ENGINES
def test_a_revived_op_past_the_horizon_is_refused(engine):
    with pytest.raises(HorizonError, match="op 0"):
        simulate(fixed([HORIZON_PS // 2]), engine=engine, faults=Faults.table([5], 0, 1, 3))


def test_rows_are_ordered_and_in_lowest_terms():
    faults = Faults.table([9, 5], [0, 1], [4, 0], [6, 7], fails=[True, False])
    columns = ("time_ps", "resource", "numerator", "denominator", "fails")
    assert [getattr(faults, column).tolist() for column in columns] == [
        [5, 9], [1, 0], [0, 2], [1, 3], [False, True],
    ]  # fmt: skip
    assert not len(Faults.none())
    assert {len(column) for column in vars(Attempts.none()).values()} == {0}


@pytest.mark.parametrize(("rows", "message"), [
    (([-1], 0, 0), r"fault 0 \(resource 0 at -1 ps, speed 0/1\) is before the run begins"),
    (([2**62 + 1], 0, 0), r"is past the horizon of 2\*\*62 ps"),
    (([1], 0, -1), r"speed -1/1\) has a numerator outside 0 … 32768"),
    (([1], 0, 1, 0), r"speed 1/0\) has a denominator outside 1 … 32768"),
    (([1], 0, 1, 2**15 + 1), r"has a denominator outside 1 … 32768"),
    (([1], 0, 3, 2), r"speed 3/2\) is above nominal: give ops a shorter duration instead"),
    (([3, 4, 3], [0, 0, 0], 0), r"fault 2 .* is the second for its resource at its instant"),
    (([0], 4, 0), "fault 0: resource 4; the schedule has 1"),
])  # fmt: skip
def test_faults_that_cannot_be_are_refused(rows, message):
    with pytest.raises(FaultError, match=message):
        simulate(fixed([1]), faults=Faults.table(*rows))
