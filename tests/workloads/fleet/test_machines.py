"""How machines serve and train models: replicas that fit, ways of prompts, splits, plans."""

import re
from itertools import islice
from typing import Any

import pytest

from tests.support.commands import document_of, printed_by
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import RAINIER, cluster
from topologies.errors import InputError
from workloads.demand import Demand, constant
from workloads.demand.trace import mix
from workloads.fleet.scenario import demand_of
from workloads.fleet.setup.demand import divided
from workloads.fleet.setup.night_work import night_work, training_rate
from workloads.fleet.setup.serving import (
    fitting_replicas,
    services_from,
    smaller_replica_note,
    ways_of,
)
from workloads.fleet.state.services import Service
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.options.fleet import DemandInputs, FleetInputs
from workloads.serving import azure_lengths, profile


@pytest.mark.parametrize(("machine", "model", "chips", "precision"), [
    ("trn2-ultraserver", "llama-3.1-405b", 16, "bf16"),
    ("trn3-gen1", "llama-3.1-405b", 16, "bf16"),
    ("trn3-gen2", "llama-3.1-405b", 8, "bf16"),
    ("gb200-nvl72", "llama-3.1-405b", 8, "bf16"),
    ("dgx-h100", "llama-3.1-405b", 8, "fp8"),
    ("dgx-b200", "deepseek-v3", 8, "fp8"),
    ("trn2-ultraserver", "deepseek-v3", 16, "bf16"),
])  # fmt: skip
def test_the_shortest_replica_that_fits(machine, model, chips, precision):
    replica = next(fitting_replicas(named(model), cluster(machine)))
    assert (replica.chips, replica.precision) == (chips, precision)


def test_a_model_that_fits_nowhere_is_refused_with_the_numbers():
    with pytest.raises(InputError, match="1,342 GB of weights, 8 chips hold 616 GB"):
        next(fitting_replicas(named("deepseek-v3"), cluster("dgx-h100")))


def test_replicas_come_in_order_of_chips_and_divide_experts_where_they_fit_twice():
    machine = cluster("trn2-ultraserver")
    model = named("deepseek-v3")
    small, whole, in_groups = islice(fitting_replicas(model, machine, precision="bf16"), 3)
    deployed = [(one.chips, one.expert_groups) for one in (small, whole, in_groups)]
    assert deployed == [(16, 1), (32, 1), (32, 16)]
    assert in_groups.prefill_s(4096) < 0.5 * whole.prefill_s(4096)
    assert in_groups.decode_s(8, 8000) == whole.decode_s(8, 8000)
    # Only Trainium's programs hold the experts twice.
    dense = list(fitting_replicas(model, cluster("gb200-nvl72"), precision="bf16"))
    sizes = (8, 9, 12, 18, 24, 36, 72)
    assert [(one.chips, one.expert_groups) for one in dense] == [(chips, 1) for chips in sizes]


@pytest.mark.slow
def test_a_larger_replica_is_taken_where_the_shortest_misses_the_slo():
    machine, model = cluster("trn2-ultraserver:4"), named("deepseek-v3")
    demand = constant(0.1, minutes=60, prompt_tokens=2500.0, output_tokens=30.0)
    chunked = FleetInputs(prefill="chunked")
    (service,) = services_from(demand, machine, [model], chunked, requests=1)
    assert (service.replica_chips, service.expert_groups, service.replicas) == (32, 16, 2)
    stated = FleetInputs(tp=16, precision="bf16", prefill="chunked")
    with pytest.raises(InputError, match=r"ttft 6 s .* x trn2 keeps that for 95.* another --tp"):
        services_from(demand, machine, [model], stated)


@pytest.mark.parametrize(
    "machine",
    ["trn2-ultraserver:4", pytest.param("trn3-gen2:2", marks=pytest.mark.slow), "gb200-nvl72:2"],
)
def test_a_plan_is_found_and_is_simulated(machine):
    rate = training_rate(named("llama-3.1-8b"), cluster(machine))
    assert rate.plan.global_batch == rate.units * cluster(machine).chips_per_domain
    assert rate.tokens_per_s > 1e5 * rate.units


def test_mixtures_divide_the_demand():
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


def test_night_work_has_a_rate_a_state_and_the_catalogue_s_interval():
    machine = cluster("trn2-ultraserver:64")
    model = named("llama-3.1-8b")
    demand = constant(10.0, minutes=60)
    services = services_from(demand, machine, (), FleetInputs(unit_rate=2.0))
    jobs = night_work(machine, (model,), FleetInputs(), services, demand)
    assert {job.checkpoint_every_s for job in jobs} == {1800.0}
    assert all(job.rated for job in jobs)
    assert jobs[-1].rate(1) == pytest.approx(2.0 * 1100)
    assert jobs[0].state_bytes == pytest.approx(14 * model.parameters)


DENSE, MIXTURE = named("llama-3.1-8b"), named("mixtral-8x7b")


@pytest.mark.parametrize(("machine", "tp", "sizes"), [
    ("trn2-ultraserver:8", 16, {2, 4}),  # four replicas
    ("trn2.48xlarge:8", 16, {2, 4}),  # one: groups of units
    ("trn2-ultraserver:8", 4, {2, 4, 8}),  # sixteen
    ("trn3-gen2:2", 8, {2, 3, 6}),  # eighteen, which four do not divide
    ("trn2.48xlarge:3", 16, {2}),  # one, in a cluster without four units
    ("trn2.48xlarge:8", 8, {2}),  # two
])  # fmt: skip
def test_every_split_of_groups_that_leave_no_replica_idle_is_tried(machine, tp, sizes):
    fleet = cluster(machine)
    alone, *groups = ways_of(FleetInputs(tp=tp), DENSE, fleet, profile(DENSE, fleet, tp=tp))
    assert alone.apart is None
    assert {way.batching.chunk_tokens for way in (alone, *groups)} == {0}
    splits = {(way.apart.prefill, way.apart.decode) for way in groups if way.apart}
    assert splits == {(prefill, size - prefill) for size in sizes for prefill in range(1, size)}


BOTH = ("trn2-ultraserver:8", "dgx-h200:8")


@pytest.mark.parametrize(("serving", "machines", "pieces"), [
    (FleetInputs(prefill="chunked"), BOTH, 8192),
    (FleetInputs(chunk=1024), BOTH, 1024),
    (FleetInputs(chunk=0), BOTH, 0),
    (FleetInputs(prefill="separate"), BOTH, 0),
    (FleetInputs(), ["dgx-h200:8"], 8192),  # other machines run pieces beside decoding
    (FleetInputs(), ["dgx-a100:8"], 2048),
])  # fmt: skip
@pytest.mark.parametrize("model", [DENSE, MIXTURE])
def test_a_stated_way_holds_on_every_machine(serving, machines, pieces, model):
    for fleet in map(cluster, machines):
        (prompts,) = ways_of(serving, model, fleet, profile(model, fleet))
        assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize("words", [{}, {"chunk": 512}, {"disaggregate": "1:1"}])
def test_stated_slots_are_those_of_every_way(machine, words):
    fleet = cluster(machine)
    ways = ways_of(FleetInputs(slots=16, tp=4, **words), DENSE, fleet, profile(DENSE, fleet, tp=4))
    assert {way.batching.slots for way in ways} == {16}


@pytest.mark.slow
def test_replicas_of_fewer_chips_than_a_server_are_named_where_they_serve_far_more():
    demand = demand_of(DemandInputs(demand=("azure-conv",), days=1.0))
    inputs = FleetInputs()

    def note(machine: str, inputs: FleetInputs, model: Model) -> str:
        fleet = cluster(machine)
        services = services_from(demand, fleet, [model], inputs, requests=200)
        return smaller_replica_note(demand, fleet, [model], inputs, services)

    sentence = re.fullmatch(
        r"a replica takes a server of 16 chips unless --tp is stated; with --tp 1 a unit serves "
        r"(\d+\.\d) times as many requests/s within the SLO\.",
        note("trn2.48xlarge:2", inputs, DENSE),
    )
    assert sentence
    assert float(sentence[1]) > 1.25
    fleet, regions = cluster("trn2.48xlarge:2"), demand_of(DemandInputs(demand=("azure-conv",) * 2))
    each = services_from(demand, fleet, [DENSE], inputs, requests=200)
    assert smaller_replica_note(regions, fleet, [DENSE], inputs, [*each, *each]) == sentence[0]
    assert note("trn2.48xlarge:2", FleetInputs(tp=4), DENSE) == ""  # stated
    assert note("trn2.3xlarge:2", inputs, DENSE) == ""  # a server is one chip


@pytest.mark.slow
def test_an_answer_begins_with_the_replicas_that_would_serve_far_more() -> None:
    line = (
        "fleet --cluster=trn2-ultraserver:2 --model=llama-3.1-8b --days=0.05 --policy=static "
        "--no-intervals --no-compare"
    )
    document = document_of(line)
    (note,) = document["smaller_replicas"]
    assert document["notes"][0] == note
    shown = printed_by(line)
    assert shown.startswith("Units, chip-hours and money below are of the default: a replica takes")
    assert shown.count("unless --tp is stated") == 1
    stated = document_of(line, "--tp=1")
    assert "smaller_replicas" not in stated
    more = float(re.search(r"serves (\d+\.\d) times", note)[1])  # type: ignore[index]
    rates = [each["unit_capacity_requests_per_s"] for each in (stated, document)]
    assert rates[0] / rates[1] == pytest.approx(more, rel=0.02)


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
def test_no_stated_split_serves_more_and_a_cache_is_worth_what_the_best_say(model, kind, slo):
    """Tables of all ways, with and without a prefix cache; 3,000 requests know a rate to 4 %."""
    case, most = (model, kind, slo), []
    for share in (None, "50%"):
        stated = {split: _service(case, disaggregate=split, prefix_cache=share) for split in SPLITS}
        stated["separate"] = _service(case, prefill="separate", prefix_cache=share)
        rates = {way: service.capacity.rate_slo_per_s for way, service in stated.items()}
        usual = _service(case, prefix_cache=share)
        assert usual.capacity.rate_slo_per_s > 0.98 * max(rates.values())
        assert usual.capacity.rate_slo_per_s == rates[_way(usual)]
        others = max(rate for way, rate in rates.items() if way != _way(usual))
        assert rates[usual.choice.runner_up] > 0.95 * others
        share_of_best = usual.choice.runner_up_share
        assert share_of_best == pytest.approx(others / max(rates.values()), abs=0.05)
        most.append((usual.capacity.rate_slo_per_s, max(rates.values())))
    (plain, best), (cached, best_cached) = most
    assert cached / plain == pytest.approx(best_cached / best, rel=0.03)
    assert cached > 0.96 * plain


def test_services_of_one_model_share_the_split():
    demand, model = mix([_demand(kind) for kind in ("conv", "code")]), named("llama-3.1-70b")
    services = services_from(demand, UNIT, [model, model], FleetInputs(), requests=1)
    assert len({_way(service) for service in services}) == 1
    assert len({service.choice and service.choice.runner_up for service in services}) == 1


ALONE = ("trn1.2xlarge", "inf2.48xlarge")
"""Machines without a scale-out fabric."""
TOO_LONG = ("tpu-v4-pod",)
"""Machines whose training plans take minutes to price: groups of thousands of chips are run."""
NAMES = [name for name in machines(shipped_catalogue()) if name not in TOO_LONG]
CLUSTERS = [name if name in ALONE else f"{name}:4" for name in NAMES]
GROUPS = ("inference", "training", "moving", "idle", "broken")


def _fleet(name: str, model: str, *more: str) -> dict[str, Any]:
    words = ["fleet", "--cluster", name, "--model", model, "--demand", "azure-conv", "--days"]
    words += ["0.05", "--no-compare", "--json", "--quiet", *more]
    return document_of(words)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CLUSTERS, RAINIER])
def test_the_fleet_runs_on_every_machine(name):
    result = _fleet(name, "llama-3.1-8b", "--policy", "static")
    assert sum(result[f"{one}_chip_hours"] for one in GROUPS) == result["chip_hours"]
    assert result["chips"] == cluster(name).chips
    # The static policy serves the mean of the busiest hour. Of few units, rounding up leaves it
    # some slack; of Rainier's 7,812 it leaves none, and this hour is all that is run.
    assert result["slo_attainment"] > (0.5 if name == RAINIER else 0.9)
    assert result["replicas"][0]["model"] == "llama-3.1-8b"
    ends = result["interval"]
    assert ends["low"] < result["unit_capacity_requests_per_s"] < ends["high"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "more"), [
    ("trn2-ultraserver:8", "deepseek-v3", ("--slo", "ttft=30s,tpot=500ms")),
    ("dgx-h200:8", "deepseek-v3", ()),
    ("trn3-gen2:4", "llama-3.1-405b", ()),
    ("gb200-nvl72:4", "llama-3.1-405b=20%,llama-3.1-8b=80%", ()),
    ("p5en.48xlarge:16", "llama-3.1-405b=20%,llama-3.1-8b=80%", ()),
])  # fmt: skip
def test_large_models_and_mixtures_run(name, model, more):
    """On Trn2 the first token of 256 experts takes 6.5 s and more, over the usual limit of 6 s."""
    result = _fleet(name, model, *more)
    assert len(result["replicas"]) == 1 + model.count(",")
    assert result["served_tokens"] > 0


def test_trn3_says_that_its_serving_overheads_are_trn2_s():
    few = ("llama-3.1-8b", "--tp", "4", "--prefill", "separate")
    gen1 = " ".join(_fleet("trn3-gen1:2", *few)["notes"])
    assert "serving overheads of trn3 are assumed: As on Trn2" in gen1
    assert "overheads" not in " ".join(_fleet("trn2-ultraserver:2", *few)["notes"])


def test_where_no_group_fits_a_unit_decoding_waits_for_whole_prompts():
    alone = _fleet("trn2.48xlarge:8", "llama-3.1-8b")
    (replica,) = alone["replicas"]
    assert (replica["replicas_per_unit"], replica["chunk_tokens"]) == (1, 0)
    assert "prefill_replicas" not in replica
    assert "decoding waits for whole prompts" in _notes(alone)
    split = replica["runner_up"]
    assert f"--disaggregate {split} gives prompts replicas of their own" in _notes(alone)
    assert "groups of units" not in _notes(_fleet("trn2.48xlarge:1", "llama-3.1-8b"))


def _notes(document: dict[str, Any]) -> str:
    return " ".join(document["notes"])
