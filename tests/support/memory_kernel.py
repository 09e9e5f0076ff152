"""Kernels that are bound by memory, as schedules that can be merged with a collective."""

import numpy as np

from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.build import OpColumns, schedule
from cluster_sim.schedule.table import FLOW, Edges, Flows
from topologies.support.arrays import distinct
from topologies.support.errors import InputError


def memory_kernel(cluster, chips, size_bytes, bytes_per_s=None):
    """Return a schedule of one kernel on each chip that moves ``size_bytes`` through its memory."""
    # Each core moves its part with its own DMA engines, one flow each, together no faster than the
    # rate. A memory serves equal flows equally: the fewer messages of a collective cross it, the
    # larger the share that the kernel keeps.
    kernels = distinct(np.asarray(chips, np.int64))
    covered = fabric(cluster, kernels // cluster.chips_per_domain)
    catalogue, chip = cluster.catalogue, cluster.chip
    cores = catalogue.integer(chip, "cores", 1) if catalogue is not None and chip else 1
    memory = covered.costs.hbm_bytes_per_s
    if not memory:
        raise InputError(f"{cluster.name}: what its memory gives is not known; use Trainium")
    most = memory if bytes_per_s is None else bytes_per_s
    if size_bytes < cores or most < cores:  # some core would have nothing to move
        raise InputError(
            f"a kernel of {size_bytes} B at {most} B/s; use at least 1 B and 1 B/s for "
            f"each of the {cores} cores of a chip"
        )
    count = len(kernels) * cores
    part = size_bytes // cores + (np.arange(cores) < size_bytes % cores)
    return schedule(
        OpColumns(kind=np.full(count, FLOW), size_bytes=np.tile(part, len(kernels))),
        edges=Edges.from_pairs(count, [], []),
        resources=covered.resources,
        flows=Flows(
            np.arange(count, dtype=np.int32),
            np.full(count, -(-most // cores), np.int64),
            np.arange(count + 1, dtype=np.int64),
            np.repeat(covered.of_chip("hbm", kernels), cores).astype(np.int32),
            np.ones(count, np.int32),
        ),
        labels={"rank": np.repeat(np.arange(len(kernels), dtype=np.int32), cores)},
        facts={"kernel_bytes": int(size_bytes)},
    )
