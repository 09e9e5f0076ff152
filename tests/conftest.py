"""Fixtures and settings that all tests share."""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

# A shared machine may be slow at any moment, so no example has a deadline. The same examples are
# tried every time, in any order of the tests and on any number of workers; EXPLORE=1 tries others,
# and more of them.
settings.register_profile(
    "house",
    deadline=None,
    max_examples=100 if "EXPLORE" in os.environ else 50,
    derandomize="EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")


def pytest_collection_finish() -> None:
    """Leave the thousands of collected tests, which stay, out of every garbage collection."""
    gc.collect()
    gc.freeze()
