"""Prefix caches and speculation in the fleet: fluid terms that come from the replica model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.toy_fleet import simulate
from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.demand import Demand, constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.processes.failures import Fleet
from workloads.fleet.results import role_units
from workloads.fleet.setup.serving import cold_cache_s, services_from, ways_of
from workloads.fleet.state.services import Service, to_serving_s
from workloads.fleet.state.world import Role
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs
from workloads.serving import (
    Batching,
    Lengths,
    Profile,
    Requests,
    Slo,
    Speculation,
    TableRuns,
    azure_lengths,
    fixed_rate,
    profile,
    saturated_rate,
    serve,
)
from workloads.serving.requests import share_hits

MODEL, WHERE = named("llama-3.1-70b"), cluster("trn2.48xlarge")
SLO, LIMITS = Slo(5.0, 0.2), "ttft=5s,tpot=200ms"
SHARE = 0.6


@pytest.fixture(scope="module")
def served() -> Profile:
    return profile(MODEL, WHERE)


@pytest.fixture(scope="module")
def lengths() -> Lengths:
    return azure_lengths("conv")


def _demand(lengths: Lengths) -> Demand:
    prompt, output = float(lengths.prompt.mean()), float(lengths.output.mean())
    return constant(60.0, minutes=2, prompt_tokens=prompt, output_tokens=output)


def _service(lengths: Lengths, **how: object) -> Service:
    """Return a service whose table is of the fewest requests that fill the slots of a replica."""
    serving = FleetInputs(slo=LIMITS, **how)  # type: ignore[arg-type]
    (service,) = services_from(_demand(lengths), WHERE, [MODEL], serving, requests=1)
    return service


@pytest.mark.parametrize("prefill", ["chunked", pytest.param("separate", marks=pytest.mark.slow)])
def test_a_unit_serves_what_the_replica_with_hits_or_proposals_does(
    served: Profile, lengths: Lengths, monkeypatch: pytest.MonkeyPatch, prefill: str
) -> None:
    """The gain of a unit against that of saturated replicas on other draws, within 5 %."""
    # The rate of saturation is read, not the latencies, for which a table runs twelve loads.
    monkeypatch.setattr("workloads.serving.tables.LOADS", (0.05, 0.99))
    monkeypatch.setattr("workloads.serving.deployment_search.NEAR", 100.0)
    plain = _service(lengths, prefill=prefill)
    prompts = ways_of(FleetInputs(prefill=prefill), MODEL, WHERE, served)[0]
    other = TableRuns(batching=prompts.batching, requests=1200, seed=7, pools=prompts.apart)
    alone = saturated_rate(served, lengths, other)
    for how, runs in (
        ({"prefix_cache": str(SHARE)}, replace(other, prefix_share=SHARE)),
        ({"speculate": "3:70%:0.05"}, replace(other, speculation=Speculation(3, 0.7, 0.05))),
    ):
        faster = _service(lengths, prefill=prefill, **how)
        gain = faster.capacity.rate_max_per_s / plain.capacity.rate_max_per_s
        assert gain == pytest.approx(saturated_rate(served, lengths, runs) / alone, rel=0.05)
        assert gain != pytest.approx(1.0, abs=0.02)
    assert plain.cold_s == 0.0


def test_a_cold_cache_costs_what_a_cold_replica_loses(served: Profile, lengths: Lengths) -> None:
    """The same saturated requests with an empty and with a full cache: when both are done."""
    runs = TableRuns(batching=Batching(chunk_tokens=512), prefix_share=SHARE, requests=2000)
    small = replace(served, kv_budget_bytes=served.kv_budget_bytes / 4)
    warm = saturated_rate(small, lengths, runs)
    expected = cold_cache_s(small, lengths, runs, warm)
    count = int(2 * small.kv_tokens / lengths.prompt.mean())
    prompt, output = lengths.draw(count, np.random.default_rng(3))
    ends = []
    for cold_tokens in (small.kv_tokens, 0):
        held = share_hits(prompt, SHARE, cold_tokens=cold_tokens)
        requests = Requests(np.zeros(count), prompt, output, cached=held)
        ends.append(serve(small, requests, runs.batching).end_s.max())
    assert expected > 10
    assert ends[0] - ends[1] == pytest.approx(expected, rel=0.15)


def test_a_unit_counts_as_capacity_when_its_cache_is_full() -> None:
    """A change takes 60 s, and 300 s more while the cache fills; the policy is told both."""
    service = Service("chat", fixed_rate(2.0), 1e9, cold_s=300.0)
    costs = ChangeCosts.fixed(60.0)
    run = simulate(
        constant(60.0, minutes=30),
        [service],
        Fleet(10, costs=costs),
        lambda view: 2.0 if view.minute < 10 else 8.0,
    )
    serving = role_units(run)[:, Role.SERVING]
    assert serving[:16].max() == 2.0
    assert serving[16:].min() == 8.0
    assert role_units(run)[11:16, Role.WARMING].min() == 6.0
    assert (
        to_serving_s(costs, [service])
        == to_serving_s(costs, [replace(service, cold_s=0.0)]) + 300.0
    )


def test_a_rate_as_given_and_bad_shares_are_refused(lengths: Lengths) -> None:
    with pytest.raises(InputError, match="leave out --unit-rate"):
        FleetInputs(unit_rate=2.0, prefix_cache="50%")
    with pytest.raises(InputError, match="--prefix-cache is '150%'"):
        _service(lengths, prefix_cache="150%")
    with pytest.raises(InputError, match="--speculate"):
        _service(lengths, speculate="many")
