"""Training steps without the times of other plans, for tests that read the step alone.

A command that trains also times other values of the fields that nobody stated, which widen the
interval, and the neighbours of the plan, one of which a remark may name. Both take four fifths of
its time.
"""

import pytest


@pytest.fixture
def other_plans():
    """Ask for the times of other plans, in a test of a package that leaves them out."""


@pytest.fixture(autouse=True)
def quick_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave other plans out of a test that does not ask for them by ``other_plans``."""
    if "other_plans" not in request.fixturenames:
        monkeypatch.setattr("workloads.training.iteration.alternatives", lambda *_: ())
        monkeypatch.setattr("workloads.remarks._neighbour", lambda _: ())
