"""State of a fleet: ledger, store, queue and gangs."""

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from topologies.errors import InputError
from workloads.fleet.state.services import Queue, split_tokens, waits_s
from workloads.fleet.state.store import Store
from workloads.fleet.state.world import GROUPS, Ledger, Role
from workloads.serving.tables import fixed_rate


def test_groups_hold_every_role_once():
    roles = [role for group in GROUPS.values() for role in group]
    assert sorted(roles) == list(Role)


def test_ledger_books_unit_time_exactly():
    ledger = Ledger(3, 1)
    ledger.put(np.array([0, 1]), Role.SERVING, 0, 0)
    ledger.put(np.array([1]), Role.DRAINING, 700)
    ledger.advance(1000)
    assert ledger.spent_server_ms[len(Role)] == 1000 + 700
    assert ledger.spent_server_ms[Role.DRAINING] == 300
    assert ledger.spent_server_ms[Role.SPARE] == 1000
    assert ledger.count(Role.SERVING) == 1


def test_store_shares_its_bandwidth_fairly():
    """Loads of 1 and 2 units, caps 1 and 10 B/s, on 5 B/s: rates 1, then 2 for each of the two."""
    env = simpy.Environment()
    store = Store(env, 5.0)
    slow = store.load(units=1, bytes_per_unit=10.0, cap_bytes_per_s=1.0)
    fast = store.load(units=2, bytes_per_unit=10.0, cap_bytes_per_s=10.0)
    env.run(until=fast)
    assert env.now == 5000
    env.run(until=slow)
    assert env.now == 10_000
    assert store.moved_bytes == pytest.approx(30.0)


def test_store_speeds_up_when_another_load_ends():
    env = simpy.Environment()
    store = Store(env, 2.0)
    first = store.load(units=1, bytes_per_unit=4.0, cap_bytes_per_s=2.0)
    second = store.load(units=1, bytes_per_unit=8.0, cap_bytes_per_s=2.0)
    env.run(until=first)
    assert env.now == 4000
    env.run(until=second)
    assert env.now == 6000


def test_queue_waits_and_sheds():
    queue = Queue(np.array([10, 30, 0, 0]), patience_minutes=1.5)
    for minute, capacity in enumerate((10, 10, 10, 10)):
        queue.finish(minute, capacity)
    assert queue.served.tolist() == [10, 10, 10, 5]
    assert queue.shed.tolist() == [0, 5, 0, 0]
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
    with pytest.raises(InputError, match="above 0"):
        fixed_rate(0.0)
