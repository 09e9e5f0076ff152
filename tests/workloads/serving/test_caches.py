"""The cache of keys and values: its room and its precision."""

from __future__ import annotations

import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.errors import InputError
from workloads.serving import profile

DGX = cs.cluster("dgx-h100")
SPARSE = cs.model("qwen3-235b-a22b")


def test_a_replica_has_the_memory_that_the_driver_reports() -> None:
    usable = usable_hbm_bytes("h100", shipped_catalogue())
    assert usable > shipped_catalogue().value("h100", "hbm_bytes")
    held = profile(SPARSE, DGX, precision="fp8")
    assert held.kv_budget_bytes == pytest.approx(0.9 * 8 * usable - held.weights_bytes)
    assert usable_hbm_bytes("trn2", shipped_catalogue()) == 96 * 2**30


def test_a_cache_in_16_bits_is_twice_as_large_and_takes_twice_as_long() -> None:
    short, long = (
        profile(SPARSE, DGX, precision="fp8", cache_precision=of) for of in (None, "bf16")
    )
    assert long.kv_bytes_per_token == 2 * short.kv_bytes_per_token
    assert long.decode_kv_s == pytest.approx(2 * short.decode_kv_s)
    with pytest.raises(InputError, match="Use bf16 or fp8"):
        profile(SPARSE, DGX, cache_precision="fp4")
