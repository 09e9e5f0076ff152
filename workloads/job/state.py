"""State of a training job in the shared store: its size, and the times to write and read it."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.training.layers.adapters import trained_share, undivided, whole
from workloads.training.plan.parameters import OPTIMIZER_BYTES, optimizer_bytes
from workloads.training.plan.plan import ParallelPlan


@dataclass(frozen=True)
class State:
    """A checkpoint in the shared store.

    Attributes
    ----------
    checkpoint_bytes : float
        Weights, master copy and optimizer moments of all trained parameters [B].
    write_s, read_s : float
        Time to write it, and to read it until every server has its part [s].
    writers : int
        Servers that hold different parts of the state.
    """

    checkpoint_bytes: float
    write_s: float
    read_s: float
    writers: int = 1


def job_state(
    model: Model, plan: ParallelPlan, cluster: Cluster, catalogue: Catalogue | None = None
) -> State:
    """Return the checkpoint of a training job.

    Every server whose ranks hold a different part of the state writes its part: all servers where
    ZeRO shards the optimizer, else those of one replica. A start reads the whole state and the
    frozen weights once, and sends the weights to the other replicas over the network. The rates are
    parts ``fleet.store`` and ``fleet.load`` of the catalogue.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=8, pp=2, dp=64, global_batch=512)
    >>> state = job_state(named("llama-3.1-70b"), plan, cluster("trn2-ultraserver:16"))
    >>> round(state.checkpoint_bytes / 1e12, 2), round(state.write_s, 1)
    (0.99, 1.5)
    """
    catalogue = catalogue or cluster.catalogue or shipped_catalogue()
    bytes_per_parameter = catalogue.value("fleet.training", "state_bytes_per_parameter")
    client = catalogue.value("fleet.load", "store_client")
    store = catalogue.value("fleet.store", "bandwidth")
    trained = trained_parameters(model, plan)
    edges = model.embedding_parameters + model.head_parameters
    saved = trained * (bytes_per_parameter - OPTIMIZER_BYTES["adamw"])
    saved += optimizer_bytes(plan, trained, min(trained, edges))
    servers = _servers(plan, cluster, plan.ranks)
    writers = servers if plan.zero else _servers(plan, cluster, plan.ranks // plan.replicas)
    # Weights are BF16, two bytes each, where they carry no optimizer state.
    frozen = 2.0 * (model.parameters - trained) if trained < model.parameters else 0.0
    from_store = (saved + frozen) / min(store, servers * client)
    replica = _servers(plan, cluster, plan.ranks // plan.dp)
    over_network = 2.0 * model.parameters / replica / catalogue.value("fleet.load", "peer")
    return State(
        checkpoint_bytes=saved,
        write_s=saved / min(store, writers * client),
        read_s=from_store + (over_network if plan.dp > 1 else 0.0),
        writers=writers,
    )


def _servers(plan: ParallelPlan, cluster: Cluster, ranks: int) -> int:
    """Servers that a number of ranks fill, rounded up."""
    return max(1, -(-ranks // (plan.ranks_per_chip * cluster.chips_per_server)))


def trained_parameters(model: Model, plan: ParallelPlan) -> int:
    """Number of parameters with optimizer state: all, those of adapters, or those of one part."""
    if whole(plan):
        return model.parameters
    return trained_share(model, undivided(plan), 0).total
