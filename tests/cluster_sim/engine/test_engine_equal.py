"""Both engines and the naive engine of the tests give the same integers for every schedule."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.rates import flows_over_clos
from cluster_sim.engine import Faults, HorizonError, simulate
from cluster_sim.engine.fast import new_run
from cluster_sim.engine.fast.loop import play
from cluster_sim.engine.shared_rates.tables import VISITED
from cluster_sim.schedule.build import OpColumns
from cluster_sim.schedule.build import schedule as schedule_of
from cluster_sim.schedule.table import FLOW, HORIZON_PS, JOIN, Edges, Flows, Resources, Schedule
from cluster_sim.trace.trace import Trace
from tests.support.conservation import violations
from tests.support.examples import examples
from tests.support.naive import Naive
from tests.support.schedules import fault_tables, outcome, schedules

few = examples(100)
thousands = settings(few, max_examples=2000)
flows_often, flows_thousands = examples(250), settings(few, max_examples=5000)


def check_engines(schedule: Schedule) -> None:
    check_runs(schedule)


def check_runs(schedule: Schedule, **options: object) -> None:
    """Both engines say the same, or both refuse."""
    results: list[object] = []
    for engine in ("reference", "fast"):
        try:
            results.append(outcome(simulate(schedule, engine=engine, **options)))
        except HorizonError:
            results.append("past the horizon")
    assert results[0] == results[1]


def check_faults_and_stops(data: st.DataObject) -> None:
    """Both engines say the same about a run that is disturbed and cut short."""
    schedule = data.draw(schedules(most_ops=20))
    check_runs(
        schedule,
        faults=data.draw(st.none() | fault_tables(schedule)),
        until_ps=data.draw(st.none() | st.integers(0, 30)),
        until_ops=data.draw(st.lists(st.integers(0, len(schedule) - 1), max_size=2)),
    )


def check_rules(schedule: Schedule) -> None:
    """The compiled engine says what the rules, told naively, say."""
    naive_times = Naive(schedule).run()
    try:
        times = simulate(schedule)
    except HorizonError:
        ends = [naive_times.planned_end(op) or 0 for op in naive_times.flows]
        assert max([naive_times.now, *ends]) > 2**62
        return
    for name in ("ready", "start", "end"):
        expected = [-1 if instant is None else instant for instant in getattr(naive_times, name)]
        assert getattr(times, f"{name}_ps").tolist() == expected, name


test_engines_agree = few(given(schedules(flows=False))(check_engines))
test_engines_agree_on_flows = few(given(schedules())(check_engines))
test_engines_agree_on_faults_and_stops = flows_often(given(st.data())(check_faults_and_stops))
test_rules_are_kept = few(given(schedules())(check_rules))
many_ops = schedules(flows=False, most_ops=40)
test_engines_agree_long = pytest.mark.slow(thousands(given(many_ops)(check_engines)))
test_engines_agree_on_flows_long = pytest.mark.slow(thousands(given(schedules())(check_engines)))
disturbed_thousands = flows_thousands(given(st.data())(check_faults_and_stops))
test_engines_agree_on_faults_and_stops_long = pytest.mark.slow(disturbed_thousands)
test_rules_are_kept_long = pytest.mark.slow(thousands(given(schedules(most_ops=25))(check_rules)))


@few
@given(st.data())
def test_engines_keep_the_rules_on_random_schedules(data):
    schedule = data.draw(schedules())
    faults = data.draw(st.none() | fault_tables(schedule))
    try:
        times = simulate(schedule, faults=faults)
    except HorizonError:
        return
    assert violations(Trace(schedule, times), faults=faults is not None) == []


@examples(40)
@given(st.data())
def test_op_numbers_matter_for_nothing_but_ties(data):
    """Ops with different priorities keep their times under other numbers."""
    drawn = data.draw(schedules(flows=False))
    ops = range(len(drawn))
    number = np.array(data.draw(st.permutations(ops)))
    schedule = replace(drawn, priority=np.array(data.draw(st.permutations(ops)), np.int32))
    times, moved = simulate(schedule), simulate(renumbered(schedule, number))
    for name in ("ready_ps", "start_ps", "end_ps", "status"):
        assert getattr(moved, name)[number].tolist() == getattr(times, name).tolist()


def renumbered(schedule: Schedule, number: np.ndarray) -> Schedule:
    """The schedule in which op i has the number ``number[i]``."""
    order, edges = np.argsort(number), schedule.edges
    pairs = (number[edges.sources()], number[edges.dst], edges.lag_ps, edges.from_start)
    columns = ("kind", "resource", "duration_ps", "priority")
    return replace(
        schedule,
        **{name: getattr(schedule, name)[order] for name in columns},
        edges=Edges.from_pairs(len(schedule), *pairs),
    )


def crowd(ops: int) -> Schedule:
    """Many ops of all kinds at once: deep queues out of order, equal ends, shared rates."""
    rng = np.random.default_rng(5)
    resources = 7
    kind = rng.choice([0, 0, 1, 2], ops).astype(np.uint8)
    flow = np.flatnonzero(kind == 1).astype(np.int32)
    src = rng.integers(0, ops - 1, ops)
    return Schedule(
        kind=kind,
        resource=np.where(kind == 2, -1, rng.integers(0, resources, ops)).astype(np.int32),
        duration_ps=np.where(kind == 0, rng.integers(1, 9, ops), 0),
        size_bytes=rng.integers(1, 99, ops),
        priority=rng.integers(0, 3, ops).astype(np.int32),
        edges=Edges.from_pairs(ops, src, rng.integers(src + 1, ops), rng.integers(0, 9, ops)),
        resources=Resources.table(
            "engine", np.arange(resources), slots=np.arange(resources) % 3 + 1,
            capacity=rng.integers(1, 9, resources) * 10**12,
        ),
        flows=Flows(
            op=flow,
            cap_bytes_per_s=rng.integers(1, 9, len(flow)) * 10**12,
            ptr=np.arange(len(flow) + 1) * 2,
            resource=rng.integers(0, resources, 2 * len(flow)).astype(np.int32),
            weight=rng.integers(1, 3, 2 * len(flow)).astype(np.int32),
        ),
    )  # fmt: skip


@pytest.mark.parametrize("ops", [300, 2000])
def test_engines_agree_in_a_crowd(ops):
    check_engines(crowd(ops))
    for engine in ("reference", "fast"):
        runs = [outcome(simulate(crowd(ops), engine=engine)) for _ in range(2)]
        assert runs[0] == runs[1]


UNITS = [1, 1, 3, 1000, 10**9, 10**12]
"""Small units make ties, and rates of zero."""


def random_flows(seed: int) -> Schedule:
    """Flows that start at random instants, over random paths, weights, caps and capacities."""
    rng = np.random.default_rng(seed)
    flows, resources = int(rng.integers(2, 60)), int(rng.integers(1, 20))
    most, unit = int(rng.choice([6, 30, 1000])), int(rng.choice(UNITS))
    paths = [
        rng.choice(resources, rng.integers(1, min(resources, 4) + 1), replace=False)
        for _ in range(int(rng.integers(1, flows + 1)))
    ]
    caps = np.where(rng.random(len(paths)) < 0.5, rng.integers(1, most, len(paths)), 2**20) * unit
    pick = rng.integers(0, len(paths), flows)
    crossed = np.concatenate([paths[row] for row in pick])
    start = rng.integers(0, rng.choice([2, 40]), flows) * rng.choice([1, 10**12 // unit + 1])
    return schedule_of(
        OpColumns(kind=[JOIN] + [FLOW] * flows, size_bytes=np.r_[0, rng.integers(1, 60, flows)]),
        edges=Edges.from_pairs(
            flows + 1, np.zeros(flows, np.int64), np.arange(1, flows + 1), start
        ),
        resources=Resources.table(
            "link",
            np.arange(resources),
            capacity=rng.integers(1, most, resources) * unit + seed % 2,
        ),
        flows=Flows(
            op=np.arange(1, flows + 1, dtype=np.int32),
            cap_bytes_per_s=caps[pick],
            ptr=np.cumsum([0, *(len(paths[row]) for row in pick)]),
            resource=crossed.astype(np.int32),
            weight=rng.integers(1, rng.choice([2, 4]), len(crossed)).astype(np.int32),
        ),
    )


def check_seed(seed: int) -> None:
    check_runs(random_flows(seed))


seeds = st.integers(0, 2**32)
test_random_flows = flows_often(given(seeds)(check_seed))
test_random_flows_long = pytest.mark.slow(flows_thousands(given(seeds)(check_seed)))


@pytest.mark.parametrize("oversubscription", [1, 4])
def test_random_flows_over_a_clos(oversubscription):
    """Many flows in one component."""
    check_runs(flows_over_clos(160, 64, 16, oversubscription))


def test_a_solve_looks_at_what_changes():
    """Of 2,000 flows over one Clos, each end looks at a small part of those still in flight."""
    run = new_run(flows_over_clos(2000, 512, 32, 2, spines=8), Faults.none(), ())
    play(run, HORIZON_PS)
    whole = sum(range(len(run.streams.op))) * 4  # about four resources a flow
    assert 0 < run.streams.solver.sizes[VISITED] < whole // 4
