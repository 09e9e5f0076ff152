"""The state of a training job on the shared store: its size, and times to write and read it."""

from __future__ import annotations

from dataclasses import dataclass

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.training.layers.adapters import trained_share, undivided, whole
from workloads.training.plan.plan import ParallelPlan


@dataclass(frozen=True)
class State:
    """A checkpoint.

    Attributes
    ----------
    checkpoint_bytes : float
        Weights, master copy and optimizer's moments of all that is trained [B].
    write_s, read_s : float
        Onto the shared store; and back, until every server has its part [s].
    writers : int
        Servers that hold different parts.
    """

    checkpoint_bytes: float
    write_s: float
    read_s: float
    writers: int = 1


def job_state(
    model: Model, plan: ParallelPlan, cluster: Cluster, catalogue: Catalogue | None = None
) -> State:
    """Return the checkpoint of a training job.

    Every server of the ranks that hold different parts writes its own; these are all servers where
    ZeRO shards the optimizer, and those of one replica where it does not. A start reads the whole
    once, and frozen weights with it, and gives other replicas their weights over the network.
    Rates are ``fleet.store`` and ``fleet.load`` of the catalogue.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=8, pp=2, dp=64, global_batch=512)
    >>> kept = job_state(named("llama-3.1-70b"), plan, cluster("trn2-ultraserver:16"))
    >>> round(kept.checkpoint_bytes / 1e12, 2), round(kept.write_s, 1)
    (0.99, 1.5)
    """
    catalogue = catalogue or cluster.catalogue or shipped_catalogue()
    each = catalogue.value("fleet.training", "state_bytes_per_parameter")
    client = catalogue.value("fleet.load", "store_client")
    store = catalogue.value("fleet.store", "bandwidth")
    trained = trained_parameters(model, plan)
    saved = trained * each
    servers = _servers(plan, cluster, plan.ranks)
    writers = servers if plan.zero else _servers(plan, cluster, plan.ranks // plan.replicas)
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
    return max(1, -(-ranks // (plan.ranks_per_chip * cluster.chips_per_server)))


def trained_parameters(model: Model, plan: ParallelPlan) -> int:
    """Parameters that have optimizer state: all of them, an adapter's, or one part's."""
    if whole(plan):
        return model.parameters
    return trained_share(model, undivided(plan), 0).total
