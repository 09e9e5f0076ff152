"""Capacity tables of fleets from fewer requests than a user gets, for tests of what follows them.

A table takes fifteen runs of a replica. The fewest requests that a scenario allows fill each slot
of the replica sixteen times. They take a third of the time of the usual 3,000 requests, and move
rates by a few per cent. Half the loads leave latencies between them to a longer line.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from workloads.fleet.setup import machines
from workloads.fleet.setup.serving import services_from
from workloads.serving import tables


@pytest.fixture(autouse=True, scope="package")
def quick_tables() -> Iterator[None]:
    """Build every scenario of a package of tests with tables of the fewest requests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machines, "services_from", partial(services_from, requests=1))
        patched.setattr(tables, "LOADS", (0.05, 0.35, 0.6, 0.8, 0.9, 0.99))
        yield
