"""Kept capacity tables are named by all their inputs; caches of keys and values have their room."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cluster_sim as cs
from topologies.catalogue.catalogue import shipped_catalogue, usable_hbm_bytes
from topologies.errors import InputError
from workloads.serving import profile
from workloads.serving.batching import FIRST, Batching
from workloads.serving.deployment import Pools, PromptReplica
from workloads.serving.profile import Profile
from workloads.serving.requests import Lengths
from workloads.serving.served import Slo
from workloads.serving.speculation import Speculation
from workloads.serving.tables import TableRuns, capacity_table, table_digest

TOKENS = np.array([1.0, 100.0, 10_000.0])
REPLICA = Profile("a", 4, TOKENS, TOKENS * 1e-5, 1e-9, 1e-6, 1e-10, 1e9, 1e5, 1e10)
BATCHING = Batching(slots=8, chunk_tokens=512)
GUESS = Speculation(2, 0.8, 0.1)
POOLS = Pools(1, 1, 1e9, 1e-6)
RUNS = TableRuns(BATCHING, requests=200, speculation=GUESS, pools=POOLS)
LENGTHS = Lengths(np.array([100, 200]), np.array([10, 20]))
SLO = Slo(0.5, 0.01)
LITTLE = 1 + 2**-50
CHANGES: dict[Any, dict[str, Any]] = {
    Slo: {"ttft_s": 0.5 * LITTLE, "tpot_s": 0.01 * LITTLE, "share": 0.5},
    Batching: {
        "slots": 9, "chunk_tokens": 513, "buckets": (128,), "arrived": True, "prompts": FIRST,
        "overlapped": True, "poll_passes": 2, "gather_passes": 3, "gather_tokens": 4,
        "reserved": 0.5, "engine": "vllm", "runs_empty_slots": True,
    },
    Speculation: {"tokens": 3, "acceptance": 0.8 * LITTLE, "draft": REPLICA},
    Pools: {
        "prefill": 2, "decode": 2, "transfer_bytes_per_s": 1e9 * LITTLE,
        "transfer_latency_s": 2e-6, "slowest_bytes_per_s": 1e8,
        "prompts": PromptReplica(REPLICA, BATCHING, "machine", (), ""),  # type: ignore[arg-type]
    },
    TableRuns: {
        "batching": Batching(), "prompt_means": np.array([1.0]), "output_means": np.array([2.0]),
        "requests": 201, "seed": 1, "prefix_share": 0.5, "speculation": None, "pools": None,
    },
    Profile: {
        **{field.name: 2.0 for field in fields(Profile)}, "name": "b", "chips": 5,
        "tokens": TOKENS + 1, "linear_s": TOKENS, "prompt_linear_s": TOKENS, "expert_groups": 2,
    },
    Lengths: {"prompt": np.array([100, 201]), "output": np.array([10, 21])},
}  # fmt: skip


def digest(value: Any) -> str:
    """Digest of the usual inputs with this one in place of that of its type."""
    inputs = {type(each): each for each in (SLO, BATCHING, GUESS, POOLS, REPLICA, LENGTHS)}
    inputs[type(value)] = value
    runs = replace(
        RUNS, batching=inputs[Batching], speculation=inputs[Speculation], pools=inputs[Pools]
    )
    runs = value if isinstance(value, TableRuns) else runs
    return table_digest(inputs[Profile], inputs[Lengths], inputs[Slo], runs)


@pytest.mark.parametrize("usual", [SLO, BATCHING, GUESS, POOLS, RUNS, REPLICA, LENGTHS])
def test_every_field_of_every_input_is_in_the_name_of_a_table(usual: Any) -> None:
    changes = CHANGES[type(usual)]
    assert set(changes) == {field.name for field in fields(usual)}, "change every field"
    digests = [digest(replace(usual, **{name: value})) for name, value in changes.items()]
    assert len({digest(usual), *digests}) == 1 + len(changes)


def test_a_table_for_a_smaller_share_is_another_one(tmp_path: Path) -> None:
    """A table for 99 % of requests was once read back for any other share."""
    strict, loose = (
        capacity_table(REPLICA, LENGTHS, Slo(0.1, 0.002, share), cache=tmp_path, requests=300)
        for share in (0.99, 0.5)
    )
    assert strict.rate_slo_per_s < loose.rate_slo_per_s


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
    with pytest.raises(InputError, match=r"cache precision .fp4. is none of bf16, fp8"):
        profile(SPARSE, DGX, cache_precision="fp4")
