"""Steps, repeated days, more units and limits: what must hold whatever the demand is."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import check_conserved, simulate
from topologies.support.arrays import FloatArray
from workloads.demand import Demand
from workloads.fleet.expectation import kept_units
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import default_jobs, evaluation_job
from workloads.fleet.policies.rules import threshold
from workloads.fleet.policies.view import Limits, View
from workloads.fleet.results import role_units
from workloads.fleet.state.services import Failures, Fleet, Queue, Service
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate

UNITS, DAY = 40, 1440


def _waves(seed: int, minutes: int, *, period: int = DAY) -> FloatArray:
    """Units that each minute needs: a smooth wave that repeats, with random heights and phases."""
    rng = np.random.default_rng(seed)
    minute = np.arange(minutes) * 2 * np.pi / period
    wave = 0.5 + sum(
        height * np.sin(turns * minute + rng.uniform(0, 6))
        for turns, height in zip((1, 2, 5), rng.uniform(0.02, 0.15, 3), strict=True)
    )
    result: FloatArray = UNITS * wave
    return result


def _demand(need: FloatArray, *, step_s: float = 60.0, rate_per_s: float = 200.0) -> Demand:
    """A demand that needs so many units of ``rate_per_s``, in steps of ``step_s``."""
    requests = np.rint(need * rate_per_s * step_s)[None]
    lengths = np.full_like(requests, 100.0)
    return Demand(("chat",), "2024-05-13T00:00", requests, lengths, lengths)


@given(seed=st.integers(0, 99), headroom=st.floats(0.0, 0.4), gangs=st.booleans())
@examples(4)
def test_repeated_days_are_equal_in_the_steady_state(seed, headroom, gangs):
    """The state goes from day to day; only the first begins in roles that cost nothing."""
    demand = _demand(np.tile(_waves(seed, DAY), 3))
    # Of the default jobs only those that stop or change their size every day: a gang that trains
    # on for days has its checkpoints at other times of each.
    jobs = [*default_jobs(UNITS)[:gangs], evaluation_job(UNITS)]
    fleet = Fleet(UNITS, costs=ChangeCosts.from_catalogue(4))
    run = simulate(demand, [SERVICE_200], fleet, threshold(headroom=headroom), jobs=jobs)
    check_conserved(run)
    days = role_units(run).reshape(3, DAY, -1)
    queue = run.queues[0]
    for values in (queue.served, queue.backlog, queue.capacity):
        assert np.array_equal(values[DAY : 2 * DAY], values[2 * DAY :])
    assert np.array_equal(days[1], days[2])
    assert run.changes


SERVICE_200 = Service("chat", fixed_rate(200.0), 3e12)
COUNTS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


@given(arrivals=COUNTS, more=st.lists(st.integers(0, 50), min_size=40, max_size=40), data=st.data())
def test_more_capacity_in_any_minute_never_serves_less_by_any_minute(arrivals, more, data):
    count = len(arrivals)
    fewer = data.draw(st.lists(st.integers(0, 200), min_size=count, max_size=count))
    patience = data.draw(st.sampled_from([0.5, 3.0, 10.0]))
    poor, rich = (Queue(np.array(arrivals), patience) for _ in range(2))
    for minute, capacity in enumerate(fewer):
        poor.finish(minute, capacity)
        rich.finish(minute, capacity + more[minute])
    for queue in (poor, rich):
        admitted = np.cumsum(queue.arrivals - queue.shed)
        assert np.array_equal(np.cumsum(queue.served) + queue.backlog, admitted)
        assert np.all(queue.served <= queue.capacity)
        assert queue.shed.min() >= 0
        assert queue.backlog.min() >= 0
    assert np.all(np.cumsum(rich.served) >= np.cumsum(poor.served))
    assert np.all(np.cumsum(rich.shed) <= np.cumsum(poor.shed))


@given(
    need=st.lists(st.floats(0, 50), min_size=1, max_size=60),
    leads=st.tuples(st.floats(0, 3600), st.floats(0, 3600)),
    backs=st.tuples(st.floats(0, 3600), st.floats(0, 3600)),
)
def test_the_closed_form_never_lends_more_for_a_longer_change(need, leads, backs):
    pool = np.array([need])
    kept = [kept_units(pool, lead_s=of(leads), back_s=of(backs)).sum(axis=0) for of in (min, max)]
    short, long = (50.0 - units for units in kept)
    assert np.all(long <= short + 1e-9)
    assert np.all(short <= 50.0 - pool[0] + 1e-9)


@given(
    answers=st.lists(st.floats(-5, 2 * UNITS), min_size=30, max_size=30), floor=st.integers(0, 10),
    room=st.integers(0, 30), block=st.integers(1, 8), changes=st.integers(0, 9),
    reserve=st.integers(0, 5), failing=st.booleans(),
)  # fmt: skip
@examples(25)
def test_no_policy_exceeds_its_limits(answers, floor, room, block, changes, reserve, failing):
    cap = min(floor + room, UNITS) if room else 0
    limits = Limits(floor=floor, cap=cap, block=block, changes_per_minute=changes, reserve=reserve)
    failures = Failures(20_000.0, 300.0) if failing else None

    def policy(view: View) -> float:
        return max(0.0, answers[view.minute % len(answers)])

    demand = _demand(_waves(1, 90))
    fleet = Fleet(UNITS, costs=ChangeCosts.fixed(90.0), limits=limits, failures=failures)
    run = simulate(demand, [SERVICE_200], fleet, policy, jobs=[evaluation_job(UNITS)])
    check_conserved(run)
    units = role_units(run)
    serving = units[:, Role.SERVING]
    assert serving.max() <= (cap or UNITS) + 1e-9
    lent = units[:, [Role.EVALUATION, Role.TRAINING]].sum(axis=1)
    assert lent.max() <= UNITS - reserve + 1e-9
    ordered = np.zeros(run.minutes)
    for change in run.changes:
        ordered[change.ordered_ms // 60_000] += change.units
    if changes:
        assert ordered.max() <= changes
    if not failing:
        assert serving.min() >= min(floor, UNITS) - 1e-9
