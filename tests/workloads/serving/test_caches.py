"""Room for cached keys and values, and their precision."""

from __future__ import annotations

import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.catalogue.memory import usable_hbm_bytes
from workloads.serving import profile

DGX = cs.cluster("dgx-h100")
SPARSE = cs.model("qwen3-235b-a22b")


def test_a_replica_has_the_memory_that_the_driver_reports() -> None:
    usable = usable_hbm_bytes("h100", shipped_catalogue())
    assert usable > shipped_catalogue().value("h100", "hbm_bytes")
    held = profile(SPARSE, DGX, precision="fp8")
    assert held.kv_budget_bytes == pytest.approx(0.9 * 8 * usable - held.weights_bytes)
    assert usable_hbm_bytes("trn2", shipped_catalogue()) == 96 * 2**30
