"""Times of NVIDIA's collectives on switched NVLink domains: a closed form with few constants.

The comparison machines run NCCL, which goes round rings in one of three protocols, reduces in the
switch, climbs a tree over servers, or exchanges all at once. What it reaches follows from the bytes
that the busiest port carries, the steps, and how a pipeline of slices fills; the constants are
catalogue rows ``nccl.<chip>`` and ``nccl.<fabric>``, fitted by
``python -m experiments.calibration.collectives``.

    time = launch + steps + slowest port + filling + copy of a rank's own shard

Filling is 2 √(hops · slice · wire time): with slices of the best length, hops behind one another
cost the square root of what the wire itself takes. Ports work side by side, so the slowest counts;
but what fills the adapters runs through the NVLinks first, so that filling adds to either.
All is sums, products, quotients and square roots of doubles, which are the same on any machine.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl.load import Load, Number, load_of
from cluster_sim.collectives.duration.nccl.tuner import PART, PROTOCOLS, Tuner, pick, tuner
from cluster_sim.schedule.picoseconds import PS_PER_S
from topologies.catalogue.catalogue import Catalogue
from topologies.clusters.cluster import Cluster

CHIP = (
    "launch",
    "step",
    "ll_efficiency",
    "ll128_step",
    "ll128_efficiency",
    "simple_step",
    "simple_second_step",
    "efficiency",
    "slice",
    "copy_rate",
    "exchange",
    "exchange_efficiency",
    "exchange_copy_rate",
)
"""Constants of every chip; durations [s], shares of the port's rate, and a rate [B/s]."""
SWITCH = ("in_switch_efficiency", "in_switch_latency", "in_switch_slice")
"""Constants of a chip whose switches reduce."""
FABRIC = ("efficiency", "step", "ll128_step", "slice", "message")
"""Constants of a fabric between domains."""
BESIDE = ("nccl-beside", "efficiency")
"""Part and name of the share of its adapter that a rank of a small group keeps beside others."""
TREE = ("tree_step", "tree_efficiency")
"""Constants of a fabric whose plugin picks trees in LL128."""
FAR_SHARE = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Share of an adapter's bytes that is payload: LL and LL128 send flags along."""


@dataclass(frozen=True)
class Nccl:
    """Constants of one chip on one machine.

    Attributes
    ----------
    port, adapter : float
        Rates of a chip's NVLinks and of its network adapter, one direction [B/s].
    chip, fabric : mapping
        Constants by name, see ``CHIP``, ``SWITCH``, ``FABRIC`` and ``TREE``; of no fabric none.
    tuner : Tuner
        NCCL's own estimates for the machine.
    beside : float
        Share of an adapter's rate that a rank of a small group keeps beside other groups.
    """

    port: float
    adapter: float
    chip: Mapping[str, float]
    fabric: Mapping[str, float]
    tuner: Tuner
    beside: float = 1.0

    def far_s(self, load: Load, payload: float = 1.0) -> Number:
        """Time to send so much payload over a rank's adapter, in whose bytes it has a share [s]."""
        kept = np.where(np.asarray(load.beside) > 0, self.beside, 1.0)
        far: Number = load.outside / (self.fabric["efficiency"] * payload * self.adapter * kept)
        return far


def has_constants(cluster: Cluster) -> bool:
    """Return whether the cluster's catalogue has constants of NCCL for its chip and fabric."""
    catalogue = cluster.catalogue
    if cluster.plain or catalogue is None or not cluster.chip:
        return False
    _, chip, fabric, _ = _machine(cluster)
    parts = catalogue.parts()
    return all(
        f"{kind}.{part}" in parts for kind in ("nccl", PART) for part in (chip, fabric) if part
    )


def nccl_ps(call: CollectiveCall, *, rings: bool = False) -> int:
    """Time of a call [ps]; its cluster must be covered.

    Parameters
    ----------
    call : CollectiveCall
    rings : bool
        An all-reduce goes round rings, without switches that reduce and without trees.

    Examples
    --------
    >>> from cluster_sim.collectives.group import whole
    >>> from topologies.clusters.names import cluster
    >>> call = CollectiveCall("all-reduce", whole(cluster("dgx-h100")), 2**29)
    >>> 0.002 < nccl_ps(call) / 1e12 < 0.0022
    True
    """
    if call.ranks == 1 or call.size_bytes == 0:
        return 0
    return _time_ps(load_of(call, rings=rings), *_machine(call.group.cluster))


@functools.lru_cache(maxsize=1 << 16)
def _time_ps(
    load: Load, catalogue: Catalogue, chip: str, fabric: str, adapter_bytes_per_s: int
) -> int:
    costs = _constants(catalogue, chip, fabric, adapter_bytes_per_s)
    return math.ceil(float(seconds(load, costs)) * PS_PER_S)


def seconds(load: Load, costs: Nccl) -> Number:
    """Time of a collective, or of an array of them [s]."""
    if load.way == "ring":
        rings = [ring_s(load, costs, name) for name in PROTOCOLS]
        in_switch = costs.chip["launch"] + _in_switch_s(load, costs)
        return pick(load, costs.tuner, [*rings, in_switch])
    if load.way == "tree":
        return _tree_s(load, costs)
    return _exchange_s(load, costs)


def ring_s(load: Load, costs: Nccl, protocol: str) -> Number:
    """Time of rings in one protocol [s]; LL moves a rank's own shard at the rate of all else."""
    chip, fabric = costs.chip, costs.fabric
    if protocol == "ll":
        wire = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
        start = chip["launch"] + load.steps * chip["step"]
    elif protocol == "ll128":
        wire = load.inside / (chip["ll128_efficiency"] * costs.port)
        wire = wire + load.shard / chip["copy_rate"]
        start = chip["launch"] + load.steps * chip["ll128_step"]
    else:
        wire = _simple_s(load, costs)
        first = load.steps - load.second_steps
        start = chip["launch"] + first * chip["simple_step"]
        start = start + load.second_steps * chip["simple_second_step"]
    if not fabric:
        return start + wire
    far = costs.far_s(load, FAR_SHARE[protocol])
    filling = _filling_s(fabric["slice"], far) if protocol == "simple" else 0.0
    step = fabric["ll128_step" if protocol == "ll128" else "step"]
    return start + load.far_steps * step + filling + np.maximum(wire, far)


def _tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce inside each server, by switch or ring, and up and down a tree [s]."""
    chip, fabric = costs.chip, costs.fabric
    far = costs.far_s(load)
    start = chip["launch"] + load.steps * chip["step"] + load.far_steps * fabric["step"]
    inside = np.minimum(_simple_s(load, costs), _in_switch_s(load, costs))
    filling = _filling_s(fabric["slice"] * load.far_steps / 2, far)
    long: Number = start + filling + np.maximum(inside, far)
    longest = costs.tuner.longest_tree_bytes(load.domains)
    if longest is None:
        return long
    share = np.minimum(1.0, longest / np.asarray(load.size))
    short = _short_tree_s(load, costs, share)
    # More bytes never take less time, whatever the plugin picks for them.
    return np.where(share < 1, np.maximum(long, short), short)


def _short_tree_s(load: Load, costs: Nccl, share: Number) -> Number:
    """Time up and down a tree in LL128, or LL for short buffers, for a share of the bytes [s].

    The first level is a step of LL128 each way; every further one, where a server waits for two
    others, a longer one. Inside a server a chain carries the bytes up and down at once.
    """
    chip, fabric = costs.chip, costs.fabric
    inside = share * load.inside / (fabric["tree_efficiency"] * costs.port)
    far = share * costs.far_s(load, FAR_SHARE["ll128"])
    climb = 2 * fabric["ll128_step"] + (load.far_steps - 2) * fabric["tree_step"]
    short = np.asarray(load.size) <= costs.tuner.short_tree_bytes
    climb = np.where(short, load.far_steps * fabric["step"], climb)
    return chip["launch"] + load.steps * chip["step"] + climb + np.maximum(inside, far)


def _exchange_s(load: Load, costs: Nccl) -> Number:
    """Time of messages between pairs, all at once: by LL if they are short, else by Simple [s]."""
    chip, fabric = costs.chip, costs.fabric
    start = chip["launch"] + load.steps * chip["step"]
    short = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
    wire = load.inside / (chip["exchange_efficiency"] * costs.port)
    copied = load.shard / chip["exchange_copy_rate"]
    long = chip["exchange"] + wire + _filling_s(chip["slice"], wire) + copied
    peers = np.where(np.asarray(load.shard) > 0, load.ranks, 1.0)
    inside = np.where(load.size <= costs.tuner.message_bytes * peers, np.minimum(short, long), long)
    if not fabric:
        return start + inside
    far = costs.far_s(load)
    start = start + load.far_steps * fabric["step"] + load.messages * fabric["message"]
    return start + _filling_s(fabric["slice"], far) + np.maximum(inside, far)


def _simple_s(load: Load, costs: Nccl) -> Number:
    """Time over NVLink in long slices, and of a rank's own shard [s]."""
    wire = load.inside / (costs.chip["efficiency"] * costs.port)
    return wire + _filling_s(costs.chip["slice"], wire) + load.shard / costs.chip["copy_rate"]


def _in_switch_s(load: Load, costs: Nccl) -> Number:
    """Time of a reduction in the switch [s]; infinite where there is no such switch."""
    share = costs.chip.get("in_switch_efficiency")
    if not share:
        return math.inf
    wire = load.in_switch / (share * costs.port)
    direct = (
        costs.chip["in_switch_latency"] + wire + _filling_s(costs.chip["in_switch_slice"], wire)
    )
    return np.where(np.asarray(load.in_switch) > 0, direct, np.inf)


def _filling_s(slice_s: Number, wire_s: Number) -> Number:
    return 2 * np.sqrt(slice_s * wire_s)


def constants(cluster: Cluster) -> Nccl:
    """Look up the constants of a covered cluster."""
    return _constants(*_machine(cluster))


def _machine(cluster: Cluster) -> tuple[Catalogue, str, str, int]:
    """Facts about a cluster on which its constants depend; a single domain has no fabric."""
    catalogue, fabric = cluster.catalogue, cluster.scale_out
    if catalogue is None:
        raise LookupError(f"{cluster.name} has no catalogue")
    if fabric is None or cluster.domains == 1:
        return catalogue, cluster.chip, "", 0
    return catalogue, cluster.chip, fabric.name, fabric.bandwidth_bytes_per_s


@functools.cache
def _constants(catalogue: Catalogue, chip: str, fabric: str, adapter_bytes_per_s: int) -> Nccl:
    part, far = f"nccl.{chip}", f"nccl.{fabric}"
    of_chip = (*CHIP, *SWITCH) if catalogue.has(part, SWITCH[0]) else CHIP
    between: tuple[str, ...] = ()
    if fabric:
        between = (*FABRIC, *TREE) if catalogue.has(far, TREE[0]) else FABRIC
    return Nccl(
        port=catalogue.value(chip, "scale_up_bandwidth"),
        adapter=float(adapter_bytes_per_s),
        chip={name: catalogue.value(part, name) for name in of_chip},
        fabric={name: catalogue.value(far, name) for name in between},
        tuner=tuner(catalogue, chip, fabric, adapter_bytes_per_s),
        beside=catalogue.value(*BESIDE),
    )
