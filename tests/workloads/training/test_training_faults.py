"""Faults in training, and several iterations in a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cluster_sim.hardware.faults import fault_table, parse_fault
from tests.support.toy_training import SPARSE, TOY, plan, sixteen, toy_program
from topologies.errors import InputError
from workloads.training.execution.lower import lower
from workloads.training.iteration import Iteration, iteration
from workloads.training.program.fold import affected_ranks, fold


def step(texts: list[str], **changes: Any) -> Iteration:
    """One iteration of the toy with faults."""
    how = plan(tp=4, pp=2, dp=2, overlap="dp")
    return iteration(TOY, sixteen(), how, faults=[parse_fault(text) for text in texts], **changes)


@pytest.mark.parametrize(
    "text", ["engine:5@1ms:slow=1/3", "cc:0.1@0s:slow=1/100", "send:2@2ms:dead"]
)
def test_a_fault_folded_is_the_fault_unfolded(text: str) -> None:
    """Only what the fault sets apart is run on its own, and the times are those of the whole."""
    texts = [text, text.split("@")[0] + "@6ms:slow=1/1"]
    few, whole = step(texts), step(texts, folded=False)
    assert few.trace.total_ps == whole.trace.total_ps
    assert 2 < len(few.program) < len(whole.program) == 16
    assert few.trace.total_ps > step([]).trace.total_ps
    assert few.breakdown_s == pytest.approx(whole.breakdown_s)


def test_waiting_for_a_slow_chip_is_a_straggler_and_not_a_bubble() -> None:
    usual, slow = step([]), step(["engine:5@0s:slow=1/2"])
    assert usual.breakdown_s["straggler"] == 0
    assert slow.breakdown_s["straggler"] > 0.1 * slow.iteration_s
    assert sum(slow.breakdown_s.values()) == pytest.approx(slow.iteration_s, abs=1e-12)
    assert slow.trace.times.end_ps.max() <= 2 * usual.trace.total_ps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine5@1ms:dead", r"is not RESOURCE@TIME:dead\|slow=P/Q. Write engine:5@1ms:slow=1/2"),
        ("engine:5@1ms:slow=0/2", "P and Q of slow=P/Q must be from 1 to 32768. Use dead"),
        ("engine:5@1:dead", "has no unit"),
        (
            "engine:99@1ms:dead",
            "no resource engine:99 in this run; kinds are cc, engine, hbm, host",
        ),
        ("engine:5@1us:dead", r"ops never ran\. First: op"),
    ],
)
def test_a_bad_fault_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        step([text])
    assert "\n" not in str(caught.value)


def test_two_faults_of_a_resource_at_one_instant() -> None:
    with pytest.raises(InputError, match="engine:5 has two faults at 1,000,000 ps"):
        step(["engine:5@1us:dead", "engine:5@1us:slow=1/2"])


def test_ranks_of_a_struck_chip_are_set_apart() -> None:
    toy = toy_program(plan(tp=4, pp=2, dp=2), sixteen())
    faults = [parse_fault("engine:5@1ms:dead")]
    assert affected_ranks(toy, faults).tolist() == [5]
    few = fold(toy, affected_ranks(toy, faults))
    assert few.count[few.rank == 5].tolist() == [1]
    assert few.count.sum() == 16
    assert fault_table(lower(few), faults).numerator.tolist() == [0]


@pytest.mark.parametrize("model", [TOY, SPARSE])
@pytest.mark.parametrize("changes", [{}, {"overlap": "dp"}, {"overlap": "all", "zero": 3}])
def test_iterations_in_a_row(changes: dict[str, Any], model: Any) -> None:
    """Without overlap each is as long as the first; with it the next may begin under the last."""
    how = plan(tp=2, pp=2, dp=4, **changes)
    once, thrice = (iteration(model, sixteen(), how, iterations=n) for n in (1, 3))
    assert len(thrice.program.streams[0].ops) == 3 * len(once.program.streams[0].ops)
    assert thrice.iteration_s <= once.iteration_s * (1 + 1e-12)
    assert sum(thrice.breakdown_s.values()) == pytest.approx(thrice.iteration_s, abs=1e-12)
    assert thrice.iteration_s == pytest.approx(once.iteration_s, rel=0.3)
    microbatch = thrice.program.streams[1].ops.microbatch
    assert np.unique(microbatch[microbatch >= 0]).tolist() == [*range(24)]


def test_a_level_without_a_resource_names_the_one_that_has_it() -> None:
    uplink, engine = (parse_fault(f"{name}:0@0s:slow=1/2") for name in ("uplink", "engine"))
    with pytest.raises(InputError, match=r"no resource .*; use --level chunk or flow"):
        iteration(TOY, sixteen(), plan(tp=4, dp=4), faults=[uplink])
    with pytest.raises(InputError, match=r"follows no faults\. Use --level collective, or chunk"):
        iteration(TOY, sixteen(), plan(tp=4, dp=4), level="rank-vector", faults=[engine])


def test_groups_of_some_equal_ranks_are_folded_beside_a_fault() -> None:
    """Where a fault sets apart one pair of a group's ranks, the other pairs are one row each."""
    machine = sixteen("trn1.32xlarge")
    how = plan(cp=2, dp=4, ep=4, overlap="all", ranks_per_chip=2, global_batch=4)
    faults = [parse_fault("engine:2@1ms:slow=1/3")]
    few, whole = (
        iteration(SPARSE, machine, how, faults=faults, folded=folded, partial=True)
        for folded in (True, False)
    )
    assert len(few.program) < len(whole.program)
    assert few.trace.total_ps == whole.trace.total_ps
