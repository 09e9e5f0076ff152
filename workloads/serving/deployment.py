"""A deployment: one replica, or prompts and decode on replicas of their own, and its results.

With replicas of their own, a prompt waits for the first free prefill replica, is processed whole,
and its keys and values go to a decode replica over the links or adapters of its chips; each prefill
replica sends one prompt at a time. Decode replicas take turns, and each is the replica of
:mod:`workloads.serving.replica`, whose prompts are all in its cache already. The first token comes
from the prefill replica.

Prefill replicas may be of another degree, or run on a cluster of other chips. No provider states
what joins two such clusters: a prefill replica is assumed to send as fast as the slower of the two
replicas' adapters allow, and the range of the catalogue's ``joined-clusters`` says how much slower
it may be.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster_sim.schedule.table import PS_PER_S
from topologies.clusters.cluster import Cluster
from topologies.shapes.measures import scale_up_bytes_per_s
from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError
from workloads.confidence.answers import of_first_token, serving_features
from workloads.confidence.interval import Interval
from workloads.confidence.sensitivity import Uncertain, price_of
from workloads.confidence.split_conformal import interval
from workloads.economics import TOKENS, Economics
from workloads.models.model import Model
from workloads.serving.batching import BESIDE, Batching
from workloads.serving.profile import Profile
from workloads.serving.replica import serve
from workloads.serving.requests import Lengths, Requests
from workloads.serving.served import Served, Slo, attained, latency, serving_summary
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
    """Return pools of a cluster over scale-up links, or the fabric; prompts may be another's."""
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
        catalogue = cluster.numbers
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
    """Return pools on two clusters, over an assumed network that joins their fabrics."""
    # A prefill replica sends at the slower adapters' rate, divided by an oversubscription;
    # latencies are those of both fabrics and of the way to another building.
    catalogue = cluster.numbers
    sides = ((prompts.cluster, prompts.profile, counts.prefill), (cluster, profile, counts.decode))
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
    """Serve requests with prefill and decode on replicas of their own."""
    how = batching or Batching()
    prompts = pools.prompts
    first, padding = (prompts.profile, prompts.batching) if prompts else (profile, how)
    token_bytes = min(first.kv_bytes_per_token, profile.kv_bytes_per_token)
    ends, arrived, busy = _prefilled(first, requests, pools, padding, token_bytes)
    late_s = None
    if pools.slowest_bytes_per_s:
        slowest = replace(pools, transfer_bytes_per_s=pools.slowest_bytes_per_s)
        late_s = _prefilled(first, requests, slowest, padding, token_bytes)[1] - arrived
    # Decode replicas take turns in the order in which caches arrive.
    order = np.argsort(arrived, kind="stable")
    runs: list[Served] = []
    places: list[npt.NDArray[np.int64]] = []
    for replica in range(pools.decode):
        mine = order[replica :: pools.decode]
        if not len(mine):
            continue
        part = Requests(arrived[mine], requests.prompt[mine], requests.output[mine])
        words: dict[str, Any] = {"seed": seed + replica, "first_by_s": ends[mine]}
        runs.append(serve(profile, part, decoding(how), speculation=speculation, **words))
        places.append(mine)
    decoded = _joined(requests, runs, places)
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
    """Ends of all prompts, arrivals of their caches, and the replicas' time of work [s]."""
    # Heads that a replica holds several times are sent as often as the side with fewer has them.
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


@dataclass(frozen=True, eq=False)
class Deployment:
    """Replicas that serve requests: ``pools`` of them, or one for prompts and decode."""

    profile: Profile
    batching: Batching
    speculation: Speculation | None = None
    pools: Pools | None = None

    @property
    def prompts(self) -> PromptReplica | None:
        """Replica that processes prompts, if it is of another kind than those that decode."""
        return self.pools.prompts if self.pools else None

    @property
    def prompt_profile(self) -> Profile:
        """Times and sizes of the replica that processes prompts."""
        return self.prompts.profile if self.prompts else self.profile

    @property
    def chips_of_pools(self) -> tuple[int, int]:
        """Chips that process prompts, and chips that decode; a single replica counts as latter."""
        if self.pools is None:
            return 0, self.profile.chips
        prefill, decode = self.pools.prefill, self.pools.decode
        return prefill * self.prompt_profile.chips, decode * self.profile.chips

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return sum(self.chips_of_pools)

    @property
    def weighed_chips(self) -> float:
        """Chips of all replicas, those for prompts by their price over that of one that decodes."""
        prompts = self.prompts
        decode, prompt = (each.usd_per_chip_s for each in prompts.money) if prompts else (1.0, 1.0)
        if prompts is None or decode == prompt:
            return self.chips
        if not decode or not prompt:
            unknown = "the chips that decode" if prompt else prompts.cluster.name
            raise InputError(
                f"--search compares unlike chips by price, and that of {unknown} is unknown. State "
                "it in rows of --catalogue."
            )
        prompt_chips, decode_chips = self.chips_of_pools
        return prompt_chips * prompt / decode + decode_chips

    def most_at_once(self, lengths: Lengths) -> int:
        """Return the most requests of these lengths that slots and caches let decode at once."""
        mean_tokens = float((lengths.prompt + lengths.output).mean())
        cached = math.ceil(self.profile.kv_tokens / (mean_tokens + self.profile.state_tokens))
        return min(self.batching.slots, cached) * (self.pools.decode if self.pools else 1)

    def by_price(self, each: Economics) -> list[tuple[int, Economics]]:
        """Return numbers of chips with their power and price ``each``, those that decode first."""
        if self.prompts is None:
            return [(self.chips, each)]
        prompt_chips, decode_chips = self.chips_of_pools
        decode, prompt = self.prompts.money
        return [(decode_chips, decode), (prompt_chips, prompt)]

    def machines(self, each: Economics, count: int) -> list[tuple[int, int, float]]:
        """Return numbers of machines of ``count`` such, with chips and price [USD/h] of each."""
        # A machine is rented whole, and a replica that fits in one lies in one. Pools on one kind
        # of machine share them, and lie in one where all of them fit, as their transfers take it.
        prompts, largest = self.prompt_profile.chips, self.profile.chips
        kinds = self.by_price(each)
        if len(kinds) == 2 and kinds[0][1] == kinds[1][1]:
            kinds, size = [(self.chips, kinds[0][1])], kinds[0][1].machine_chips
            largest = self.chips if self.chips <= size else max(prompts, largest)
        needed = []
        for (chips, kind), replica in zip(kinds, (largest, prompts), strict=False):
            size = kind.machine_chips
            used = size - size % replica if replica < size else size
            usd_per_h = size * kind.usd_per_chip_s * 3600.0
            needed.append((math.ceil(count * chips / used), size, usd_per_h))
        return needed

    def rented(
        self, each: Economics, count: int
    ) -> tuple[list[tuple[int, int, float]], float | None]:
        """Return the machines of ``count`` deployments and their price [USD/h]; None if unknown."""
        machines = self.machines(each, count)
        priced = all(usd for _, _, usd in machines)
        return machines, sum(number * usd for number, _, usd in machines) if priced else None

    def usd(self, each: Economics, span_s: float) -> float | None:
        """Price of all chips for a time [USD]; None if that of some is unknown."""
        kinds = self.by_price(each)
        if not all(kind.usd_per_chip_s for _, kind in kinds):
            return None
        return sum(chips * span_s * kind.usd_per_chip_s for chips, kind in kinds)

    def run(self, requests: Requests, seed: int = 0, users: int | None = None) -> Deployed:
        """Serve requests, as they arrive or of some users; the seed says which proposals pass."""
        how: dict[str, Any] = {"batching": self.batching, "speculation": self.speculation}
        if self.pools is None:
            served = serve(self.profile, requests, seed=seed, users=users, **how)
            return Deployed(self, served, seed=seed, concurrency=users)
        if users is not None:
            raise InputError(
                f"--concurrency {users} is for replicas that run prompts and decode; leave "
                "--disaggregate out."
            )
        apart = serve_apart(self.profile, requests, self.pools, seed=seed, **how)
        return Deployed(self, apart.served, apart, seed=seed)


@dataclass(frozen=True, eq=False)
class Deployed:
    """Outcome of a deployment: of requests as they arrive, of users, or at the highest rate."""

    deployment: Deployment
    served: Served
    # Use of both pools and the transfers between them, if prefill and decode were apart
    apart: Apart | None = None
    seed: int = 0  # seed of accepted proposals
    concurrency: int | None = None  # users of a closed loop
    rate_per_s: float | None = None  # the highest rate within an SLO, where it was sought [1/s]
    binds: str = ""  # cause that keeps the replicas from a higher rate, see ``what_binds``
    demand_per_s: float | None = None  # rate for which replicas are counted [1/s]
    search: Any = None  # ``DeploymentSearch`` that found the deployment, if one did
    other_precision: Any = None  # ``OtherPrecision`` that would serve more, if one does

    @property
    def known(self) -> dict[str, str]:
        """Precision and engine, by which an answer is more or less sure."""
        deployment = self.deployment
        return {"precision": deployment.profile.precision, "engine": deployment.batching.engine}

    def at_once(self, rate_per_s: float) -> float:
        """Requests that are in work at once at a rate, by Little's law."""
        return rate_per_s * float(np.mean(self.served.end_s - self.served.requests.arrival_s))

    def summary(self, slo: Slo) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim serve --json``."""
        numbers = serving_summary(self.served, self.deployment.profile, slo)
        batching = self.deployment.batching
        numbers["prompts"] = (
            batching.prompts_text if self.apart is None else "whole, on replicas of their own"
        )
        numbers["slots"] = batching.slots
        numbers["runs_empty_slots"] = batching.runs_empty_slots
        if self.deployment.profile.weights_text:
            numbers["weights"] = self.deployment.profile.weights_text
        if self.concurrency is not None:
            numbers["concurrency"] = self.concurrency
        if (requests := self.served.requests).cached is not None:
            held = sum(requests.held(request) for request in range(len(requests)))
            numbers["prefix_hit_share"] = held / int(requests.prompt.sum())
        speculation, apart = self.deployment.speculation, self.apart
        if speculation is not None:
            numbers["speculation"] = {
                "tokens": speculation.tokens,
                "acceptance": speculation.acceptance,
                "expected_tokens_per_pass": speculation.expected_tokens,
            }
        if apart is not None and self.deployment.pools is not None:
            numbers |= self._pools(apart, self.deployment.pools)
        return numbers

    def document(self, slo: Slo, each: Economics) -> dict[str, Any]:
        """Return all numbers by their key in ``cluster-sim serve --json``, without intervals."""
        # At the highest rate, tokens and prices are those of requests that go on arriving, without
        # the beginning and the end of a run.
        numbers = {**self.summary(slo), **self.cost(each)}
        chips = self.deployment.chips
        numbers["tokens_per_s_per_chip"] = numbers["tokens_per_s"] / chips
        if self.rate_per_s is None:
            return numbers
        tokens_per_s = self.rate_per_s * float(self.served.requests.output.mean())
        usd_per_s = self.deployment.usd(each, 1.0)
        numbers |= {
            "max_rate_per_s": self.rate_per_s,
            "binds": self.binds,
            "requests_at_once": self.at_once(self.rate_per_s),
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_chip": tokens_per_s / chips,
            "usd_per_million_tokens": usd_per_s * TOKENS / tokens_per_s if usd_per_s else None,
        }
        if self.demand_per_s is not None:
            count = math.ceil(self.demand_per_s / self.rate_per_s)
            machines, usd_per_h = self.deployment.rented(each, count)
            numbers["demand"] = {
                "requests_per_s": self.demand_per_s,
                "deployments": count,
                "chips": count * chips,
                "machines": sum(number for number, _, _ in machines),
                "machine_chips": sum(number * size for number, size, _ in machines),
                "usd_per_h": usd_per_h,
            }
        other = self.other_precision.document() if self.other_precision else {}
        return numbers | (self.search.summary() if self.search else {}) | other

    def cost(
        self, each: Economics, *, longer: float = 1.0, slower: float = 1.0
    ) -> dict[str, float | None]:
        """Price and energy of the run and of its output tokens, by their JSON keys."""
        # A chip draws full power while its replica works, else idle power; with factors, in a run
        # that takes ``longer`` on replicas that are ``slower``.
        span = longer * self.span_s
        kinds = self.deployment.by_price(each)
        joules = 0.0
        for (chips, kind), working in zip(kinds, self._busy_chip_s(), strict=True):
            busy = min(working * slower, chips * span)
            joules += kind.pue * (busy * kind.busy_w + (chips * span - busy) * kind.idle_w)
        usd = self.deployment.usd(each, span)
        tokens = int(self.served.requests.output.sum())
        is_known = all(kind.busy_w for _, kind in kinds)
        return {
            "cost_usd": usd,
            "energy_joules": joules if is_known else None,
            "joules_per_token": joules / tokens if is_known else None,
            "usd_per_million_tokens": None if usd is None else usd * 1e6 / tokens,
        }

    def _busy_chip_s(self) -> tuple[float, ...]:
        """Chip-seconds of work, of each kind of chips in the order of their prices."""
        deployment, apart = self.deployment, self.apart
        each = deployment.profile.chips
        if apart is None or deployment.pools is None:
            return (self.served.busy_s * each,)
        if deployment.pools.prompts is None:
            return ((apart.prefill_busy_s + apart.decode_busy_s) * each,)
        prompts = apart.prefill_busy_s * deployment.prompt_profile.chips
        return apart.decode_busy_s * each, prompts

    @property
    def span_s(self) -> float:
        """Time from the first arrival to the end of the last answer or transfer [s]."""
        last = float(self.apart.arrived_s.max()) if self.apart else 0.0
        return max(self.served.end_of_run_s, last) - float(self.served.requests.arrival_s[0])

    def _pools(self, apart: Apart, pools: Pools) -> dict[str, Any]:
        span = self.span_s
        prefill = apart.prefill_busy_s / span / pools.prefill
        decode = apart.decode_busy_s / span / pools.decode
        both = pools.prefill + pools.decode
        return {
            "utilisation": (prefill * pools.prefill + decode * pools.decode) / both,
            "prefill_replicas": pools.prefill,
            "decode_replicas": pools.decode,
            "prefill_utilisation": prefill,
            "decode_utilisation": decode,
            "kv_transfer_s": latency(apart.transfer_s),
            "kv_transfer_bytes_per_s": pools.transfer_bytes_per_s,
            **self._unlike(apart, pools),
        }

    def _unlike(self, apart: Apart, pools: Pools) -> dict[str, Any]:
        """Numbers of pools of unlike replicas by their JSON keys."""
        prompts = pools.prompts
        if prompts is None:
            return {}
        numbers: dict[str, Any] = {
            "prefill_cluster": prompts.cluster.name,
            "prefill_chips": pools.prefill * prompts.profile.chips,
            "prices": prompts.prices,
        }
        if apart.late_s is not None:
            numbers["kv_network"] = {
                "grade": "assumed",
                "low_bytes_per_s": pools.slowest_bytes_per_s,
                "high_bytes_per_s": pools.transfer_bytes_per_s,
                "latency_s": pools.transfer_latency_s,
                "transfer_at_low_s": latency(apart.transfer_s + apart.late_s),
            }
        return numbers


def parse_pools(text: str) -> tuple[int, int]:
    """Read ``P:D``, the numbers of prefill and decode replicas, such as ``2:6``."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 9 for part in parts):
        raise InputError(
            f"--disaggregate {text[:80]!r} is not prefill and decode replicas; write 1:3."
        )
    return int(parts[0]), int(parts[1])


def intervals_of(
    model: Model, cluster: Cluster, deployed: Deployed, first_s: float, later_s: float
) -> tuple[Interval, Interval, Interval]:
    """Return intervals of the median first token, the median time per token, and of speed."""
    # First tokens come from replicas that process prompts, later ones from those that decode and
    # what joins the two; the rate has the wider of both.
    deployment, features = deployed.deployment, deployed.known
    prompts = deployment.prompts
    place, how = (prompts.cluster if prompts else cluster), features
    if prompts is not None and prompts.cluster != cluster:
        how = {**features, "engine": prompts.batching.engine}
    of_prompts = serving_features(model, place, deployment.prompt_profile.chips, **how)
    first = interval(first_s, of_first_token(of_prompts))
    chips = deployment.profile.chips
    later = interval(later_s, serving_features(model, cluster, chips, **features))
    if prompts is None:
        return first, later, later
    other = interval(later_s, of_prompts)
    wider = max(later, other, key=lambda ends: ends.factor)
    if deployed.apart is None or deployed.apart.late_s is None:
        return first, later, wider
    output = deployed.served.requests.output
    late_s = np.median((deployed.apart.late_s / np.maximum(output - 1, 1))[output > 1])
    slower = later.high * (1 + float(late_s) / later_s)
    basis = f"{later.basis}; the high end over the slowest network assumed between the clusters"
    return first, replace(later, high=slower, basis=basis, value=later_s), wider


def with_intervals(
    document: Mapping[str, Any], model: Model, cluster: Cluster, deployed: Deployed, slo: Slo
) -> dict[str, Any]:
    """Return the headline numbers of a run, with 80 % intervals of the predicted ones."""
    first_s, later_s = document["ttft_s"]["p50"], document["tpot_s"]["p50"]
    complete = {**document}
    first_token, later, per_token = intervals_of(model, cluster, deployed, first_s, later_s or 1.0)
    complete["interval"] = first_token.document()
    if later_s is not None:
        complete["tpot_interval"] = later.document()
    if "max_rate_per_s" in document:
        highest = per_token.scaled(document["max_rate_per_s"], rate=True)
        complete["max_rate_per_s_interval"] = highest
    if demand := document.get("demand"):
        few, many = (math.ceil(demand["requests_per_s"] / highest[end]) for end in ("high", "low"))
        needed = {"low": few, "high": many}
        complete["demand"] = {**demand, "deployments_interval": needed}
    rate, slow_run = rate_ends(document["tokens_per_s"], deployed, per_token)
    complete["tokens_per_s_interval"] = rate
    usd = document.get("usd_per_million_tokens")
    each = Economics.of(cluster)
    price = price_of(
        (chips * kind.usd_per_chip_s, kind) for chips, kind in deployed.deployment.by_price(each)
    )
    if not price.is_point:
        complete["price_interval"] = price.document()
    if demand and (usd_per_h := demand["usd_per_h"]) is not None:
        least, most = (deployed.deployment.rented(each, needed[end])[1] for end in ("low", "high"))
        rents = {"low": least or usd_per_h, "high": most or usd_per_h}
        complete["demand"]["usd_per_h_interval"] = price.times(usd_per_h, rents)
    if usd is not None:
        at = usd * document["tokens_per_s"]
        ends = {"low": at / rate["high"], "high": at / rate["low"]}
        complete["usd_per_million_tokens_interval"] = price.times(usd, ends)
    # First tokens and later ones are late together, and the run takes longer as its rate falls. On
    # a slower replica requests also wait longer for each other.
    first_by, later_by, slower = map(Uncertain.of, (first_token, later, per_token))
    runs = []
    for end, slow in (("low", "high"), ("high", "low")):
        longer, late = document["tokens_per_s"] / rate[end], attrgetter(slow)
        served = slow_run.served if end == "low" else deployed.served
        kept = attained(served, slo, first_by=late(first_by), later_by=late(later_by))
        spent = deployed.cost(each, longer=longer, slower=late(slower))
        share = float(kept.mean())
        good = document["requests_per_s"] * share / longer
        runs.append({"slo_attainment": share, "request_goodput_per_s": good, **spent})
    of_run = ("slo_attainment", "request_goodput_per_s", "cost_usd", "energy_joules")
    for name in (*of_run, "joules_per_token"):
        values = [document.get(name), *(one[name] for one in runs)]
        if None not in values:
            complete[f"{name}_interval"] = {"low": min(values), "high": max(values)}
    if spread := complete.get("cost_usd_interval"):
        complete["cost_usd_interval"] = price.times(document["cost_usd"], spread)
    return complete


def rate_ends(
    tokens_per_s: float, deployed: Deployed, ends: Interval
) -> tuple[dict[str, float], Deployed]:
    """Return the ends of the interval of a rate of output tokens [1/s], and the run at the low one.

    Times of that run count in those of the slower replica.
    """
    # A rate that was sought, or that users of a closed loop wait for, changes by the factor. Of
    # requests as they arrive, a slower replica may still serve all, with more of them in a pass.
    # One on which all takes longer by a factor does what this one does of requests that come
    # faster by it, later by it. A faster replica serves no more than what comes.
    factor = ends.factor
    if deployed.rate_per_s is not None or deployed.concurrency is not None:
        return {"low": tokens_per_s / factor, "high": tokens_per_s * factor}, deployed
    requests, output = deployed.served.requests, float(deployed.served.requests.output.sum())
    first, last = float(requests.arrival_s[0]), float(requests.arrival_s[-1])
    sooner = replace(requests, arrival_s=first + (requests.arrival_s - first) / factor)
    slower = deployed.deployment.run(sooner, deployed.seed)
    slower_s = factor * slower.span_s
    most = max(tokens_per_s, output / (last - first)) if last > first else math.inf
    low = min(tokens_per_s, output / slower_s)
    return {"low": low, "high": min(tokens_per_s * factor, most)}, slower
