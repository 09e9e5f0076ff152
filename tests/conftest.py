"""What all tests share."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A shared machine may be slow at any moment, so no example has a deadline. Continuous integration
# tries the same examples every time; at home they differ from run to run.
settings.register_profile(
    "house",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")
