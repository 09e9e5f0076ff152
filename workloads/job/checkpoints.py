"""State of a training job: its size, the store it is written to, and copies in hosts of peers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from topologies.catalogue.catalogue import Catalogue, chip_family
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import host_bytes_per_server
from topologies.support.errors import InputError
from workloads.models.model import Model
from workloads.training.layers.adapters import trained_share, undivided, whole
from workloads.training.plan.plan import ParallelPlan
from workloads.training.plan.stages import OPTIMIZER_BYTES, optimizer_bytes


@dataclass(frozen=True)
class State:
    """A checkpoint in the shared store."""

    # Weights, master copy and optimizer moments of all trained parameters [B]
    checkpoint_bytes: float
    # write_s, read_s: time to write it, and to read it until every server has its part [s]
    write_s: float
    read_s: float
    writers: int = 1  # servers that hold different parts of the state
    stall_s: float = 0.0  # time for which an asynchronous checkpoint stops the job [s]


def job_state(model: Model, plan: ParallelPlan, cluster: Cluster) -> State:
    """Return the checkpoint of a training job.

    Every server whose ranks hold a different part of the state writes its part: all servers where
    ZeRO shards the optimizer, else those of one replica. A start reads the whole state and the
    frozen weights once, and sends the weights to the other replicas over the network. Before an
    asynchronous write each chip copies its part to the memory of its host. The rates are parts
    ``fleet.store``, ``fleet.load`` and ``fleet.training`` of the catalogue.

    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> plan = ParallelPlan(tp=8, pp=2, dp=64, global_batch=512)
    >>> state = job_state(named("llama-3.1-70b"), plan, cluster("trn2-ultraserver:16"))
    >>> round(state.checkpoint_bytes / 1e12, 2), round(state.write_s, 1), round(state.stall_s, 1)
    (0.99, 1.5, 3.3)
    """
    catalogue = cluster.numbers
    bytes_per_parameter = catalogue.value("fleet.training", "state_bytes_per_parameter")
    client = catalogue.value("fleet.load", "store_client")
    store = catalogue.value("fleet.store", "bandwidth")
    trained = trained_parameters(model, plan)
    edges = model.embedding_parameters + model.head_parameters
    saved = trained * (bytes_per_parameter - OPTIMIZER_BYTES["adamw"])
    saved += optimizer_bytes(plan, trained, min(trained, edges))
    servers = _servers(plan, cluster, plan.ranks)
    parts = plan.ranks if plan.zero else plan.ranks // plan.replicas
    writers = _servers(plan, cluster, parts)
    copied = parts / plan.ranks_per_chip * host_bytes_per_s(cluster)
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
        stall_s=catalogue.value("fleet.training", "checkpoint_stall") + saved / copied,
    )


def host_bytes_per_s(cluster: Cluster) -> float:
    """Return the rate at which a chip copies its state to the memory of its host [B/s]."""
    neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    rate = "host_copy_neuron" if neuron else "host_copy"
    return cluster.numbers.value("fleet.training", rate)


def _servers(plan: ParallelPlan, cluster: Cluster, ranks: int) -> int:
    return max(1, -(-ranks // (plan.ranks_per_chip * cluster.chips_per_server)))


def trained_parameters(model: Model, plan: ParallelPlan) -> int:
    """Number of parameters with optimizer state: all, those of adapters, or those of one part."""
    if whole(plan):
        return model.parameters
    return trained_share(model, undivided(plan), 0).total


VERSIONS = 2
"""Copies of a part that a server holds: the last complete one, and the next one as it arrives."""
PARTS_HELD = 2  # parts of the state that a server holds: its own and its partner's


@dataclass(frozen=True)
class PeerCopies:
    """Copies of a job's state in the host memory of its units."""

    every_s: float  # computing time between two copies [s]
    copy_s: float  # time that a copy takes; it cannot be used before [s]
    # Time from a detected failure, once all units are there, to the first step [s]
    restart_s: float
    bytes_per_server: float  # host memory of a server that the copies take [B]
    host_bytes: float | None = None

    def lost_s(self, computed_s: float) -> float:
        """Computing time that is lost by a failure ``computed_s`` after a start [s]."""
        complete = math.floor(max(0.0, computed_s - self.copy_s) / self.every_s)
        return computed_s - complete * self.every_s


@dataclass(frozen=True)
class PeerLinks:
    """Network between the memory of a server and that of its partner."""

    # Rate of the adapters of one server [B/s]; by default a copy takes no time
    bytes_per_s: float = math.inf
    share: float = 1.0  # share of the rate that training leaves to copies

    @classmethod
    def of(cls, cluster: Cluster, catalogue: Catalogue) -> PeerLinks:
        """Return the links of a cluster; without a scale-out fabric a copy takes no time."""
        if cluster.scale_out is None:
            return cls()
        adapters = cluster.scale_out.bandwidth_bytes_per_s * cluster.chips_per_server
        return cls(float(adapters), catalogue.value("job.peer", "network_share"))

    def copies(self, part_bytes: float, *, step_s: float, start_s: float) -> PeerCopies:
        """Return copies after every step, or after as few steps as the network allows."""
        copy_s = part_bytes / (self.bytes_per_s * self.share)
        return PeerCopies(
            every_s=step_s * max(1, math.ceil(copy_s / step_s)),
            copy_s=copy_s,
            restart_s=start_s + part_bytes / self.bytes_per_s,
            bytes_per_server=held_bytes(part_bytes),
        )


def held_bytes(part_bytes: float) -> float:
    """Return the host memory that copies take on a server with a part of the state [B]."""
    return PARTS_HELD * VERSIONS * part_bytes


def room_for_copies(cluster: Cluster, catalogue: Catalogue) -> float:
    """Return the host memory of a server that copies may take [B]; infinity where it is unknown."""
    host = host_bytes_per_server(cluster, catalogue)
    return math.inf if host is None else catalogue.value("job.peer", "host_share") * host


def peer_copies(
    state: State, cluster: Cluster, servers: int, *, step_s: float, start_s: float
) -> PeerCopies:
    """Return the copies of a job: after every step, or after as few steps as the network allows."""
    if cluster.scale_out is None or cluster.domains < 2:
        raise InputError(
            f"--checkpoint peer copies state to another unit, and {cluster.name} has one. Use a "
            "cluster of several, or --checkpoint async."
        )
    part, catalogue = state.checkpoint_bytes / servers, cluster.numbers
    copies = PeerLinks.of(cluster, catalogue).copies(part, step_s=step_s, start_s=start_s)
    host = host_bytes_per_server(cluster, catalogue)
    if host is not None and copies.bytes_per_server > room_for_copies(cluster, catalogue):
        raise InputError(
            f"--checkpoint peer keeps {copies.bytes_per_server / 1e9:,.0f} GB in the host memory "
            f"of each server, {PARTS_HELD * VERSIONS} times its part of the state, and "
            f"{cluster.name} has {host / 1e9:,.0f} GB a server, "
            f"{catalogue.value('job.peer', 'host_share'):.0%} of it for copies "
            "(job.peer host_share). "
            "Use more chips, --zero 1 to divide the state among all, or --checkpoint async."
        )
    return replace(copies, host_bytes=host)
