"""A chip is what its rows say: under another name it takes the same times."""

import pytest

from cluster_sim.collectives import CollectiveCall, duration_ps, whole
from tests.support.toy_training import SPARSE, TOY, plan
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.serving import profile
from workloads.training.iteration import iteration

NAME = "renamed"
MACHINES = {"trn2": "trn2.48xlarge", "h100": "dgx-h100", "a100-80gb": "dgx-a100"}


def with_other_name(chip):
    """The shipped catalogue with every row about a chip repeated for the chip ``renamed``.

    Machines have the new chip, so that nothing reads the rows of the old one but the tables of
    kernels, which name the chip that they were measured on.
    """

    def rows():
        for row in shipped_catalogue().rows:
            part = NAME if row.part == chip else row.part.replace(f".{chip}", f".{NAME}")
            stem = row.quantity.removesuffix(f"_{chip}")
            quantity = row.quantity if stem == row.quantity else f"{stem}_{NAME}"
            is_chip = row.unit == "name" and row.written == chip and row.quantity != "measured_on"
            changed = row._replace(
                part=part, quantity=quantity, written=NAME if is_chip else row.written
            )
            if changed != row:
                yield changed

    return shipped_catalogue().with_rows(rows())


def times(machine, runtimes):
    """Times of steps, of a replica, and of collectives on a machine."""
    plans = [
        (TOY, {}), (TOY, {"lora_rank": 16}), (SPARSE, {"ep": 4}),
        *((TOY, {"runtime": runtime}) for runtime in runtimes),
    ]  # fmt: skip
    usual = {"tp": 2, "dp": machine.chips // 2}
    steps = [iteration(model, machine, plan(**usual, **how)).iteration_s for model, how in plans]
    replica = profile(named("llama-3.1-8b"), machine, tp=8)
    served = [replica.prefill_s(4096), replica.decode_s(8, 4096), replica.kv_budget_bytes]
    calls = [CollectiveCall(kind, whole(machine), 2**24) for kind in ("all-reduce", "all-to-all")]
    return [*steps, *served, *map(duration_ps, calls)]


@pytest.mark.parametrize("chip", MACHINES)
def test_a_chip_of_another_name_takes_the_same_times(chip):
    usual, other = (
        cluster(MACHINES[chip], catalogue=catalogue)
        for catalogue in (shipped_catalogue(), with_other_name(chip))
    )
    assert (usual.chip, other.chip) == (chip, NAME)
    runtimes = ("eager", "xla") if chip == "trn2" else ()  # whose hosts issue
    assert times(usual, runtimes) == times(other, runtimes)
