"""How long NVIDIA's collectives take on switched NVLink domains: a closed form with few constants.

The comparison machines run NCCL, which picks rings, trees or reduction inside the switch by size.
What it reaches follows from the bytes that the busiest port carries, the steps, and how a pipeline
of slices fills; the constants are catalogue rows ``nccl.<chip>`` and ``nccl.<fabric>``, fitted by
``python -m experiments.calibration.collectives``.

    time = launch + steps + slowest port + filling + copy of a rank's own shard

Filling is 2 √(slice · wire time): with slices of the best length, k hops behind one another cost
the square root of what the wire itself takes. Ports work side by side, so the slowest counts; but
what fills the adapters runs through the NVLinks first, so that filling adds to either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from cluster_sim.collectives.group import Group
from topologies.catalogue import Catalogue
from topologies.clusters import Cluster

PS_PER_S = 10**12
OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "permute")


@dataclass(frozen=True)
class Port:
    """What moving bytes through one kind of port costs.

    Attributes
    ----------
    rate : int
        Usable, one direction [B/s].
    step_ps, slice_ps, message_ps : int
        One step of a ring or tree; fixed cost of one slice of a pipeline; of one of many messages
        that a rank sends at once.
    """

    rate: int
    step_ps: int
    slice_ps: int
    message_ps: int


@dataclass(frozen=True)
class Nccl:
    """Constants of one chip on one machine.

    Attributes
    ----------
    launch_ps : int
    inside, outside : Port
        Its NVLinks; its network adapter (None where there is none).
    copy_rate : int
        At which a rank moves its own shard [B/s].
    in_switch_rate, in_switch_ps : int
        Usable rate of reduction in the switch [B/s], 0 for none, and its extra latency.
    """

    launch_ps: int
    inside: Port
    outside: Port | None
    copy_rate: int
    in_switch_rate: int
    in_switch_ps: int


@dataclass(frozen=True)
class Load:
    """What a collective asks of its ranks' ports [B], and its steps.

    Attributes
    ----------
    inside, outside, shard, in_switch : int
        Sent by one rank over NVLink, over its adapter, copied in place; by reduction in the switch.
    steps, far_steps, messages : int
        One after the other over NVLink and between domains; messages of one rank between domains.
    """

    inside: int
    outside: int
    shard: int
    in_switch: int
    steps: int
    far_steps: int
    messages: int


def covers(cluster: Cluster) -> bool:
    """Whether the cluster's catalogue has constants of NCCL for its chip and fabric."""
    numbers = cluster.catalogue
    if cluster.plain or numbers is None or f"nccl.{cluster.chip}" not in numbers.parts():
        return False
    fabric = cluster.scale_out
    return cluster.domains == 1 or fabric is None or f"nccl.{fabric.name}" in numbers.parts()


def nccl_ps(op: str, group: Group, size_bytes: int) -> int:
    """Time of a collective [ps], sizes as in nccl-tests; the cluster must be covered.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.machines import cluster
    >>> eight = whole(cluster("dgx-h100"))
    >>> 0.002 < nccl_ps("all-reduce", eight, 2**29) / 1e12 < 0.0022
    True
    """
    if group.ranks == 1 or size_bytes == 0:
        return 0
    costs, load = constants(group.cluster), load_of(op, group, size_bytes)
    wire = _wire_ps(load.inside, costs.inside)
    inside = wire + _filling_ps(wire, costs.inside) + load.shard * PS_PER_S // costs.copy_rate
    far = 0
    start = costs.launch_ps + load.steps * costs.inside.step_ps
    if load.in_switch and costs.in_switch_rate:
        direct = load.in_switch * PS_PER_S // costs.in_switch_rate + costs.in_switch_ps
        inside = min(inside, direct)
    if costs.outside is not None and load.far_steps:
        far = _wire_ps(load.outside, costs.outside)
        start += _filling_ps(far, costs.outside)
        start += load.far_steps * costs.outside.step_ps + load.messages * costs.outside.message_ps
    return start + max(inside, far)


def _wire_ps(size: int, port: Port) -> int:
    return -(-size * PS_PER_S // port.rate)


def _filling_ps(wire_ps: int, port: Port) -> int:
    return 2 * math.isqrt(port.slice_ps * wire_ps)


def load_of(op: str, group: Group, size_bytes: int) -> Load:
    """Bytes and steps of a collective on a group."""
    ranks = group.ranks
    domains, each = np.unique(group.domain, return_counts=True)
    near = int(each.max()) * group.ranks_per_chip
    far = len(domains)
    ring = size_bytes * (ranks - 1) // ranks
    shard = size_bytes // ranks
    if op == "all-reduce":
        tree = 1 if far == 2 else 2
        outside = min(2 * ring, tree * size_bytes) // near
        climb = 2 * math.ceil(math.log2(far)) if far > 1 else 0
        switch = size_bytes + size_bytes // near if near > 2 else 0
        return Load(2 * ring, outside, shard, switch, 2 * (near - 1), climb, 0)
    if op in ("all-gather", "reduce-scatter"):
        crossings = 0 if far == 1 else far if near > 1 else far - 1
        return Load(ring, ring // near, shard, 0, ranks - 1 - crossings, crossings, 0)
    if op == "all-to-all":
        outside = size_bytes * (ranks - near) // ranks
        return Load(ring, outside, shard, 0, near - 1, int(far > 1), ranks - near)
    steps = near - 1 if op == "broadcast" else 1
    return Load(size_bytes, size_bytes // near, 0, 0, steps, int(far > 1), 0)


def constants(cluster: Cluster) -> Nccl:
    """Look up the constants of a covered cluster."""
    numbers, fabric = cluster.catalogue, cluster.scale_out
    if numbers is None:
        raise LookupError(f"{cluster.name} has no catalogue")
    outside = ("", 0) if fabric is None else (fabric.name, fabric.bandwidth_bytes_per_s)
    return _constants(numbers, cluster.chip, *outside)


@cache
def _constants(numbers: Catalogue, chip: str, fabric: str, adapter_rate: int) -> Nccl:
    part = f"nccl.{chip}"
    port_rate = numbers.value(chip, "scale_up_bandwidth")
    switch = numbers.has(part, "in_switch_efficiency")
    share = numbers.value(part, "in_switch_efficiency") if switch else 0.0
    return Nccl(
        launch_ps=numbers.ps(part, "launch"),
        inside=_port(numbers, part, port_rate),
        outside=_port(numbers, f"nccl.{fabric}", adapter_rate) if fabric else None,
        copy_rate=numbers.integer(part, "copy_rate"),
        in_switch_rate=int(port_rate * share),
        in_switch_ps=numbers.ps(part, "in_switch_latency") if switch else 0,
    )


def _port(numbers: Catalogue, part: str, rate: float) -> Port:
    return Port(
        rate=max(1, int(rate * numbers.value(part, "efficiency"))),
        step_ps=numbers.ps(part, "step"),
        slice_ps=numbers.ps(part, "slice"),
        message_ps=numbers.ps(part, "message") if numbers.has(part, "message") else 0,
    )
