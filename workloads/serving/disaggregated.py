"""Disaggregated serving: replicas that process prompts, and replicas that decode.

A prompt waits for the first free prefill replica, is processed whole, and its keys and values go to
a decode replica over the links or adapters of its chips; each prefill replica sends one prompt at a
time. Decode replicas take turns, and each is the replica of :mod:`workloads.serving.replica`, whose
prompts are all in its cache already. The first token comes from the prefill replica.

Prefill replicas may be of another degree, or run on a cluster of other chips. No provider states
what joins two such clusters: a prefill replica is assumed to send as fast as the slower of the two
replicas' adapters allow, and the range of the catalogue's ``joined-clusters`` says how much slower
it may be.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import PS_PER_S
from topologies.arrays import FloatArray
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.shapes.measures import scale_up_bytes_per_s
from workloads.economics import Economics
from workloads.serving.batching import BESIDE, Batching
from workloads.serving.profile import Profile
from workloads.serving.replica import serve
from workloads.serving.requests import Requests
from workloads.serving.served import Served
from workloads.serving.speculation import Speculation

MOST = 10_000


@dataclass(frozen=True, eq=False)
class PromptReplica:
    """A replica that processes prompts, where it is of another kind than those that decode."""

    profile: Profile  # its times and sizes
    batching: Batching  # batching whose buckets prompts are padded to
    cluster: Cluster  # cluster of its chips
    # Power and price of a chip that decodes, and of one of its own, by one kind of price
    money: tuple[Economics, Economics]
    prices: str = ""  # sentence on these prices; empty where the catalogue's are of one kind


@dataclass(frozen=True)
class Pools:
    """Replicas of both kinds, and the network between them."""

    # prefill, decode: replicas
    prefill: int
    decode: int
    # Rate at which one prompt's keys and values leave a prefill replica [B/s]
    transfer_bytes_per_s: float
    transfer_latency_s: float = 0.0  # latency of each transfer [s]
    # Least rate that the network between two clusters may have, where one is assumed; otherwise 0
    # [B/s]
    slowest_bytes_per_s: float = 0.0
    prompts: PromptReplica | None = None  # replica that processes prompts, if it is of another kind

    def __post_init__(self) -> None:
        if not (1 <= self.prefill <= MOST and 1 <= self.decode <= MOST):
            raise InputError(
                f"{self.prefill} prefill and {self.decode} decode replicas; use 1 to {MOST:,} each."
            )
        if not self.transfer_bytes_per_s > 0:
            raise InputError(
                "keys and values cannot move: the cluster has no link between replicas."
            )


@dataclass(frozen=True, eq=False)
class Apart:
    """Outcome of a run with both kinds of replicas."""

    served: Served
    # prefill_end_s, arrived_s (requests,): when a prompt was processed, and when its keys and
    # values had arrived [s]
    prefill_end_s: FloatArray
    arrived_s: FloatArray
    prefill_busy_s: float  # time in which prefill replicas worked, all together [s]
    decode_busy_s: float
    # (requests,): times by which values would arrive later over the slowest network [s]
    late_s: FloatArray | None = None

    @property
    def transfer_s(self) -> FloatArray:
        """Time from a prompt's end to the arrival of its cache, waiting included [s]."""
        return self.arrived_s - self.prefill_end_s


def pools(
    cluster: Cluster,
    profile: Profile,
    prefill: int,
    decode: int,
    prompts: PromptReplica | None = None,
) -> Pools:
    """Return pools of a cluster: over scale-up links where both fit a domain, else the fabric.

    ``prompts``: replica that processes prompts, if it is of another kind, which may lie on another
    cluster; see :func:`_joined_clusters`.
    """
    counts = Pools(prefill, decode, 1.0, prompts=prompts)
    if prompts is not None and prompts.cluster != cluster:
        return _joined_clusters(cluster, profile, counts, prompts)
    each = profile.chips if prompts is None else prompts.profile.chips
    chips = prefill * each + decode * profile.chips
    if chips > cluster.chips:
        sizes = profile.chips if each == profile.chips else f"{each} and {profile.chips}"
        raise InputError(
            f"{prefill} prefill and {decode} decode replicas of {sizes} chips take "
            f"{chips:,} chips, and {cluster.name} has {cluster.chips:,}. Use fewer replicas, or a "
            "larger cluster."
        )
    if chips <= cluster.chips_per_domain:
        rate = float(scale_up_bytes_per_s(cluster.shape))
        catalogue = cluster.catalogue or shipped_catalogue()
        latency_s = catalogue.value(cluster.chip, "link_latency", 0.0)
    elif cluster.scale_out is None:
        raise InputError(f"{cluster.name} has no fabric between its domains. Use fewer replicas.")
    else:
        rate = float(cluster.scale_out.bandwidth_bytes_per_s)
        latency_s = cluster.scale_out.latency_ps / PS_PER_S
    ends = min(each, profile.chips)
    return replace(counts, transfer_bytes_per_s=rate * ends, transfer_latency_s=latency_s)


def _joined_clusters(
    cluster: Cluster, profile: Profile, counts: Pools, prompts: PromptReplica
) -> Pools:
    """Return pools on two clusters, over an assumed network that joins their fabrics.

    A prefill replica sends at the rate of the slower of both replicas' adapters, divided by an
    oversubscription. Latencies are those of both fabrics and of the way to another building.
    """
    catalogue = cluster.catalogue or shipped_catalogue()
    sides = (
        (prompts.cluster, prompts.profile, counts.prefill),
        (cluster, profile, counts.decode),
    )
    rates, latency_ps, away_ps = [], 0, 0
    for place, replica, number in sides:
        if number * replica.chips > place.chips:
            raise InputError(
                f"{number} replicas of {replica.chips} chips take {number * replica.chips:,}, and "
                f"{place.name} has {place.chips:,}. Use fewer replicas, or a larger cluster."
            )
        if place.scale_out is None:
            raise InputError(
                f"{place.name} has no scale-out fabric that could join it to another cluster. Use "
                "one that has, or leave --prefill-cluster out."
            )
        rates.append(float(place.scale_out.bandwidth_bytes_per_s) * replica.chips)
        latency_ps += place.scale_out.latency_ps
        away_ps = max(away_ps, place.scale_out.climb_ps[-1])
    thinned = catalogue.entry("joined-clusters", "oversubscription")
    return replace(
        counts,
        transfer_bytes_per_s=min(rates) / thinned.value,
        transfer_latency_s=(latency_ps + away_ps) / PS_PER_S,
        slowest_bytes_per_s=min(rates) / (thinned.high or thinned.value),
    )


def serve_apart(
    profile: Profile,
    requests: Requests,
    pools: Pools,
    batching: Batching | None = None,
    *,
    speculation: Speculation | None = None,
    seed: int = 0,
) -> Apart:
    """Serve requests with prefill and decode on replicas of their own.

    ``profile`` is a replica of either kind, or one that decodes where ``pools`` have another for
    prompts; prompts are padded to the buckets of ``batching``.
    """
    how = batching or Batching()
    prompts = pools.prompts
    first, padding = (prompts.profile, prompts.batching) if prompts else (profile, how)
    token_bytes = min(first.kv_bytes_per_token, profile.kv_bytes_per_token)
    ends, arrived, busy = _prefilled(first, requests, pools, padding, token_bytes)
    late_s = None
    if pools.slowest_bytes_per_s:
        slowest = replace(pools, transfer_bytes_per_s=pools.slowest_bytes_per_s)
        late_s = _prefilled(first, requests, slowest, padding, token_bytes)[1] - arrived
    decoded = _decoded(profile, requests, (ends, arrived), pools, (how, speculation, seed))
    return Apart(
        served=replace(
            decoded,
            requests=requests,
            end_s=np.where(requests.output > 1, decoded.end_s, ends),
            request_s=first.request_s,
        ),
        prefill_end_s=ends,
        arrived_s=arrived,
        prefill_busy_s=busy,
        decode_busy_s=decoded.busy_s,
        late_s=late_s,
    )


def decoding(batching: Batching) -> Batching:
    """Return the batching of a replica to which prompts come with their keys and values."""
    # A request that has to give way would have its prompt processed anew elsewhere, so none has to.
    apart = replace(batching, chunk_tokens=0, prompts=BESIDE, gather_passes=0, arrived=True)
    return replace(apart, reserved=1.0)


def _prefilled(
    profile: Profile, requests: Requests, pools: Pools, batching: Batching, token_bytes: float
) -> tuple[FloatArray, FloatArray, float]:
    """Ends of all prompts, arrivals of their caches, and the replicas' time of work [s].

    ``token_bytes``: keys and values of a token that are sent: heads that a replica holds several
    times are sent as often as the side that holds fewer of them has them [B].
    """
    free = [(0.0, replica) for replica in range(pools.prefill)]
    sends = np.zeros(pools.prefill)
    ends, arrived, busy = np.zeros(len(requests)), np.zeros(len(requests)), 0.0
    for request in range(len(requests)):
        prompt, held = int(requests.prompt[request]), requests.held(request)
        took = profile.prefill_s(batching.padded(prompt - held), held)
        ready, replica = heapq.heappop(free)
        ends[request] = max(ready, float(requests.arrival_s[request])) + took
        heapq.heappush(free, (ends[request], replica))
        moved = prompt * token_bytes / pools.transfer_bytes_per_s
        sends[replica] = max(sends[replica], ends[request]) + moved
        arrived[request] = sends[replica] + pools.transfer_latency_s
        busy += took
    return ends, arrived, busy


def _decoded(
    profile: Profile,
    requests: Requests,
    times: tuple[FloatArray, FloatArray],
    pools: Pools,
    settings: tuple[Batching, Speculation | None, int],
) -> Served:
    """Run the decode replicas, which take turns in the order in which caches arrive.

    ``times``: of the first tokens, and of the arrivals of the caches [s].
    """
    (first_by_s, arrived), (batching, speculation, seed) = times, settings
    order = np.argsort(arrived, kind="stable")
    runs: list[Served] = []
    places: list[npt.NDArray[np.int64]] = []
    for replica in range(pools.decode):
        mine = order[replica :: pools.decode]
        if not len(mine):
            continue
        part = Requests(arrived[mine], requests.prompt[mine], requests.output[mine])
        words: dict[str, Any] = {"seed": seed + replica, "first_by_s": first_by_s[mine]}
        runs.append(serve(profile, part, decoding(batching), speculation=speculation, **words))
        places.append(mine)
    return _joined(requests, runs, places)


def _joined(requests: Requests, runs: list[Served], places: list[npt.NDArray[np.int64]]) -> Served:
    first, end = np.zeros(len(requests)), np.zeros(len(requests))
    for run, mine in zip(runs, places, strict=True):
        first[mine], end[mine] = run.first_token_s, run.end_s
    passes = sum(run.iterations for run in runs)
    outcome: dict[str, Any] = {
        "gap_s": np.concatenate([run.gap_s for run in runs]),
        "gap_count": np.concatenate([run.gap_count for run in runs]),
        "busy_s": sum(run.busy_s for run in runs),
        "end_of_run_s": max(run.end_of_run_s for run in runs),
        "kv_peak_tokens": max(run.kv_peak_tokens for run in runs),
        "batch_mean": sum(run.batch_mean * run.iterations for run in runs) / max(passes, 1),
        "iterations": passes,
    }
    return Served(requests, first, end, **outcome)
