"""Costs of a change of role, from the catalogue or set by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from topologies.catalogue.catalogue import Catalogue, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.fleet.inputs.jobs import TrainingJob
from workloads.job.checkpoints import PeerCopies, PeerLinks, host_bytes_per_s
from workloads.job.job import Recovery

AT_ONCE = Recovery(restart_s=0.0, explicit_s=0.0, timeout_s=0.0, hang_share=0.0, repair_s=0.0)
"""A recovery that takes no time."""
UNLIMITED_PEERS = PeerLinks()  # links between host memories that take no time


@dataclass(frozen=True)
class ChangeCosts:
    """Durations [s] and rates [B/s] of role changes; part ``fleet.change`` of the catalogue."""

    # Without any, changes take no time.

    # Time to stop admission and finish running requests, before serving or evaluation ends
    drain_s: float = 0.0
    # mode_switch_s, runtime_start_s: time to join or split the servers of a unit; time to start the
    # runtime
    mode_switch_s: float = 0.0
    runtime_start_s: float = 0.0
    # compile_hit_s, compile_miss_s, miss_share: time to fetch a compiled model from the cache; time
    # to compile it; share of changes that have to compile
    compile_hit_s: float = 0.0
    compile_miss_s: float = 0.0
    # Time of the first, slow requests, after which the unit counts as capacity
    warm_up_s: float = 0.0
    # pause_s, restore_s: time to move training state from HBM to host memory, and back
    pause_s: float = 0.0
    restore_s: float = 0.0
    # resize_s, restart_s: stall of the whole gang when replicas join or leave, and at a start from
    # a checkpoint
    resize_s: float = 0.0
    restart_s: float = 0.0
    # checkpoint_stall_s, snooze_s: stall of a gang at a periodic checkpoint, beside the copy of its
    # state to host memory; least time between growths of an elastic job
    checkpoint_stall_s: float = 0.0
    snooze_s: float = 0.0
    # Source of weights: store (shared), nvme (local), host (page cache) or peer (other units)
    source: str = "host"
    load_bytes_per_s: float = math.inf  # rate at which one unit reads from that source [B/s]
    # Bandwidth that the shared store gives to all units together [B/s]
    store_bytes_per_s: float = math.inf
    # Rate at which one unit can read from, or write to, the shared store [B/s]
    store_client_bytes_per_s: float = math.inf
    miss_share: float = 0.0
    servers: int = 1
    # Times from a failure of a training job to its next step, as in ``workloads.job``, without the
    # time to read the state
    recovery: Recovery = AT_ONCE
    # Links between the host memories of servers, for jobs that keep copies there
    peers: PeerLinks = UNLIMITED_PEERS
    # Rate at which one unit copies training state to the memory of its hosts [B/s]
    host_bytes_per_s: float = math.inf

    @classmethod
    def from_catalogue(
        cls, servers: int, *, source: str = "nvme", catalogue: Catalogue | None = None
    ) -> Self:
        """Read the costs for units of ``servers`` servers, each of which loads its own weights."""
        catalogue = catalogue or shipped_catalogue()
        client = servers * catalogue.value("fleet.load", "store_client")
        rate = client if source == "store" else servers * catalogue.value("fleet.load", source)

        def change(quantity: str) -> float:
            """Return a number of the catalogue about changes of role."""
            return catalogue.value("fleet.change", quantity)

        return cls(
            drain_s=change("drain"),
            mode_switch_s=change("mode_switch") if servers > 1 else 0.0,
            runtime_start_s=change("runtime_start"),
            compile_hit_s=catalogue.value("neuron-runtime", "compile_cached"),
            compile_miss_s=catalogue.value("neuron-runtime", "compile"),
            warm_up_s=change("warm_up"),
            pause_s=change("pause"),
            restore_s=change("restore"),
            resize_s=change("resize"),
            restart_s=change("restart"),
            checkpoint_stall_s=catalogue.value("fleet.training", "checkpoint_stall"),
            snooze_s=catalogue.value("fleet.training", "snooze"),
            source=source,
            load_bytes_per_s=rate,
            store_bytes_per_s=catalogue.value("fleet.store", "bandwidth"),
            store_client_bytes_per_s=client,
            servers=servers,
            recovery=Recovery.from_catalogue(catalogue, read_s=0.0, warm=True),
        )

    @classmethod
    def of(cls, cluster: Cluster, *, source: str = "nvme") -> Self:
        """Return the costs of units that are scale-up domains of a cluster."""
        servers = max(1, cluster.chips_per_domain // cluster.chips_per_server)
        return replace(
            cls.from_catalogue(servers, source=source, catalogue=cluster.numbers),
            peers=PeerLinks.of(cluster, cluster.numbers),
            host_bytes_per_s=cluster.chips_per_domain * host_bytes_per_s(cluster),
        )

    @classmethod
    def fixed(cls, seconds: float) -> Self:
        """Return costs by which every change, in either direction, takes a fixed time."""
        # Zero makes changes free; infinity forbids them.
        if math.isnan(seconds) or seconds < 0:
            raise InputError(f"a change time of {seconds} s is below 0; give 0 or more.")
        # The start of the runtime is the one part that both directions have.
        return cls(runtime_start_s=seconds)

    @property
    def join_s(self) -> float:
        """Time until a unit that served can be part of a training job [s]."""
        return self.mode_switch_s + self.runtime_start_s

    @property
    def to_training_s(self) -> float:
        """Time until a unit that served computes in a training job [s]."""
        return self.drain_s + self.join_s + self.restart_s

    def to_serving_s(self, weights_bytes: float, units: int = 1) -> float:
        """Time until ``units`` units, changed from training at the same time, serve [s]."""
        return (
            self.pause_s
            + self.mode_switch_s
            + self.runtime_start_s
            + self.load_s(weights_bytes, units)
            + self.compile_hit_s
            + self.warm_up_s
        )

    def copies(self, job: TrainingJob, units: int) -> PeerCopies | None:
        """Return the copies of a job's state in the memory of peers; None for a job without any."""
        rate = job.rate(units)
        if job.checkpoint != "peer" or not rate:
            return None
        return self.peers.copies(
            job.state_bytes / (units * self.servers),
            step_s=job.step_tokens / rate,
            start_s=self.recovery.restart_s,
        )

    def stall_s(self, job: TrainingJob, units: int) -> float:
        """Time for which a periodic checkpoint stops a job on some units [s]."""
        return self.checkpoint_stall_s + job.state_bytes / (units * self.host_bytes_per_s)

    def load_s(self, weights_bytes: float, units: int = 1) -> float:
        """Time to load weights on ``units`` units at the same time [s]."""
        rate = self.load_bytes_per_s
        if self.source == "store":
            rate = min(rate, self.store_bytes_per_s / units)
        return weights_bytes / rate
