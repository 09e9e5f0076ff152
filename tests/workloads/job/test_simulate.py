"""A job of weeks: exact small cases, closed forms, conservation and monotonicity."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from tests.support.examples import examples
from tests.support.refusals import refused
from tests.support.scripted_jobs import Scripted, failing, job, parts_s, run, scripted
from workloads.job import PARTS, Stragglers, daly_interval_s, expected_goodput
from workloads.job.causes import Cause, FailureRates
from workloads.job.checkpoints import PeerCopies
from workloads.job.goodput import _best, search_interval, smooth_goodput
from workloads.job.job import Job, Recovery, Replicas
from workloads.job.simulate import _Run, simulate
from workloads.options.windows import Window

RARE, REPLACED = failing(1e9), failing(1e9, replaces=True)
SLOW = Stragglers(per_s=1e-9, slower=0.25, found_after_s=200)
LOST = {"lost_work": 500, "detection": 10, "restart": 100}


@pytest.mark.parametrize(("changes", "draws", "parts", "counts"), [
    # Without failures only checkpoints cost time.
    ({"span_s": 1020 * 3 + 1}, {}, {"useful": 3001, "checkpoint": 60}, (3, 0, 0, 0)),
    # Intervals of 10 s, written for 100: the second checkpoint begins at 130 instead of 40.
    ({"interval_s": 10, "write_s": 100, "span_s": 150}, {},
     {"useful": 10 + 10, "checkpoint": 20 + 90 + 20}, (1, 0, 0, 0)),
    # Saved at 1020; fails at 1520, is noticed at 1530, starts until 1630, computes until 2000.
    ({"rates": RARE, "span_s": 2000}, {0: [1520]},
     {**LOST, "useful": 1000 + 370, "checkpoint": 20}, (1, 1, 0, 0)),
    # Fails at 500 and again 60 s into the restart, which began at 510.
    ({"rates": RARE, "span_s": 1000}, {0: [500, 70]},
     {**LOST, "detection": 20, "restart": 60 + 100, "useful": 1000 - 680}, (0, 2, 0, 0)),
    # Copied at 1020, written at 1120: a failure before goes back to the start.
    ({"rates": RARE, "write_s": 100, "span_s": 1500}, {0: [1100]},
     {**LOST, "lost_work": 1080, "useful": 290, "checkpoint": 20}, (1, 1, 0, 0)),
    ({"rates": RARE, "write_s": 100, "span_s": 1500}, {0: [1130]},
     {**LOST, "lost_work": 110, "useful": 1260, "checkpoint": 20}, (1, 1, 0, 0)),
    # Fails at 500; noticed at 510; without a spare repaired at 500 + 400; starts until 1000.
    ({"rates": REPLACED, "spares": 0, "span_s": 1500}, {0: [500], 2: [400]},
     {**LOST, "waiting_for_spares": 390, "useful": 500}, (0, 1, 1, 1)),
    ({"rates": REPLACED, "spares": 1, "span_s": 1500}, {0: [500], 2: [400]},
     {**LOST, "useful": 890}, (0, 1, 1, 1)),
    # A server is slow from 500 on, known at 700, replaced after the checkpoint at 1000.
    ({"stragglers": SLOW, "span_s": 1620}, {3: [500.0], 2: [50.0]},
     {"useful": 500 + 400 + 500, "stragglers": 100, "checkpoint": 20, "restart": 100},
     (1, 0, 1, 1)),
])  # fmt: skip
def test_every_second_of_a_small_case_is_known(changes, draws, parts, counts):
    """Draws: times to failures (0), of repairs (2) and to slow servers (3)."""
    done = simulate(job(**changes), Scripted({stream: [*times] for stream, times in draws.items()}))
    assert parts_s(done) == parts
    failures = done.failures.get("chip", 0)
    assert (done.checkpoints, failures, done.replaced, done.spares_used) == counts


@pytest.mark.parametrize("interval_s", [500, 1500, 4000])
def test_goodput_is_that_of_exponential_failures(interval_s):
    """Four standard errors over 3,000 failures are less than half a per cent."""
    mtbf_s = 20_000.0
    done = run(job(failing(mtbf_s), interval_s=interval_s, span_s=3000 * mtbf_s))
    expected = expected_goodput(interval_s, mtbf_s, checkpoint_s=20, restart_s=100, detection_s=10)
    assert done.goodput == pytest.approx(expected, abs=0.004)
    # No other failure begins while one is being noticed.
    assert done.failures["chip"] == pytest.approx(3000, abs=4 * 3000**0.5)
    assert expected_goodput(1.0, 1.0, checkpoint_s=0.0, restart_s=1e3) == 0.0  # no restart ends


def test_the_best_interval_is_where_the_closed_form_has_it():
    curve = search_interval(job(failing(20_000.0), stall_s=20), seed=0)
    expected_s = minimize_scalar(
        lambda interval_s: -expected_goodput(interval_s, 20_000.0, checkpoint_s=20),
        bounds=(100, 10_000), method="bounded",
    ).x  # fmt: skip
    assert expected_s == pytest.approx(daly_interval_s(20_000.0, 20.0), rel=0.01)
    assert curve.best_s == pytest.approx(expected_s, rel=0.15)
    best = expected_goodput(expected_s, 20_000.0, checkpoint_s=20)
    near = expected_goodput(curve.best_s, 20_000.0, checkpoint_s=20)
    assert best - near < 0.001
    assert search_interval(job(), seed=0) is None  # without failures none is needed


@pytest.mark.parametrize(("least_s", "best_s"), [(5.0, 5.0), (20.0, 10.0), (1.0, 1.0), (0.1, 1.0)])
def test_the_interval_of_least_waste_is_within_the_points(least_s, best_s):
    """A waste of a / t + b t + c is least at the root of a / b."""
    points = (1.0, 2.0, 5.0, 10.0)
    goodput = [1 - (1e-4 * least_s**2 / point + 1e-4 * point + 0.01) for point in points]
    assert _best(points, goodput) == pytest.approx(best_s)
    assert _best(points[:2], (0.5, 0.6)) == 2.0


COPIES = PeerCopies(every_s=10.0, copy_s=0.0, restart_s=300.0, bytes_per_server=1e9)
ELASTIC = st.builds(
    lambda *drawn: {"replicas": Replicas(*drawn), "units": drawn[0] * drawn[1], "peers": COPIES},
    st.integers(2, 40), st.integers(1, 4), st.integers(1, 64), st.floats(0, 400),
)  # fmt: skip
ROLLING = st.tuples(st.just(True), st.just(1e6))  # once, as turns of many units take days
WINDOWS = st.builds(
    lambda length_s, units, rolls: {"windows": (Window("w", 5000.0, length_s, units, *rolls),)},
    st.floats(10, 3000), st.integers(1, 4), ROLLING | st.just((False, 4000.0)),
)  # fmt: skip
OTHER_PLANS = st.lists(st.floats(0, 3), max_size=3).map(lambda slower: {"without": tuple(slower)})


@examples(120)
@given(
    mtbf_s=st.floats(50, 1e6), replaces=st.booleans(), interval_s=st.floats(1, 5000),
    stall_s=st.floats(0, 100), write_s=st.floats(0, 300), spares=st.integers(0, 4),
    slower=st.floats(0, 1), seed=st.integers(0, 99), elastic=st.just({}) | ELASTIC,
    planned=st.just({}) | WINDOWS, without=OTHER_PLANS,
)  # fmt: skip
def test_every_moment_is_counted_once(
    mtbf_s, replaces, interval_s, stall_s, write_s, spares, slower, seed, elastic, planned, without
):
    trial = job(
        failing(mtbf_s, replaces=replaces), interval_s=interval_s, stall_s=stall_s,
        write_s=write_s, spares=spares, span_s=20_000,
        stragglers=Stragglers(per_s=1e-3, slower=slower, found_after_s=300),
        **elastic, **planned, **without,
    )  # fmt: skip
    done = simulate(trial, np.random.default_rng(seed), 7)
    assert sum(done.parts_ms.values()) == done.span_ms == 20_000_000
    assert set(done.parts_ms) == {*PARTS, *(["maintenance"] if planned else [])}
    assert all(ms >= 0 for ms in done.parts_ms.values())
    assert sum(done.shares.values()) == pytest.approx(1, abs=1e-12)
    assert done.replaced >= replaces * sum(done.failures.values())
    at = [time for time, _ in done.slices]
    seventh_ms = 20_000_000 // 7
    assert at == [*(number * seventh_ms for number in range(1, 8)), 20_000_000]
    assert dict(done.slices[-1][1]) == dict(done.parts_ms)


@examples(150)
@given(
    times_s=st.tuples(*[st.sampled_from([0.001, 0.003, 0.05, 0.7])] * 3),
    slow=st.sampled_from([(0.0, 0.0), (0.2, 0.15), (0.02, 1.0)]),
    mtbf_s=st.sampled_from([0.01, 0.5, 6.0, 1e9]), replaces=st.booleans(),
    spares=st.sampled_from([0, 1, 3]), peers=st.booleans(), slices=st.sampled_from([0, 7]),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_intervals_run_as_one_event_equal_those_run_one_by_one(
    times_s, slow, mtbf_s, replaces, spares, peers, slices, seed
):
    compute_s, stall_s, write_s = times_s
    trial = replace(
        job(), rates=failing(mtbf_s, replaces=replaces),
        recovery=Recovery(
            restart_s=0.03, explicit_s=0.002, timeout_s=0.01, hang_share=0.3, repair_s=0.2,
        ), stragglers=Stragglers(*slow, found_after_s=0.4),
        peers=PeerCopies(0.008, 0.002, 0.01, 1e9) if peers else None, interval_s=compute_s,
        stall_s=stall_s, write_s=min(write_s, compute_s + stall_s), spares=spares, span_s=10,
    )  # fmt: skip
    at_once = simulate(trial, np.random.default_rng(seed), slices)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Run, "_repeat_undisturbed", lambda run: iter(()))
        assert simulate(trial, np.random.default_rng(seed), slices) == at_once


def test_months_without_failures_takes_a_few_events():
    whole = _Run(job(interval_s=1, stall_s=1, span_s=100 * 86400), np.random.default_rng(0))
    assert whole.run().goodput == 0.5
    assert next(whole.env._eid) < 20


@pytest.mark.parametrize(("changes", "message"), [
    ({"span_s": 0}, "0 days"),
    ({"interval_s": 0}, "checkpoint every 0 s"),
    ({"spares": -1}, "-1 spares"),
    ({"stall_s": -1}, "times of checkpoints"),
    ({"interval_s": 0.001, "stall_s": 0}, "checkpoints in"),
    ({"rates": failing(1e-3)}, "failures are expected"),
])  # fmt: skip
def test_impossible_jobs_are_refused(changes, message):
    refused(message, job, **changes)


DAY_S = 86400.0


@pytest.mark.parametrize("found_after_s", [0.0, 1800.0])
def test_a_straggler_slows_half_an_interval_and_the_time_until_it_is_found(found_after_s):
    """It is replaced with the next checkpoint, here at no cost but what the interval had left."""
    trial = Job(
        rates=FailureRates(()), recovery=Recovery(0.0, 0.0, 0.0, 0.0, 0.0), interval_s=3600.0,
        stall_s=0.0, write_s=0.0, units=64, spares=200, span_s=400 * DAY_S,
        stragglers=Stragglers(1 / (10 * 3600.0), 0.5, found_after_s),
    )  # fmt: skip
    goodput = simulate(trial, np.random.default_rng(0)).goodput
    assert smooth_goodput(trial) == pytest.approx(goodput, abs=0.005)


RARE = Recovery(restart_s=600, explicit_s=30, timeout_s=1200, hang_share=0, repair_s=14400)
LONG = {"recovery": RARE, "interval_s": 1800, "stall_s": 10, "write_s": 9, "span_s": 2e8}


def _mean(cause: Cause, runs: int = 3, **changes: object) -> tuple[dict[str, float], float]:
    """Shares of each part, and failures over the computing time at their rate."""
    words = {**LONG, "units": 16, "spares": 40, **changes}
    trial = job(FailureRates((cause,)), **words)
    done = [simulate(trial, np.random.default_rng(seed)) for seed in range(runs)]
    for each in done:
        assert each.span_ms == round(1000 * trial.span_s)
        assert min(each.parts_ms.values()) >= 0
    failures = sum(each.failures[cause.name] for each in done)
    shares = {part: float(np.mean([each.shares[part] for each in done])) for part in PARTS}
    return shares, failures / (runs * trial.span_s * cause.per_s)


@pytest.mark.parametrize("peers", [None, PeerCopies(10.0, 0.0, 300.0, 1e9)])
def test_silent_corruption_loses_the_time_until_it_is_found(peers):
    """It loses that time and half an interval, and reads from the store, whatever peers hold."""
    day, found_s = 86400.0, 6 * 3600.0
    cause = Cause("corruption", 1 / (7 * day), False, found_after_s=found_s)
    shares, happened = _mean(cause, peers=peers)
    each = found_s + LONG["interval_s"] / 2  # type: ignore[operator]
    assert shares["lost_work"] == pytest.approx(happened * each / (7 * day), rel=0.03)
    assert shares["restart"] == pytest.approx(happened * 600 / (7 * day), rel=0.01)


@pytest.mark.parametrize(("stopped_s", "corruptions", "lost_s"), [
    (500, 0, 500),
    # The checkpoint of 1,000 s holds it: it is found at 2,300, when 690 s more are computed.
    (1500, 1, 480 + 1000 + 690),
])  # fmt: skip
def test_a_restart_from_an_earlier_checkpoint_undoes_a_corruption(
    stopped_s, corruptions, lost_s, monkeypatch
):
    wrong, stop = Cause("wrong", 1e-9, False, found_after_s=2000), Cause("stop", 1e-9, False)
    drawn = iter((wrong, stop))
    monkeypatch.setattr(FailureRates, "draw", lambda *_: next(drawn))
    done = scripted(job(FailureRates((wrong, stop)), span_s=4000), [300, stopped_s - 300])
    assert done.failures == {"wrong": corruptions, "stop": 1}
    assert parts_s(done)["lost_work"] == pytest.approx(lost_s)


def test_units_that_were_repaired_in_vain_fail_again_and_again():
    """With a share of one half of the repairs in vain, a failure becomes two in the mean."""
    cause = Cause("host", 1 / 86400, True, again=0.5, again_after_s=60.0)
    _, happened = _mean(cause, spares=0)
    assert happened == pytest.approx(2, rel=0.2)
    assert _mean(replace(cause, again=0.0))[1] == pytest.approx(1, rel=0.05)


def test_a_burst_takes_out_all_its_units_at_once():
    burst = Cause("rack", 1 / 864_000, True, units=4)
    alone, _ = _mean(replace(burst, units=1), spares=4)
    assert alone["waiting_for_spares"] == pytest.approx(0, abs=1e-3)
    # With three spares the fourth unit of each burst waits for the first of its four repairs.
    shares, happened = _mean(burst, spares=3)
    waits_s = RARE.repair_s / 4
    assert shares["waiting_for_spares"] == pytest.approx(happened * waits_s / 864_000, rel=0.1)
