"""Step count and lower bound of a collective that NCCL carries out."""

from __future__ import annotations

import math

from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.duration.nccl.constants import SWITCH, constants
from cluster_sim.collectives.duration.nccl.load import load_of
from cluster_sim.collectives.verify.bounds import AROUND, Bound


def steps(call: CollectiveCall) -> int:
    """Count the steps that follow one another, inside domains and between them."""
    load = load_of(call)
    return math.ceil(float(load.steps + load.far_steps))


def bound_with_switch(call: CollectiveCall, bound: Bound) -> Bound:
    """Halve the bandwidth bound of an all-reduce where the switches of a domain can reduce.

    A rank then sends its buffer once, not twice.
    """
    reduces = SWITCH[0] in constants(call.group.cluster).chip and call.kind == "all-reduce"
    if not reduces or bound.what in ("distance", AROUND):
        return bound
    return Bound(f"{bound.what}, reduced in the switch", bound.time_ps // 2)
