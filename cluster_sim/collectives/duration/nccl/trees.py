"""Time of an all-reduce between domains that goes up and down a tree over them.

Inside each domain a ring or the switch reduces; between domains a tree carries the sums. NCCL cuts
the buffer into chunks, which grow with the buffer up to a full length. So filling the pipeline
takes longer with more bytes until the chunks have their full length, which is from 16 MiB on with
eight chips in each server, and equally long beyond.
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
"""Number of servers from which NCCL halves the chunks of a tree that reduces in switches."""


def tree_s(load: Load, costs: Nccl) -> Number:
    """Time of an all-reduce up and down a tree [s].

    Where the network plugin says so, the tree carries short buffers in protocol LL128.
    """
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

    The result is the fourth root of the sum of the fourth powers: the slower counts most, and the
    other adds the more the nearer it comes. Third to sixth powers fit measured all-reduces of 16
    to 64 H100 equally well.
    """
    joined: Number = np.sqrt(np.sqrt((inside_s * inside_s) ** 2 + (far_s * far_s) ** 2))
    return joined


def _whole_bytes(load: Load, costs: Nccl) -> Number:
    """Size of the buffer from which the chunks of a tree have their full length [B]."""
    few = (np.asarray(load.in_switch) > 0) & (np.asarray(load.domains) < SERVERS_OF_SHORT_CHUNKS)
    tuner = costs.tuner
    whole: Number = np.where(few, tuner.whole_chunks_of_few, tuner.whole_chunks)
    return whole * (np.asarray(load.ranks) / load.domains)


def _short_tree_s(load: Load, costs: Nccl, share: Number) -> Number:
    """Time of a share of the bytes up and down a tree in LL128, or in LL for short buffers [s].

    The first level takes a step of LL128 each way. Every further level, where a server waits for
    two others, takes a longer step. Inside a server a chain carries bytes up and down at once.
    """
    chip, fabric = costs.chip, costs.fabric
    inside = share * load.inside / (fabric["tree_efficiency"] * costs.port)
    far = share * costs.far_s(load, FAR_SHARE["ll128"])
    climb = 2 * fabric["ll128_step"] + (load.far_steps - 2) * fabric["tree_step"]
    short = np.asarray(load.size) <= costs.tuner.short_tree_bytes
    climb = np.where(short, load.far_steps * fabric["step"], climb)
    return chip["launch"] + load.steps * chip["step"] + climb + np.maximum(inside, far)
