"""A chip is what its rows say: under another name it takes the same times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cluster_sim.collectives import CollectiveCall, whole
from cluster_sim.collectives.duration.duration import duration_ps
from tests.support.toy_training import SPARSE, TOY, plan
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.catalogue.reader import Entry
from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.models.model import Model
from workloads.serving import profile
from workloads.training.iteration import iteration

NAME = "renamed"
MACHINES = {"trn2": "trn2.48xlarge", "h100": "dgx-h100", "a100-80gb": "dgx-a100"}


def with_other_name(chip: str) -> Catalogue:
    """The shipped catalogue with every row about a chip repeated for the chip ``renamed``.

    Machines have the new chip, so that nothing reads the rows of the old one but the tables of
    kernels, which name the chip that they were measured on.
    """

    def rows() -> Iterator[Entry]:
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


PLANS: list[tuple[Model, dict[str, Any]]] = [
    (TOY, {}),
    (TOY, {"lora_rank": 16}),
    (SPARSE, {"ep": 4}),
]


@pytest.mark.parametrize("chip", MACHINES)
@pytest.mark.parametrize(("model", "changes"), PLANS)
def test_a_training_step_takes_as_long_on_a_chip_of_another_name(
    chip: str, model: Model, changes: dict[str, Any]
) -> None:
    usual, other = (
        cluster(MACHINES[chip], catalogue=catalogue)
        for catalogue in (shipped_catalogue(), with_other_name(chip))
    )
    assert (usual.chip, other.chip) == (chip, NAME)
    how = plan(tp=2, dp=usual.chips // 2, **changes)
    times = [iteration(model, machine, how).iteration_s for machine in (usual, other)]
    assert times[0] == times[1]


@pytest.mark.parametrize("runtime", ["eager", "xla"])
def test_hosts_issue_to_trainium_under_another_name(runtime: Any) -> None:
    how = plan(tp=2, dp=8, runtime=runtime)
    times = [
        iteration(TOY, cluster(MACHINES["trn2"], catalogue=catalogue), how).iteration_s
        for catalogue in (shipped_catalogue(), with_other_name("trn2"))
    ]
    assert times[0] == times[1]


@pytest.mark.parametrize("chip", MACHINES)
def test_a_replica_serves_alike_on_a_chip_of_another_name(chip: str) -> None:
    usual, other = (
        profile(named("llama-3.1-8b"), cluster(MACHINES[chip], catalogue=catalogue), tp=8)
        for catalogue in (shipped_catalogue(), with_other_name(chip))
    )
    assert usual.prefill_s(4096) == other.prefill_s(4096)
    assert usual.decode_s(8, 4096) == other.decode_s(8, 4096)
    assert usual.kv_budget_bytes == other.kv_budget_bytes


@pytest.mark.parametrize("chip", MACHINES)
@pytest.mark.parametrize("kind", ["all-reduce", "all-to-all"])
def test_a_collective_takes_the_same_time_on_a_chip_of_another_name(chip: str, kind: str) -> None:
    times = [
        duration_ps(
            CollectiveCall(kind, whole(cluster(MACHINES[chip], catalogue=catalogue)), 2**24)
        )
        for catalogue in (shipped_catalogue(), with_other_name(chip))
    ]
    assert times[0] == times[1]
