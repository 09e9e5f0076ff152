"""Speed of a week of 7,812 UltraServers beside a SimPy process for each, and of long runs of 100.

All times are processor time.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import simpy

UNITS, WEEK_MINUTES = 7812, 10_080
LONG = (4, 8, 16)  # weeks of the runs whose time for a day is compared
NAIVE_MINUTES = 60  # minutes that the SimPy processes run; their time for a week is extrapolated


def main() -> None:
    """Print the time of a week under each policy, and how much faster it is than real time."""
    from topologies.clusters.names import cluster
    from workloads.demand import azure_code
    from workloads.fleet.scenario import policy_of, run, scenario
    from workloads.models.huggingface import named

    begun = time.process_time()
    rainier = scenario(cluster("rainier"), azure_code(), models=named("llama-3.1-405b"))
    print(f"scenario (capacity table, one training iteration): {time.process_time() - begun:.1f} s")
    naive = naive_s(NAIVE_MINUTES) * WEEK_MINUTES / NAIVE_MINUTES
    print(
        f"one SimPy process a unit that wakes every minute, a week: {naive:.1f} s (from one hour)"
    )
    for name in ("static", "threshold", "forecast", "oracle"):
        begun = time.process_time()
        result = run(rainier, policy_of(name, rainier))
        took = time.process_time() - begun
        print(
            f"{name:>9}: {took:5.2f} s for a week, {WEEK_MINUTES * 60 / took:12,.0f} x real time, "
            f"{naive / took:5.1f} x the per-unit loop, {len(result.changes):,} orders, "
            f"{result.failures:,} failures"
        )
    small = scenario(cluster("trn2-ultraserver:100"), azure_code(), models=named("llama-3.1-70b"))
    first = None
    for weeks in LONG:
        horizon = small.horizon
        minutes = weeks * WEEK_MINUTES
        long = small.at(replace(horizon, demand=horizon.demand.repeated(minutes)))
        begun = time.process_time()
        run(long, policy_of("forecast", long))
        a_day = (time.process_time() - begun) / (7 * weeks)
        first = first or a_day
        print(f"{7 * weeks:3} days of 100 units: {a_day:.3f} s a day, {a_day / first:.2f} x")


def naive_s(minutes: int) -> float:
    """Processor time of a SimPy process for every unit that wakes once a minute [s]."""
    env = simpy.Environment()
    served = [0] * UNITS

    def unit(number: int) -> Generator[simpy.Event, Any, None]:
        while True:
            yield env.timeout(60_000)
            served[number] += 1

    for number in range(UNITS):
        env.process(unit(number))
    begun = time.process_time()
    env.run(until=minutes * 60_000 + 1)
    return time.process_time() - begun


if __name__ == "__main__":
    main()
