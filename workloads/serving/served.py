"""The outcome of serving requests on one replica: when each request began and ended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from topologies.arrays import FloatArray
from workloads.serving.requests import Requests


@dataclass(frozen=True, eq=False)
class Served:
    """Outcome of each request; times are NaN for one that was not finished.

    ``first_token_s, end_s`` (requests,).
    ``gap_s, gap_count`` (stretches,): mean time between tokens of each stretch of decoding, and how
        many tokens it covers.
    ``busy_s, end_of_run_s``: time with anything to do, and the end of the last iteration [s].
    ``batch_mean``: requests that decode, mean over decode iterations.
    ``request_s``: part of every time to first token outside the engine [s].
    """

    requests: Requests
    first_token_s: FloatArray
    end_s: FloatArray
    gap_s: FloatArray
    gap_count: FloatArray
    busy_s: float
    end_of_run_s: float
    kv_peak_tokens: int
    batch_mean: float
    iterations: int
    request_s: float = 0.0

    @property
    def ttft_s(self) -> FloatArray:
        """Time to first token of each request [s]."""
        return self.first_token_s - self.requests.arrival_s + self.request_s

    @property
    def tpot_s(self) -> FloatArray:
        """Mean time of each later token; NaN for single tokens [s]."""
        later = self.requests.output - 1
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(later > 0, (self.end_s - self.first_token_s) / later, np.nan)
