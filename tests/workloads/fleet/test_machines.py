"""Every machine serves and trains: replicas that fit, plans from the search, mixtures of models."""

from __future__ import annotations

from itertools import islice

import pytest

from topologies.clusters.names import cluster
from topologies.errors import InputError
from workloads.demand import constant
from workloads.fleet.setup.demand import divided
from workloads.fleet.setup.night_work import night_work, training_rate
from workloads.fleet.setup.serving import fitting_replicas, services_from
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs


@pytest.mark.parametrize(
    ("machine", "model", "chips", "precision"),
    [
        ("trn2-ultraserver", "llama-3.1-405b", 16, "bf16"),
        ("trn3-gen1", "llama-3.1-405b", 16, "bf16"),
        ("trn3-gen2", "llama-3.1-405b", 8, "bf16"),
        ("gb200-nvl72", "llama-3.1-405b", 8, "bf16"),
        ("dgx-h100", "llama-3.1-405b", 8, "fp8"),
        ("dgx-b200", "deepseek-v3", 8, "fp8"),
        ("trn2-ultraserver", "deepseek-v3", 16, "bf16"),
    ],
)
def test_the_shortest_replica_that_fits(
    machine: str, model: str, chips: int, precision: str
) -> None:
    replica = next(fitting_replicas(named(model), cluster(machine)))
    assert (replica.chips, replica.precision) == (chips, precision)


def test_a_model_that_fits_nowhere_is_refused_with_the_numbers() -> None:
    with pytest.raises(InputError, match="1,342 GB of weights, 8 chips hold 616 GB"):
        next(fitting_replicas(named("deepseek-v3"), cluster("dgx-h100")))


def test_replicas_come_in_order_of_chips_and_divide_experts_where_they_fit_twice() -> None:
    machine = cluster("trn2-ultraserver")
    model = named("deepseek-v3")
    small, whole, in_groups = islice(fitting_replicas(model, machine, precision="bf16"), 3)
    assert [(one.chips, one.expert_groups) for one in (small, whole, in_groups)] == [
        (16, 1), (32, 1), (32, 16)
    ]  # fmt: skip
    assert in_groups.prefill_s(4096) < 0.5 * whole.prefill_s(4096)
    assert in_groups.decode_s(8, 8000) == whole.decode_s(8, 8000)
    # Only Trainium's programs hold the experts twice.
    dense = list(fitting_replicas(model, cluster("gb200-nvl72"), precision="bf16"))
    assert [(one.chips, one.expert_groups) for one in dense] == [
        (chips, 1) for chips in (8, 9, 12, 18, 24, 36, 72)
    ]


@pytest.mark.slow
def test_a_larger_replica_is_taken_where_the_shortest_misses_the_slo() -> None:
    machine, model = cluster("trn2-ultraserver:4"), named("deepseek-v3")
    demand = constant(0.1, minutes=60, prompt_tokens=2500.0, output_tokens=30.0)
    chunked = FleetInputs(prefill="chunked")
    (service,) = services_from(demand, machine, [model], chunked, requests=1)
    assert (service.replica_chips, service.expert_groups, service.replicas) == (32, 16, 2)
    with pytest.raises(InputError, match=r"ttft 6 s .* x trn2 keeps that for 95.* another --tp"):
        services_from(
            demand, machine, [model], FleetInputs(tp=16, precision="bf16", prefill="chunked")
        )


@pytest.mark.parametrize(
    "machine",
    ["trn2-ultraserver:4", pytest.param("trn3-gen2:2", marks=pytest.mark.slow), "gb200-nvl72:2"],
)
def test_a_plan_is_found_and_is_simulated(machine: str) -> None:
    rate = training_rate(named("llama-3.1-8b"), cluster(machine))
    assert rate.plan is not None
    assert rate.plan.global_batch == rate.units * cluster(machine).chips_per_domain
    assert rate.tokens_per_s > 1e5 * rate.units


def test_mixtures_divide_the_demand() -> None:
    demand = constant(100.0, minutes=60)
    big, small = named("llama-3.1-70b"), named("llama-3.1-8b")
    parts, models = divided(demand, [(big, None), (small, None)])
    assert parts.requests.sum() == demand.requests.sum()
    machine = cluster("trn2-ultraserver:8")
    chunked = FleetInputs(prefill="chunked")
    services = services_from(parts, machine, models, chunked, requests=1)
    assert services[1].capacity.rate_slo_per_s > 2 * services[0].capacity.rate_slo_per_s
    assert services[0].weights != services[1].weights
    with pytest.raises(InputError, match="add up to 1"):
        divided(demand, [(big, 0.2), (small, 0.2)])
    three = divided(demand, [(big, None)] * 3)[0]
    with pytest.raises(InputError, match="2 models for 3 services"):
        divided(three, [(big, None), (small, None)])


def test_night_work_has_a_rate_a_state_and_the_catalogue_s_interval() -> None:
    machine = cluster("trn2-ultraserver:64")
    model = named("llama-3.1-8b")
    demand = constant(10.0, minutes=60)
    services = services_from(demand, machine, (), FleetInputs(unit_rate=2.0))
    jobs = night_work(machine, (model,), FleetInputs(), services, demand)
    assert {job.checkpoint_every_s for job in jobs} == {1800.0}
    assert all(job.rated for job in jobs)
    assert jobs[-1].rate(1) == pytest.approx(2.0 * 1100)
    assert jobs[0].state_bytes == pytest.approx(14 * model.parameters)
