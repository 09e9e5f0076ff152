"""The usual way of running prompts on units of every number of replicas, in one place."""

from __future__ import annotations

import pytest

from topologies.clusters.names import cluster
from workloads.fleet.setup.replicas import MIXTURE_PIECE_TOKENS, Serving, prompts_of
from workloads.models.huggingface import named
from workloads.serving import profile

DENSE, MIXTURE = named("llama-3.1-8b"), named("mixtral-8x7b")


@pytest.mark.parametrize(
    ("machine", "tp", "split"),
    [
        ("trn2-ultraserver:8", 16, (3, 1)),  # four replicas
        ("trn2-ultraserver:8", 32, (1, 1)),  # two
        ("trn2-ultraserver:8", 64, None),  # one
        ("trn2-ultraserver:8", 4, (3, 1)),  # sixteen: four groups
        ("trn3-gen2:2", 8, (2, 1)),  # eighteen, which four do not divide
        ("trn2.48xlarge:8", 16, None),
        ("trn2.48xlarge:8", 8, (1, 1)),
    ],
)
def test_groups_are_the_largest_up_to_four_that_fill_a_unit(
    machine: str, tp: int, split: tuple[int, int] | None
) -> None:
    fleet = cluster(machine)
    prompts = prompts_of(Serving(tp=tp), DENSE, fleet, profile(DENSE, fleet, tp=tp))
    assert prompts.batching.chunk_tokens == 0
    apart = prompts.apart
    assert (None if apart is None else (apart.prefill, apart.decode)) == split


@pytest.mark.parametrize(
    ("serving", "dense", "mixture"),
    [
        (Serving(prefill="chunked"), 512, MIXTURE_PIECE_TOKENS),
        (Serving(chunk_tokens=1024), 1024, 1024),
        (Serving(chunk_tokens=0), 0, 0),
        (Serving(prefill="separate"), 0, 0),
    ],
)
def test_a_stated_way_holds_on_every_machine(serving: Serving, dense: int, mixture: int) -> None:
    for machine in ("trn2-ultraserver:8", "dgx-h200:8"):
        fleet = cluster(machine)
        for model, pieces in ((DENSE, dense), (MIXTURE, mixture)):
            prompts = prompts_of(serving, model, fleet, profile(model, fleet))
            assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)


def test_other_machines_run_pieces_beside_decoding() -> None:
    fleet = cluster("dgx-h200:8")
    for model, pieces in ((DENSE, 512), (MIXTURE, MIXTURE_PIECE_TOKENS)):
        prompts = prompts_of(Serving(), model, fleet, profile(model, fleet))
        assert (prompts.batching.chunk_tokens, prompts.apart) == (pieces, None)
