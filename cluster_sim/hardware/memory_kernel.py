"""Kernels that are bound by memory, as schedules that can be merged with a collective."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FLOW, Edges, Flows, Schedule
from topologies.arrays import IntArray, distinct
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError


def memory_kernel(
    cluster: Cluster, chips: npt.ArrayLike, size_bytes: int, bytes_per_s: int | None = None
) -> Schedule:
    """Return a schedule of one kernel on each chip that moves ``size_bytes`` through its memory.

    Each core loads and stores its part with its own DMA engines, so a kernel is one flow for each
    core, together no faster than ``bytes_per_s``. A memory serves equal flows equally: the fewer
    messages of a collective cross it, the larger the share that the kernel keeps.

    >>> from cluster_sim.schedule.build import merge
    >>> from cluster_sim.collectives import CollectiveCall, compose, whole
    >>> from cluster_sim.trace.trace import run
    >>> from topologies.clusters.names import cluster
    >>> node = cluster("trn2.48xlarge")
    >>> kernel = memory_kernel(node, range(16), 2 * 10**9)
    >>> call = CollectiveCall("all-gather", whole(node, 4), 2**29)
    >>> gathered = compose(call, contended=True).schedule
    >>> [round(run(one).total_s * 1e3, 2) for one in (kernel, gathered)]
    [0.88, 1.75]
    >>> run(merge(kernel, gathered)).total_s < (0.88 + 1.75) * 1e-3
    True
    """
    kernels = distinct(np.asarray(chips, np.int64))
    covered = fabric(cluster, kernels // cluster.chips_per_domain)
    memory, cores = covered.costs.hbm_bytes_per_s, _cores(cluster)
    if not memory:
        raise InputError(f"{cluster.name}: what its memory gives is not known; use Trainium")
    most = memory if bytes_per_s is None else bytes_per_s
    _check_share(size_bytes, most, cores)
    count = len(kernels) * cores
    part = size_bytes // cores + (np.arange(cores) < size_bytes % cores)
    return schedule(
        OpColumns(kind=np.full(count, FLOW), size_bytes=np.tile(part, len(kernels))),
        edges=Edges.from_pairs(count, [], []),
        resources=covered.resources,
        flows=_memory_flows(np.repeat(covered.of_chip("hbm", kernels), cores), -(-most // cores)),
        labels={"rank": np.repeat(np.arange(len(kernels), dtype=np.int32), cores)},
        facts={"kernel_bytes": int(size_bytes)},
    )


def _memory_flows(memory: IntArray, cap_bytes_per_s: int) -> Flows:
    """Return flows that each cross one memory, no faster than a cap [B/s]."""
    count = len(memory)
    return Flows(
        np.arange(count, dtype=np.int32),
        np.full(count, cap_bytes_per_s, np.int64),
        np.arange(count + 1, dtype=np.int64),
        memory.astype(np.int32),
        np.ones(count, np.int32),
    )


def _check_share(size_bytes: int, bytes_per_s: int, cores: int) -> None:
    """Refuse a kernel of which some core would have nothing to move."""
    if size_bytes < cores or bytes_per_s < cores:
        raise InputError(
            f"a kernel of {size_bytes} B at {bytes_per_s} B/s; use at least 1 B and 1 B/s for "
            f"each of the {cores} cores of a chip"
        )


def _cores(cluster: Cluster) -> int:
    catalogue, chip = cluster.catalogue, cluster.chip
    stated = catalogue is not None and bool(chip) and catalogue.has(chip, "cores")
    return catalogue.integer(chip, "cores") if catalogue is not None and stated else 1
