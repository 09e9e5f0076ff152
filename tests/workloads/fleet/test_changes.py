"""Changes of roles, what each costs, and the ledger, store, queue and gangs behind them."""

from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from tests.support.refusals import refused
from tests.support.toy_fleet import FLAT_DAY, FREE, SERVICE, scaled_to_fleet, simulate
from workloads.demand import azure_conv, constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob, default_jobs, evaluation_job
from workloads.fleet.policies.rules import best_static, clock, forecast, oracle, static, threshold
from workloads.fleet.policies.view import Limits
from workloads.fleet.results import GROUPS, changes_frame, role_server_ms, summary
from workloads.fleet.state.services import (
    Fleet,
    Queue,
    Service,
    split_tokens,
    units_needed,
    waits_s,
)
from workloads.fleet.state.store import Store
from workloads.fleet.state.world import Ledger, Role
from workloads.serving.tables import fixed_rate


@pytest.mark.parametrize("policy", [
    threshold(),
    forecast(),
    static(60),
    clock(60, 60),
    oracle(np.full((1, 1440), 50.0), lead_s=600, shortest_valley_s=3600),
], ids=["threshold", "forecast", "static", "clock", "oracle"])  # fmt: skip
def test_flat_demand_changes_no_roles(policy):
    fleet = Fleet(100, costs=ChangeCosts.from_catalogue(4))
    run = simulate(FLAT_DAY, [SERVICE], fleet, policy, jobs=default_jobs(100))
    assert (run.changes, summary(run)["slo_attainment"]) == ((), 1.0)


@pytest.mark.parametrize("policy", [threshold(), forecast(), clock(90, 10)])
def test_an_infinite_change_cost_is_the_static_split(policy):
    load = scaled_to_fleet(azure_conv().between(480, 960), [SERVICE], 90)
    never = ChangeCosts.fixed(float("inf"))
    need = units_needed(load, [SERVICE])
    jobs, fleet = default_jobs(100), Fleet(100, costs=never)
    policies = (policy, static(best_static(need)))
    runs = [simulate(load, [SERVICE], fleet, each, jobs=jobs) for each in policies]
    assert np.array_equal(runs[0].kinds[0].spent_server_ms, runs[1].kinds[0].spent_server_ms)
    assert summary(runs[0]) == summary(runs[1])
    assert runs[0].changes == ()


def test_units_stay_for_the_length_of_their_lease():
    down_up = constant(60 * 3.5 * 80, minutes=180).times(np.repeat([1.0, 0.1, 1.0], 60))
    fleet = Fleet(88, costs=FREE, limits=Limits(min_lease_s=7200.0))
    policy = threshold(hold_s=0.0, hysteresis=0.0)
    leased = simulate(down_up, [SERVICE], fleet, policy, jobs=[evaluation_job(100)])
    assert set(changes_frame(leased)["to"]) == {"lent"}


@pytest.mark.parametrize(("arguments", "message"), [
    ({"fleet": Fleet(0)}, "0 units"),
    ({"services": []}, "0 services for a demand of 1"),
    ({"jobs": [TrainingJob("big", 200, 150)]}, "needs 150 units, unit has 100 units"),
    ({"jobs": [evaluation_job(3), evaluation_job(3)]}, "2 evaluation jobs"),
])  # fmt: skip
def test_a_fleet_without_units_and_jobs_too_large_for_it_are_refused(arguments, message):
    accepted = {"services": [SERVICE], "fleet": Fleet(100), **arguments}
    refused(message, simulate, FLAT_DAY, policy=static(1), **accepted)


WEIGHTS_BYTES, STATE_BYTES, MORE_S = 3e12, 2e13, 7.0
UNITS, GANG, MINUTES = 10, 8, 90
COSTS = replace(ChangeCosts.from_catalogue(4), checkpoint_stall_s=0.0, snooze_s=0.0)
START = {"mode_switch_s", "runtime_start_s", "compile_hit_s", "warm_up_s", "load"}
BACK = {
    "pause": START | {"pause_s"}, "preempt": START, "shrink": START, "checkpoint": START | {"save"},
    "evaluation": {"drain_s"}, "spare": START,
}  # fmt: skip
"""Costs that a unit waits for on its way to serving, by what it did before."""
FORTH = {"drain_s", "mode_switch_s", "runtime_start_s", "restart_s"}
"""Costs between serving and the first step of a gang that starts."""
DURATIONS = (
    "drain_s", "mode_switch_s", "runtime_start_s", "compile_hit_s", "warm_up_s", "pause_s",
    "restore_s", "resize_s", "restart_s", "compile_miss_s",
)  # fmt: skip


def _run(costs, before, after, jobs):
    """Let ``before`` units serve in the first minute and ``after`` units from then on."""
    return simulate(
        constant(1.0, minutes=MINUTES), [Service("chat", fixed_rate(10.0), WEIGHTS_BYTES)],
        Fleet(UNITS, costs=costs), lambda view: float(before if view.minute == 0 else after),
        jobs=jobs,
    )  # fmt: skip


def _jobs(kind):
    if kind == "spare":
        return []
    if kind == "evaluation":
        return [evaluation_job(GANG)]
    least = 1 if kind == "shrink" else GANG
    return [TrainingJob("job", GANG, least, reclaim=kind, state_bytes=STATE_BYTES)]


def _back_s(costs, kind):
    """Time from the order until a unit that did other work serves [s]."""
    (change,) = _run(costs, UNITS - GANG, UNITS - GANG + 1, _jobs(kind)).changes
    assert change.arrived == 1
    return (change.ready_ms - change.ordered_ms) / 1000.0


def _back_closed_s(costs, kind):
    rate = min(costs.store_client_bytes_per_s, costs.store_bytes_per_s / GANG)
    values = {"load": WEIGHTS_BYTES / costs.load_bytes_per_s, "save": STATE_BYTES / GANG / rate}
    return sum(values[name] if name in values else getattr(costs, name) for name in BACK[kind])


@pytest.mark.parametrize("kind", BACK)
def test_a_change_to_serving_takes_the_sum_of_its_costs(kind):
    base = _back_s(COSTS, kind)
    assert base == pytest.approx(_back_closed_s(COSTS, kind), abs=0.01)
    for name in DURATIONS:
        longer = replace(COSTS, **{name: getattr(COSTS, name) + MORE_S})
        moved = _back_s(longer, kind) - base
        assert moved == pytest.approx(MORE_S * (name in BACK[kind]), abs=0.002), name
    for name in ("load_bytes_per_s", "store_bytes_per_s", "store_client_bytes_per_s"):
        for factor in (0.5, 2.0):
            other = replace(COSTS, **{name: getattr(COSTS, name) * factor})
            expected = _back_closed_s(other, kind) - _back_closed_s(COSTS, kind)
            assert _back_s(other, kind) - base == pytest.approx(expected, abs=0.01), name
    # What policies and ``lend`` are told is the way of a paused job.
    if kind == "pause":
        assert COSTS.to_serving_s(WEIGHTS_BYTES) == pytest.approx(base, abs=0.01)


def test_a_gang_computes_when_its_units_have_changed_and_it_has_started():
    job = TrainingJob("job", GANG, GANG, reclaim="pause", checkpoint_every_s=1e9)

    def trained_s(costs):
        run = _run(costs, UNITS, UNITS - GANG, [job])
        return float(role_server_ms(run.kinds[0])[-1, Role.TRAINING]) / 1000.0

    base, run_s = trained_s(COSTS), (MINUTES - 1) * 60.0
    assert base == pytest.approx(GANG * (run_s - COSTS.to_training_s), abs=0.1)
    assert sum(getattr(COSTS, name) for name in FORTH) == pytest.approx(COSTS.to_training_s)
    for name in DURATIONS:
        longer = replace(COSTS, **{name: getattr(COSTS, name) + MORE_S})
        expected = -GANG * MORE_S * (name in FORTH)
        assert trained_s(longer) - base == pytest.approx(expected, abs=0.1), name


def test_groups_hold_every_role_once():
    roles = [role for group in GROUPS.values() for role in group]
    assert sorted(roles) == [role for role in Role if role is not Role.ABSENT]


def test_ledger_books_unit_time_exactly():
    ledger = Ledger(3, 1)
    ledger.put(np.array([0, 1]), Role.SERVING, 0, 0)
    ledger.put(np.array([1]), Role.DRAINING, 700)
    ledger.advance(1000)
    assert ledger.spent_server_ms[len(Role)] == 1000 + 700
    assert ledger.spent_server_ms[Role.DRAINING] == 300
    assert (ledger.spent_server_ms[Role.SPARE], ledger.count(Role.SERVING)) == (1000, 1)


@pytest.mark.parametrize(("bytes_per_s", "loads", "ends_ms"), [
    # Caps of 1 and 10 B/s leave the one unit 1 B/s, and 2 to each of the two.
    (5.0, [(2, 10.0, 10.0), (1, 10.0, 1.0)], [5000, 10_000]),
    (2.0, [(1, 4.0, 2.0), (1, 8.0, 2.0)], [4000, 6000]),  # faster once the other has ended
])  # fmt: skip
def test_a_store_shares_its_bandwidth_among_the_loads_that_there_are(bytes_per_s, loads, ends_ms):
    env = simpy.Environment()
    store = Store(env, bytes_per_s)
    names = ("units", "bytes_per_unit", "cap_bytes_per_s")
    started = [store.load(**dict(zip(names, load, strict=True))) for load in loads]
    for load, end_ms in zip(started, ends_ms, strict=True):
        env.run(until=load)
        assert env.now == end_ms
    assert store.moved_bytes == pytest.approx(sum(units * size for units, size, _ in loads))


def test_queue_waits_and_sheds():
    queue = Queue(np.array([10, 30, 0, 0]), patience_minutes=1.5)
    for minute, capacity in enumerate((10, 10, 10, 10)):
        queue.finish(minute, capacity)
    assert (queue.served.tolist(), queue.shed.tolist()) == ([10, 10, 10, 5], [0, 5, 0, 0])
    assert queue.backlog.tolist() == [0, 15, 5, 0]
    waits = waits_s(queue)
    assert waits[0] == 0
    assert waits[1] == pytest.approx(60 * (2.25 - 1.5))


@given(
    st.lists(st.integers(0, 500), min_size=1, max_size=40),
    st.lists(st.integers(0, 300), min_size=40, max_size=40), st.floats(0, 5), st.integers(0, 5000),
)  # fmt: skip
def test_tokens_are_served_queued_or_shed(arrivals, capacity, patience, tokens_each):
    queue = Queue(np.array(arrivals), patience)
    for minute in range(len(arrivals)):
        queue.finish(minute, capacity[minute])
    tokens = np.array(arrivals) * tokens_each + np.minimum(np.array(arrivals), 1)
    served, waiting, shed = split_tokens(queue, tokens)
    assert served.sum() + waiting[-1] + shed.sum() == tokens.sum()
    assert min(served.min(), waiting.min(), shed.min()) >= 0
    total = queue.served.sum() + queue.shed.sum() + queue.backlog[-1]
    assert total == queue.arrivals.sum()
    assert waits_s(queue).min() >= 0


def test_capacity_without_latency_attains_unless_it_queues():
    capacity = fixed_rate(2.0)
    assert capacity.attained(np.array([0.5, 1.0]), np.array([0.5, 2.0])).tolist() == [1.0, 0.0]
    assert capacity.work(100.0, [1.0, 2.0]).tolist() == [1.0, 1.0]
    refused("above 0", fixed_rate, 0.0)
