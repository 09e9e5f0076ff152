"""The capacity table: replica runs over load and token mix, cached by what they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.errors import InputError
from workloads.serving.batching import Batching
from workloads.serving.capacity import Capacity, Slo
from workloads.serving.metrics import attained
from workloads.serving.profile import Profile
from workloads.serving.replica import serve
from workloads.serving.requests import IntArray, Lengths, Requests, poisson

FloatArray = npt.NDArray[np.float64]
LOADS = (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)
"""Rates of the runs over the saturated rate."""
LEVELS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0)
VERSION = 2
"""Of what a run does with its inputs: raise it when the same ones give other tables."""


@dataclass(frozen=True)
class _Runs:
    """Inputs of a table, beside the profile and the lengths."""

    slo: Slo
    batching: Batching
    prompts: tuple[float, ...]
    outputs: tuple[float, ...]
    requests: int
    seed: int


def capacity_table(
    profile: Profile,
    lengths: Lengths,
    slo: Slo,
    *,
    replicas: int = 1,
    batching: Batching | None = None,
    prompt_means: FloatArray | None = None,
    output_means: FloatArray | None = None,
    requests: int = 3000,
    seed: int = 0,
    cache: Path | None = None,
) -> Capacity:
    """Run one replica at many loads and mixes, and say what ``replicas`` of them can serve.

    Each replica of a unit gets its share of Poisson arrivals; there is no imbalance between them,
    and latencies are trusted up to about 85 to 90 % of saturation.

    Parameters
    ----------
    profile : Profile
    lengths : Lengths
        Of the reference mix.
    slo : Slo
    replicas : int
        Of one unit.
    batching : Batching, optional
    prompt_means, output_means : float array, optional
        Mean lengths at which the work of a request is measured as well, ascending.
    requests : int
        Of each run.
    seed : int
    cache : Path, optional
        Folder in which tables are kept, by a digest of everything that they depend on.

    Raises
    ------
    InputError
        When the SLO cannot be kept even by a lone request.
    """
    runs = _Runs(
        slo,
        batching or Batching(),
        _means(lengths.prompt, prompt_means),
        _means(lengths.output, output_means),
        requests,
        seed,
    )
    one = _kept_or_run(profile, lengths, runs, cache)
    return replace(
        one,
        rate_slo_per_s=one.rate_slo_per_s * replicas,
        rate_max_per_s=one.rate_max_per_s * replicas,
    )


def _means(lengths: IntArray, asked: FloatArray | None) -> tuple[float, ...]:
    """Mean lengths at which work is measured, ascending: those asked for, or that of the mix."""
    found = np.unique([lengths.mean()] if asked is None else asked)
    return tuple(found.tolist())


def _kept_or_run(profile: Profile, lengths: Lengths, runs: _Runs, cache: Path | None) -> Capacity:
    digest = _digest(profile, lengths, runs)
    found = _load(cache, digest, runs.slo)
    if found is not None:
        return found
    made = _run(profile, lengths, runs)
    if cache is not None:
        _save(cache, digest, made)
    return made


def saturated_rate(
    profile: Profile, lengths: Lengths, batching: Batching, count: int, seed: int
) -> float:
    """Requests per second that a replica finishes when some always wait [1/s].

    The first and last fifth of the completions are left out: the batch fills and empties there.
    """
    rng = np.random.default_rng(seed)
    prompt, output = lengths.draw(count, rng)
    served = serve(profile, Requests(np.zeros(count), prompt, output), batching)
    ends = np.sort(served.end_s)
    first, last = count // 5, count - count // 5 - 1
    return float((last - first) / (ends[last] - ends[first]))


def _run(profile: Profile, lengths: Lengths, runs: _Runs) -> Capacity:
    slo, batching, count = runs.slo, runs.batching, runs.requests
    most = saturated_rate(profile, lengths, batching, count, runs.seed)
    ttft, tpot, kept = [], [], []
    for load in LOADS:
        rng = np.random.default_rng(runs.seed)
        served = serve(profile, poisson(load * most, count, lengths, rng), batching)
        ttft.append(np.quantile(served.ttft_s, LEVELS))
        finite = served.tpot_s[np.isfinite(served.tpot_s)]
        tpot.append(np.quantile(finite, LEVELS) if len(finite) else np.zeros(len(LEVELS)))
        kept.append(float(attained(served, slo).mean()))
    attainment = np.minimum.accumulate(np.array(kept))
    if attainment[0] < slo.share:
        raise InputError(
            f"{profile.name} keeps {slo} for only {attainment[0]:.1%} of the requests of an idle "
            f"replica, under {slo.share:.0%}; use more chips, shorter requests or a looser SLO."
        )
    return Capacity(
        rate_slo_per_s=float(np.interp(-slo.share, -attainment, LOADS)) * most,
        rate_max_per_s=most,
        slo=slo,
        utilisation=np.array(LOADS),
        quantiles=np.array(LEVELS),
        ttft_s=np.array(ttft),
        tpot_s=np.array(tpot),
        attainment=attainment,
        prompt_tokens=np.array(runs.prompts),
        output_tokens=np.array(runs.outputs),
        cost=_costs(profile, lengths, runs, most),
    )


def _costs(profile: Profile, lengths: Lengths, runs: _Runs, most: float) -> FloatArray:
    """Work of a request of each mix relative to the reference mix; (prompts, outputs)."""
    rates = [
        [
            saturated_rate(
                profile,
                lengths.with_means(prompt, output),
                runs.batching,
                runs.requests,
                runs.seed,
            )
            for output in runs.outputs
        ]
        for prompt in runs.prompts
    ]
    return np.asarray(most / np.array(rates))


def _digest(profile: Profile, lengths: Lengths, runs: _Runs) -> str:
    state = hashlib.sha256(profile.digest().encode())
    state.update(np.ascontiguousarray(lengths.prompt).tobytes())
    state.update(np.ascontiguousarray(lengths.output).tobytes())
    state.update(f"{runs} {LOADS} {LEVELS} {VERSION}".encode())
    return state.hexdigest()


_ARRAYS = (
    "utilisation",
    "quantiles",
    "ttft_s",
    "tpot_s",
    "attainment",
    "prompt_tokens",
    "output_tokens",
    "cost",
)


def _load(cache: Path | None, digest: str, slo: Slo) -> Capacity | None:
    if cache is None or not (cache / f"{digest}.json").is_file():
        return None
    try:
        held = json.loads((cache / f"{digest}.json").read_text())
        arrays = {name: np.array(held[name], float) for name in _ARRAYS}
        return Capacity(
            rate_slo_per_s=float(held["rate_slo_per_s"]),
            rate_max_per_s=float(held["rate_max_per_s"]),
            slo=slo,
            **arrays,
        )
    except (ValueError, KeyError, TypeError):
        return None


def _save(cache: Path, digest: str, made: Capacity) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    held: dict[str, Any] = {name: getattr(made, name).tolist() for name in _ARRAYS}
    held |= {"rate_slo_per_s": made.rate_slo_per_s, "rate_max_per_s": made.rate_max_per_s}
    half = cache / f".{digest}.{os.getpid()}"
    half.write_text(json.dumps(held))
    half.replace(cache / f"{digest}.json")
