"""What ends a step: the update of a rank's parameters, and what a stack needs around it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from toy_training import TOY, plan

from topologies.catalogue import catalogue
from topologies.machines import cluster
from workloads.kernel_times import step_overhead_s
from workloads.training.iteration import iteration
from workloads.training.shapes import Shapes
from workloads.training.states import update


def test_a_sharded_update_on_trn1_takes_its_graphs_besides() -> None:
    sharded = Shapes(TOY, plan(dp=4, zero=1), "trn1", catalogue())
    replicated = replace(sharded, plan=plan(dp=4, zero=0))
    overhead_s = step_overhead_s("trn1")
    assert 0.3 <= overhead_s <= 3.4
    kernel_s = update(sharded, 0).seconds - overhead_s
    assert 0 < kernel_s < update(replicated, 0).seconds < overhead_s


@pytest.mark.parametrize("chip", ["trn2", "trn3-gen2", "h100"])
def test_other_stacks_have_no_such_overhead_that_is_known(chip: str) -> None:
    assert step_overhead_s(chip) == 0


def test_the_overhead_does_not_grow_with_the_batch() -> None:
    """Published steps of Llama2-7B: 256 sequences take 5.1 s, four times as many 10.1 to 12.6 s."""
    machine = cluster("trn1.32xlarge")
    how = plan(dp=4, tp=8, zero=1, ranks_per_chip=2)
    small, large = (
        iteration(TOY, machine, replace(how, global_batch=batch)) for batch in (64, 256)
    )
    assert large.iteration_s < 2 * small.iteration_s
    told = small.breakdown_s["optimizer"]
    assert told == pytest.approx(step_overhead_s("trn1"), rel=0.01)
