"""Fixture of tests that fork processes."""

import pytest

from cluster_sim.processes import can_fork


@pytest.fixture
def forks() -> None:
    """Skip a test where other threads of the process that runs the tests forbid to fork it."""
    if not can_fork():
        pytest.skip("the runner of these tests has other threads")
