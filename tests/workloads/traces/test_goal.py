"""Replay of GOAL schedules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cluster_sim.collectives import CollectiveCall, Group, duration_ps
from tests.support.small_traces import GOAL, RING
from topologies.errors import InputError
from workloads.traces.replay import replay


def test_goal_is_replayed_and_other_lines_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ring.goal"
    path.write_text(GOAL)
    played = replay([path], RING)
    message = duration_ps(CollectiveCall("permute", Group(RING, np.array([0, 1])), 5 * 10**6))
    assert played.trace.total_ps == 10**6 + message + 500_000
    path.write_text(GOAL.replace("calc 500", "think 500"))
    with pytest.raises(InputError, match="line 9: 'l2: think 500' is no GOAL"):
        replay([path], RING)
    path.write_text(GOAL[:-3])
    with pytest.raises(InputError, match=r"ring.goal ends within rank 1, before its brace"):
        replay([path], RING)
    path.write_text(GOAL.replace("}\nrank 1", "rank 1"))
    with pytest.raises(InputError, match=r"line 6: 'rank 1 \{' is no GOAL"):
        replay([path], RING)
