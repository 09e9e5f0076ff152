"""Small examples of the functions of workloads/training, each with its result."""

from __future__ import annotations

import numpy as np

from topologies.clusters.names import cluster
from workloads.models.huggingface import named
from workloads.training.layers.replicas import sharded
from workloads.training.plan.other_tools import cannot_change_time, field_value, plan_yaml
from workloads.training.plan.placement import usual_chips
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.schedules.registry import schedule_of_chunks
from workloads.training.plan.stages import Share, first_layers, layer_weight_bytes, optimizer_bytes


def test_sharded() -> None:
    assert (sharded(True, Share(80, 10), 8, 2), sharded(False, Share(80, 10), 8, 2)) == (15, 90)


def test_cannot_change_time() -> None:
    assert (
        cannot_change_time("model.optim.lr"),
        cannot_change_time("activation_checkpoint.mode"),
    ) == (True, False)


def test_optimizer_bytes() -> None:
    assert optimizer_bytes(ParallelPlan(optimizer="muon"), 10, 4) == 96


def test_layer_weight_bytes() -> None:
    assert layer_weight_bytes(ParallelPlan(precision="fp8", lora_rank=16)) == 1.0


def test_usual_chips() -> None:
    plan = ParallelPlan(dp=128, ep=64, global_batch=128)
    assert usual_chips(plan, cluster("gb200-nvl72:2"), np.arange(128))[62:66].tolist() == [
        62,
        63,
        72,
        73,
    ]


def test_field_value() -> None:
    assert (field_value("bucket_bytes", "160MB"), field_value("stage_layers", "9-7")) == (
        160000000,
        (9, 7),
    )


def test_plan_yaml() -> None:
    assert plan_yaml(ParallelPlan(tp=4, pp=2, stage_layers=(9, 7))).splitlines()[:2] == [
        "tp: 4",
        "pp: 2",
    ]


def test_schedule_of_chunks() -> None:
    assert (schedule_of_chunks(4), schedule_of_chunks(7)) == ("interleaved", "interleaved")


def test_first_layers() -> None:
    assert first_layers(named("llama-3.1-8b"), ParallelPlan(pp=4, global_batch=4)) == (
        0,
        8,
        16,
        24,
        32,
    )
