"""The usual way of running prompts on units of every number of replicas, in one place."""

from __future__ import annotations

import re
from typing import Any

import pytest

from topologies.clusters.names import cluster
from workloads.fleet.scenario import demand_of
from workloads.fleet.setup.serving import services_from, smaller_replica_note, ways_of
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.options.fleet import DemandInputs, FleetInputs
from workloads.serving import profile

DENSE, MIXTURE = named("llama-3.1-8b"), named("mixtral-8x7b")


@pytest.mark.parametrize(
    ("machine", "tp", "sizes"),
    [
        ("trn2-ultraserver:8", 16, {2, 4}),  # four replicas
        ("trn2.48xlarge:8", 16, {2, 4}),  # one: groups of units
        ("trn2-ultraserver:8", 4, {2, 4, 8}),  # sixteen
        ("trn3-gen2:2", 8, {2, 3, 6}),  # eighteen, which four do not divide
        ("trn2.48xlarge:3", 16, {2}),  # one, in a cluster without four units
        ("trn2.48xlarge:8", 8, {2}),  # two
    ],
)
def test_every_split_of_groups_that_leave_no_replica_idle_is_tried(
    machine: str, tp: int, sizes: set[int]
) -> None:
    fleet = cluster(machine)
    alone, *groups = ways_of(FleetInputs(tp=tp), DENSE, fleet, profile(DENSE, fleet, tp=tp))
    assert alone.apart is None
    assert {way.batching.chunk_tokens for way in (alone, *groups)} == {0}
    splits = {(way.apart.prefill, way.apart.decode) for way in groups if way.apart}
    assert splits == {(prefill, size - prefill) for size in sizes for prefill in range(1, size)}


@pytest.mark.parametrize(
    ("serving", "trainium", "hopper"),
    [
        (FleetInputs(prefill="chunked"), 8192, 8192),
        (FleetInputs(chunk=1024), 1024, 1024),
        (FleetInputs(chunk=0), 0, 0),
        (FleetInputs(prefill="separate"), 0, 0),
    ],
)
def test_a_stated_way_holds_on_every_machine(
    serving: FleetInputs, trainium: int, hopper: int
) -> None:
    for machine, pieces in (("trn2-ultraserver:8", trainium), ("dgx-h200:8", hopper)):
        fleet = cluster(machine)
        for model in (DENSE, MIXTURE):
            (prompts,) = ways_of(serving, model, fleet, profile(model, fleet))
            assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)


@pytest.mark.parametrize(("machine", "pieces"), [("dgx-h200:8", 8192), ("dgx-a100:8", 2048)])
def test_other_machines_run_pieces_beside_decoding(machine: str, pieces: int) -> None:
    fleet = cluster(machine)
    (prompts,) = ways_of(FleetInputs(), DENSE, fleet, profile(DENSE, fleet))
    assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)


@pytest.mark.parametrize("machine", ["trn2-ultraserver:8", "dgx-h200:8"])
@pytest.mark.parametrize("words", [{}, {"chunk": 512}, {"disaggregate": "1:1"}])
def test_stated_slots_are_those_of_every_way(machine: str, words: dict[str, Any]) -> None:
    fleet = cluster(machine)
    ways = ways_of(FleetInputs(slots=16, tp=4, **words), DENSE, fleet, profile(DENSE, fleet, tp=4))
    assert {way.batching.slots for way in ways} == {16}


@pytest.mark.slow
def test_replicas_of_fewer_chips_than_a_server_are_named_where_they_serve_far_more() -> None:
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
    assert note("trn2.48xlarge:2", FleetInputs(tp=4), DENSE) == ""  # stated
    assert note("trn2.3xlarge:2", inputs, DENSE) == ""  # a server is one chip
