"""Estimates of many plans share times: each must be that of the plan alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.toy_training import SPARSE, TOY, plan, sixteen
from workloads.models.model import Model
from workloads.search.estimate import _Shared, estimate
from workloads.search.pipeline_model import walk_s
from workloads.training.plan.plan import PLAN_FIELDS

CHANGES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 4, "dp": 1},
    "pp": {"pp": 4, "dp": 1},
    "dp": {"dp": 4, "global_batch": 16},
    "cp": {"cp": 2, "dp": 1},
    "ep": {"ep": 4, "etp": 1},
    "etp": {"etp": 1, "ep": 2},
    "vpp": {"vpp": 2, "schedule": "interleaved"},
    "microbatch": {"microbatch": 2},
    "global_batch": {"global_batch": 2},
    "seq": {"seq": 2048},
    "zero": {"zero": 3},
    "reshard": {"reshard": False},
    "sequence_parallel": {"sequence_parallel": False},
    "schedule": {"schedule": "zero-bubble"},
    "recompute": {"recompute": "full"},
    "recompute_every": {"recompute_every": 2},
    "precision": {"precision": "fp8"},
    "fp8_recipe": {"precision": "fp8", "fp8_recipe": "rowwise"},
    "overlap": {"overlap": "all"},
    "attention": {"attention": "unfused"},
    "ranks_per_chip": {"ranks_per_chip": 2},
    "order": {"order": ("dp", "pp", "cp", "tp")},
    "cp_exchange": {"cp": 2, "dp": 1, "cp_exchange": "all-gather"},
    "routing_skew": {"routing_skew": 1.5},
    "capacity_factor": {"capacity_factor": 1.25},
    "routed_nodes": {},  # needs experts on several servers
    "fp8_exchange": {"fp8_exchange": True},
    "stage_layers": {"stage_layers": (3, 5)},
    "bucket_bytes": {"bucket_bytes": 10**6},
    "lora_rank": {"lora_rank": 8},
    "lora_on": {"lora_rank": 8, "lora_on": "attention"},
    "train_only": {"train_only": "mlp"},
    "runtime": {"runtime": "eager"},
    "framework": {"framework": "axlearn"},
    "optimizer": {"optimizer": "muon"},
    "sample_tokens": {"sample_tokens": 256},
}
"""Changes of each field of a plan, with others that they need."""


@pytest.mark.parametrize(
    ("model", "usual"),
    [(TOY, {}), (SPARSE, {"zero": 3, "overlap": "dp", "recompute": "full"})],
    ids=["dense", "sparse"],
)
def test_an_estimate_does_not_depend_on_the_plans_beside_it(
    model: Model, usual: dict[str, Any]
) -> None:
    """A field that is left out of a key gives a plan the times of one that was there before."""
    assert set(CHANGES) == set(PLAN_FIELDS), "change every field"
    experts = {"ep": 2, "etp": 1} if model.experts else {}
    base = plan(**{"tp": 2, "pp": 2, "dp": 2, "global_batch": 8, **experts, **usual})
    dense_only = ("ep", "etp", "routing_skew", "capacity_factor", "fp8_exchange")
    changes = [
        change
        for name, change in CHANGES.items()
        if model.experts or name not in dense_only
        if not (model.experts and {"cp", "tp", "pp"} & set(change))
    ]
    plans = [base, *(replace(base, **change) for change in changes)]
    machine = sixteen()
    alone = [estimate(model, machine, [one])[0] for one in plans]
    for order in (plans, plans[::-1]):
        together = dict(zip(order, estimate(model, machine, order), strict=True))
        assert [together[one] for one in plans] == alone


@pytest.mark.parametrize("overlap", ["none", "dp", "all"])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_chunks_without_layers_are_walked_within_the_arrays(zero: int, overlap: str) -> None:
    """The ends of a model may have chunks without a layer, which once read and wrote beyond."""
    how = plan(
        pp=5, vpp=2, dp=2, zero=zero, overlap=overlap, schedule="interleaved", global_batch=20
    )
    line = _Shared(TOY, sixteen()).line(how)
    assert line.first[[0, 1, -2, -1]].tolist() == [0, 0, 8, 8]
    guarded = {}
    for name in ("gather_s", "reduce_s"):
        column = np.full(len(getattr(line.replicas, name)) + 64, 1e30)
        column[32:-32] = getattr(line.replicas, name)
        guarded[name] = column[32:-32]
    apart = line._replace(replicas=line.replicas._replace(**guarded))
    assert walk_s(apart) == walk_s(line) < 1
