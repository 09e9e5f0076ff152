"""A replica in one call: model, cluster and requests to latencies and throughput."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from topologies import display
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import as_cluster
from workloads.models.huggingface import as_model
from workloads.models.model import Model
from workloads.serving.batching import BUCKETS, Batching
from workloads.serving.capacity import Slo
from workloads.serving.metrics import parse_slo, serving_summary
from workloads.serving.profile import Profile, profile
from workloads.serving.replica import Served
from workloads.serving.replica import serve as run
from workloads.serving.requests import (
    Requests,
    azure_lengths,
    drawn_rate,
    poisson,
    read_requests,
)

CHUNK_TOKENS = 512
"""Tokens of an iteration with chunked prefill, unless the user says."""
USUAL_SLO = "ttft=6s,tpot=175ms"
DRAWN = 2000
"""Requests of a Poisson process."""


@dataclass(frozen=True, eq=False)
class ServingResult:
    """Requests that one replica served.

    Attributes
    ----------
    replica : Profile
        Memory and times of the replica.
    served : Served
        What became of each request.
    slo : Slo
        Limits that count as kept.
    """

    replica: Profile
    served: Served
    slo: Slo

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Headline numbers by their key in ``cluster-sim serve --json``."""
        return serving_summary(self.served, self.replica, self.slo)

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
        asked = self.served.requests
        return pd.DataFrame(
            {
                "arrival_s": asked.arrival_s,
                "prompt_tokens": asked.prompt,
                "output_tokens": asked.output,
                "ttft_s": self.served.ttft_s,
                "tpot_s": self.served.tpot_s,
                "end_s": self.served.end_s,
            }
        )

    @property
    def _facts(self) -> dict[str, object]:
        summary = self.summary
        return {
            "requests": f"{summary['requests']:,}",
            "chips": self.replica.chips,
            "TTFT p50": f"{summary['ttft_s']['p50']:.4g} s",
            "TPOT p50": f"{summary['tpot_s']['p50']:.4g} s",
            "tokens/s": f"{summary['tokens_per_s']:,.1f}",
            "within the SLO": f"{summary['slo_attainment']:.2%}",
        }

    def __repr__(self) -> str:
        return display.line("ServingResult", self._facts)

    def _repr_html_(self) -> str:
        return display.table("Serving", self._facts)


def serve(
    model: Model | str,
    cluster: Cluster | str,
    requests: Requests | str = "poisson:0.1",
    *,
    tp: int | None = None,
    precision: str = "bf16",
    batching: Batching | None = None,
    slo: Slo | str = USUAL_SLO,
    seed: int = 0,
) -> ServingResult:
    """Serve requests on one replica, iteration by iteration.

    Parameters
    ----------
    model : Model or str
        A model or its name, as :func:`cluster_sim.model` takes it.
    cluster : Cluster or str
        A cluster or its name, as :func:`cluster_sim.cluster` takes it; the replica runs on its
        first chips.
    requests : Requests or str
        ``"poisson:RATE"`` draws 2,000 requests at RATE [1/s], as long as those of
        Azure's conversations; any other text is the path of a log. Requests of your own are drawn
        by :func:`workloads.serving.poisson` or read by :func:`workloads.serving.read_requests`.
    tp : int, optional
        Tensor-parallel degree; by default the chips of one server.
    precision : str
        Of the weights.
    batching : Batching, optional
        By default that of the chip's serving library, :func:`usual_batching`.
    slo : Slo or str
        Limits that count as kept, such as ``"ttft=2s,tpot=50ms"``.
    seed : int, default 0
        Of drawn requests.

    Returns
    -------
    ServingResult
        Percentiles of ``ttft_s`` and ``tpot_s`` [s], ``tokens_per_s`` [1/s], and ``frame()``,
        request by request.

    Raises
    ------
    InputError
        For a model that does not fit, and a request that can never fit into the cache.

    Examples
    --------
    >>> import numpy as np
    >>> from workloads.serving import fixed_lengths, poisson
    >>> requests = poisson(1.0, 20, fixed_lengths(256, 32), np.random.default_rng(0))
    >>> serve("llama-3.1-8b", "trn2.48xlarge", requests, tp=8).summary["requests"]
    20
    """
    machine = as_cluster(cluster)
    replica = profile(as_model(model), machine, tp=tp, precision=precision)
    arrivals = _requests(requests, seed) if isinstance(requests, str) else requests
    served = run(replica, arrivals, batching or usual_batching(machine))
    return ServingResult(replica, served, parse_slo(slo) if isinstance(slo, str) else slo)


def _requests(text: str, seed: int) -> Requests:
    """Requests that a text names: drawn, or read from a log."""
    rate_per_s = drawn_rate(text)
    if rate_per_s is None:
        return read_requests(text, seed=seed)
    return poisson(rate_per_s, DRAWN, azure_lengths(), np.random.default_rng(seed))


def usual_batching(cluster: Cluster, slots: int = 64) -> Batching:
    """Batching of the chip's serving library: whole prompts on Trainium, chunks elsewhere."""
    if cluster.chip.startswith("trn"):
        return Batching(slots, 0, BUCKETS)
    return Batching(slots, CHUNK_TOKENS)
