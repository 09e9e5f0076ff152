"""Agreement between the fields of a plan, each of which may have its value by itself."""

from __future__ import annotations

import math

from topologies.errors import InputError
from workloads.kernels.precision import CASTS
from workloads.training.plan.fields import nearest
from workloads.training.plan.schedules.registry import schedule_of_chunks
from workloads.training.plan.schedules.schedule import PipelineSchedule


def check_pipeline(
    schedule: PipelineSchedule, pp: int, vpp: int, stage_layers: tuple[int, ...]
) -> None:
    """Refuse chunks of stages that the pipeline or its schedule does not have."""
    if vpp > 1 and pp == 1:
        raise InputError(f"vpp {vpp} divides the stages of a pipeline, but pp is 1. Use vpp 1.")
    _check_chunks(schedule, pp, vpp)
    chunks = pp * vpp
    if stage_layers and len(stage_layers) != chunks:
        raise InputError(
            f"stage_layers names {len(stage_layers)} chunks, but pp {pp} × vpp {vpp} = {chunks}. "
            "Name the layers of each."
        )


def _check_chunks(schedule: PipelineSchedule, pp: int, vpp: int) -> None:
    """Refuse a number of chunks a stage that the schedule does not allow."""
    allowed = schedule.chunks_allowed
    if vpp in allowed or pp == 1:
        return
    has = f"{allowed[0]} to {allowed[-1]} chunks"
    if len(allowed) == 1:
        has = "one chunk" if allowed[0] == 1 else f"{allowed[0]} chunks"
    raise InputError(
        f"schedule {schedule.name} has {has} a stage, not vpp {vpp}. "
        f"Use vpp {allowed[0]} or --schedule {schedule_of_chunks(vpp)}."
    )


def check_fp8_recipe(fp8_recipe: str, precision: str) -> None:
    """Refuse a recipe of fp8 scales in another precision."""
    if CASTS[fp8_recipe] and precision != "fp8":
        raise InputError(
            f"fp8 recipe {fp8_recipe} is about scales in fp8, but precision is {precision}. "
            "Use precision fp8, or leave it out."
        )


def check_expert_exchange(ep: int, routed_nodes: int, fp8_exchange: bool) -> None:
    """Refuse properties of an exchange between experts where no rank has other experts."""
    for name, value in {"routed nodes": routed_nodes, "fp8 exchange": fp8_exchange}.items():
        if value and ep == 1:
            raise InputError(
                f"{name} is about exchanges between ranks with other experts, but ep is 1. "
                "Use ep above 1, or leave it out."
            )


def check_expert_degrees(ep: int, expert_tp: int, tp: int, cp: int, dp: int) -> None:
    """Refuse degrees of experts that do not divide the ranks of a stage."""
    expert_ranks, stage_ranks = ep * expert_tp, tp * cp * dp
    if ep > 1 and stage_ranks % expert_ranks:
        near = nearest(ep, stage_ranks // math.gcd(stage_ranks, expert_tp))
        raise InputError(
            f"ep {ep} × etp {expert_tp} = {expert_ranks} does not divide the tp {tp} × "
            f"cp {cp} × dp {dp} = {stage_ranks} ranks of a stage. Use ep {near}."
        )


def check_batch(global_batch: int, dp: int, microbatch: int) -> None:
    """Refuse a global batch that replicas cannot take in whole microbatches.

    >>> check_batch(global_batch=10, dp=4, microbatch=1)
    Traceback (most recent call last):
    topologies.errors.InputError: global batch 10 is not a multiple of dp 4 × microbatch 1 = 4. \
Use 8 or 12.
    """
    sequences = dp * microbatch
    if global_batch % sequences:
        below = global_batch // sequences * sequences
        near = f"{below} or {below + sequences}" if below else f"{sequences}"
        raise InputError(
            f"global batch {global_batch} is not a multiple of dp {dp} × microbatch {microbatch} "
            f"= {sequences}. Use {near}."
        )


def check_trained_parts(lora_rank: int, lora_on: str, train_only: str) -> None:
    """Refuse adapters, which freeze all weights, beside a part of the weights that is trained.

    A place for adapters is refused as well where there are none.
    """
    if lora_rank and train_only:
        raise InputError(
            f"lora rank {lora_rank} freezes all weights, so train only {train_only} cannot hold as "
            "well. State one of them."
        )
    if lora_on != "all" and not lora_rank:
        raise InputError(
            f"lora on {lora_on} says where adapters are, but lora rank is 0, so there are none. "
            "State lora rank, or leave it out."
        )


def check_optimizer(optimizer: str, lora_rank: int, train_only: str) -> None:
    """Refuse Muon where it has no matrices of layers to orthogonalize."""
    trained = "adapters" if lora_rank else "the output layer" if train_only == "output" else ""
    if optimizer == "muon" and trained:
        raise InputError(
            f"optimizer muon updates the matrices of layers, and this plan trains {trained} alone. "
            "Use adamw."
        )
