"""The rules of time (docs/design.md), with one small schedule for each, on both engines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cluster_sim.engine import (
    DONE,
    READY,
    RUNNING,
    WAITING,
    HorizonError,
    reference,
    simulate,
)
from cluster_sim.engine.fast.loop import advance
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import (
    FIXED,
    HORIZON_PS,
    JOIN,
    Edges,
    Resources,
)
from tests.support.engine_schedules import ENGINES, PS, fixed, flow_schedule, no_edges, times_of


@ENGINES
def test_an_op_is_ready_when_its_last_edge_has_elapsed(engine: str) -> None:
    edges = Edges.from_pairs(3, [0, 1], [2, 2], lag_ps=[9, 1])
    table = fixed([5, 7, 2], [0, 1, 0], edges)
    assert times_of(simulate(table, engine=engine)) == [(0, 0, 5), (0, 0, 7), (14, 14, 16)]


@ENGINES
def test_an_edge_from_a_start_lets_the_next_hop_begin_before_the_end(engine: str) -> None:
    edges = Edges.from_pairs(2, [0], [1], lag_ps=3, from_start=True)
    table = fixed([10, 10], [0, 1], edges)
    assert times_of(simulate(table, engine=engine)) == [(0, 0, 10), (3, 3, 13)]


@ENGINES
def test_slots_are_all_used_and_no_more(engine: str) -> None:
    table = fixed([4, 4, 4, 4, 4], slots=2)
    assert simulate(table, engine=engine).start_ps.tolist() == [0, 0, 4, 4, 8]


@ENGINES
def test_the_smallest_priority_then_ready_time_then_number_starts_first(engine: str) -> None:
    # Op 0 holds the engine until 10; 1 … 4 are ready at 0, 3, 3, 5, with priorities 1, 1, 0, 1.
    edges = Edges.from_pairs(8, [5, 6, 7], [2, 3, 4])
    table = fixed(
        [10, 1, 1, 1, 1, 3, 3, 5],
        [0, 0, 0, 0, 0, 1, 2, 3],
        edges,
        priority=[0, 1, 1, 0, 1, 0, 0, 0],
    )
    assert simulate(table, engine=engine).start_ps.tolist()[:5] == [0, 11, 12, 10, 13]


@ENGINES
def test_a_late_arrival_of_the_same_instant_may_still_go_first(engine: str) -> None:
    # At 5 the engine is free and op 1 has waited; op 2 is ready at 5 too and more urgent.
    edges = Edges.from_pairs(4, [3], [2])
    table = fixed([5, 1, 1, 5], [0, 0, 0, 1], edges, priority=[0, 1, 0, 0])
    assert simulate(table, engine=engine).start_ps.tolist() == [0, 6, 5, 0]


@ENGINES
def test_joins_end_when_ready_and_chains_of_them_within_one_instant(engine: str) -> None:
    ops = 1000
    kind = np.full(ops, JOIN, np.uint8)
    kind[[0, -1]] = FIXED
    duration = np.where(kind == FIXED, 4, 0)
    order = np.r_[0, np.arange(ops - 2, 0, -1), ops - 1]  # against the numbers
    table = schedule(
        OpColumns(kind=kind, duration_ps=duration),
        edges=Edges.from_pairs(ops, order[:-1], order[1:]),
        resources=Resources.none(),
    )
    times = simulate(table, engine=engine)
    assert set(times.end_ps[1:-1].tolist()) == {4}
    assert times_of(times)[-1] == (4, 4, 8)


@ENGINES
def test_a_join_keeps_the_lag_of_its_edges(engine: str) -> None:
    table = schedule(
        OpColumns(kind=[FIXED, JOIN], duration_ps=[4, 0]),
        edges=Edges.from_pairs(2, [0], [1], lag_ps=6),
        resources=Resources.none(),
    )
    assert times_of(simulate(table, engine=engine)) == [(0, 0, 4), (10, 10, 10)]


@ENGINES
def test_the_run_ends_with_the_latest_end(engine: str) -> None:
    times = simulate(fixed([3, 9], [0, 1]), engine=engine)
    assert times.total_ps == 9
    assert times.stopped_ps is None
    assert set(times.status.tolist()) == {DONE}


@ENGINES
def test_nothing_takes_no_time(engine: str) -> None:
    empty = schedule(OpColumns(kind=np.empty(0)), edges=no_edges(0), resources=Resources.none())
    assert simulate(empty, engine=engine).total_ps == 0


@ENGINES
def test_a_circle_is_left_over_and_said_so(engine: str) -> None:
    table = fixed([1, 1, 1], edges=Edges.from_pairs(3, [0, 1], [1, 0]))
    times = simulate(table, engine=engine)
    assert times.blocked.tolist() == [True, True, False]
    assert times.status.tolist() == [WAITING, WAITING, DONE]
    assert times_of(times)[0] == (-1, -1, -1)


@ENGINES
@pytest.mark.parametrize(
    ("duration", "lag"), [([2**61, 2**61, 1], 0), ([5, 5, 5], 2**61), ([1, 1, 1], 2**62)]
)
def test_a_run_past_the_horizon_is_refused(engine: str, duration: list[int], lag: int) -> None:
    table = fixed(duration, edges=Edges.from_pairs(3, [0, 1], [1, 2], lag_ps=lag))
    with pytest.raises(HorizonError, match=r"op [12] would end or be ready after 2\*\*62 ps"):
        simulate(table, engine=engine)


@ENGINES
def test_the_horizon_itself_can_be_reached(engine: str) -> None:
    table = fixed([HORIZON_PS - 1, 1], edges=Edges.from_pairs(2, [0], [1]))
    assert simulate(table, engine=engine).total_ps == HORIZON_PS


@ENGINES
def test_stopping_at_a_time_completes_that_instant(engine: str) -> None:
    times = simulate(fixed([4, 4, 4]), engine=engine, until_ps=4)
    assert times_of(times) == [(0, 0, 4), (0, 4, -1), (0, -1, -1)]
    assert times.status.tolist() == [DONE, RUNNING, READY]
    assert times.stopped_ps == 4
    assert not times.blocked.any()


@ENGINES
def test_stopping_between_instants_hides_what_is_still_to_come(engine: str) -> None:
    table = fixed([4, 4], edges=Edges.from_pairs(2, [0], [1], lag_ps=3))
    times = simulate(table, engine=engine, until_ps=5)
    assert times_of(times) == [(0, 0, 4), (-1, -1, -1)]
    assert times.status.tolist() == [DONE, WAITING]


@ENGINES
def test_stopping_when_the_first_of_some_ops_has_ended(engine: str) -> None:
    times = simulate(fixed([4, 9, 4], [0, 1, 0]), engine=engine, until_ops=[2, 1])
    assert times.stopped_ps == 8
    assert times.end_ps.tolist() == [4, -1, 8]


@ENGINES
def test_a_stop_after_the_end_is_none(engine: str) -> None:
    times = simulate(fixed([4]), engine=engine, until_ps=100, until_ops=[0])
    assert times.stopped_ps is None
    assert times.total_ps == 4


@ENGINES
def test_a_circle_is_blocked_even_if_a_stop_was_asked_for(engine: str) -> None:
    table = fixed([1, 1, 1], edges=Edges.from_pairs(3, [0, 1], [1, 0]))
    assert simulate(table, engine=engine, until_ps=50).blocked.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "quick"}, 'engine "quick" is unknown. Use "fast" or "reference".'),
        ({"until_ps": -1}, "until_ps is -1; a run begins at 0"),
        ({"until_ops": [7]}, "until_ops names op 7; the schedule has 1 ops"),
        ({"until_ops": [-1]}, "until_ops names op -1; the schedule has 1 ops"),
    ],
)
def test_wrong_options_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match="^" + message.replace("?", r"\?") + "$"):
        simulate(fixed([1]), **options)


def test_every_slot_has_a_simpy_process_named_as_its_resource() -> None:
    resources = Resources.concat(
        [
            Resources.table("engine", [0, 1]),
            Resources.table("cc", [0], slots=2),
            Resources.table("link", [0, 1, 0], [1, 0, 1], lane=[0, 0, 1]),
            Resources.table("hbm", [0], slots=0, capacity=100),
        ]
    )
    table = schedule(
        OpColumns(kind=[FIXED] * 3, resource=[3, 2, 2], duration_ps=1),
        edges=no_edges(3),
        resources=resources,
    )
    run = reference.Run(table)
    assert [process.name for process in run.processes] == [
        *("engine:0", "engine:1", "cc:0", "cc:0", "link:0-1", "link:1-0", "link:0-1.1")
    ]
    run.env.run()
    assert run.end == [1, 1, 1]
    assert all(process.is_alive for process in run.processes)


@ENGINES
def test_any_layout_of_the_columns_gives_the_same(engine: str) -> None:
    table = fixed([4, 5, 6], edges=Edges.from_pairs(3, [0, 1], [1, 2], lag_ps=2))
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
def test_incast_shares_the_receiver_evenly(engine: str) -> None:
    gb = 10**9
    table = flow_schedule([gb] * 8, [[chip, 8] for chip in range(8)], [100 * gb] * 9)
    assert set(simulate(table, engine=engine).end_ps.tolist()) == {80 * 10**9}  # 8 GB at 100 GB/s


@ENGINES
def test_a_flow_that_ends_when_another_starts_leaves_it_the_whole_rate(engine: str) -> None:
    # Alone, each needs 10 ps; the second is ready at the instant at which the first ends.
    edges = Edges.from_pairs(3, [0], [2], lag_ps=2)
    table = flow_schedule([10, 10, 6], [[0], [1], [1]], [PS, PS], edges=edges)
    assert times_of(simulate(table, engine=engine)) == [(0, 0, 10), (0, 0, 10), (12, 12, 18)]
    meeting = flow_schedule([10, 6], [[0], [0]], [PS], edges=Edges.from_pairs(2, [0], [1]))
    assert times_of(simulate(meeting, engine=engine)) == [(0, 0, 10), (10, 10, 16)]


@ENGINES
def test_a_flow_speeds_up_when_the_other_is_done(engine: str) -> None:
    # Half the rate each until 8 ps (4 bytes done), then the long one alone: 6 bytes more.
    table = flow_schedule([10, 4], [[0], [0]], [PS])
    assert simulate(table, engine=engine).end_ps.tolist() == [14, 8]


@ENGINES
def test_the_end_is_the_first_picosecond_at_which_the_work_is_done(engine: str) -> None:
    table = flow_schedule([10], [[0]], [3 * PS])
    assert simulate(table, engine=engine).end_ps.tolist() == [4]  # 3 1/3 ps


@ENGINES
def test_weights_and_caps_bound_a_flow(engine: str) -> None:
    weighted = flow_schedule([12], [[0]], [3 * PS], weight=[[3]])
    capped = flow_schedule([12], [[0]], [3 * PS], cap=[2 * PS])
    assert simulate(weighted, engine=engine).end_ps.tolist() == [12]
    assert simulate(capped, engine=engine).end_ps.tolist() == [6]


@ENGINES
def test_a_flow_holds_its_slot_until_its_work_is_done(engine: str) -> None:
    table = flow_schedule([5, 5], [[1], [1]], [PS, PS], resource=0)
    assert times_of(simulate(table, engine=engine)) == [(0, 0, 5), (0, 5, 10)]


@ENGINES
def test_a_rate_of_zero_is_blocked_not_a_loop(engine: str) -> None:
    table = flow_schedule([1, 1, 1], [[0], [0], [0]], [2])
    times = simulate(table, engine=engine)
    assert times.status.tolist() == [RUNNING] * 3
    assert times.blocked.all()


@ENGINES
def test_a_flow_past_the_horizon_is_refused(engine: str) -> None:
    table = flow_schedule([10**10], [[0]], [1])
    with pytest.raises(HorizonError, match="op 0"):
        simulate(table, engine=engine)


@ENGINES
def test_the_largest_rates_and_sizes_keep_every_digit(engine: str) -> None:
    size, rate = 9 * 10**12, 9 * 10**15 - 1
    table = flow_schedule([size], [[0]], [rate])
    assert simulate(table, engine=engine).end_ps.tolist() == [-(-size * PS // rate)]
    slow = flow_schedule([4], [[0]], [1])
    assert simulate(slow, engine=engine).end_ps.tolist() == [4 * PS]
