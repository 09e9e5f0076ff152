"""Options of serving: batching, a prefix cache, speculation, and disaggregated prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.machines import machine_of
from topologies.clusters.names import machine
from topologies.errors import InputError
from workloads.economics import Economics, one_kind_of_price
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.options.serving import USUAL_REQUESTS
from workloads.serving.batching import USUAL_CACHE, Batching, batching_from, engine_numbers
from workloads.serving.deployment import Deployment, parse_pools
from workloads.serving.disaggregated import PromptReplica, pools
from workloads.serving.highest_rate import FILLS, Offered
from workloads.serving.prefix_cache import with_prefix_cache
from workloads.serving.profile import Profile, profile
from workloads.serving.requests import DRAWN, Requests, drawn_lengths, drawn_rate
from workloads.serving.speculation import Speculation, parse_speculation

MOST_OFFERED = 50_000
"""Most requests of each run of a search for a rate, unless stated."""
DRAWING = ("count", "rate", "prompt", "output", "shortest_lengths", "service")
"""Options about requests that are drawn or read."""
BATCHING = ("prefill", "chunk", "slots", "scheduler", "poll", "gather")
"""Options about the batching of a replica."""


@dataclass(frozen=True, eq=False)
class ServingOptions:
    """Options of the replicas that serve a model.

    They are those of :mod:`workloads.options.serving`, as text or as what the text describes.
    """

    batching: Batching | None = None  # by default that of the chip, see ``batching_from``
    ep: int = 1
    attention_dp: int = 1
    cache_precision: str | None = None
    prefix_cache: str | None = None
    speculate: str | Speculation | None = None
    disaggregate: str | tuple[int, int] | None = None
    prefill_cluster: str | Cluster | None = None
    prefill_tp: int | None = None

    @property
    def unlike(self) -> bool:
        """Return whether prefill replicas have a stated cluster or degree of their own."""
        return self.prefill_cluster is not None or self.prefill_tp is not None

    def deployment(
        self, model: Model, cluster: Cluster, *, tp: int | None, precision: str | None
    ) -> Deployment:
        """Return the replicas that serve a model on the first chips of a cluster."""
        batching = (self.batching or batching_from(cluster)).of_groups(self.attention_dp)
        numbers = engine_numbers(cluster.catalogue or shipped_catalogue(), batching.engine)
        cache = self.cache_precision or USUAL_CACHE.get(batching.engine)
        sizes: Mapping[str, Any] = {
            "precision": precision, "ep": self.ep, "cache_precision": cache,
            "attention_dp": self.attention_dp,
        }  # fmt: skip
        replica = profile(model, cluster, tp=tp, catalogue=numbers, **sizes)

        def draft(name: str) -> Profile:
            return profile(as_model(name), cluster, tp=tp, catalogue=numbers)

        speculation, apart = self.speculate, self.disaggregate
        if isinstance(speculation, str):
            speculation = parse_speculation(speculation, draft)
        if isinstance(apart, str):
            apart = parse_pools(apart)
        if self.unlike and not apart:
            stated = "--prefill-tp" if self.prefill_cluster is None else "--prefill-cluster"
            raise InputError(
                f"{stated} is for replicas that process prompts alone. State how many there are, "
                "such as --disaggregate 1:3, or leave it out."
            )
        if not apart:
            return Deployment(replica, batching, speculation)
        prompts = None
        if self.prompt_cluster(cluster) != cluster or self.prefill_tp not in (None, tp):
            prompts = self._prompts(model, cluster, batching, sizes)
        return Deployment(replica, batching, speculation, pools(cluster, replica, *apart, prompts))

    def prompt_cluster(self, cluster: Cluster) -> Cluster:
        """Return the cluster on which prompts are processed."""
        place = self.prefill_cluster
        if isinstance(place, str):
            place = machine(place, catalogue=cluster.catalogue)
        return place or cluster

    def _prompts(
        self, model: Model, cluster: Cluster, batching: Batching, sizes: Mapping[str, Any]
    ) -> PromptReplica:
        """Return a replica of another kind that processes prompts, and the prices of both."""
        place = self.prompt_cluster(cluster)
        how = batching
        if place != cluster:
            how = batching_from(place).of_groups(self.attention_dp)
        catalogue = place.catalogue or shipped_catalogue()
        numbers = engine_numbers(catalogue, how.engine)
        replica = profile(model, place, tp=self.prefill_tp, catalogue=numbers, **sizes)
        named = [machine_of(cluster), machine_of(place)]
        priced, prices = one_kind_of_price(cluster.catalogue or catalogue, named)
        both = [Economics.of(replace(each, catalogue=priced)) for each in (cluster, place)]
        return PromptReplica(replica, how, place, (both[0], both[1]), prices)

    def offered(
        self,
        deployment: Deployment,
        requests: Requests | str,
        *,
        count: int | None = None,
        rate: float | None = None,
        seed: int = 0,
        **lengths: Any,
    ) -> Offered:
        """Return drawn requests that are offered to replicas at any rate.

        Replicas are counted for the rate of ``poisson:RATE``, if one is stated. By default there
        are 2,000 requests, or more where slots and caches need more to be full. ``lengths`` are
        those of :func:`drawn_lengths`.
        """
        source = requests if isinstance(requests, str) else "as they are"
        demand_per_s = drawn_rate(source)
        if rate is not None or demand_per_s is None:
            stated = f"--rate {rate:g}" if rate is not None else f"--requests {source}"
            raise InputError(
                f"{stated} states when requests arrive, and the highest rate is searched. Leave it "
                "out; --service, --prompt and --output state lengths, --requests poisson:RATE a "
                "rate for which replicas are counted."
            )
        drawn = drawn_lengths(**lengths)
        enough = min(max(DRAWN, FILLS * deployment.most_at_once(drawn)), MOST_OFFERED)
        replica = deployment.prompt_profile
        return Offered(
            deployment,
            drawn,
            count or enough,
            seed,
            lambda requests: self.cached(requests, replica),
            None if source == USUAL_REQUESTS else demand_per_s,
        )

    def cached(self, requests: Requests, replica: Profile) -> Requests:
        """Return the requests with the tokens of their prompts that a prefix cache holds."""
        if self.prefix_cache is None:
            return requests
        return with_prefix_cache(requests, self.prefix_cache, kv_tokens=replica.kv_tokens)


HOW = ("max_rate", "search", "concurrency")
WORDS = (*(each.name for each in fields(ServingOptions)), *DRAWING, *BATCHING, *HOW)
"""Keywords of ``cs.serve`` beside its parameters."""
