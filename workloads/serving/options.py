"""Options of serving: batching, a prefix cache, speculation, and disaggregated prefill."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.options.serving import USUAL_REQUESTS
from workloads.serving.batching import Batching, batching_from, engine_numbers
from workloads.serving.deployment import Deployment, parse_pools
from workloads.serving.disaggregated import pools
from workloads.serving.highest_rate import FILLS, Offered
from workloads.serving.prefix_cache import with_prefix_cache
from workloads.serving.profile import Profile, profile
from workloads.serving.requests import DRAWN, Requests, drawn_lengths
from workloads.serving.speculation import Speculation, parse_speculation

MOST_OFFERED = 50_000
"""Most requests of each run of a search for a rate, unless stated."""
DRAWING = ("count", "rate", "prompt", "output", "service")
"""Options about requests that are drawn or read."""
BATCHING = ("prefill", "chunk", "slots", "scheduler", "poll", "gather")
"""Options about the batching of a replica."""


@dataclass(frozen=True, eq=False)
class ServingOptions:
    """Options of the replicas that serve a model.

    Attributes
    ----------
    batching : Batching, optional
        By default the batching of the chip's serving library, see
        :func:`~workloads.serving.batching.batching_from`.
    ep : int, default 1
        Groups of ranks that divide the experts, see :func:`workloads.serving.profile.profile`.
    cache_precision : str, optional
        Precision of cached keys and values, ``bf16`` or ``fp8``.
    prefix_cache : str, optional
        Part of the prompts that a cache holds: a share such as ``"50%"``, ``"50%:cold"`` for a
        cache that is empty at first, or ``"trace"`` for the blocks that a log names.
    speculate : str or Speculation, optional
        Proposals that one pass verifies. ``"7:0.9:llama-3.2-1b"`` means seven tokens from that
        draft model, each accepted with probability 0.9. A number instead of the draft is its share
        of the model's time.
    disaggregate : str or (int, int), optional
        Prefill and decode replicas, such as ``"1:3"``; by default one replica does both.
    """

    batching: Batching | None = None
    ep: int = 1
    cache_precision: str | None = None
    prefix_cache: str | None = None
    speculate: str | Speculation | None = None
    disaggregate: str | tuple[int, int] | None = None

    def deployment(
        self, model: Model, cluster: Cluster, *, tp: int | None, precision: str | None
    ) -> Deployment:
        """Return the replicas that serve a model on the first chips of a cluster.

        Raises
        ------
        InputError
            For a model or draft that does not fit, and for more replicas than the cluster has
            chips for.
        """
        batching = self.batching or batching_from(cluster)
        numbers = engine_numbers(cluster.catalogue or shipped_catalogue(), batching.engine)
        replica = profile(
            model, cluster, tp=tp, precision=precision, ep=self.ep,
            cache_precision=self.cache_precision, catalogue=numbers,
        )  # fmt: skip

        def draft(name: str) -> Profile:
            return profile(as_model(name), cluster, tp=tp, catalogue=numbers)

        speculation, apart = self.speculate, self.disaggregate
        if isinstance(speculation, str):
            speculation = parse_speculation(speculation, draft)
        if isinstance(apart, str):
            apart = parse_pools(apart)
        return Deployment(
            replica, batching, speculation, pools(cluster, replica, *apart) if apart else None
        )

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

        Parameters
        ----------
        deployment : Deployment
        requests : str
            ``poisson:0.1``, the default, whose rate is not used.
        count : int, optional
            By default 2,000, or more where slots need more to be full.
        rate, seed
            As of :func:`workloads.serving.requests.requests_from`.
        **lengths
            ``prompt``, ``output`` and ``service`` of :func:`drawn_lengths`.

        Raises
        ------
        InputError
            For a stated rate or a log.
        """
        source = requests if isinstance(requests, str) else "as they are"
        stated = f"--rate {rate:g}" if rate is not None else f"--requests {source}"
        if rate is not None or source != USUAL_REQUESTS:
            raise InputError(
                f"{stated} states when requests arrive, and the highest rate is searched. Leave it "
                "out; --service, --prompt and --output state lengths."
            )
        decoding = deployment.batching.slots * (deployment.pools.decode if deployment.pools else 1)
        enough = min(max(DRAWN, FILLS * decoding), MOST_OFFERED)
        replica = deployment.profile
        return Offered(
            deployment,
            drawn_lengths(**lengths),
            count or enough,
            seed,
            lambda drawn: self.cached(drawn, replica, None),
        )

    def cached(self, requests: Requests, replica: Profile, path: Path | None) -> Requests:
        """Return the requests with the tokens of their prompts that a prefix cache holds.

        Parameters
        ----------
        requests : Requests
        replica : Profile
        path : Path, optional
            Log that the requests were read from; ``"trace"`` needs it.
        """
        if self.prefix_cache is None:
            return requests
        kv_tokens = replica.kv_tokens
        return with_prefix_cache(requests, self.prefix_cache, kv_tokens=kv_tokens, path=path)


HOW = ("max_rate", "search", "concurrency")
WORDS = (*(each.name for each in fields(ServingOptions)), *DRAWING, *BATCHING, *HOW)
"""Keywords of ``cs.serve`` beside its parameters."""
