"""Times of NCCL's rings in each protocol, and of a reduction in the switch."""

from __future__ import annotations

import math

import numpy as np

from cluster_sim.collectives.duration.nccl.constants import Nccl
from cluster_sim.collectives.duration.nccl.load import Load, Number

FAR_SHARE = {"ll": 0.5, "ll128": 120 / 128, "simple": 1.0}
"""Share of an adapter's bytes that is payload; the protocols LL and LL128 send flags along."""


def ring_s(load: Load, costs: Nccl, protocol: str) -> Number:
    """Time of a collective round rings in one protocol [s].

    LL copies a rank's own shard at the rate of the links, the other protocols at the copy rate.
    """
    chip, fabric = costs.chip, costs.fabric
    if protocol == "ll":
        wire = (load.inside + load.shard) / (chip["ll_efficiency"] * costs.port)
        start = chip["launch"] + load.steps * chip["step"]
    elif protocol == "ll128":
        wire = load.inside / (chip["ll128_efficiency"] * costs.port)
        wire = wire + load.shard / chip["copy_rate"]
        start = chip["launch"] + load.steps * chip["ll128_step"]
    else:
        wire = simple_s(load, costs)
        first = load.steps - load.second_steps
        start = chip["launch"] + first * chip["simple_step"]
        start = start + load.second_steps * chip["simple_second_step"]
    if not fabric:
        return start + wire
    adapter = costs.far_s(load, FAR_SHARE[protocol])
    filling = filling_s(fabric["slice"], adapter) if protocol == "simple" else 0.0
    step = fabric["ll128_step" if protocol == "ll128" else "step"]
    # NVLinks and adapters work at the same time, so that the slower of the two counts.
    return start + load.far_steps * step + filling + np.maximum(wire, adapter)


def simple_s(load: Load, costs: Nccl) -> Number:
    """Time over NVLink in the protocol Simple: long slices, and the copy of a rank's shard [s]."""
    wire = load.inside / (costs.chip["efficiency"] * costs.port)
    return wire + filling_s(costs.chip["slice"], wire) + load.shard / costs.chip["copy_rate"]


def in_switch_s(load: Load, costs: Nccl) -> Number:
    """Time of a reduction in the switch, infinite where the switch cannot reduce [s]."""
    share = costs.chip.get("in_switch_efficiency")
    if not share:
        return math.inf
    wire = load.in_switch / (share * costs.port)
    direct = costs.chip["in_switch_latency"] + wire + filling_s(costs.chip["in_switch_slice"], wire)
    return np.where(np.asarray(load.in_switch) > 0, direct, np.inf)


def filling_s(slice_s: Number, wire_s: Number) -> Number:
    """Return the time that filling a pipeline takes with slices of the best length [s].

    Shorter slices fill it sooner but cost more starts; the least sum is 2 √(slice · wire).
    """
    return 2 * np.sqrt(slice_s * wire_s)
