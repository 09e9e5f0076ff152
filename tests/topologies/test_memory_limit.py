"""The memory that a process may use, and the refusal of work that would need more."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topologies import memory_limit
from topologies.arrays import distinct
from topologies.errors import InputError


@pytest.mark.parametrize("kind", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_the_limits_of_the_process_count(monkeypatch: pytest.MonkeyPatch, kind: int) -> None:
    usual = memory_limit.machine_bytes()

    def limits(limit: int) -> tuple[int, int]:
        return (10**6 if limit == kind else resource.RLIM_INFINITY, resource.RLIM_INFINITY)

    monkeypatch.setattr(memory_limit.resource, "getrlimit", limits)
    assert memory_limit.machine_bytes() == 10**6 < usual


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory_limit, "CGROUP_LIMIT", group)
    for text, limited in (("123456\n", True), ("max\n", False)):
        group.write_text(text)
        assert (memory_limit.machine_bytes() == 123456) is limited


def test_work_that_needs_more_is_refused_with_what_would_do() -> None:
    memory_limit.check_memory("nothing", 0, "")
    with pytest.raises(InputError, match=r"the graph needs about 1 EB, and this .* Leave it out\."):
        memory_limit.check_memory("the graph", 10**18, "Leave it out.")


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values: list[int]) -> None:
    array = np.array(values, np.int64)
    assert distinct(array).tolist() == np.unique(array).tolist()
