"""Policies equal a plain numpy version of their description, and laws for any demand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.toy_fleet import FREE, scaled_to_fleet, simulate
from workloads.demand import Demand, azure_code, azure_conv, burstgpt
from workloads.economics import Economics
from workloads.fleet.inputs.jobs import default_jobs
from workloads.fleet.policies.rules import forecast, oracle, static, threshold
from workloads.fleet.results import role_server_ms
from workloads.fleet.state.services import Fleet, Service, units_needed
from workloads.fleet.state.world import Role
from workloads.serving.tables import fixed_rate

UNITS, DAY = 300, 1440
SERVICE = Service("chat", fixed_rate(3.5), weights="m")
PRICES = Economics(750.0, 400.0)
TRACES = {
    "code": azure_code,
    "conv": azure_conv,
    "burstgpt": lambda: burstgpt().only("conversation").between(0, 7 * DAY),
}


def _need(requests):
    """Units a minute: requests over the 210 that a unit of 3.5/s serves in a minute."""
    whole = np.diff(np.rint(np.cumsum(requests)), prepend=0.0)
    return np.asarray(whole / 210.0)


def _static(need):
    hours = [need[first : first + 60].mean() for first in range(0, len(need), 60)]
    return np.full(len(need), math.ceil(max(hours) - 1e-9), float)


def _threshold(need, seen, have, backlog):
    """10 % above the last minute; given up when more than 5 % was idle for 15 minutes."""
    wanted = 1.1 * need[seen - 1] + backlog / 10
    lower = max(wanted, 1.1 * need[max(seen - 15, 0) : seen].max())
    if wanted > have:
        return wanted
    return lower if lower < 0.95 * have else have


class _Forecast:
    """Every 15 minutes: now or the earlier day, by the 99.9 % quantile of past errors, and 5 %."""

    def __init__(self, need, weekday):
        self.smooth = np.array([need[max(0, at - 4) : at + 1].mean() for at in range(len(need))])
        self.weekday = weekday

    def __call__(self, need, seen, have, backlog):
        if seen > 1 and seen % 15:
            return None
        ratios = [
            self.smooth[at + 1 : at + 16].max() / self._expected(at)
            for at in range((seen - 1) % 15, seen - 15, 15)
            if self._expected(at) > 0
        ]
        margin = min(max(np.quantile(ratios, 0.999), 1.0), 3.0) if ratios else 1.0
        return float(self._expected(seen - 1) * margin * 1.05 + backlog / 10)

    def _expected(self, at):
        back = _days_back((at + 1) // DAY, self.weekday) * DAY
        now = self.smooth[max(0, at - 14) : at + 1].max()
        then = self.smooth[at + 1 - back : at + 16 - back].max() if back else 0.0
        return float(max(now, then))


def _days_back(day, first_weekday):
    """A week where it is known, else the last day of the same kind, else none."""
    if day >= 7:
        return 7
    weekday = (first_weekday + day) % 7
    back = {0: 3, 5: 6}.get(weekday, 1)
    return back if back <= day else 0


def _followed(need, decide, lead=0):
    """Serving units by the minute: a queue of one line, and units that come a lead later."""
    coming = np.zeros(len(need) + lead + 1)
    serving = waiting = 0.0
    result = np.zeros(len(need))
    wanted = 0.0
    for minute in range(len(need)):
        serving += coming[minute]
        there = serving + coming[minute + 1 :].sum()
        answer = decide(need, max(minute, 1), there, waiting)
        wanted = wanted if answer is None else answer
        missing = min(math.ceil(wanted - 1e-9), UNITS) - there
        if minute == 0 or (missing > 0 and lead == 0):
            serving += missing
        elif missing > 0:
            coming[minute + lead] += missing
        else:
            serving -= min(-missing, serving)
        result[minute] = serving
        waiting = min(max(0.0, waiting + need[minute] - serving), 10 * serving)
    return result


def _expected_units(name, need, weekday):
    if name == "static":
        return _static(need)
    if name == "oracle":
        return np.minimum(np.ceil(need - 1e-9), UNITS)
    return _followed(need, _threshold if name == "threshold" else _Forecast(need, weekday))


def _run(demand, name, costs=FREE):
    need = units_needed(demand, [SERVICE])
    policy = {
        "static": static(_static(need[0])[:1]), "threshold": threshold(), "forecast": forecast(),
        "oracle": oracle(need),
    }[name]  # fmt: skip
    fleet, jobs = Fleet(UNITS, costs=costs), default_jobs(UNITS)
    return simulate(demand, [SERVICE], fleet, policy, jobs=jobs, economics=PRICES)


def _serving_units(run):
    return np.asarray(np.diff(role_server_ms(run.kinds[0])[:, Role.SERVING]) / 60_000)


@pytest.mark.parametrize(("name", "days", "trace"), [
    ("static", 1, "conv"), ("threshold", 1, "burstgpt"), ("threshold", 1, "conv"),
    ("forecast", 2, "burstgpt"), ("oracle", 1, "burstgpt"), ("oracle", 1, "conv"),
])  # fmt: skip
def test_serving_hours_of_free_changes(name, days, trace):
    """Within 1 % in all, and to the unit in nearly every minute where nothing waits.

    A forecast looks back on an earlier day; the others see a day as they see two.
    """
    arrivals = TRACES[trace]().between(0, days * DAY)
    demand = scaled_to_fleet(arrivals, [SERVICE], UNITS, peak_share=0.7)
    need = _need(demand.requests[0])
    expected = _expected_units(name, need, int(demand.index[0].weekday()))
    serving = _serving_units(_run(demand, name))
    assert serving.sum() == pytest.approx(expected.sum(), rel=0.01)
    if name in ("static", "oracle"):
        assert np.abs(serving - expected).max() <= 1.0


@st.composite
def _demands(draw):
    """Hours to a day and a half with a wave, a level, noise and a jump, of any of these."""
    minutes = draw(st.integers(6, 36)) * 60
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    wave = draw(st.floats(0, 0.95)) * np.sin(np.arange(minutes) / draw(st.integers(180, 1440)))
    jump = np.where(np.arange(minutes) >= draw(st.integers(0, minutes)), draw(st.floats(0, 3)), 1.0)
    mean = draw(st.floats(300.0, 20_000.0)) * (1 + wave) * jump
    requests = rng.poisson(mean * rng.gamma(50.0, 1 / 50.0, minutes)).astype(float)[None, :]
    lengths = np.full((1, minutes), 100.0)
    return Demand(("chat",), "2024-01-04T00:00", requests, lengths, lengths)


POLICIES = st.sampled_from(["static", "threshold", "forecast", "oracle"])


@pytest.mark.slow
@given(_demands(), POLICIES)
@examples(150)
def test_serving_hours_of_any_demand(demand, name):
    need = _need(demand.requests[0])
    if need.max() > UNITS or need.sum() == 0:
        return
    expected = _expected_units(name, need, 3)
    total = _serving_units(_run(demand, name)).sum()
    assert total == pytest.approx(expected.sum(), rel=0.01, abs=1)
