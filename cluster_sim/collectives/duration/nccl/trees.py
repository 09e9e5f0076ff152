"""Time of an all-reduce between domains: up and down a tree over them.

Inside each domain a ring or the switch reduces; between domains a tree carries the sums. NCCL cuts
the buffer into chunks that grow with it up to a longest one, so that filling the pipeline takes
longer with more bytes until chunks are whole, and no longer beyond: from 16 MiB on eight chips of
each server.
"""

from __future__ import annotations

import numpy as np

from cluster_sim.collectives.duration.nccl.constants import Nccl
from cluster_sim.collectives.duration.nccl.load import Load, Number
from cluster_sim.collectives.duration.nccl.rings import (
    FAR_SHARE,
    filling_s,
    in_switch_s,
    simple_s,
)

SERVERS_OF_SHORT_CHUNKS = 4
"""Servers from which NCCL halves the chunks of a tree that reduces in switches."""


def tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce up and down a tree; where a plugin says so, short ones in LL128 [s]."""
    long = _long_tree_s(load, costs)
    longest = costs.tuner.longest_tree_bytes(load.domains)
    if longest is None:
        return long
    share = np.minimum(1.0, longest / np.asarray(load.size))
    short = _short_tree_s(load, costs, share)
    # More bytes never take less time, whatever the plugin picks for them.
    return np.where(share < 1, np.maximum(long, short), short)


def _long_tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce inside each server, by switch or ring, and up and down a tree [s]."""
    chip, fabric = costs.chip, costs.fabric
    start = chip["launch"] + load.steps * chip["step"] + load.far_steps * fabric["step"]
    inside = np.minimum(simple_s(load, costs), in_switch_s(load, costs))
    wire = _together_s(inside, costs.far_s(load))
    filled = wire * np.minimum(1.0, _whole_bytes(load, costs) / np.asarray(load.size))
    return start + wire + filling_s(fabric["slice"] * load.far_steps / 2, filled)


def _together_s(inside_s: Number, far_s: Number) -> Number:
    """Time of bytes over NVLinks and over adapters, which the same multiprocessors move [s].

    The slower counts, and the nearer the other comes to it, the more it adds: a mean of fourth
    powers. Third to sixth powers meet all-reduces of 16 to 64 H100 alike.
    """
    joined: Number = np.sqrt(np.sqrt((inside_s * inside_s) ** 2 + (far_s * far_s) ** 2))
    return joined


def _whole_bytes(load: Load, costs: Nccl) -> Number:
    """Buffer from which the chunks of a tree have their full length [B]."""
    few = (np.asarray(load.in_switch) > 0) & (np.asarray(load.domains) < SERVERS_OF_SHORT_CHUNKS)
    tuner = costs.tuner
    whole: Number = np.where(few, tuner.whole_chunks_of_few, tuner.whole_chunks)
    return whole * (np.asarray(load.ranks) / load.domains)


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
