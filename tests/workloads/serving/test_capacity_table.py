"""Capacity tables of a replica, and the fluid fleet that reads them against token level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.toy_fleet import simulate
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.demand import Demand
from workloads.fleet.policies.rules import static
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import service_minutes
from workloads.fleet.state.services import Service
from workloads.serving import (
    Batching,
    Profile,
    Requests,
    Slo,
    Speculation,
    TableRuns,
    azure_lengths,
    capacity_table,
    fixed_lengths,
    parse_slo,
    poisson,
    saturated_rate,
    serve,
)

TRN2 = cluster("trn2.48xlarge")


def test_capacity_table_is_monotone_and_cached(served_70b: Profile, tmp_path: Path) -> None:
    slo = parse_slo("ttft=3s,tpot=100ms")
    lengths = azure_lengths("conv")
    arguments = {"batching": Batching(chunk_tokens=512), "requests": 800, "cache": tmp_path}
    table = capacity_table(served_70b, lengths, slo, replicas=4, **arguments)  # type: ignore[arg-type]
    assert np.all(np.diff(table.attainment) <= 0)
    assert 0 < table.rate_slo_per_s < table.rate_max_per_s
    assert len(list(tmp_path.iterdir())) == 1
    again = capacity_table(served_70b, lengths, slo, replicas=8, **arguments)  # type: ignore[arg-type]
    assert again.rate_slo_per_s == pytest.approx(2 * table.rate_slo_per_s)
    assert len(list(tmp_path.iterdir())) == 1
    next(tmp_path.iterdir()).write_text("{broken")
    third = capacity_table(served_70b, lengths, slo, replicas=4, **arguments)  # type: ignore[arg-type]
    assert np.array_equal(third.ttft_s, table.ttft_s)


def test_longer_requests_are_more_work(served_70b: Profile) -> None:
    table = capacity_table(
        served_70b,
        azure_lengths("conv"),
        Slo(5.0, 0.2),
        batching=Batching(chunk_tokens=512),
        prompt_means=np.array([600.0, 1200.0, 2400.0]),
        output_means=np.array([100.0, 200.0]),
        requests=600,
    )
    assert np.all(np.diff(table.cost, axis=0) > 0)
    assert np.all(np.diff(table.cost, axis=1) > 0)
    assert table.work(1800.0, 100.0) == pytest.approx(table.cost[1:, 0].mean())


def test_an_slo_that_an_idle_replica_misses_is_refused(served_70b: Profile) -> None:
    with pytest.raises(InputError, match="keeps ttft 10 ms and tpot 100 ms"):
        capacity_table(served_70b, azure_lengths("conv"), Slo(0.01, 0.1), requests=200)


@pytest.mark.parametrize(
    "load", [*(pytest.param(load, marks=pytest.mark.slow) for load in (0.6, 0.8)), 0.4]
)
def test_fluid_fleet_against_token_level_replicas(served_70b: Profile, load: float) -> None:
    """The same hour of the published log: throughput within 5 %, p99 of TTFT within 20 to 30 %.

    The hour's own lengths arrive on three replicas of one fleet, routed at random; the fluid fleet
    sees only requests by the minute and the table.
    """
    replicas, batching = 3, Batching(chunk_tokens=512)
    lengths = azure_lengths("conv")
    table = capacity_table(served_70b, lengths, Slo(5.0, 0.2), batching=batching, requests=3000)
    rate = load * table.rate_max_per_s * replicas
    rng = np.random.default_rng(5)
    hour = poisson(rate, int(rate * 3600), lengths, rng)
    where = rng.integers(replicas, size=len(hour))
    ttft, ends = [], []
    for number in range(replicas):
        mine = where == number
        part = Requests(hour.arrival_s[mine], hour.prompt[mine], hour.output[mine])
        served = serve(served_70b, part, batching)
        ttft.append(served.ttft_s)
        ends.append(served.end_s)
    minutes = np.bincount((hour.arrival_s // 60).astype(int), minlength=60)[:60].astype(float)
    shape = (1, 60)
    demand = Demand(
        ("chat",),
        "2024-01-01T00:00",
        minutes[None, :],
        np.full(shape, lengths.prompt.mean()),
        np.full(shape, lengths.output.mean()),
    )
    run = simulate(demand, [Service("chat", table)], Fleet(replicas), static(replicas))
    fluid = service_minutes(run, 0)
    tokens_done = sum(int((end <= 3600).sum()) for end in ends)
    assert fluid.served_requests.sum() == pytest.approx(tokens_done, rel=0.05)
    p99 = np.average(fluid.ttft_p99_s, weights=fluid.offered_requests)
    assert p99 == pytest.approx(
        np.quantile(np.concatenate(ttft), 0.99), rel=0.2 + 0.1 * (load > 0.7)
    )


def test_overloaded_fluid_drains_at_the_saturated_rate(served_70b: Profile) -> None:
    batching, lengths = Batching(chunk_tokens=512), azure_lengths("conv")
    most = saturated_rate(served_70b, lengths, TableRuns(batching=batching))
    table = capacity_table(served_70b, lengths, Slo(5.0, 0.2), batching=batching, requests=3000)
    assert table.rate_max_per_s == pytest.approx(most)
    rng = np.random.default_rng(1)
    served = serve(served_70b, poisson(1.3 * most, 6000, lengths, rng), batching)
    done = np.sort(served.end_s)
    steady = 3000 / (done[4500] - done[1500])
    assert steady == pytest.approx(table.rate_max_per_s, rel=0.05)


def test_a_table_counts_on_prefixes_and_proposals(served_70b: Profile, tmp_path: Path) -> None:
    lengths, slo = fixed_lengths(4000, 100), Slo(20.0, 0.5)
    how: dict[str, Any] = {"requests": 300, "cache": tmp_path}
    plain = capacity_table(served_70b, lengths, slo, **how)
    cached = capacity_table(served_70b, lengths, slo, prefix_share=0.75, **how)
    guessed = capacity_table(served_70b, lengths, slo, speculation=Speculation(4, 0.8), **how)
    assert cached.rate_max_per_s > 1.3 * plain.rate_max_per_s
    assert guessed.rate_max_per_s > 1.1 * plain.rate_max_per_s
    assert len(list(tmp_path.iterdir())) == 3
    # The fluid term at the batch that decodes.
    speedup = Speculation(4, 0.8).speedup(served_70b, 64, 64 * 4050.0)
    assert guessed.rate_max_per_s / plain.rate_max_per_s < speedup
    with pytest.raises(InputError, match="prefix cache"):
        capacity_table(served_70b, lengths, slo, prefix_share=1.0)
