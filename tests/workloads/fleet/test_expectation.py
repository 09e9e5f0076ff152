"""The closed form of lending beside a simulated policy; the fluid fleet beside single requests."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import simulate, slower
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.demand import Demand, demand
from workloads.fleet.expectation import at, broken_share, expected, kept_units
from workloads.fleet.policies.rules import static
from workloads.fleet.results import service_minutes, summary, worst_window
from workloads.fleet.scenario import policy_of, run, scenario
from workloads.fleet.setup.serving import Prompts, services_from, ways_of
from workloads.fleet.state.services import Domain, Failures, Fleet, Queue, Service
from workloads.models.huggingface import named
from workloads.options.fleet import DemandInputs, FleetInputs, FleetOptions, PolicyInputs
from workloads.serving import Lengths, Profile, Requests, Slo, profile, serve, serve_apart
from workloads.serving.tables import Capacity, TableRuns, capacity_table

UNITS = 200


def _options(**words):
    period = DemandInputs(days=1, start_day=1)
    return FleetOptions(FleetInputs(unit_rate=20.0), period, PolicyInputs(**words))


@pytest.fixture(scope="module")
def base():
    options = _options(kind=("trn2-ultraserver:50", f"trn2-ultraserver:{UNITS - 50}"))
    return scenario(cluster(f"trn2-ultraserver:{UNITS}"), demand("azure-conv"), options)


def _simulated(built):
    simulated = summary(run(built, policy_of("oracle", built)))
    return float(simulated["training_chip_hours"] / simulated["chip_hours"])


def test_the_closed_form_is_what_foresight_lends(base):
    """The level within a point, and what longer changes or more demand do within a tenth."""
    middle, share = expected(base).lendable_share, _simulated(base)
    assert middle == pytest.approx(share, abs=0.01)
    costs = slower(base.fleet.costs, 2.0)
    moved = (
        base.changed(lambda _: {"fleet": replace(base.fleet, costs=costs)}),
        base.at(replace(base.horizon, demand=base.horizon.demand.times(0.9))),
    )
    for other in moved:
        change = expected(other).lendable_share - middle
        assert abs(change) > 0.01
        assert change == pytest.approx(_simulated(other) - share, rel=0.1)


def test_what_is_not_lent_is_paid_for(base):
    forecast = expected(base)
    demand = base.demand
    tokens = float((demand.requests * (demand.prompt_tokens + demand.output_tokens)).sum())
    usd = base.kinds[0].economics.usd_per_chip_s * demand.minutes * 60 * UNITS * 64
    paid_usd = usd * (1 - forecast.lendable_share)
    assert forecast.usd_per_million_tokens == pytest.approx(paid_usd / tokens * 1e6)
    assert at(base, shipped_catalogue()) == forecast  # of kinds that are one, as of --cluster


@pytest.mark.parametrize("regions", [(), ("us=-8:70%", "eu=+1:30%")])
def test_the_closed_form_of_several_kinds_is_what_foresight_lends(regions):
    names = ("us", "eu", "us") if regions else ("", "", "")
    clusters = [cluster(each) for each in ("trn2-ultraserver:60", "trn3-gen2:30", "trn3-gen2:20")]
    options = _options(kind=("trn2-ultraserver", "trn3-gen2"), region=regions)
    built = scenario(clusters, demand("azure-conv"), options, places=names)
    whole = expected(built)
    assert whole.lendable_share == pytest.approx(_simulated(built), abs=0.015)
    assert at(built, shipped_catalogue()).lendable_share == pytest.approx(whole.lendable_share)
    assert whole.usd_per_million_tokens == pytest.approx(
        at(built, shipped_catalogue()).usd_per_million_tokens
    )


def test_a_region_without_users_may_be_the_first(monkeypatch):
    clusters = [cluster("trn2-ultraserver:30"), cluster("trn2-ultraserver:60")]
    options = _options(region=("us=-8:0%", "eu=+1:100%"))
    built = scenario(clusters, demand("azure-conv"), options, places=("us", "eu"))
    timed = []

    def services(demand, *rest, **words):
        """Note the requests for which units are timed; none would be refused."""
        timed.append(demand.requests.sum())
        return services_from(demand, *rest, **words)

    monkeypatch.setattr("workloads.fleet.expectation.services_from", services)
    assert at(built, shipped_catalogue()) == expected(built)
    assert timed == [built.demand.requests.sum()] * 2


def _lent(need, units, **changes):
    """Units that are not kept in each minute."""
    return np.asarray(units - kept_units(need, **changes).sum(axis=0))


def test_changes_without_end_leave_what_the_peak_does_not_need():
    need = np.array([[1.0, 4.0, 2.0], [1.0, 1.0, 1.0]])
    endless = _lent(need, 10.0, lead_s=float("inf"), back_s=0.0)
    assert endless.tolist() == [5.0] * 3
    free = _lent(need, 10.0, lead_s=0.0, back_s=0.0)
    assert free.tolist() == [8.0, 5.0, 7.0]
    # Half a minute is half way between none and one.
    half = _lent(need, 10.0, lead_s=30.0, back_s=0.0)
    assert half.tolist() == [6.5, 5.0, 7.0]


def test_broken_shares_of_servers_and_of_larger_parts_come_together():
    servers = Failures(97 * 3600.0 / 4, 3 * 3600.0, servers=4)
    assert broken_share(servers) == pytest.approx(0.03)
    more = replace(servers, domains=(Domain("rack", 9 * 3600.0, 3600.0),))
    assert broken_share(more) == pytest.approx(1 - 0.97 * 0.9)
    assert broken_share(None) == 0.0


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


def _largest_excess(parts):
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
    def slots(self):
        """Requests that decode at the same time."""
        apart = self.prompts.apart
        return self.prompts.batching.slots * (apart.decode if apart else 1)

    def run(self, requests):
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
def unit(request):
    served = profile(MODEL, WHERE)
    prompts = ways_of(WAYS[request.param], WHERE, served)[0]
    runs = TableRuns(batching=prompts.batching, requests=1500, pools=prompts.apart)
    return Unit(served, prompts, capacity_table(served, LENGTHS, Slo(6.0, 0.175), runs))


def _arrivals(parts, rate_per_s, seed):
    """Times of Poisson arrivals whose rate is constant in each part [s]."""
    rng = np.random.default_rng(seed)
    times, begin = [], 0.0
    for minutes, load in parts:
        count = rng.poisson(load * rate_per_s * minutes * 60)
        times.append(begin + np.sort(rng.uniform(0, minutes * 60, count)))
        begin += minutes * 60
    return np.concatenate(times)


@given(parts=SEGMENTS, seed=st.integers(0, 99))
@examples(9)
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
