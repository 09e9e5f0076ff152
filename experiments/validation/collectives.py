"""Predicting collective rows: one operation on the first chips of as many machines as needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cluster_sim.collectives import CollectiveCall, Group
from cluster_sim.collectives.algorithms.ring import RING
from cluster_sim.collectives.call import RING_KINDS
from cluster_sim.collectives.duration.duration import duration_ps
from cluster_sim.collectives.duration.nccl import covers
from cluster_sim.collectives.duration.nccl.times import nccl_ps
from cluster_sim.schedule.picoseconds import PS_PER_S
from experiments.validation.machines import machines_for
from experiments.validation.nccl_tests import operation
from experiments.validation.outcome import Outcome, unsupported
from experiments.validation.recipes import recipe
from topologies.catalogue.catalogue import Catalogue, catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.kernels.runtime import collective_seen_by_host

PYTORCH = "nccl.pytorch"
QUEUED, WAITED = "pytorch", "pytorch-waited"
"""Recipes of collectives timed through PyTorch: call behind call, or waiting for each."""


def time_s(
    op: str, whole: Cluster, chips: int, ranks: int, size_bytes: int, algorithm: str = "auto"
) -> float:
    """Time of a collective on the first chips of a cluster [s].

    A ring on NVIDIA's machines is NCCL's, one over each adapter at once.

    Raises
    ------
    InputError
        When the ranks are not the same number on each chip, and as the collectives themselves.
    """
    if ranks % chips:
        raise InputError(f"ranks {ranks} are not a multiple of chips {chips}. Correct one.")
    if ranks > chips and covers(whole):
        raise InputError(
            f"ranks {ranks} on {chips} chips of {whole.chip}: NCCL runs one on each. Correct one."
        )
    group = Group(whole, np.arange(chips), ranks // chips)
    call = CollectiveCall(op, group, size_bytes)
    if algorithm == RING.name and op in RING_KINDS and covers(whole):
        return nccl_ps(call, rings=True) / PS_PER_S
    return duration_ps(call, algorithm) / PS_PER_S


def predict(values: Mapping[str, Any], numbers: Catalogue | None = None) -> Outcome:
    """Time of the collective of one row [s], under ``time_s``.

    Timed through PyTorch it is at least the distance of two calls, or longer by what it takes to
    issue one where the benchmark waits for each.
    """
    through = recipe(values).collectives
    if through == "nvshmem":
        return unsupported(
            "measured with NVSHMEM, whose puts are not modelled: its times do not depend on the "
            "ranks. Compare NCCL or nccom-test rows."
        )
    parts = numbers or catalogue()
    whole = machines_for(values["cluster"], values["chips"], parts)
    ranks = values["ranks"] or values["chips"]
    op, algorithm = operation(values["collective"]), (values["algorithm"] or "auto").lower()
    seconds = time_s(op, whole, values["chips"], ranks, values["size_bytes"], algorithm)
    runtime = values.get("runtime") or "compiled"
    seconds = collective_seen_by_host(whole.chip, seconds, runtime, kind=op)
    known = _provenance(whole, algorithm)
    if through == WAITED:
        seconds += parts.value(PYTORCH, "waited")
    elif through == QUEUED:
        seconds = max(seconds, parts.value(PYTORCH, "call"))
    if through in (WAITED, QUEUED):
        known["host"] = "assumed: timed through PyTorch"
    return Outcome({"time_s": seconds}, provenance=known)


def _provenance(whole: Cluster, algorithm: str) -> dict[str, str]:
    """Grades of what the time was made of."""
    if whole.plain or whole.catalogue is None:
        return {"links": "stated"}
    numbers = whole.catalogue
    fits = f"nccl.{whole.chip}"
    if covers(whole):
        return {
            "links": numbers.entry(whole.chip, "scale_up_bandwidth").grade,
            "efficiency": numbers.entry(fits, "efficiency").grade,
            "algorithm": "assumed" if algorithm == "auto" else "stated",
        }
    return {
        quantity: numbers.entry(whole.chip, quantity).grade
        for quantity in ("link_bandwidth", "collective_step", "collective_efficiency")
        if numbers.has(whole.chip, quantity)
    }
