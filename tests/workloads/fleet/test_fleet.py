"""The fleet as a whole: published results, conservation, limits, storms and failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.demand import (
    Demand,
    azure_code,
    azure_conv,
    azure_mix,
    constant,
    deepseek_day,
    deepseek_nodes,
    demand,
    period_means,
    spike,
)
from workloads.fleet import (
    ChangeCosts,
    Economics,
    Failures,
    Fleet,
    FleetRun,
    Limits,
    Policy,
    Role,
    Service,
    Signals,
    TrainingJob,
    View,
    best_static,
    changes_frame,
    clock,
    default_jobs,
    evaluation_job,
    ideal_freed,
    jobs_frame,
    lendable,
    oracle,
    regret,
    scaled_to_fleet,
    simulate,
    static,
    summary,
    threshold,
    timeline,
    units_needed,
)
from workloads.fleet.policies.forecasting import forecast
from workloads.fleet.results.timeline import role_server_ms
from workloads.serving.capacity import fixed_rate

UNITS = 7812
WEIGHTS = 4 * 0.75e12
SERVICE = Service("chat", fixed_rate(3.5), WEIGHTS)
FREE = ChangeCosts.fixed(0.0)
PRICES = Economics(750.0, 400.0, 1.12, 2.235 / 3600)


def _scaled(load: Demand, units: int = UNITS) -> Demand:
    return scaled_to_fleet(load, [SERVICE] * len(load.services), units)


def _share(run: FleetRun, *roles: Role) -> float:
    total = role_server_ms(run)[-1]
    return float(total[list(roles)].sum() / total.sum())


TRAINING = (Role.TRAINING, Role.EVALUATION, Role.CHECKPOINTING)


@pytest.mark.parametrize(
    ("trace", "freed"), [(azure_code, 0.6678), (azure_conv, 0.3964)], ids=["code", "conv"]
)
def test_free_switching_with_foresight_frees_one_minus_mean_over_peak(
    trace: Callable[[], Demand], freed: float
) -> None:
    assert ideal_freed(trace().requests[0]) == pytest.approx(freed, abs=0.0001)
    load = _scaled(trace().averaged(60))
    policy = oracle(units_needed(load, [SERVICE]))
    run = simulate(load, [SERVICE], Fleet(UNITS, costs=FREE), policy, jobs=default_jobs(UNITS))
    assert _share(run, *TRAINING) == pytest.approx(freed, abs=0.001)
    made_summary = summary(run, PRICES)
    assert made_summary["slo_attainment"] == 1.0
    assert made_summary["moving_chip_hours"] == 0.0


def test_freed_by_prompt_tokens_of_the_hourly_estimates() -> None:
    for trace, freed in ((azure_code(), 0.6815), (azure_conv(), 0.3688)):
        tokens = (trace.requests * trace.prompt_tokens)[0]
        assert ideal_freed(tokens) == pytest.approx(freed, abs=0.001)


def _deepseek(policy: Policy) -> FleetRun:
    """278 nodes at load share 1.0; steps of 30 nodes above a floor of 68; changes are free."""
    service = Service("deepseek", fixed_rate(1000.0))
    load = deepseek_day().times(278 * 1000.0 * 60.0)
    return simulate(
        load,
        [service],
        Fleet(278, chips_per_unit=8, costs=FREE, limits=Limits(floor=68, cap=278, block=30)),
        policy,
        jobs=[evaluation_job(278)],
    )


def test_deepseek_day_from_a_built_in_policy() -> None:
    run = _deepseek(threshold(headroom=0.10, hysteresis=0.0, hold_s=0.0))
    serving = np.diff(role_server_ms(run)[:, Role.SERVING]) / 60_000
    assert serving.mean() == pytest.approx(226.75, rel=0.01)
    hours = serving.reshape(24, 60).mean(axis=1)
    published = deepseek_nodes().reshape(24, 4).mean(axis=1)
    assert np.abs(hours - published).mean() <= 3.0
    assert serving.mean() == pytest.approx(228.0, abs=0.3)
    assert np.abs(hours - published).mean() == pytest.approx(1.9, abs=0.4)


TABLE = {
    "code": {
        "reactive": [(1.44, 0.57), (1.55, 0.55), (1.89, 0.50), (2.42, 0.44)],
        "with yesterday": [(1.32, 0.54), (1.51, 0.50), (1.69, 0.46), (2.26, 0.38)],
    },
    "conv": {
        "reactive": [(1.16, 0.29), (1.20, 0.27), (1.22, 0.25), (1.31, 0.21)],
        "with yesterday": [(1.16, 0.22), (1.16, 0.22), (1.15, 0.23), (1.25, 0.16)],
    },
}


@pytest.mark.parametrize("name", ["code", "conv"])
def test_headroom_against_lead_time(name: str) -> None:
    """The published study of the Azure week; one cell of the 32 differs by more than rounding."""
    frame = lendable(demand(f"azure-{name}").requests[0])
    for controller, rows in TABLE[name].items():
        mine = frame[frame["controller"] == controller]
        headroom = np.array([row[0] for row in rows])
        freed = np.array([row[1] for row in rows])
        assert np.abs(mine["headroom"].to_numpy() - headroom).max() < 0.02
        assert np.abs(mine["freed"].to_numpy() - freed).max() < 0.015
        assert np.median(np.abs(mine["headroom"].to_numpy() - headroom)) < 0.006


def test_more_lead_time_never_frees_more_for_the_reactive_controller() -> None:
    for name in ("azure-code", "azure-conv"):
        frame = lendable(demand(name).requests[0], lead_minutes=(5, 15, 30, 60, 120))
        freed = frame[frame["controller"] == "reactive"]["freed"].to_numpy()
        assert np.all(np.diff(freed) < 0)


FLAT = constant(60 * 3.5 * 50, minutes=1440)


@pytest.mark.parametrize(
    "policy",
    [
        threshold(),
        forecast(),
        static(60),
        clock(60, 60),
        oracle(np.full((1, 1440), 50.0), lead_s=600, shortest_valley_s=3600),
    ],
    ids=["threshold", "forecast", "static", "clock", "oracle"],
)
def test_flat_demand_changes_no_roles(policy: Policy) -> None:
    run = simulate(FLAT, [SERVICE], Fleet(100), policy, jobs=default_jobs(100))
    assert run.changes == ()
    assert summary(run, PRICES)["slo_attainment"] == 1.0


@pytest.mark.parametrize("policy", [threshold(), forecast(), clock(90, 10)])
def test_an_infinite_change_cost_is_the_static_split(policy: Policy) -> None:
    load = _scaled(azure_conv().between(0, 1440), 90)
    never = ChangeCosts.fixed(float("inf"))
    need = units_needed(load, [SERVICE])
    runs = [
        simulate(load, [SERVICE], Fleet(100, costs=never), each, jobs=default_jobs(100))
        for each in (policy, static(best_static(need)))
    ]
    assert np.array_equal(runs[0].spent_server_ms, runs[1].spent_server_ms)
    assert summary(runs[0], PRICES) == summary(runs[1], PRICES)
    assert runs[0].changes == ()


def test_free_changes_with_foresight_are_the_oracle() -> None:
    """A user's policy that is told the coming minute does what the oracle does."""
    load = _scaled(azure_code().between(480, 1200), 500)
    need = units_needed(load, [SERVICE])

    def told(view: View) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return need[:, view.minute]

    runs = [
        simulate(load, [SERVICE], Fleet(500, costs=FREE), each, jobs=default_jobs(500))
        for each in (told, oracle(need))
    ]
    assert np.array_equal(runs[0].spent_server_ms, runs[1].spent_server_ms)


def test_a_load_storm_takes_fifty_minutes_from_the_store_and_minutes_from_nvme() -> None:
    """1,000 UltraServers × 4 instances × 0.75 TB = 3 PB through 1 TB/s."""
    step = constant(60 * 3.5 * 1000, minutes=120).times(np.repeat([0.0, 1.0], 60))
    latency = {}
    for source in ("store", "nvme", "host"):
        costs = replace(
            ChangeCosts.from_catalogue(4, source=source),
            mode_switch_s=0.0,
            runtime_start_s=0.0,
            warm_up_s=0.0,
            compile_hit_s=0.0,
        )
        run = simulate(
            step,
            [SERVICE],
            Fleet(1000, costs=costs),
            lambda view: 1000.0 if view.minute >= 5 else 0.0,
            jobs=[TrainingJob("t", units=1000, reclaim="preempt")],
        )
        latency[source] = changes_frame(run)["latency_s"].max()
        if source == "store":
            assert run.loaded_bytes == pytest.approx(3e15)
    assert latency["store"] == pytest.approx(3000, rel=0.001)
    assert latency["nvme"] == pytest.approx(85, rel=0.01)
    assert latency["host"] == pytest.approx(61, rel=0.01)


def _conserved(run: FleetRun) -> None:
    total = role_server_ms(run)
    assert np.all(total.sum(axis=1) == np.arange(run.minutes + 1) * 60_000 * run.units)
    assert np.all(np.diff(total, axis=0) >= 0)
    numbers = summary(run, PRICES)
    groups = ("inference", "training", "moving", "idle", "broken")
    hours = sum(numbers[f"{name}_chip_hours"] for name in groups)
    assert hours == numbers["chip_hours"]
    parts = numbers["served_tokens"] + numbers["queued_tokens"] + numbers["shed_tokens"]
    assert parts == numbers["offered_tokens"]
    held = sum(tally.held_unit_ms for _, tally in run.jobs)
    outside = (Role.EVALUATION, Role.SERVING, Role.SPARE, Role.BROKEN, Role.PAUSED)
    assert 0 <= held <= total[-1].sum() - total[-1, list(outside)].sum()
    assert all(tally.useful_unit_ms <= tally.held_unit_ms + 1e-3 for _, tally in run.jobs)


POLICIES: dict[str, Policy] = {
    "threshold": threshold(headroom=0.2),
    "forecast": forecast(),
    "clock": clock(200, 40, night_from=0, night_to=8),
}


@pytest.mark.parametrize("name", sorted(POLICIES))
@pytest.mark.parametrize("source", ["nvme", "store"])
def test_unit_time_and_tokens_are_conserved_with_failures(name: str, source: str) -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 200)
    run = simulate(
        load,
        [SERVICE],
        Fleet(
            200,
            costs=replace(ChangeCosts.from_catalogue(4, source=source), miss_share=0.1),
            limits=Limits(reserve=3, min_lease_s=1800, changes_per_minute=20),
            failures=Failures(unit_mtbf_s=86400.0, repair_s=3600.0),
        ),
        POLICIES[name],
        jobs=default_jobs(200),
    )
    assert run.failures > 100
    _conserved(run)
    frame = timeline(run, PRICES)
    assert len(frame) == 1440
    assert frame["power_w"].between(0, 200 * 64 * 750 * 1.12).all()
    assert jobs_frame(run)["goodput"].between(0, 1).all()


@given(
    reclaim=st.sampled_from(["checkpoint", "preempt", "shrink", "pause"]),
    gang=st.integers(1, 10),
    step=st.integers(1, 4),
    seed=st.integers(0, 5),
    headroom=st.floats(0, 1),
    notice=st.sampled_from([5.0, float("inf")]),
)
@settings(max_examples=12, deadline=None)
def test_any_mix_of_jobs_conserves(
    reclaim: str, gang: int, step: int, seed: int, headroom: float, notice: float
) -> None:
    load = scaled_to_fleet(azure_code().between(600, 1320), [SERVICE], 30)
    jobs = [
        TrainingJob(f"a{n}", gang, gang, reclaim=reclaim, priority=n, state_bytes=1e13)
        for n in range(2)
    ]
    jobs.append(TrainingJob("b", 20, 2, step, reclaim=reclaim, checkpoint="peer", standby="warm"))
    jobs.append(evaluation_job(5))
    run = simulate(
        load,
        [SERVICE],
        Fleet(32, limits=Limits(notice_s=notice), failures=Failures(40_000.0, 600.0)),
        threshold(headroom=headroom),
        jobs=jobs,
        rng=np.random.default_rng(seed),
    )
    _conserved(run)


def test_same_seed_same_bits_and_another_seed_other_failures() -> None:
    load = scaled_to_fleet(azure_code().between(480, 1200), [SERVICE], 100)

    def once(seed: int) -> FleetRun:
        return simulate(
            load,
            [SERVICE],
            Fleet(100, failures=Failures(86400.0, 3600.0)),
            threshold(),
            jobs=default_jobs(100),
            rng=np.random.default_rng(seed),
        )

    first, again, other = (once(seed).spent_server_ms for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_two_services_share_a_fleet_and_pass_units_to_each_other() -> None:
    load = scaled_to_fleet(azure_mix().between(0, 1440), [SERVICE] * 2, 300)
    services = [SERVICE, replace(SERVICE, name="code")]
    run = simulate(load, services, Fleet(320), threshold(headroom=0.2), jobs=default_jobs(320))
    _conserved(run)
    assert set(changes_frame(run)["to"]) == {"chat", "code", "lent"}
    serving = run.spent_server_ms[-1, len(Role) :]
    assert serving.min() > 0


def test_a_spike_at_night_queues_while_units_come_back() -> None:
    flat = constant(60 * 3.5 * 30, minutes=360)
    load = spike(flat, at="02:00", factor=2.0, minutes=30)
    run = simulate(load, [SERVICE], Fleet(100), threshold(), jobs=default_jobs(100))
    undisturbed = simulate(flat, [SERVICE], Fleet(100), threshold(), jobs=default_jobs(100))
    frame = timeline(run, PRICES)
    assert summary(undisturbed, PRICES)["slo_attainment"] == 1.0
    assert frame["queued_requests"][:120].max() == 0
    assert frame["queued_requests"][120:150].max() > 0
    assert frame["slo_attainment"][120:135].min() < 0.5
    assert summary(run, PRICES)["slo_attainment_worst_15min"] < 0.5
    assert run.changes[0].ready_ms > run.changes[0].ordered_ms


def test_faster_changes_serve_better() -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 100)
    kept = []
    for seconds in (0.0, 600.0, 3600.0):
        run = simulate(
            load,
            [SERVICE],
            Fleet(110, costs=ChangeCosts.fixed(seconds)),
            threshold(),
            jobs=default_jobs(110),
        )
        kept.append(summary(run, PRICES)["slo_attainment"])
    assert kept[0] > kept[1] > kept[2]


def test_limits_on_changes_per_minute_and_lease() -> None:
    step = constant(60 * 3.5 * 80, minutes=120).times(np.repeat([0.1, 1.0], 60))
    limited = simulate(
        step,
        [SERVICE],
        Fleet(100, costs=FREE, limits=Limits(changes_per_minute=5)),
        threshold(),
        jobs=[evaluation_job(100)],
    )
    per_minute = changes_frame(limited).groupby("ordered_s")["units"].sum()
    assert per_minute.max() == 5
    down_up = constant(60 * 3.5 * 80, minutes=180).times(np.repeat([1.0, 0.1, 1.0], 60))
    policy = threshold(hold_s=0.0, hysteresis=0.0)
    leased = simulate(
        down_up,
        [SERVICE],
        Fleet(88, costs=FREE, limits=Limits(min_lease_s=7200.0)),
        policy,
        jobs=[evaluation_job(100)],
    )
    assert set(changes_frame(leased)["to"]) == {"lent"}


def test_paused_gangs_resume_without_loss_and_preempted_ones_lose() -> None:
    wave = constant(60 * 3.5 * 90, minutes=480).times(np.repeat([0.3, 1.0, 0.3, 1.0], 120))
    lost = {}
    for reclaim in ("pause", "preempt", "checkpoint"):
        jobs = [
            TrainingJob(f"j{n}", 20, 20, reclaim=reclaim, tokens_per_s=((20, 20.0),))
            for n in range(3)
        ]
        limits = Limits(cap=95)
        run = simulate(wave, [SERVICE], Fleet(100, limits=limits), threshold(), jobs=jobs)
        lost[reclaim] = sum(tally.lost_tokens for _, tally in run.jobs)
        assert sum(tally.reclaims for _, tally in run.jobs) >= 2
        if reclaim == "pause":
            assert _share(run, Role.PAUSED) > 0
    assert lost["pause"] == lost["checkpoint"] == 0.0
    assert lost["preempt"] > 0


def test_history_teaches_the_forecast() -> None:
    week = azure_code()
    load = _scaled(week, 300)
    before, after = load.between(0, 5 * 1440), load.between(5 * 1440, 7 * 1440)
    kept = [
        summary(
            simulate(
                after,
                [SERVICE],
                Fleet(330),
                forecast(),
                signals=Signals(history=past),
                jobs=default_jobs(330),
            ),
            PRICES,
        )["slo_attainment"]
        for past in (before, None)
    ]
    assert kept[0] > kept[1]


def test_regret_is_zero_for_the_oracle_itself() -> None:
    own = {"training_chip_hours": 50.0, "slo_attainment": 1.0}
    none = {"training_chip_hours": 10.0, "slo_attainment": 1.0}
    assert regret(own, own, none)["regret_training_chip_hours"] == 0.0
    assert regret(own, own, none)["captured"] == 1.0
    assert regret(none, own, none)["captured"] == 0.0


def test_economics_of_machines() -> None:
    rainier = Economics.of(cluster("rainier"))
    assert rainier.busy_w == 750.0
    assert rainier.usd_per_chip_s * 3600 == pytest.approx(2.235)
    assert Economics.of(cluster("p5en.48xlarge:4")).idle_w > 0


def test_energy_and_cost_of_a_day() -> None:
    run = simulate(FLAT, [SERVICE], Fleet(100), static(100))
    numbers = summary(run, PRICES)
    half = 100 * 64 * (400 + 0.5 * 350) * 1.12
    assert numbers["power_mean_w"] == pytest.approx(half, rel=0.01)
    assert numbers["cost_usd"] == pytest.approx(100 * 64 * 24 * 2.235)
    assert numbers["usd_per_training_step"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fleet": Fleet(0)}, "0 units"),
        ({"services": []}, "0 services for a demand of 1"),
        ({"jobs": [TrainingJob("big", 200, 150)]}, "needs 150 units, the fleet has 100"),
        ({"jobs": [evaluation_job(3), evaluation_job(3)]}, "2 evaluation jobs"),
    ],
)
def test_mistakes_are_refused(arguments: dict[str, object], message: str) -> None:
    given = {"services": [SERVICE], "fleet": Fleet(100), **arguments}
    with pytest.raises(InputError, match=message):
        simulate(FLAT, policy=static(1), **given)  # type: ignore[arg-type]


def test_period_means_spread_evenly() -> None:
    assert period_means(np.array([1.0, 3.0, 5.0]), 2).tolist() == [2.0, 2.0, 5.0]


def test_a_lost_server_takes_its_share_and_no_more() -> None:
    """40 serving units, one server of four down for ever in each that fails."""
    flat = constant(1.0, minutes=600)
    load = scaled_to_fleet(flat, [SERVICE], 40)
    forever = Failures(unit_mtbf_s=20 * 3600.0, repair_s=1e12, servers=4)
    run = simulate(load, [SERVICE], Fleet(40, failures=forever), static(40))
    total = role_server_ms(run)
    lost = np.diff(total[:, Role.BROKEN]) // 60_000
    assert run.failures > 5
    assert lost[-1] == run.failures
    assert np.array_equal(total.sum(axis=1), np.arange(601) * 40 * 4 * 60_000)
    capacity = run.queues[0].capacity[-1] / run.queues[0].capacity[0]
    assert capacity == pytest.approx(1 - run.failures / 160, abs=0.01)
    hours = summary(run, Economics(100.0, 50.0))
    assert hours["broken_chip_hours"] == pytest.approx(total[-1, Role.BROKEN] * 16 / 3.6e6)


def test_a_gang_loses_the_whole_unit_which_then_works_on() -> None:
    gang = TrainingJob(
        "gang", units=20, min_units=10, reclaim="shrink", checkpoint="peer", standby="warm"
    )
    load = scaled_to_fleet(constant(1.0, minutes=600), [SERVICE], 2)
    forever = Failures(unit_mtbf_s=20 * 3600.0, repair_s=1e12, servers=4)
    jobs = (gang, evaluation_job(22))
    run = simulate(load, [SERVICE], Fleet(22, failures=forever), static(2), jobs=jobs)
    total = np.diff(role_server_ms(run), axis=0)[-1] / 60_000
    ((_, tally),) = run.jobs
    assert tally.failures > 0
    assert total[Role.EVALUATION] > 0
    assert total[Role.TRAINING] % 4 == 0
    assert total[Role.TRAINING] == 4 * (20 - tally.failures)
    assert total.sum() == 22 * 4


def test_serving_is_topped_up_for_servers_that_are_down() -> None:
    load = scaled_to_fleet(constant(1.0, minutes=1440), [SERVICE], 40)
    often = Failures(unit_mtbf_s=40 * 3600.0, repair_s=10 * 3600.0, servers=4)
    run = simulate(
        load,
        [SERVICE],
        Fleet(60, costs=ChangeCosts.fixed(0.0), failures=often),
        static(40),
        jobs=(evaluation_job(60),),
    )
    serving = np.diff(role_server_ms(run)[:, Role.SERVING])[60:] / (4 * 60_000)
    assert serving.min() > 38.0
    assert serving.mean() == pytest.approx(40.0, abs=0.6)


def test_one_server_a_unit_is_the_whole_unit() -> None:
    load = scaled_to_fleet(azure_code().between(0, 1440), [SERVICE], 50)
    runs = [
        simulate(
            load,
            [SERVICE],
            Fleet(50, failures=Failures(unit_mtbf_s=36_000.0, repair_s=3600.0, servers=servers)),
            threshold(),
        )
        for servers in (1, 4)
    ]
    broken = [role_server_ms(run)[-1, Role.BROKEN] / run.servers for run in runs]
    assert broken[1] < 0.6 * broken[0]


def test_broken_server_time_is_that_of_independent_servers() -> None:
    """Each of 2,000 servers is down for repair / (time to failure + repair) of the time."""
    load = scaled_to_fleet(constant(1.0, minutes=3 * 1440), [SERVICE], 500)
    seen: list[int] = []

    def policy(view: View) -> float:
        seen.append(view.broken)
        return 500.0

    failures = Failures(unit_mtbf_s=10 * 3600.0, repair_s=4 * 3600.0, servers=4)
    run = simulate(load, [SERVICE], Fleet(500, failures=failures), policy)
    settled = np.diff(role_server_ms(run)[1440:, Role.BROKEN]).mean() / 60_000
    assert settled == pytest.approx(2000 * 4 / (40 + 4), rel=0.06)
    assert np.mean(seen[1440:]) == pytest.approx(settled / 4, rel=0.02)
