"""Latency and throughput of a served replica."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.arrays import FloatArray
from topologies.errors import InputError, suggestion
from topologies.units import parse_seconds
from workloads.serving.capacity import Slo
from workloads.serving.profile import Profile
from workloads.serving.served import Served

LIMITS = ("ttft", "tpot")


def attained(served: Served, slo: Slo) -> npt.NDArray[np.bool_]:
    """Return which requests kept both limits; a single token has no TPOT to miss."""
    tpot = np.nan_to_num(served.tpot_s, nan=0.0)
    return np.asarray((served.ttft_s <= slo.ttft_s) & (tpot <= slo.tpot_s))


def latency(values: FloatArray, weights: FloatArray | None = None) -> dict[str, Any]:
    """Percentiles, mean and count, NaN left out; null where nothing is left."""
    kept = np.isfinite(values)
    if not kept.any():
        return {"p50": None, "p90": None, "p99": None, "mean": None, "n": 0}
    seen = values[kept]
    counts = np.ones(len(seen)) if weights is None else weights[kept]
    order = np.argsort(seen)
    reached = np.cumsum(counts[order]) / counts.sum()
    levels = {
        f"p{level}": float(seen[order][np.searchsorted(reached, level / 100 - 1e-12)])
        for level in (50, 90, 99)
    }
    return {**levels, "mean": float(np.average(seen, weights=counts)), "n": int(counts.sum())}


def serving_summary(served: Served, profile: Profile, slo: Slo) -> dict[str, Any]:
    """Every headline number of a replica run, by its key in the command line's JSON."""
    span = served.end_of_run_s - float(served.requests.arrival_s[0])
    output = int(served.requests.output.sum())
    good = int(attained(served, slo).sum())
    return {
        "requests": len(served.requests),
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
        "weights_bytes": profile.weights_bytes,
        "batch_mean": served.batch_mean,
        "iterations": served.iterations,
    }


def parse_slo(text: str, *, share: float = 0.99) -> Slo:
    """Read ``ttft=2s,tpot=50ms,share=99.9%``; a limit that is left out is infinite.

    A percentage alone is the share of requests: ``99.9%``.

    >>> parse_slo("ttft=2s,tpot=50ms")
    Slo(ttft_s=2.0, tpot_s=0.05, share=0.99)
    >>> parse_slo("tpot=50ms,share=99.9%").share
    0.999
    """
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


def parse_share(text: str, where: str) -> float:
    """Read a share below 1, as ``99.9%`` or ``0.999``.

    Raises InputError for anything else.

    >>> parse_share("99.9%", "slo share"), parse_share("0.95", "slo share")
    (0.999, 0.95)
    """
    plain = text.strip()
    try:
        value = float(plain.removesuffix("%")) / (100.0 if plain.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise InputError(f"{where} is {text!r}; write a share such as 99.9% or 0.999.")
    return round(value, 12)
