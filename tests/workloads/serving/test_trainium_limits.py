"""Limits of physics for replicas of Trainium and Inferentia2, where nothing was measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import Profile, profile

MACHINES = {
    "trn1.32xlarge": (4, 16),
    "inf2.48xlarge": (3, 12),
    "trn2.48xlarge": (1, 4, 16),
    "trn3-gen1": (1, 4, 16, 64),
    "trn3-gen2": (1, 4, 36),
}
MODELS = ("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PROMPTS = tuple(2**power for power in range(6, 18))


def _replicas(precision: str) -> list[tuple[str, str, int, Profile]]:
    """Profiles of all models and degrees that fit the memory of a machine."""
    replicas = []
    for machine, degrees in MACHINES.items():
        chip = cluster(machine).chip
        if not shipped_catalogue().has(chip, f"{precision}_peak"):
            continue
        for name in MODELS:
            for tp in degrees:
                weights = named(name).parameters * (2 if precision == "bf16" else 1)
                if weights < 0.8 * tp * usable_hbm_bytes(chip, shipped_catalogue()):
                    served = profile(named(name), cluster(machine), tp=tp, precision=precision)
                    replicas.append((machine, name, tp, served))
    return replicas


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_no_token_comes_before_its_weights_are_read_nor_a_prompt_before_the_peak(precision):
    replicas = _replicas(precision)
    assert len(replicas) >= 20
    for machine, name, _, served in replicas:
        chip, model = cluster(machine).chip, named(name)
        read = model.parameters - model.vocab * model.hidden
        width = 2 if precision == "bf16" else 1
        hbm = served.chips * shipped_catalogue().value(chip, "hbm_bandwidth")
        assert served.decode_s(1, 1) > width * read / hbm
        peak = served.chips * shipped_catalogue().value(chip, f"{precision}_peak")
        assert all(served.prefill_s(length) > 2 * read * length / peak for length in PROMPTS)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_more_requests_and_longer_prompts_take_longer_without_a_leap(precision):
    for *_, served in _replicas(precision):
        tokens = [served.decode_s(batch, 1024 * batch) for batch in BATCHES]
        assert all(once < more < 2 * once for once, more in pairwise(tokens))
        prompts = [served.prefill_s(length) for length in PROMPTS]
        # The square of attention is the most that twice the tokens can cost.
        assert all(short < long < 4 * short for short, long in pairwise(prompts))


def test_trainium3_is_no_slower_than_trainium2_with_as_many_chips():
    trn2, trn3 = (
        {(name, tp): served for at, name, tp, served in _replicas("fp8") if at == machine}
        for machine in ("trn2.48xlarge", "trn3-gen1")
    )
    assert trn2.keys() & trn3.keys()
    for key in trn2.keys() & trn3.keys():
        assert trn3[key].decode_s(8, 8192) <= trn2[key].decode_s(8, 8192)
        assert trn3[key].prefill_s(4096) <= trn2[key].prefill_s(4096)


@pytest.mark.parametrize(("machine", "most"), [("trn2.3xlarge", 4), ("trn1.2xlarge", 2)])
def test_the_degree_of_a_lone_chip_counts_its_cores(machine, most):
    model = named("llama-3.2-1b")
    degrees = [2**power for power in range(most.bit_length())]
    replicas = [profile(model, cluster(machine), tp=tp) for tp in degrees]
    tokens = [served.decode_s(1, 512) for served in replicas]
    assert tokens == sorted(tokens, reverse=True)
    whole = profile(model, cluster(machine))
    assert replicas[-1].decode_s(1, 512) == whole.decode_s(1, 512)
    # A core has its share of the chip's memory, and takes longer than its share of the weights.
    assert replicas[0].kv_budget_bytes < whole.kv_budget_bytes / most
    assert tokens[0] > 1.5 * tokens[-1]
