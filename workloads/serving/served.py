"""Limits of latency, and the outcome of serving requests: when each began and ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.support.arrays import FloatArray
from topologies.support.errors import InputError, suggestion
from topologies.support.units import format_seconds, parse_seconds, parse_share
from workloads.serving.profile import Profile
from workloads.serving.requests import Requests

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Slo:
    """Service-level objective: limits that a request must keep to count as attained."""

    # ttft_s, tpot_s: largest time to first token and mean time per later token [s]
    ttft_s: float = float("inf")
    tpot_s: float = float("inf")
    # Share of requests that must attain both for a rate to count as under the SLO
    share: float = 0.99

    def __str__(self) -> str:
        """Text of the limits as people write it; a limit that is not set is left out."""
        limits = (("ttft", self.ttft_s), ("tpot", self.tpot_s))
        limited = [f"{name} {format_seconds(value)}" for name, value in limits if value < math.inf]
        return " and ".join(limited) or "no limit"


LIMITS = ("ttft", "tpot")


def parse_slo(text: str, *, share: float = 0.99) -> Slo:
    """Read ``ttft=2s,tpot=50ms,share=99.9%``; a limit that is left out is infinite."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        name = name.strip().lower()
        if name == "share" or (not equals and name.endswith("%")):
            share = parse_share(value if equals else name, "slo share")
            continue
        if not equals or name not in LIMITS:
            raise InputError(
                f"slo {part.strip()!r} is not of the form ttft=2s,tpot=50ms."
                + suggestion(name, LIMITS)
            )
        if name in limits:
            raise InputError(f"slo {text!r} names {name} twice; keep one limit.")
        limits[name] = parse_seconds(value, f"slo {name}")
        if not limits[name] > 0:
            raise InputError(f"slo {name} is {value}; it must be above 0.")
    return Slo(limits.get("ttft", math.inf), limits.get("tpot", math.inf), share)


class SloMissed(InputError):  # noqa: N818 - a property of the replica, not a fault of the program
    """An SLO that a replica misses even at a twentieth of its full rate.

    ``replica``: name of the replica.
    ``attained``: share of the requests that keep the limits at that rate.
    ``of_each``: shares that keep each of several limits, by its name.
    """

    def __init__(
        self, replica: str, slo: Slo, attained: float, of_each: Mapping[str, float]
    ) -> None:
        apart = ", ".join(f"{name} alone {share:.1%}" for name, share in of_each.items())
        super().__init__(
            f"{replica} keeps {slo} for only {attained:.1%} of the requests, even at 5% of its "
            f"full rate, under {slo.share:.0%}{f' ({apart})' if apart else ''}; use more chips, "
            "shorter requests or a looser SLO."
        )
        self.replica, self.attained, self.of_each = replica, attained, of_each


@dataclass(frozen=True, eq=False)
class Served:
    """Outcome of each request; times are NaN for one that was not finished.

    ``first_token_s, end_s`` (requests,).
    ``gap_s, gap_count`` (stretches,): mean time between tokens of each stretch of decoding, and how
        many tokens it covers.
    ``busy_s, end_of_run_s``: time with anything to do, and the end of the last iteration [s].
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

    def frame(self) -> pd.DataFrame:
        """Requests as a table: arrival, lengths, latencies, end."""
        import pandas as pd

        return pd.DataFrame(
            {
                "arrival_s": self.requests.arrival_s,
                "prompt_tokens": self.requests.prompt,
                "output_tokens": self.requests.output,
                "ttft_s": self.ttft_s,
                "tpot_s": self.tpot_s,
                "end_s": self.end_s,
            }
        )


def attained(
    served: Served, slo: Slo, *, first_by: float = 1.0, later_by: float = 1.0
) -> npt.NDArray[np.bool_]:
    """Return which requests kept both limits, with factors; one token has no TPOT to miss."""
    tpot = np.nan_to_num(served.tpot_s, nan=0.0)
    in_time = (served.ttft_s * first_by <= slo.ttft_s) & (tpot * later_by <= slo.tpot_s)
    return np.asarray(in_time)


def attained_alone(served: Served, slo: Slo) -> dict[str, float]:
    """Return the shares of requests that keep each of two limits; nothing where there is one."""
    alone = {"ttft": replace(slo, tpot_s=math.inf), "tpot": replace(slo, ttft_s=math.inf)}
    if slo in alone.values():
        return {}
    return {name: float(attained(served, each).mean()) for name, each in alone.items()}


LEVELS = ("p50", "p90", "p95", "p99")  # percentiles of a latency


def latency(values: FloatArray, weights: FloatArray | None = None) -> dict[str, Any]:
    """Percentiles, mean and count, NaN left out; null where nothing is left."""
    kept = np.isfinite(values)
    if not kept.any():
        return {**dict.fromkeys((*LEVELS, "mean")), "n": 0}
    seen = values[kept]
    counts = np.ones(len(seen)) if weights is None else weights[kept]
    order = np.argsort(seen)
    reached = np.cumsum(counts[order]) / counts.sum()
    levels = {
        level: float(seen[order][np.searchsorted(reached, int(level[1:]) / 100 - 1e-12)])
        for level in LEVELS
    }
    return {**levels, "mean": float(np.average(seen, weights=counts)), "n": int(counts.sum())}


def serving_summary(served: Served, profile: Profile, slo: Slo) -> dict[str, Any]:
    """Every headline number of a replica run, by its key in the command line's JSON."""
    span = served.end_of_run_s - float(served.requests.arrival_s[0])
    output = int(served.requests.output.sum())
    good = int(attained(served, slo).sum())
    limits = {"ttft_s": slo.ttft_s, "tpot_s": slo.tpot_s}
    return {
        "requests": len(served.requests),
        "prompt_tokens_mean": float(served.requests.prompt.mean()),
        "output_tokens_mean": float(served.requests.output.mean()),
        "slo": {name: limit if limit < math.inf else None for name, limit in limits.items()},
        "ttft_s": latency(served.ttft_s),
        "tpot_s": latency(served.tpot_s),
        "itl_s": latency(served.gap_s, served.gap_count),
        "tokens_per_s": output / span,
        "prompt_tokens_per_s": int(served.requests.prompt.sum()) / span,
        "requests_per_s": len(served.requests) / span,
        "request_goodput_per_s": good / span,
        "slo_attainment": good / len(served.requests),
        "utilisation": served.busy_s / span,
        "kv_peak_bytes": served.kv_peak_tokens * profile.kv_bytes_per_token,
        "kv_budget_bytes": profile.kv_budget_bytes,
        "kv_precision": profile.cache_precision,
        "weights_bytes": profile.weights_bytes,
        "batch_mean": served.batch_mean,
        "iterations": served.iterations,
    }
