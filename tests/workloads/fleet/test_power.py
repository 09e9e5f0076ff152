"""Power, energy and money: caps over several kinds of units, and kinds whose power is unknown."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cluster_sim as cs
from experiments.cli.main import run
from tests.support.examples import examples
from tests.support.toy_fleet import FLAT_DAY, SERVICE, view_of
from tests.support.toy_fleet import simulate as simulate_one
from topologies.clusters.names import cluster
from workloads.demand import Demand, constant
from workloads.economics import Economics
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.fleet.missed import idle_draw_note
from workloads.fleet.policies.registry import policy_named
from workloads.fleet.policies.rules import static
from workloads.fleet.policies.view import Decision, JobView, KindView, Situation, answer
from workloads.fleet.processes.targets import units_within
from workloads.fleet.results import power_w, regret, role_server_ms, summary
from workloads.fleet.simulation import simulate
from workloads.fleet.state.services import BatchWork, Failures, Fleet, Kind, Service, units_needed
from workloads.fleet.state.world import Role
from workloads.options.fleet import PolicyInputs
from workloads.serving import fixed_rate


def _kind(name, units, serving, busy_w, worth=1.0):
    """Return a kind whose units draw a third of their power when idle."""
    at_work, none, one = np.array([serving]), np.zeros(1, np.int64), np.ones(1)
    fields = (name, units, 0, at_work, none, 0, one, busy_w, busy_w / 3, "", one)
    return KindView(*fields, worth=worth)


def _view(*kinds, jobs=()):
    units, serving = sum(kind.units for kind in kinds), [kind.serving for kind in kinds]
    return view_of(units=units, serving=np.sum(serving, axis=0), look_at_jobs=lambda: jobs,
                   kinds=kinds)  # fmt: skip


IDLE_W, BUSY_W, CHIPS, PUE = 300.0, 900.0, (16, 64), 1.1
BUSY = (Role.TRAINING, Role.EVALUATION, Role.BATCH)


def _watts(run, minute):
    """Draw of a minute: its roles at idle or full power, and serving units as far as they work."""
    watts = 0.0
    for kind in run.kinds:
        spent = kind.spent_server_ms[minute + 1] - kind.spent_server_ms[minute]
        units = spent / (60_000 * kind.servers)
        working = units[list(BUSY)].sum()
        for service, queue in enumerate(run.queues):
            answered = queue.served[minute] / max(queue.capacity[minute], 1)
            working += kind.service_units[minute, service] * answered
        there = units.sum() - units[Role.BROKEN] - units[Role.MAINTENANCE]
        watts += (there * IDLE_W + working * (BUSY_W - IDLE_W)) * kind.chips_per_unit * PUE
    return float(watts)


@st.composite
def _capped(draw):
    """A night and a morning of one kind or two under a cap, with all that may happen on the way."""
    minutes, rng = 60 * draw(st.integers(2, 8)), np.random.default_rng(draw(st.integers(0, 999)))
    count = draw(st.integers(1, 2))
    sizes = draw(st.lists(st.integers(2, 16), min_size=count, max_size=count))
    wave = 1 + draw(st.floats(0, 0.9)) * np.sin(np.arange(minutes) / draw(st.integers(20, 300)))
    mean = draw(st.floats(0.05, 1.2)) * 60.0 * sum(sizes) * wave
    lengths = np.full((1, minutes), 100.0)
    demand = Demand(("chat",), "2024-01-04T00:00", rng.poisson(mean)[None] * 1.0, lengths, lengths)
    batch, failures = None, None
    if draw(st.booleans()):
        late = Demand(("late",), demand.start, demand.requests // 5, lengths, lengths)
        batch = BatchWork(late, np.ones(minutes), 120)
    if draw(st.booleans()):
        failures = Failures(draw(st.floats(3e3, 1e6)), draw(st.floats(10.0, 7e3)), servers=4)
    kinds = []
    for number, units in enumerate(sizes):
        least = draw(st.integers(1, units))
        ways = {"reclaim": draw(st.sampled_from(["checkpoint", "preempt", "shrink", "pause"]))}
        gang = TrainingJob("job", units, least, max(1, units // 4), **ways)
        jobs = (gang, TrainingJob("checks", units, evaluation=True, reclaim="drain"))
        costs = ChangeCosts.from_catalogue(4) if draw(st.booleans()) else ChangeCosts.fixed(40.0)
        service = Service("chat", fixed_rate(1.0 + number))
        fleet = Fleet(units, CHIPS[number], costs, failures=failures)
        power = Economics(BUSY_W, IDLE_W, PUE)
        chosen = jobs[: draw(st.integers(1, 2))]
        kinds.append(Kind(f"kind {number}", (service,), fleet, chosen, power))
    most_w = sum(each.fleet.units * each.fleet.chips_per_unit * BUSY_W * PUE for each in kinds)
    cap_w = draw(st.floats(0.3, 1.0)) * most_w
    lead_s, back_s = kinds[0].fleet.costs.to_serving_s(0.0), 600.0
    situation = Situation(units_needed(demand, kinds[0].services), lead_s, back_s)
    settings_ = PolicyInputs(power_cap=cap_w / 1e6)
    policy = policy_named(draw(st.sampled_from(["mpc", "power-cap"])), settings_, situation)
    return simulate(demand, kinds, policy, batch=batch, rng=rng), cap_w


def _check_cap(run, cap_w):
    draws_w, over = power_w(run), 0
    for minute in range(run.minutes):
        watts = _watts(run, minute)
        assert watts == pytest.approx(draws_w[minute], rel=1e-9)
        if watts > cap_w * (1 + 1e-9):
            over += 1
            units = [role_server_ms(kind)[minute : minute + 2, list(BUSY)] for kind in run.kinds]
            assert not any(np.diff(each, axis=0).any() for each in units)
    assert summary(run)["over_cap_minutes"] == over


@given(_capped())
@examples(8)
def test_nothing_trains_in_a_minute_above_the_cap(capped):
    _check_cap(*capped)


def _of_regions(loads, cap_w, policy, chips=CHIPS):
    """Run two regions under a cap, each of ten units and a gang."""
    names, lengths = ("us", "eu"), np.full(loads.shape, 100.0)
    demand = Demand(("chat@us", "chat@eu"), "2024-01-04T00:00", loads, lengths, lengths)
    kinds = [
        Kind(
            f"kind@{region}",
            tuple(
                Service(f"chat@{name}", fixed_rate(1.0), weights="chat", region=name)
                for name in names
            ),
            Fleet(10, count, ChangeCosts.from_catalogue(4)),
            (TrainingJob(f"job {region}", 10, 1, tokens_per_s=((1, 1.0),), reclaim="shrink"),),
            Economics(BUSY_W, IDLE_W, PUE),
            region=region,
            round_trip_s={name: 0.0 if name == region else 0.1 for name in names},
        )
        for region, count in zip(names, chips, strict=True)
    ]
    situation = Situation(units_needed(demand, kinds[0].services), 600.0, 600.0)
    return simulate(
        demand, kinds, policy_named(policy, PolicyInputs(power_cap=cap_w / 1e6), situation)
    )


@given(st.integers(0, 999), st.floats(0.1, 1.5), st.floats(0.4, 1.0))
@examples(6)
def test_nothing_trains_above_the_cap_of_regions(seed: int, load: float, share: float) -> None:
    rng = np.random.default_rng(seed)
    wave = 1 + 0.9 * np.sin(np.arange(240) / rng.integers(20, 90) + np.array([[0.0], [2.0]]))
    cap_w = share * 10 * sum(CHIPS) * PUE * BUSY_W
    loads = rng.poisson(load * 600.0 * wave).astype(float)
    _check_cap(_of_regions(loads, cap_w, str(rng.choice(["mpc", "power-cap"]))), cap_w)


def test_serving_of_regions_leaves_the_power_that_it_does_not_draw():
    """Three units serve a need of one and a half, and the power for 4.5 trains four units."""
    cap_w = (20 * IDLE_W + 6.0 * (BUSY_W - IDLE_W)) * 64 * PUE
    run = _of_regions(np.repeat([[60.0], [30.0]], 240, axis=1), cap_w, "power-cap", (64, 64))
    draws_w = power_w(run)
    assert (draws_w <= cap_w).all()
    assert draws_w[60:].mean() > cap_w - 1.0 * (BUSY_W - IDLE_W) * 64 * PUE


def test_urgent_batch_work_takes_spare_units_and_no_replica_of_a_gang():
    """Eight of ten units are free, the power is for four, and a gang of four has it all."""
    demand = constant(60.0, minutes=240)
    power = Economics(BUSY_W, IDLE_W, PUE)
    rise_w = (BUSY_W - IDLE_W) * 64 * PUE
    cap_w = 10 * IDLE_W * 64 * PUE + 5.5 * rise_w  # up to one unit is for serving
    gang = TrainingJob("job", 4, 1, tokens_per_s=((1, 1.0),), reclaim="shrink")
    batch = BatchWork(demand.times(0.5), np.full(240, 1.0), 60)
    costs = ChangeCosts.from_catalogue(4)
    kind = Kind("unit", (Service("chat", fixed_rate(1.0)),), Fleet(10, 64, costs), (gang,), power)

    def policy(view):
        """Give batch work two units in every other quarter of an hour."""
        return Decision([2], batch=2 * (view.minute // 15 % 2), power_w=cap_w)

    run = simulate(demand, [kind], policy, batch=batch)
    tally = run.jobs[0][1]
    assert (tally.reclaims, tally.resizes, tally.starts) == (0, 0, 0)
    assert run.batch is not None
    assert run.batch.served.sum() > 0
    assert (power_w(run) <= cap_w * (1 + 1e-9)).all()


@given(
    st.lists(
        st.tuples(st.integers(1, 6), st.integers(0, 3), st.floats(10, 99), st.floats(0.1, 9)),
        min_size=2, max_size=3,
    ), st.floats(0, 1.2),
)  # fmt: skip
@examples(60)
def test_as_much_trains_within_the_watts_as_by_brute_force(stated, level):
    kinds = [
        _kind(f"kind {n}", units, min(serving, units), busy_w, worth)
        for n, (units, serving, busy_w, worth) in enumerate(stated)
    ]
    worth = np.array([each[-1] for each in stated])
    rises = np.array([kind.rise_w for kind in kinds])
    spare = [kind.units - int(kind.serving.sum()) for kind in kinds]
    watts = level * sum(kind.units * kind.rise_w for kind in kinds)
    allowed = np.array(units_within(_view(*kinds), watts))
    assert rises @ allowed <= max(watts, 0.0) * (1 + 1e-12)
    trained = worth @ np.minimum(allowed, spare)
    choices = itertools.product(*(range(units + 1) for units in spare))
    sums = [worth @ np.array(units) for units in choices if rises @ np.array(units) <= watts]
    best = max(sums, default=0.0)
    assert trained <= best + 1e-9
    assert trained >= best - worth.max() + 1e-9 or trained == pytest.approx(best)


def test_training_is_shed_first_where_a_watt_trains_least():
    view = _view(_kind("frugal", 10, 0, 30.0), _kind("hungry", 10, 0, 90.0, worth=2.0))
    assert [kind.rise_w for kind in view.kinds] == [20.0, 60.0]
    for watts, units in ((800.0, [10, 10]), (500.0, [10, 5]), (150.0, [7, 0]), (-1.0, [0, 0])):
        assert units_within(view, watts) == units
    # Units of a plan go first, and a gang gets no part of its fewest units, or of its steps.
    assert units_within(view, 150.0, [0, 2]) == [1, 2]
    gangs = JobView("a", 9, 4, 0, kind="frugal", step_units=5), JobView("b", 9, 1, 0, kind="hungry")
    view = _view(*(kind._replace(rest_units=0.0) for kind in view.kinds), jobs=gangs)
    assert (units_within(view, 140.0), units_within(view, 70.0)) == ([4, 1], [0, 1])


@pytest.mark.parametrize("serves", ["trn2-ultraserver", "trn3-gen2"])
def test_a_fleet_of_two_kinds_trains_on_both_under_a_cap(serves):
    kinds = ["trn2-ultraserver:10", "trn3-gen2:10"]
    words = {"unit_rate": 5.0, "days": 0.4, "scale_to_peak": 0.5, "failures": "off"}
    done = cs.run_fleet(kinds, policy="mpc", power_cap=2.0, serve_on=serves, **words)
    assert done.summary["over_cap_minutes"] == 0
    assert all(kind["training_tokens"] > 0 for kind in done.summary["kinds"])


@pytest.mark.parametrize(("kind_w", "cap_w", "message"), [
    (30.0, -1.0, "caps power at -1.0 W"),
    (30.0, float("nan"), "caps power at nan W"),
    (0.0, 1e3, "power_w of the policy: the catalogue has no power of a; leave"),
])  # fmt: skip
def test_a_policy_states_a_cap_that_is_a_power(kind_w, cap_w, message):
    view = _view(_kind("a", 3, 1, kind_w))
    with pytest.raises(cs.InputError, match=message):
        answer(lambda _: Decision([1], power_w=cap_w), view, np.zeros(1))


def test_a_cap_is_refused_where_no_policy_acts():
    words = {"power_cap": 2.0, "days": 1.0, "change_time": "2d", "unit_rate": 5.0}
    with pytest.raises(cs.InputError, match="role that take longer than the run of 1 day, in"):
        cs.run_fleet("trn2-ultraserver:4", policy="mpc", **words)
    done = cs.run_fleet("trn2-ultraserver:4", policy="forecast", **words)
    assert "over_cap_minutes" not in done.summary


def test_energy_of_a_site_is_unknown_where_that_of_a_kind_is(tmp_path, capsys):
    kinds, prices = ["trn2-ultraserver:4", "tpu-v6e-pod:2"], tmp_path / "prices.csv"
    prices.write_text("hour,usd_per_mwh\n" + "".join(f"{hour},50\n" for hour in range(24)))
    rows = "a,trn2-ultraserver,1,9\nb,tpu-v6e-pod,1,9\n"
    (jobs := tmp_path / "jobs.csv").write_text("name,kind,units,tokens_per_s\n" + rows)
    words = {"unit_rate": 5.0, "days": 0.1, "policy": "threshold", "training": jobs}
    done = cs.run_fleet(kinds, price=prices, **words).summary
    for name in ("energy_joules", "power_peak_w", "electricity_usd", "cost_with_electricity_usd"):
        assert done[name] is None
    assert done["cost_usd"] > 0
    assert [row["energy_joules"] is None for row in done["kinds"]] == [False, True]
    line = ["fleet", "--unit-rate", "5", "--days", "0.1", "--no-compare", "--no-intervals"]
    assert run([*line, f"--training={jobs}", *(f"--kind={kind}" for kind in kinds)]) == 0
    assert "no power of tpu-v6e-pod; trn2-ultraserver drew" in capsys.readouterr().err


def test_regret_is_zero_for_the_oracle_itself():
    best = {"training_chip_hours": 50.0, "slo_attainment": 1.0}
    none = {"training_chip_hours": 10.0, "slo_attainment": 1.0}
    assert regret(best, best, none)["regret_training_chip_hours"] == 0.0
    assert regret(best, best, none)["captured"] == 1.0
    assert regret(none, best, none)["captured"] == 0.0


def test_economics_of_machines():
    rainier = Economics.of(cluster("rainier"))
    assert rainier.busy_w == 750.0
    assert rainier.usd_per_chip_s * 3600 == pytest.approx(2.235)
    assert Economics.of(cluster("p5en.48xlarge:4")).idle_w > 0


def test_energy_and_cost_of_a_day():
    run = simulate_one(FLAT_DAY, [SERVICE], Fleet(100), static(100))
    numbers = summary(run)
    half = 100 * 64 * (400 + 0.5 * 350) * 1.12
    assert numbers["power_mean_w"] == pytest.approx(half, rel=0.01)
    assert numbers["cost_usd"] == pytest.approx(100 * 64 * 24 * 2.235)
    assert numbers["usd_per_training_step"] is None


def test_people_are_told_that_more_units_train_less_under_a_cap():
    """An idle unit of 64 chips draws 28.8 of 54 kW: each further one takes the rise of 1.1."""
    words: dict[str, Any] = {"policy": "power-cap", "power_cap": 2.0, "failures": "off"}
    words |= {"days": 0.25}
    runs = {
        units: cs.run_fleet(f"trn2-ultraserver:{units}", unit_rate=5.0, scale_to_peak=0.2, **words)
        for units in (30, 50, 60)
    }
    tokens = {units: each.summary["training_tokens"] for units, each in runs.items()}
    assert tokens[60] < tokens[50]
    notes = {units: idle_draw_note(each.run, each.summary) for units, each in runs.items()}
    assert notes[30] == ""
    assert notes[60] == (
        "60 units draw 1.73 MW while idle, of a power cap of 2 MW; where it holds units back, "
        "each further one lets 1.1 fewer train."
    )
