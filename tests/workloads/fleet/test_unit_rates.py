"""Rates of units: prefill and decode apart, prefix caches and proposals, and changes of groups."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.commands import document_of, refusal_of
from tests.support.refusals import refused
from tests.support.toy_fleet import simulate
from topologies.clusters.names import cluster
from workloads.demand import Demand, constant
from workloads.fleet.inputs.costs import ChangeCosts
from workloads.fleet.policies.view import Limits
from workloads.fleet.processes.failures import failures_from
from workloads.fleet.results import role_units
from workloads.fleet.setup.serving import block_of, cold_cache_s, replicas_document, services_from
from workloads.fleet.state.services import Fleet, Service, to_serving_s
from workloads.fleet.state.world import Role
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs
from workloads.serving import BUCKETS, Batching, Pools, Profile, Slo, profile, serve
from workloads.serving.requests import Requests, azure_lengths, fixed_lengths, share_hits
from workloads.serving.tables import TableRuns, fixed_rate, saturated_rate

MODEL, UNIT = named("llama-3.1-70b"), cluster("trn2-ultraserver:8")
SLO, LIMITS = Slo(5.0, 0.2), "ttft=5s,tpot=200ms"
LENGTHS = azure_lengths("conv")
WHOLE = Batching(buckets=BUCKETS)
GROUP = Pools(1, 3, 1e12)


@pytest.fixture(scope="module")
def served() -> Profile:
    return profile(MODEL, UNIT)


@pytest.fixture(scope="module", autouse=True)
def two_loads() -> Iterator[None]:
    """Rates of saturation are read, not the latencies, for which a table runs twelve loads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workloads.serving.tables.LOADS", (0.05, 0.99))
        patch.setattr("workloads.serving.deployment_search.NEAR", 100.0)
        yield


@pytest.fixture(scope="module")
def service() -> Service:
    return _service("1:3")


def _demand() -> Demand:
    prompt, output = float(LENGTHS.prompt.mean()), float(LENGTHS.output.mean())
    return constant(60.0, minutes=2, prompt_tokens=prompt, output_tokens=output)


def _service(split: str, where: str = "trn2-ultraserver:8", **how: object) -> Service:
    words: dict[str, Any] = {"tp": 16, "slots": 16, **how}
    serving = FleetInputs(slo=LIMITS, disaggregate=split, **words)
    (service,) = services_from(_demand(), cluster(where), [MODEL], serving, requests=1)
    return service


def test_the_slower_pool_binds(served):
    """Long prompts with short answers wait for prefill, and long answers for decode."""
    group = Pools(2, 3, 1e12)
    prompts = TableRuns(batching=WHOLE, requests=600, pools=group)
    bound_by_prefill = saturated_rate(served, fixed_lengths(4095, 2), prompts)
    assert bound_by_prefill == pytest.approx(2 / served.prefill_s(4096), rel=0.01)
    answers = TableRuns(batching=WHOLE, requests=3000, pools=group)
    arrived = replace(answers, batching=replace(WHOLE, arrived=True), pools=None, requests=1000)
    lengths = fixed_lengths(128, 600)
    one_decode_replica = saturated_rate(served, lengths, arrived)
    bound_by_decode = saturated_rate(served, lengths, answers)
    assert bound_by_decode == pytest.approx(3 * one_decode_replica, rel=0.02)


def test_groups_fill_units_or_take_several(service, served):
    """Twice the groups in a unit serve twice as much; a group of two units serves half in each."""
    two = _service("1:1")
    assert (two.group, two.units_together) == (2, 1)
    assert two.weights_bytes == 4 * served.weights_bytes == service.weights_bytes
    servers = _service("1:1", "trn2.48xlarge:16")
    assert (servers.units_together, block_of([servers]), block_of([two])) == (2, 2, 1)
    # Two groups in a unit of four servers, and half a group in a unit of one.
    ratio = two.capacity.rate_max_per_s / servers.capacity.rate_max_per_s
    assert ratio == pytest.approx(4.0, rel=0.02)
    (row,) = replicas_document([servers])
    assert (row["prefill_replicas"], row["decode_replicas"], row["groups_per_unit"]) == (1, 1, 0.5)
    # Inside an UltraServer caches go over NeuronLink, between servers over EFA.
    (inside,) = replicas_document([two])
    assert inside["kv_transfer_bytes_per_s"] > 10 * row["kv_transfer_bytes_per_s"]
    assert row["kv_transfer_bytes_per_s"] == pytest.approx(16 * 25e9)


def test_units_of_a_group_change_their_roles_together():
    """Groups of four units: whatever the policy wants, a multiple of four serves."""
    service = Service("chat", fixed_rate(0.5), 1e9, apart=GROUP)
    block = block_of([service])
    fleet = Fleet(20, costs=ChangeCosts.fixed(60.0), limits=Limits(block=block))
    demand = constant(60.0, minutes=40)
    done = simulate(demand, [service], fleet, lambda view: 2.0 if view.minute < 20 else 9.0)
    serving = role_units(done)[:, Role.SERVING]
    assert block == 4
    assert set(serving.tolist()) == {4.0, 12.0}


def test_a_lost_server_takes_the_group_that_spans_it_and_no_other(service):
    """Groups over four servers fail as a unit; groups inside one leave the other servers alone."""
    small = _service("1:3", tp=4)
    assert not service.lives_in_a_server(4)
    assert small.lives_in_a_server(4)
    assert (failures_from(UNIT, [service]).servers, failures_from(UNIT, [small]).servers) == (1, 4)


def test_the_caches_of_prefill_replicas_fill_after_a_change(served):
    """Twice the prefill replicas have twice the cache to fill, from the same queue of prompts."""
    small = replace(served, kv_budget_bytes=served.kv_budget_bytes / 4)
    lengths = fixed_lengths(4096, 2)
    lost = []
    for prefill in (1, 2):
        pools = Pools(prefill, 6, 1e12)
        runs = TableRuns(batching=WHOLE, requests=600, prefix_share=0.6, pools=pools)
        lost.append(cold_cache_s(small, lengths, runs, saturated_rate(small, lengths, runs)))
    assert lost[0] > 10
    assert lost[1] == pytest.approx(lost[0], rel=0.02)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: _service("1:2"), r"groups of 3 replicas of 16 chips .* such as 1:1, 1:3"),
    (lambda: _service("12:24"), r"has 512\. Use fewer replicas"),
    (lambda: _service("one:3"), "write 1:3"),
    (lambda: _service("1:3", prefix_cache="150%"), "--prefix-cache is '150%'"),
    (lambda: _service("1:3", speculate="many"), "--speculate"),
    (lambda: FleetInputs(disaggregate="1:3", chunk=512), "Leave --chunk out"),
    (lambda: FleetInputs(disaggregate="1:3", prefill="chunked"),
     "--prefill chunked is for replicas that decode as well"),
    (lambda: services_from(_demand(), UNIT, [MODEL],
                           FleetInputs(prefill="separate", chunk=512, tp=16)),
     "--chunk 512 cuts prompts, but prefill is separate"),
    (lambda: FleetInputs(unit_rate=2.0, disaggregate="1:3"), "leave out --unit-rate"),
    (lambda: FleetInputs(unit_rate=2.0, prefix_cache="50%"), "leave out --unit-rate"),
    (lambda: block_of([Service(name, fixed_rate(1.0), weights=name, apart=GROUP) for name in "ab"]),
     "groups of 4 units serves one model"),
    (lambda: services_from(constant(0.0, minutes=2, prompt_tokens=100.0, output_tokens=10.0), UNIT,
                           [MODEL], FleetInputs(slo=LIMITS, tp=16)),
     "no requests in this run; choose other days"),
    (lambda: services_from(_demand(), cluster("dgx-h100"), [named("llama-3.1-8b")],
                           FleetInputs(slo="ttft=1ms,tpot=200ms", tp=1), requests=1),
     r"best of \d replicas .* keeps that for 0\.0% .* looser"),
])  # fmt: skip
def test_impossible_units_are_refused(call, message):
    refused(message, call)


def test_lending_keeps_floor_block_and_reserve():
    words = "lend --cluster=trn2-ultraserver:50 --unit-rate=1 --demand=burstgpt --failures=off"
    free, kept = document_of(words), document_of(words, "--floor=20", "--block=8", "--reserve=3")
    for before, after in zip(_units(free), _units(kept), strict=True):
        assert after == max(0, min(before - 3, 50 - 3 - 20)) // 8 * 8
    assert "a floor of 60 units: the fleet has 50" in refusal_of(words, "--floor=60")


def _units(document: dict[str, Any]) -> list[int]:
    """Units of each hour of the night."""
    hours = []
    for window in document["windows"]:
        first, last = (pd.Timestamp(window[end]) for end in ("from", "to"))
        hours += [window["units"]] * round((last - first) / pd.Timedelta(hours=1))
    return hours


def test_a_cold_cache_costs_what_a_cold_replica_loses(served):
    """The same saturated requests with an empty and with a full cache: when both are done."""
    runs = TableRuns(batching=Batching(chunk_tokens=512), prefix_share=0.6, requests=2000)
    small = replace(served, kv_budget_bytes=served.kv_budget_bytes / 4)
    warm = saturated_rate(small, LENGTHS, runs)
    expected = cold_cache_s(small, LENGTHS, runs, warm)
    count = int(2 * small.kv_tokens / LENGTHS.prompt.mean())
    prompt, output = LENGTHS.draw(count, np.random.default_rng(3))
    ends = []
    for cold_tokens in (small.kv_tokens, 0):
        held = share_hits(prompt, 0.6, cold_tokens=cold_tokens)
        requests = Requests(np.zeros(count), prompt, output, cached=held)
        ends.append(serve(small, requests, runs.batching).end_s.max())
    assert expected > 10
    assert ends[0] - ends[1] == pytest.approx(expected, rel=0.15)


def test_a_unit_counts_as_capacity_when_its_cache_is_full():
    """A change takes 60 s, and 300 s more while the cache fills; the policy is told both."""
    service = Service("chat", fixed_rate(2.0), 1e9, cold_s=300.0)
    costs = ChangeCosts.fixed(60.0)
    demand, fleet = constant(60.0, minutes=30), Fleet(10, costs=costs)
    run = simulate(demand, [service], fleet, lambda view: 2.0 if view.minute < 10 else 8.0)
    serving = role_units(run)[:, Role.SERVING]
    assert (serving[:16].max(), serving[16:].min()) == (2.0, 8.0)
    assert role_units(run)[11:16, Role.WARMING].min() == 6.0
    warm_s = to_serving_s(costs, [replace(service, cold_s=0.0)])
    assert to_serving_s(costs, [service]) == warm_s + 300.0
