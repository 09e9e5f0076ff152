"""A replica in one call: model, cluster and requests to latencies and throughput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from cluster_sim.progress import Watch, unwatched
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.support import display
from topologies.support.arguments import Seed, check_fields, check_names, checked
from topologies.support.errors import InputError
from workloads.confidence.interval import Interval
from workloads.economics import Economics
from workloads.models.huggingface import MODEL_REMEDY, as_model
from workloads.models.model import Model
from workloads.options.keywords import check_limits
from workloads.options.serving import (
    USUAL_REQUESTS,
    USUAL_SLO,
    DeploymentInputs,
    ReplicaInputs,
    RequestInputs,
)
from workloads.serving.batching import batching_from
from workloads.serving.deployment import Deployed, intervals_of, with_intervals
from workloads.serving.deployment_search import (
    DeploymentQuestion,
    ServingOptions,
    at_highest_rate,
    search_deployments,
)
from workloads.serving.other_precision import FP8, with_other_precision
from workloads.serving.profile import Profile
from workloads.serving.remarks import serving_remarks
from workloads.serving.requests import DRAWN, Requests, drawn_rate, requests_from
from workloads.serving.served import Served, Slo, parse_slo

if TYPE_CHECKING:
    import pandas as pd

DRAWING = ("count", "rate", "prompt", "output", "shortest_lengths", "service")
"""Options about requests that are drawn or read."""
BATCHING = ("prefill", "chunk", "slots", "scheduler", "date", "poll", "gather")
"""Options about the batching of a replica."""


HOW = ("max_rate", "search", "concurrency")
WORDS = (*(each.name for each in fields(ServingOptions)), *DRAWING, *BATCHING, *HOW)
"""Keywords of ``cs.serve`` beside its parameters."""
EXCLUDED = {"batching": ("search", *BATCHING), "concurrency": ("search", "max_rate", "rate")}
"""Keywords that exclude each other."""
AS_RATE = (
    "for N users state their rate instead, --requests poisson:RATE, where RATE is N over the "
    "seconds from one question of a user to the next"
)


@display.by_facts("Serving")
@dataclass(frozen=True, eq=False)
class ServingResult:
    """Requests that a deployment served.

    ``deployed``: replicas, what became of each request, and the highest rate if it was sought.
    ``slo``: limits that count as kept.
    """

    model: Model
    cluster: Cluster
    deployed: Deployed
    slo: Slo

    @property
    def replica(self) -> Profile:
        """Memory and times of one replica."""
        return self.deployed.deployment.profile

    @property
    def served(self) -> Served:
        """Outcome of each request."""
        return self.deployed.served

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim serve --json``."""
        return self.deployed.document(self.slo, Economics.of(self.cluster))

    @property
    def interval(self) -> Interval:
        """Interval that should hold 80 % of measured median times to first token [s]."""
        return self._intervals[0]

    @property
    def tpot_interval(self) -> Interval | None:
        """Interval of the median time per token [s]; None where every answer is one token."""
        return None if self.summary["tpot_s"]["p50"] is None else self._intervals[1]

    @cached_property
    def _intervals(self) -> tuple[Interval, Interval, Interval]:
        first_s, later_s = (self.summary[key]["p50"] for key in ("ttft_s", "tpot_s"))
        return intervals_of(self.model, self.cluster, self.deployed, first_s, later_s or 1.0)

    @property
    def tokens_per_s_interval(self) -> dict[str, float]:
        """Ends ``low`` and ``high`` of the rate of output tokens [1/s]."""
        return dict(self._complete["tokens_per_s_interval"])

    @cached_property
    def _complete(self) -> dict[str, Any]:
        return with_intervals(self.summary, self.model, self.cluster, self.deployed, self.slo)

    @cached_property
    def remarks(self) -> list[str]:
        """Sentences to read before believing the answer, as the command prints them."""
        return serving_remarks(self.model, self.cluster, self.deployed, self._complete)

    @property
    def ttft_s(self) -> dict[str, float | None]:
        """Percentiles and mean of the time to first token [s]."""
        return dict(self.summary["ttft_s"])

    @property
    def tpot_s(self) -> dict[str, float | None]:
        """Percentiles and mean of the time per output token [s]."""
        return dict(self.summary["tpot_s"])

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the replica [1/s]."""
        return float(self.summary["tokens_per_s"])

    def frame(self) -> pd.DataFrame:
        """Requests as a table: arrival, lengths, latencies, end."""
        return self.served.frame()

    @property
    def _facts(self) -> dict[str, object]:
        summary = self.summary
        return {
            "requests": f"{summary['requests']:,}",
            "chips": self.deployed.deployment.chips,
            "TTFT p50": f"{summary['ttft_s']['p50']:.4g} s",
            "TPOT p50": f"{summary['tpot_s']['p50']:.4g} s",
            "tokens/s": f"{summary['tokens_per_s']:,.1f}",
            "within the SLO": f"{summary['slo_attainment']:.2%}",
        }


@checked(
    model=MODEL_REMEDY, cluster=CLUSTER_REMEDY, requests="Pass poisson:RATE, a log or Requests."
)
def serve(
    model: Model | str,
    cluster: Cluster | str,
    requests: Requests | str = USUAL_REQUESTS,
    *,
    tp: int | None = None,
    precision: str | None = None,
    slo: Slo | str = USUAL_SLO,
    seed: Seed = 0,
    **keywords: Any,
) -> ServingResult:
    """Serve requests on one replica, or on pools of them, iteration by iteration.

    Parameters
    ----------
    model : Model or str
        A model or its name.
    cluster : Cluster or str
        A cluster or its name; the replica runs on its first chips.
    requests : Requests or str
        ``"poisson:RATE"`` draws 2,000 requests at RATE [1/s], as long as those of Azure's
        conversations; any other text is the path of a log.
    tp : int, optional
        Tensor-parallel degree; by default the chips of one server.
    precision : str, optional
        Precision of the weights, such as ``"mxfp4"``; by default that of the stored ones. With
        ``search`` also several, such as ``"bf16,fp8"``, of which the best serves.
    slo : Slo or str
        Limits that count as kept, such as ``"ttft=2s,tpot=50ms"``.
    seed : int, default 0
        Seed of drawn requests and accepted proposals.
    **keywords
        Other options of ``cluster-sim serve``, such as ``count=500`` or ``max_rate=True``, for the
        highest rate within the SLO; see :mod:`workloads.options.serving`.

    Returns
    -------
    ServingResult
        Percentiles of ``ttft_s`` and ``tpot_s`` [s], ``tokens_per_s`` [1/s], ``interval`` of the
        median first token, ``tpot_interval``, ``tokens_per_s_interval``, ``frame()`` of requests,
        and ``remarks``, sentences to read before believing them.

    Raises
    ------
    InputError
        For a model or a request that can never fit, and a way to serve that there is not.

    Examples
    --------
    >>> few = {"count": 20, "prompt": 256, "output": 32, "tp": 8}
    >>> plain = serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", **few)
    >>> ahead = serve("llama-3.1-8b", "trn2.48xlarge", "poisson:1", **few, speculate="3:0.8")
    >>> ahead.tpot_s["p50"] < plain.tpot_s["p50"]
    True
    """
    stated = _checked(keywords)
    decoder, machine = as_model(model), as_cluster(cluster)
    limits = parse_slo(slo) if isinstance(slo, str) else slo
    stated |= {"requests": requests, "tp": tp, "precision": precision, "seed": seed}
    return ServingResult(decoder, machine, answered(decoder, machine, limits, stated), limits)


def _checked(keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keywords that are stated, which must have names and types of options."""
    check_names("serve", keywords, [*signature(serve).parameters, *WORDS])
    stated = {name: value for name, value in keywords.items() if value is not None}
    for kind in (RequestInputs, ReplicaInputs, ServingOptions):
        named = {each.name for each in fields(kind)}
        check_fields(kind, {name: stated[name] for name in named & stated.keys()})
    for limited in (RequestInputs, ReplicaInputs, DeploymentInputs):
        check_limits(limited, stated)
    return {name: value for name, value in stated.items() if value is not False}


def answered(
    model: Model, cluster: Cluster, slo: Slo, stated: Mapping[str, Any], *, watch: Watch = unwatched
) -> Deployed:
    """Serve as stated: requests as they arrive, a closed loop, or the highest rate.

    ``stated``: parameters and keywords of :func:`serve` by name. ``watch``: wraps the sequence of
    deployments of a search, to show progress.
    """
    _check_together(stated)
    size = {name: stated.get(name) for name in ("tp", "precision")}
    batching = {name: stated[name] for name in BATCHING if name in stated}
    drawing = {name: stated[name] for name in ("requests", "seed", *DRAWING) if name in stated}
    ways = {each.name: stated[each.name] for each in fields(ServingOptions) if each.name in stated}
    options = ServingOptions(**ways)
    question = DeploymentQuestion(model, cluster, slo, options, batching, drawing, **size)
    if "search" in stated:
        searched = search_deployments(question, watch)
        words, in_fp8 = searched.ranked[0].words, replace(question, precision=FP8)
        degrees = {"tp", "ep"} & words.keys()  # experts that all ranks divide are so on fewer chips
        return with_other_precision(
            searched.best(),
            question,
            lambda tp: in_fp8.offered({**words, **dict.fromkeys(degrees, tp)} if tp else words),
        )
    if batching:
        options = replace(options, batching=batching_from(cluster, **batching))
    replicas = options.deployment(model, cluster, **size)
    if "max_rate" in stated:
        least = stated.get("count", DRAWN)
        return with_other_precision(
            at_highest_rate(options.offered(replicas, **drawing), slo, least=least),
            question,
            lambda _: options.offered(
                options.deployment(model, cluster, tp=size["tp"], precision=FP8), **drawing
            ),
        )
    users = stated.get("concurrency")
    source = drawing["requests"]
    stated_rate = isinstance(source, str) and source != USUAL_REQUESTS and drawn_rate(source)
    if users is not None and stated_rate:
        raise InputError(
            f"--requests {source} states when requests arrive, and the {users} users of "
            "--concurrency send them. Leave one out."
        )
    cached = options.cached(_requests(**drawing), replicas.prompt_profile)
    seed = stated.get("seed", 0)
    return replicas.run(cached, seed, users)


def _check_together(stated: Mapping[str, Any]) -> None:
    """Refuse options that exclude each other."""
    for one, others in EXCLUDED.items():
        for other in others:
            if one in stated and other in stated:
                names = (f"--{name.replace('_', '-')}" for name in (one, other))
                remedy = AS_RATE if one == HOW[2] and other in HOW else "give one of them"
                raise InputError(f"{' and '.join(names)} exclude each other; {remedy}.")


def _requests(requests: Requests | str, seed: int = 0, **drawing: Any) -> Requests:
    """Draw or read requests, unless they are passed."""
    if isinstance(requests, str):
        return requests_from(requests, seed=seed, **drawing)
    if drawing:
        raise InputError(
            f"{', '.join(drawing)} for requests as they are; give a log or poisson:RATE."
        )
    return requests
