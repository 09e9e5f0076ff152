"""The fluid fleet by the minute against the same requests served token by token."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import simulate
from topologies.arrays import FloatArray
from topologies.clusters.names import cluster
from workloads.demand import Demand
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import service_minutes, worst_window
from workloads.fleet.setup.serving import Prompts, ways_of
from workloads.fleet.state.services import Queue, Service
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs
from workloads.serving import Lengths, Profile, Requests, Slo, profile, serve, serve_apart
from workloads.serving.tables import Capacity, TableRuns, capacity_table

MODEL, WHERE = named("llama-3.1-70b"), cluster("trn2-ultraserver:2")
PROMPT, OUTPUT = 1500, 100
SHARES = np.linspace(0.5, 1.5, 41)
LENGTHS = Lengths(np.rint(PROMPT * SHARES).astype(int), np.rint(OUTPUT * SHARES[::-1]).astype(int))
"""Lengths of requests: equal ones that begin together would stay in step, and fill long pieces of
prompts by 8 % more than those that arrive by themselves."""
STEP_S = 60.0
ERROR = 0.05
"""Error of a table's rate at saturation, which other draws of the same mix must meet."""
SEGMENTS = st.lists(
    st.tuples(st.integers(3, 10), st.floats(0.05, 1.5)), min_size=2, max_size=5
).filter(lambda parts: _largest_excess(parts) < 9.0)
"""Minutes and loads; the work that piles up stays under the ten minutes of the patience."""


@given(minutes=st.integers(1, 40), seed=st.integers(0, 99), first=st.integers(0, 39))
def test_the_worst_quarter_of_an_hour_says_when_it_began(
    minutes: int, seed: int, first: int
) -> None:
    """All but 15 minutes keep the SLO for most requests, and these for none."""
    rng, bad = np.random.default_rng(seed), first % max(1, minutes - 14)
    kept = rng.uniform(0.5, 1, minutes)
    kept[bad : bad + 15] = 0
    queues = tuple(Queue(rng.integers(1, 9, minutes), 10.0) for _ in range(2))
    assert worst_window(queues, kept) == (0.0, bad)
    kept[bad : bad + 15] = 0.25
    share, begins = worst_window(queues, kept)
    assert (share, begins) == (pytest.approx(0.25), bad)


def _largest_excess(parts: list[tuple[int, float]]) -> float:
    """Largest work in the queue of a fluid at these loads [minutes]."""
    work = largest = 0.0
    for minutes, load in parts:
        work = max(0.0, work + minutes * (load - 1))
        largest = max(largest, work)
    return largest


@dataclass(frozen=True)
class Unit:
    """Replicas of a unit that serve together, and their table."""

    served: Profile
    prompts: Prompts
    capacity: Capacity

    @property
    def slots(self) -> int:
        """Requests that decode at the same time."""
        apart = self.prompts.apart
        return self.prompts.batching.slots * (apart.decode if apart else 1)

    def run(self, requests: Requests) -> tuple[FloatArray, FloatArray]:
        """Time to first token and end of each request, token by token."""
        batching, apart = self.prompts.batching, self.prompts.apart
        if apart is None:
            done = serve(self.served, requests, batching)
        else:
            done = serve_apart(self.served, requests, apart, batching).served
        return done.ttft_s, done.end_s


WAYS = {
    "short pieces": FleetInputs(prefill="chunked", chunk=2048),
    "long pieces": FleetInputs(prefill="chunked", chunk=8192),
    "separate": FleetInputs(prefill="separate"),
    "auto": FleetInputs(),
}


@pytest.fixture(scope="module", params=WAYS)
def unit(request: pytest.FixtureRequest) -> Unit:
    served = profile(MODEL, WHERE)
    prompts = ways_of(WAYS[request.param], MODEL, WHERE, served)[0]
    runs = TableRuns(batching=prompts.batching, requests=1500, pools=prompts.apart)
    return Unit(served, prompts, capacity_table(served, LENGTHS, Slo(6.0, 0.175), runs))


def _arrivals(parts: list[tuple[int, float]], rate_per_s: float, seed: int) -> FloatArray:
    """Times of Poisson arrivals whose rate is constant in each part [s]."""
    rng = np.random.default_rng(seed)
    times, begin = [], 0.0
    for minutes, load in parts:
        count = rng.poisson(load * rate_per_s * minutes * 60)
        times.append(begin + np.sort(rng.uniform(0, minutes * 60, count)))
        begin += minutes * 60
    return np.concatenate(times)


@given(parts=SEGMENTS, seed=st.integers(0, 99))
@examples(12)
def test_a_fluid_serves_and_delays_as_its_replicas_do(unit, parts, seed):
    """Completions and waits of every minute, through bursts beyond what the replicas serve."""
    table = unit.capacity
    arrival_s = _arrivals(parts, table.rate_max_per_s, seed)
    if not len(arrival_s):
        return
    count, minutes = len(arrival_s), sum(length for length, _ in parts)
    requests = Requests(arrival_s, *LENGTHS.draw(count, np.random.default_rng(seed)))
    ttft_s, end_s = unit.run(requests)
    minute = (arrival_s // 60).astype(int)
    came = np.bincount(minute, minlength=minutes)
    lengths = (np.full((1, minutes), float(tokens)) for tokens in (PROMPT, OUTPUT))
    demand = Demand(("chat",), "2024-01-01T00:00", came[None].astype(float), *lengths)
    run = simulate(demand, [Service("chat", table)], Fleet(1), static(1))
    fluid = service_minutes(run, 0)
    assert not fluid.shed_requests.any()
    done = np.searchsorted(np.sort(end_s), 60.0 * np.arange(1, minutes + 1))
    served = np.cumsum(fluid.served_requests)
    # A request that the fluid has served is still in a slot, or just being prefilled.
    in_flight = unit.slots + (apart.prefill if (apart := unit.prompts.apart) else 1)
    assert np.all(served - done <= in_flight + ERROR * served)
    assert np.all(done - served <= 1 + ERROR * served)
    idle_s = float(table.ttft_quantile_s(0.05, 0.5))
    for number in np.flatnonzero(came):
        waited_s = float(np.median(ttft_s[minute == number])) - idle_s
        # The middle of a minute's requests may come half a step from the middle of the minute.
        assert fluid.wait_s[number] == pytest.approx(waited_s, rel=ERROR, abs=STEP_S / 2)
