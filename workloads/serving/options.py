"""Options of serving: batching, a prefix cache, speculation, and disaggregated prefill."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.serving.batching import Batching
from workloads.serving.deployment import Deployment, parse_pools
from workloads.serving.disaggregated import pools
from workloads.serving.engines import engine_numbers
from workloads.serving.parsing import batching_from
from workloads.serving.prefix_cache import with_prefix_cache
from workloads.serving.profile import Profile, profile
from workloads.serving.requests import Requests
from workloads.serving.speculation import Speculation, parse_speculation


class ServeKeywords(TypedDict, total=False):
    """Options of ``cluster-sim serve`` and fields of :class:`ServingOptions` as keywords."""

    batching: Batching | None
    ep: int
    cache_precision: str | None
    prefix_cache: str | None
    speculate: str | Speculation | None
    disaggregate: str | tuple[int, int] | None
    count: int
    rate: float
    prompt: int
    output: int
    service: str
    prefill: str
    chunk: int
    slots: int
    scheduler: str | None
    poll: int
    gather: str | None


@dataclass(frozen=True, eq=False)
class ServingOptions:
    """Options of the replicas that serve a model.

    Attributes
    ----------
    batching : Batching, optional
        By default the batching of the chip's serving library, see
        :func:`~workloads.serving.parsing.batching_from`.
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
            replica,
            batching,
            speculation,
            pools(cluster, replica, *apart) if apart else None,
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
