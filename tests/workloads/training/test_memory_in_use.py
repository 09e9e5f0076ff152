"""Memory in use over a step has the peak that the closed form of memory gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from topologies.catalogue.catalogue import shipped_catalogue
from workloads.front import train
from workloads.training.explain import memory_in_use
from workloads.training.memory.memory import memory


@pytest.mark.parametrize(
    "how",
    [
        {"tp": 2, "pp": 2},
        {"pp": 4, "schedule": "gpipe"},
        {"pp": 4, "schedule": "interleaved", "vpp": 3},
        {"pp": 4, "schedule": "zero-bubble"},
        {"pp": 2, "recompute": "full"},
    ],
    ids=lambda how: how.get("schedule", how.get("recompute", "1f1b")),
)
def test_the_peak_is_what_the_stage_is_said_to_hold(how: dict[str, Any]) -> None:
    step = train("gpt2", "trn2.48xlarge", global_batch=64, **how)
    assert step.trace is not None
    chip = step.cluster.chip
    counted = memory_in_use(step.trace, step.model, step.plan, shipped_catalogue(), chip)
    stages = dict(zip(step.program.rank.tolist(), step.program.stage.tolist(), strict=True))
    assert len(counted) == how["pp"]
    for one in counted:
        rank = int(one.name.rsplit(" ", 1)[1])
        needed = memory(step.model, step.plan, stages[rank], shipped_catalogue(), chip)
        always = needed.weights + needed.gradients + needed.optimizer
        assert one.value.max() == always + needed.activations
        assert one.value[:-1].min() == always
        assert one.at_ps[-1] == step.trace.total_ps
        assert np.all(np.diff(one.at_ps) > 0)


def test_a_trace_of_a_collective_has_no_such_counter() -> None:
    from tests.support.random_schedules import spans

    step = train("gpt2", "trn2.48xlarge", global_batch=16)
    bare = spans([0], ["tp"], [0], [5])
    assert memory_in_use(bare, step.model, step.plan, shipped_catalogue(), step.cluster.chip) == []
