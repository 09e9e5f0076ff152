"""The split of prompts that a fleet chooses, against all splits that a user could state."""

from __future__ import annotations

import pytest

from topologies.clusters.names import cluster
from workloads.demand import Demand, constant
from workloads.demand.trace import mix
from workloads.fleet.setup.serving import services_from
from workloads.fleet.state.services import Service
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs
from workloads.serving import azure_lengths

UNIT = cluster("trn2-ultraserver:2")
SPLITS = ("1:1", "1:3", "2:2", "3:1")
CASES = [
    ("llama-3.1-70b", "conv", "ttft=6s,tpot=25ms"),
    ("llama-3.1-405b", "code", "ttft=6s,tpot=175ms"),
    ("llama-3.1-8b", "conv", "ttft=6s,tpot=175ms"),
]


def _demand(kind: str) -> Demand:
    lengths = azure_lengths(kind)
    means = (float(lengths.prompt.mean()), float(lengths.output.mean()))
    return constant(60.0, minutes=2, prompt_tokens=means[0], output_tokens=means[1])


def _service(case: tuple[str, str, str], **how: object) -> Service:
    model, kind, slo = case
    serving = FleetInputs(slo=slo, **how)  # type: ignore[arg-type]
    (service,) = services_from(_demand(kind), UNIT, [named(model)], serving, requests=1)
    return service


def _way(service: Service) -> str:
    return f"{service.apart.prefill}:{service.apart.decode}" if service.apart else "separate"


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kind", "slo"), CASES)
def test_no_stated_split_serves_more_and_a_cache_is_worth_what_the_best_splits_say(
    model: str, kind: str, slo: str
) -> None:
    """Tables of all ways, with and without a prefix cache; 3,000 requests know a rate to 4 %."""
    case, most = (model, kind, slo), []
    for share in (None, "50%"):
        stated = {split: _service(case, disaggregate=split, prefix_cache=share) for split in SPLITS}
        stated["separate"] = _service(case, prefill="separate", prefix_cache=share)
        rates = {way: service.capacity.rate_slo_per_s for way, service in stated.items()}
        usual = _service(case, prefix_cache=share)
        assert usual.capacity.rate_slo_per_s > 0.98 * max(rates.values())
        assert usual.capacity.rate_slo_per_s == rates[_way(usual)]
        assert usual.choice is not None
        others = max(rate for way, rate in rates.items() if way != _way(usual))
        assert rates[usual.choice.runner_up] > 0.95 * others
        share_of_best = usual.choice.runner_up_share
        assert share_of_best == pytest.approx(others / max(rates.values()), abs=0.05)
        most.append((usual.capacity.rate_slo_per_s, max(rates.values())))
    (plain, best), (cached, best_cached) = most
    assert cached / plain == pytest.approx(best_cached / best, rel=0.03)
    assert cached > 0.96 * plain


@pytest.mark.slow
def test_groups_of_units_are_named_and_not_taken() -> None:
    """A unit of one replica lets decoding wait; the groups would serve one model alone."""
    serving, demand = FleetInputs(), _demand("code")
    machine, model = cluster("trn2.48xlarge:4"), named("llama-3.1-70b")
    (usual,) = services_from(demand, machine, [model], serving, requests=1)
    assert (usual.apart, usual.units_together) == (None, 1)
    assert usual.choice is not None
    assert usual.choice.runner_up == "3:1"
    stated = FleetInputs(disaggregate="3:1")
    (groups,) = services_from(demand, machine, [model], stated, requests=1)
    gain = groups.capacity.rate_slo_per_s / usual.capacity.rate_slo_per_s
    assert usual.choice.runner_up_share == pytest.approx(gain, rel=0.05)
    assert groups.choice is None


def test_services_of_one_model_share_the_split() -> None:
    demand, model = mix([_demand(kind) for kind in ("conv", "code")]), named("llama-3.1-70b")
    services = services_from(demand, UNIT, [model, model], FleetInputs(), requests=1)
    assert len({_way(service) for service in services}) == 1
    assert len({service.choice and service.choice.runner_up for service in services}) == 1
