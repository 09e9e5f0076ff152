"""How fast a unit trains: tokens per second from the roofline and collectives of training."""

from __future__ import annotations

from topologies.clusters import Cluster
from topologies.errors import InputError
from workloads.model import Model
from workloads.serving.profile import forward_s

SEQUENCE = 8192
"""Tokens of a training sequence: Llama 3's (arXiv 2407.21783)."""
PASSES = 3.0
"""A backward pass takes twice a forward pass."""


def training_tokens_per_s(model: Model, cluster: Cluster) -> float:
    """Tokens per second that one unit adds to a data-parallel run [1/s].

    Every server of the unit holds a tensor-parallel group; forward and backward of one sequence
    take three forward passes with exposed all-reduces. Data-parallel communication is taken to be
    hidden; a plan that is simulated in full can be given as ``tokens_per_s`` of a job instead.
    """
    servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
    try:
        once = forward_s(model, cluster, SEQUENCE)
    except InputError:
        return 1.0
    return servers * SEQUENCE / (PASSES * once)
