"""A replica in one call: model, cluster and requests to latencies and throughput."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from topologies import display
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.serving.capacity import Slo
from workloads.serving.metrics import parse_slo, serving_summary
from workloads.serving.profile import Profile, profile
from workloads.serving.replica import BUCKETS, Batching, Served
from workloads.serving.replica import serve as run
from workloads.serving.requests import Requests

CHUNK_TOKENS = 512
"""Tokens of an iteration with chunked prefill, unless the user says."""
USUAL_SLO = "ttft=6s,tpot=175ms"


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
    model: Model,
    cluster: Cluster,
    requests: Requests,
    *,
    tp: int | None = None,
    precision: str = "bf16",
    batching: Batching | None = None,
    slo: Slo | str = USUAL_SLO,
) -> ServingResult:
    """Serve requests on one replica, iteration by iteration.

    Parameters
    ----------
    model : Model
    cluster : Cluster
        The replica runs on its first chips.
    requests : Requests
        Such as :func:`workloads.serving.poisson` draws or :func:`workloads.serving.read_requests`
        reads.
    tp : int, optional
        Tensor-parallel degree; by default the chips of one server.
    precision : str
        Of the weights.
    batching : Batching, optional
        By default that of the chip's serving library, :func:`usual_batching`.
    slo : Slo or str
        Limits that count as kept, such as ``"ttft=2s,tpot=50ms"``.

    Raises
    ------
    InputError
        For a model that does not fit, and a request that can never fit into the cache.
    """
    replica = profile(model, cluster, tp=tp, precision=precision)
    served = run(replica, requests, batching or usual_batching(cluster))
    return ServingResult(replica, served, parse_slo(slo) if isinstance(slo, str) else slo)


def usual_batching(cluster: Cluster, slots: int = 64) -> Batching:
    """Batching of the chip's serving library: whole prompts on Trainium, chunks elsewhere."""
    if cluster.chip.startswith("trn"):
        return Batching(slots, 0, BUCKETS)
    return Batching(slots, CHUNK_TOKENS)
