"""How machines serve and train models: replicas that fit, ways of prompts, splits, plans."""

from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from tests.support.commands import document_of
from tests.support.refusals import refused
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.machines import machines
from topologies.clusters.names import RAINIER, cluster
from topologies.support.errors import InputError
from workloads.demand import Demand, constant
from workloads.demand.trace import mix
from workloads.fleet.setup.demand import divided
from workloads.fleet.setup.night_work import night_work
from workloads.fleet.setup.serving import fitting_replicas, services_from, serving_notes, ways_of
from workloads.fleet.state.services import Service
from workloads.models.huggingface import named
from workloads.options.fleet import FleetInputs
from workloads.serving import azure_lengths, fixed_rate, profile


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
    with pytest.raises(InputError, match=r"1,342\.1 GB of weights, 8 chips hold 615\.7 GB"):
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


def test_mixtures_divide_the_demand():
    demand = constant(100.0, minutes=60)
    big, small = named("llama-3.1-70b"), named("llama-3.1-8b")
    parts, models = divided(demand, [(big, None), (small, None)])
    assert parts.requests.sum() == demand.requests.sum()
    machine = cluster("trn2-ultraserver:8")
    chunked = FleetInputs(prefill="chunked", slots=16)
    services = services_from(parts, machine, models, chunked, requests=1)
    assert services[1].capacity.rate_slo_per_s > 2 * services[0].capacity.rate_slo_per_s
    (note, *_) = serving_notes(machine, services, chunked)
    assert "no engine of Neuron does" in note
    assert f"A replica takes {services[0].replica_chips} of a server's 16 chips" in note
    assert services[0].weights != services[1].weights
    refused("add up to 1", divided, demand, [(big, 0.2), (small, 0.2)])
    three = divided(demand, [(big, None)] * 3)[0]
    refused("2 models for 3 services", divided, three, [(big, None), (small, None)])


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
    alone, *groups = ways_of(FleetInputs(tp=tp), fleet, profile(DENSE, fleet, tp=tp))
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
        (prompts,) = ways_of(serving, fleet, profile(model, fleet))
        assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)


@pytest.mark.parametrize("machine", BOTH)
@pytest.mark.parametrize("words", [{}, {"chunk": 512}, {"disaggregate": "1:1"}])
def test_stated_slots_are_those_of_every_way(machine, words):
    fleet = cluster(machine)
    ways = ways_of(FleetInputs(slots=16, tp=4, **words), fleet, profile(DENSE, fleet, tp=4))
    assert {way.batching.slots for way in ways} == {16}


@pytest.mark.parametrize(("machine", "model", "words"), [
    ("trn2-ultraserver:2", "llama-3.1-8b", {"disaggregate": "1:3", "slots": 16}),
    ("dgx-h100:2", "llama-3.1-8b", {"prefix_cache": "50%", "slots": 16}),
    pytest.param("trn2-ultraserver:2", "llama-3.1-70b", {}, marks=pytest.mark.slow),
    pytest.param("trn2.48xlarge:2", "llama-3.1-8b", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_the_size_of_a_replica_is_that_which_serves_most(machine, model, words, tmp_path):
    demand = constant(1.0, minutes=60, prompt_tokens=1200.0, output_tokens=40.0)
    fleet, served = cluster(machine), named(model)

    def found(tp: int | None) -> Service:
        inputs = FleetInputs(tp=tp, cache=tmp_path, precision="bf16", **words)
        (service,) = services_from(demand, fleet, [served], inputs, requests=200)
        return service

    best, server = found(None), fleet.chips_per_server
    rates = {}
    for tp in (size for size in range(1, server + 1) if server % size == 0):
        with suppress(InputError):
            rates[tp] = found(tp).capacity.rate_slo_per_s
    assert best.capacity.rate_slo_per_s == rates[best.replica_chips]
    assert best.capacity.rate_slo_per_s >= 0.97 * max(rates.values())
    (note, *_) = serving_notes(fleet, [best], FleetInputs(**words))
    size = f"{best.replica_chips} of a server's {server}"
    assert note.startswith(f"a replica takes {size if best.replica_chips < server else server} ")
    assert best.choice is not None
    assert 0.5 < best.choice.runner_up_share <= 1
    assert f"next is {best.choice.runner_up} with" in note
    stated = serving_notes(fleet, [found(best.replica_chips)], FleetInputs(tp=4, **words))
    assert not any("a replica takes" in each for each in stated)


def test_proposals_that_cost_nothing_are_named_in_a_fleet():
    fleet = cluster("dgx-h100:2")
    for speculate, named_free in (("3:70%", True), ("3:70%:0.05", False)):
        inputs = FleetInputs(tp=8, speculate=speculate)
        service = Service("chat", fixed_rate(1.0), weights=DENSE.name, replica_chips=8)
        notes = serving_notes(fleet, [service], inputs)
        assert any("take no time and no memory" in note for note in notes) is named_free


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
    serving = FleetInputs(slo=slo, tp=16, **how)  # type: ignore[arg-type]
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
    services = services_from(demand, UNIT, [model, model], FleetInputs(tp=16, slots=16), requests=1)
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
    few = ("llama-3.1-8b", "--tp=4", "--prefill=separate", "--slots=16", "--no-intervals")
    gen1 = " ".join(_fleet("trn3-gen1:2", *few)["notes"])
    assert "serving overheads of trn3 are assumed: As on Trn2" in gen1
    assert "overheads" not in " ".join(_fleet("trn2-ultraserver:2", *few)["notes"])


def test_where_no_group_fits_a_unit_decoding_waits_for_whole_prompts():
    few = ("llama-3.1-8b", "--tp=16", "--slots=16", "--no-intervals")
    alone = _fleet("trn2.48xlarge:8", *few)
    (replica,) = alone["replicas"]
    assert (replica["replicas_per_unit"], replica["chunk_tokens"]) == (1, 0)
    assert "prefill_replicas" not in replica
    assert "decoding waits for whole prompts" in _notes(alone)
    split = replica["runner_up"]
    assert f"--disaggregate {split} gives prompts replicas of their own" in _notes(alone)
    assert "groups of units" not in _notes(_fleet("trn2.48xlarge:1", *few))


def _notes(document: dict[str, Any]) -> str:
    return " ".join(document["notes"])
