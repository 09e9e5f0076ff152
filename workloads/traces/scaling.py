"""Compute times of a recording on another chip, by the rooflines of both chips.

A kernel is limited by arithmetic or by memory, and its name tells which. Matrix products and
attention scale with the peak of the matrix engine in bf16, all other kernels with the bandwidth of
memory. The true ratio of a kernel lies between these two, which gives the interval.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, shown, suggestion
from workloads.traces.recording import COMPUTE, MEMORY, Recording

PRODUCT = re.compile(
    r"gemm|cutlass|xmma|wgmma|mma_|matmul|conv|cublas|Cijk|attention|fmha|flash|tensor engine",
    re.IGNORECASE,
)
"""Names of kernels that are limited by the matrix engine."""
DEVICES = (
    (r"A100.*80\s*GB", "a100-80gb"), (r"A100", "a100-40gb"), (r"H100", "h100"), (r"H200", "h200"),
    (r"GB200", "gb200"), (r"B200", "b200"), (r"trn3|Trainium3", "trn3-gen2"),
    (r"trn2|Trainium2", "trn2"), (r"trn1|Trainium1|Trainium", "trn1"),
)  # fmt: skip
"""Profilers' names of chips, and the chip of the catalogue that each is."""
NODES = (COMPUTE, MEMORY)


@dataclass(frozen=True)
class Scaled:
    """A recording with compute times on a cluster's chips, and their likely range."""

    recording: Recording  # the recording with likely times
    # fast, slow: the recording with the more, and with the less favourable ratio for all kernels
    fast: Recording
    slow: Recording
    how: str  # ("recorded", "scaled")
    source: str  # chip that it was recorded on; empty if unknown


def scaled(
    recording: Recording, cluster: Cluster, *, recorded_on: str = "", compute: str = "auto"
) -> Scaled:
    """Return the compute times of a recording on the chips of a cluster."""
    # ``recorded_on``: chip of the catalogue; by default the chip that the trace names. ``compute``
    # ("auto", "recorded", "scaled"): ``auto`` scales if both chips are known and differ.
    catalogue = cluster.catalogue or shipped_catalogue()
    source = _source(recorded_on or _named(str(recording.facts.get("chip", ""))), catalogue)
    target = cluster.chip or ""
    if recorded_on and not target:
        raise InputError(
            f"--recorded-on {shown(recorded_on)} scales kernels to another chip, and "
            f"{cluster.name} has none. Leave it out, or name a machine such as trn2.48xlarge."
        )
    recording = _timed(recording, catalogue, target)
    if compute == "scaled" and not (source and target):
        missing = "--recorded-on CHIP" if not source else "a cluster with chips of the catalogue"
        raise InputError(f"compute cannot be scaled without knowing both chips. Give {missing}.")
    if compute == "recorded" or not (source and target) or source == target:
        return Scaled(recording, recording, recording, "recorded", source)
    arithmetic = _peak(catalogue, source) / _peak(catalogue, target)
    memory = catalogue.value(source, "hbm_bandwidth") / catalogue.value(target, "hbm_bandwidth")
    products = np.array([bool(PRODUCT.search(name)) for name in recording.name.names], np.bool_)
    ratio = np.where(products[recording.name.code], arithmetic, memory)
    low, high = min(arithmetic, memory), max(arithmetic, memory)
    likely, fast, slow = (_times(recording, factor) for factor in (ratio, low, high))
    return Scaled(likely, fast, slow, "scaled", source)


def _times(recording: Recording, ratio: Any) -> Recording:
    """Recording with the times of kernels multiplied by a ratio, to at least 1 ps each."""
    kernels = np.isin(recording.kind, NODES) & (recording.duration_ps > 0)
    multiplied = np.maximum(1, np.rint(recording.duration_ps * ratio)).astype(np.int64)
    return replace(recording, duration_ps=np.where(kernels, multiplied, recording.duration_ps))


def _timed(recording: Recording, catalogue: Catalogue, chip: str) -> Recording:
    """Recording with times on the cluster's chip for nodes that state operations or bytes only."""
    untimed = np.isin(recording.kind, NODES) & (recording.duration_ps == 0)
    untimed &= (recording.flops > 0) | ((recording.kind == MEMORY) & (recording.size_bytes > 0))
    if not untimed.any():
        return recording
    if not chip:
        node = int(np.argmax(untimed))
        raise InputError(
            f"{recording.place(node)} states operations or bytes but no duration, and the cluster "
            "has no chip to time them on. Replay it on a machine of the catalogue."
        )
    work_s = np.maximum(
        recording.flops / _peak(catalogue, chip),
        recording.size_bytes / catalogue.value(chip, "hbm_bandwidth"),
    )
    picoseconds = np.maximum(1, np.ceil(work_s * PS_PER_S)).astype(np.int64)
    return replace(recording, duration_ps=np.where(untimed, picoseconds, recording.duration_ps))


def _peak(catalogue: Catalogue, chip: str) -> float:
    """Matrix peak of a chip in bf16 [FLOP/s]."""
    quantity = "bf16_matmul" if catalogue.has(chip, "bf16_matmul") else "bf16_peak"
    return catalogue.value(chip, quantity)


def _named(device: str) -> str:
    """Chip of the catalogue that a profiler's name stands for; empty for an unknown name."""
    return next((chip for named, chip in DEVICES if re.search(named, device)), "")


def _source(chip: str, catalogue: Catalogue) -> str:
    """Return the chip itself, or refuse a chip that the catalogue does not have."""
    if chip and not (catalogue.has(chip, "hbm_bandwidth") and catalogue.has(chip, "bf16_peak")):
        chips = [part for part in catalogue.parts() if catalogue.has(part, "bf16_peak")]
        raise InputError(
            f"--recorded-on {chip!r} is no chip of the catalogue.{suggestion(chip, chips)} "
            f"There are {', '.join(sorted(chips))}."
        )
    return chip
