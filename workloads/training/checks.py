"""Checks of a training step: before it is built that it can run, and afterwards that it may be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.kernels.precision import TRAINING, check_precision
from workloads.training.detail import Detail
from workloads.training.execution.levels import LARGEST_ENGINE_RANKS, WRITTEN_OUT
from workloads.training.execution.size import check_size, estimated_size
from workloads.training.layers.shapes import RankShapes
from workloads.training.memory.memory import Memory, check_memory, worst
from workloads.training.plan.checks import check_model, check_ranks, check_runtime
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.expert_exchange import routing_mistake


def chip_catalogue(cluster: Cluster) -> Catalogue:
    """Return the catalogue that a cluster's chips are read from."""
    if not cluster.chip:
        raise InputError(
            f"{cluster.name} is a plain shape without chips, so nothing can be computed on it. "
            "Use a named machine such as trn2-ultraserver:16."
        )
    return cluster.catalogue or shipped_catalogue()


def peak_flops_per_s(shapes: RankShapes) -> float:
    """Headline rate of the chip in the plan's precision [FLOP/s]."""
    precision = shapes.plan.precision
    check_precision(precision, shapes.chip, shapes.catalogue, TRAINING, "train")
    return shapes.catalogue.value(shapes.chip, f"{precision}_peak")


def check_step(shapes: RankShapes, cluster: Cluster, detail: Detail) -> Memory:
    """Refuse a step that cannot run, and return the memory of the rank that needs most."""
    model, plan = shapes.model, shapes.plan
    peak_flops_per_s(shapes)
    check_model(plan, model)
    check_runtime(plan, cluster)
    if not detail.partial or plan.ranks > cluster.chips * plan.ranks_per_chip:
        check_ranks(plan, cluster.chips)
    if plan.routed_nodes:
        _check_routed_nodes(plan, cluster, detail)
    _check_process_memory(shapes, detail)
    memory = worst(model, plan, shapes.catalogue, cluster.chip)
    if not detail.allow_oversized:
        check_memory(memory, model, plan, shapes.catalogue, cluster.chip)
    return memory


def _check_routed_nodes(plan: ParallelPlan, cluster: Cluster, detail: Detail) -> None:
    """Refuse tokens that are sent once to each server where no exchange works that way."""
    if detail.level in WRITTEN_OUT:
        raise InputError(
            f"--level {detail.level} writes out a copy for each expert of a token, not routed "
            f"nodes {plan.routed_nodes}. Use --level collective."
        )
    chips = None if detail.chips is None else np.asarray(detail.chips, np.int64)
    mistake = routing_mistake(plan, cluster, chips)
    if mistake:
        raise InputError(mistake)


def counts_equal_ranks(detail: Detail) -> bool:
    """Return whether a step is simulated with one rank for all equal ones.

    Levels that write out messages need every sender, and jitter gives every rank times of its own.
    A straggler only sets the ranks apart that wait for it, but the rank vector follows disturbed
    ranks one by one.
    """
    disturbed = detail.disturbed
    one_by_one = disturbed and (disturbed.jitter > 0 or detail.level == "rank-vector")
    return detail.folded and detail.level not in WRITTEN_OUT and not one_by_one


def _check_process_memory(shapes: RankShapes, detail: Detail) -> None:
    """Refuse a run of more ops than this process has room for.

    The program is not built yet, so the level that ``auto`` will take is foreseen from the ranks.
    """
    ranks = shapes.plan.ranks
    every_rank = not counts_equal_ranks(detail)
    level = detail.level
    if level == "auto":
        as_vector = every_rank and ranks > LARGEST_ENGINE_RANKS and not detail.faults
        level = "rank-vector" if as_vector else "collective"
    size = estimated_size(shapes, detail.iterations, every_rank=every_rank)
    check_size(size, level, detail.engine, ranks)


def check_plausible(shares_of_peak: Mapping[str, float], shapes: RankShapes) -> None:
    """Refuse shares of the peak that no chip can reach, which wrong values of a chip lead to.

    A share above 1 means that the step is shorter than its arithmetic at the peak.
    """
    precision = shapes.plan.precision
    for name, share in shares_of_peak.items():
        if not 0 < share <= 1:
            raise InputError(
                f"{name} is {share:.3g}, but no step is shorter than its arithmetic at the peak of "
                f"{shapes.chip}, {peak_flops_per_s(shapes):.3g} FLOP/s. Correct that chip's "
                f"{precision}_peak and {precision}_matmul."
            )
