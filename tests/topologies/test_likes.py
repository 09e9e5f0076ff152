"""A chip is its rows: a copy under another name gives the same numbers in every command."""

from __future__ import annotations

import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from workloads.search.estimate import estimate

MACHINES = {
    row.written: row.part for row in reversed(shipped_catalogue().rows) if row.quantity == "chip"
}
"""A machine of each chip that is shipped."""


def with_copy(machine: str) -> Catalogue:
    """Return a catalogue with copies of a machine and its chip, ``node`` and ``new``."""
    catalogue = shipped_catalogue()
    chip = catalogue.name(machine, "chip")
    rows = [row._replace(part="new") for row in catalogue.rows if row.part == chip]
    node = [row._replace(part="node") for row in catalogue.rows if row.part == machine]
    named = [row._replace(written="new") if row.quantity == "chip" else row for row in node]
    return catalogue.with_rows([*rows, *named])


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES.keys())
def test_a_copy_of_a_chip_gives_equal_numbers(machine: str) -> None:
    alone, copy = cs.cluster(machine), cs.cluster("node", catalogue=with_copy(machine))
    served = [cs.serve("llama-3.1-8b", whole, "poisson:1", count=5) for whole in (alone, copy)]
    assert served[0].tokens_per_s == served[1].tokens_per_s
    chips = alone.chips
    if chips > 256:  # TPU pods, whose torus takes seconds
        return
    plan = cs.Plan(dp=chips, global_batch=2 * chips, seq=1024, zero=3, ranks_per_chip=1)
    model = cs.model("gpt2")
    steps = [cs.train(model, whole, plan).iteration_s for whole in (alone, copy)]
    assert steps[0] == steps[1]
    estimates = [estimate(model, whole, [plan])[0] for whole in (alone, copy)]
    assert estimates[0] == estimates[1]
    if chips > 1:
        times = [cs.collective_time("all-reduce", w, size_bytes=2**24) for w in (alone, copy)]
        assert times[0] == times[1]


def test_rows_of_the_copy_itself_come_first() -> None:
    catalogue = with_copy("trn3-gen1")
    row = catalogue.entry("training", "scheduling_trn3")._replace(
        quantity="scheduling_new", value=0.1
    )
    assert catalogue.value("training", "scheduling_new") == row.value + 0.23
    assert catalogue.with_rows([row]).value("training", "scheduling_new") == 0.1


def test_variants_of_the_chip_it_is_like_hold_for_the_copy() -> None:
    catalogue = with_copy("trn2.48xlarge")
    chosen = catalogue.with_variants({"serving.new.expert_block_rate": "sdk-2.26"})
    (old, new) = (each.value("serving.new", "expert_block_rate") for each in (catalogue, chosen))
    assert old != new == chosen.value("serving.trn2", "expert_block_rate")


def test_a_chip_has_the_rows_of_the_one_it_is_like_but_for_its_own() -> None:
    catalogue = shipped_catalogue()
    assert catalogue.value("trn4", "vector_clock") == catalogue.value("trn3", "vector_clock")
    assert catalogue.value("trn4", "hbm_bandwidth") == 4 * catalogue.value("trn3", "hbm_bandwidth")
    faster = catalogue.entry("trn4", "vector_clock")._replace(part="trn4", value=2e9)
    assert catalogue.with_rows([faster]).value("trn4", "vector_clock") == 2e9


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_each_generation_of_trainium_is_faster_than_the_one_before(precision: str) -> None:
    plan = cs.Plan(tp=8, dp=8, global_batch=64, seq=4096, precision="bf16")
    served, steps = [], []
    for machine in ("trn2-ultraserver", "trn3-gen1", "trn4-ultraserver"):
        whole = cs.cluster(machine)
        steps.append(cs.train("llama-3.1-8b", whole, plan, chips=64).iteration_s)
        held = "fp8" if machine.startswith("trn2") and precision != "bf16" else precision
        replica = cs.serve("llama-3.1-70b", whole, "poisson:1", tp=8, precision=held, count=20)
        served.append(replica.tpot_s["mean"])
    assert steps == sorted(steps, reverse=True)
    assert served == sorted(served, reverse=True)
