"""Predictions of serving rows: a replica with users of a closed loop, or requests that arrive.

Neuron's tables are measured with static batches, those of GPUs with continuous batching, in which
equal requests run in lockstep and wait for each other's prompts, unless lengths are drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from experiments.validation.reading.rows import Outcome, machines_for, model_for
from topologies.catalogue.catalogue import Catalogue, chip_family, shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.support.errors import InputError
from workloads.serving.batching import (
    BUCKETS,
    USUAL_CACHE,
    Batching,
    engine_batching,
    engine_numbers,
    usual_slots,
)
from workloads.serving.profile import Profile, profile
from workloads.serving.releases import release_month
from workloads.serving.replica import serve
from workloads.serving.requests import Requests, even_lengths, requests_from
from workloads.serving.speculation import Speculation, parse_speculation

ROUNDS = 10
"""Requests of each user where a row states none, as InferenceX's and genai-perf's scripts have."""
GPU_CHUNK = 8192
"""Tokens of an iteration with chunked prefill on a GPU: the default of TensorRT-LLM."""


class Steady(NamedTuple):
    """Steady latencies and throughput of a replica."""

    # ttft_s, tpot_s: time to first token and time per later token, each a median or mean [s]
    ttft_s: float
    tpot_s: float
    tokens_per_s: float  # output tokens per second


def benchmark(
    replica: Profile,
    longest: tuple[int, int],
    shortest: float,
    rounds: float,
    batching: Batching,
    speculation: Speculation | None = None,
    users: int | None = None,
) -> Steady:
    """Return means of a closed loop of rounds, with its first burst; the last may have few."""
    users, rng = users or batching.slots, np.random.default_rng(0)
    count = max(1, round(rounds * users))
    lengths = even_lengths(*longest, shortest, count, rng)
    return run_of(replica, Requests(np.zeros(count), *lengths), batching, speculation, users)


def run_of(
    replica: Profile,
    requests: Requests,
    batching: Batching,
    speculation: Speculation | None = None,
    users: int | None = None,
) -> Steady:
    """Return means of requests as they arrive, or of users of a closed loop."""
    served = serve(replica, requests, batching, speculation=speculation, users=users)
    later = served.tpot_s[np.isfinite(served.tpot_s)]
    return Steady(
        ttft_s=float(served.ttft_s.mean()),
        tpot_s=float(later.mean()) if len(later) else 0.0,
        tokens_per_s=float(requests.output.sum() / served.end_of_run_s),
    )


def static_batch(
    replica: Profile, prompt: int, output: int, batch: int, buckets: tuple[int, ...], slots: int = 0
) -> Steady:
    """Return the times of a batch that begins and ends together, in a program of slots."""
    rows = max(batch, slots)
    padded = Batching(buckets=buckets).padded
    tokens = padded(prompt)
    first_s = replica.prompt_linear(batch * tokens) + batch * replica.prefill_extra_s(tokens, 0)
    later = np.arange(1, output)
    cached = np.array([padded(int(prompt + step)) for step in later], float)
    once = [replica.decode_s(rows, rows * size) for size in cached]
    return Steady(
        ttft_s=replica.request_s + first_s,
        tpot_s=float(np.median(once)) if once else 0.0,
        tokens_per_s=batch * output / (first_s + float(np.sum(once))),
    )


CATALOGUES = 16  # number of catalogues that are kept; rows of one software and chip share theirs
SCHEDULER = ("scheduler", "chunk_tokens", "overlapped", "mixed_chunk", "poll_passes", "gather")
"""Columns of the scheduler of a serving engine."""
MOST_USERS = 2048
"""Requests that decode at once under a load without limit (TensorRT-LLM's ``max_batch_size``)."""
_replica = lru_cache(32)(profile)  # rows that differ in requests alone share a replica's profile


def predict(values: Mapping[str, Any], catalogue: Catalogue | None = None) -> Outcome:
    """Time to first token, time per later token [s], and output tokens a second of one row."""
    if (values.get("pp") or 1) > 1:
        raise InputError(f"pp {values['pp']} of a served model is not supported. Use 1.")
    tp, chips = values["tp"] or values["chips"], values["chips"]
    groups = values.get("attention_dp") or 1
    if groups > 1 and chips == tp * groups:  # the degree of one group
        tp = chips
    whole = machines_for(values["cluster"], chips or tp or 1, _engine_numbers(values, catalogue))
    replica = _replica(
        model_for(str(values["model"])),
        whole,
        tp=tp,
        precision=(values["precision"] or "bf16").lower().removeprefix("nv"),
        chips=chips if chips and tp > chips else None,
        ep=values.get("ep") or 1,
        cache_precision=values.get("cache_precision")
        or USUAL_CACHE.get(values.get("scheduler") or ""),
        attention_dp=groups,
        memory_share=values.get("memory_share"),
        of_free=values.get("scheduler") == "tensorrt-llm",
    )
    copies = 1 if groups > 1 else _copies(values, whole)
    answer = _steady_state(replica, values, whole, copies)
    predicted = {**answer._asdict(), "tokens_per_s": copies * answer.tokens_per_s}
    arrives, load = values.get("arrivals_per_s"), "a closed loop"
    grades = {"kernels": "interpolated", "requests": f"assumed: {'Poisson' if arrives else load}"}
    needed = ("tp", "precision") if arrives else ("tp", "precision", "concurrency")
    if empty := [name for name in needed if values[name] is None]:
        grades["columns"] = f"assumed: {', '.join(empty)}"
    return Outcome(predicted, provenance=grades)


def _copies(values: Mapping[str, Any], cluster: Cluster) -> int:
    """Replicas of a row on GPUs whose chips are several times its ranks; they share its users."""
    tp, chips = values["tp"] or 0, values["chips"] or 0
    divided = (values.get("ep") or 1) > 1 or chip_family(cluster.chip, cluster.catalogue).is_neuron
    return 1 if divided or not tp or chips % tp else max(1, chips // tp)


def _engine_numbers(values: Mapping[str, Any], catalogue: Catalogue | None) -> Catalogue:
    """Catalogue with the variants of the software that a row was measured with."""
    catalogue = catalogue or shipped_catalogue()
    chip = machines_for(values["cluster"], 1, catalogue).chip
    engine = values.get("scheduler") or ""
    month, groups = release_month(values.get("date")), values.get("attention_dp") or 1
    catalogue = engine_numbers(catalogue, engine, chip, month, groups)
    if values.get("graph_tokens") is not None:
        part = chip_family(chip, catalogue).serving
        catalogue = _with_value(catalogue, part, "graph_tokens", values["graph_tokens"])
    if not values.get("block_scaled") or (engine, chip) != SLOW_BLOCK_SCALES:
        return catalogue
    return catalogue.with_variants({"serving.gpu.block_scale_token": "tensorrt-llm-1.2"})


@lru_cache(CATALOGUES)
def _with_value(catalogue: Catalogue, part: str, quantity: str, value: float) -> Catalogue:
    entry = catalogue.entry(part, quantity)
    return catalogue.with_rows([entry._replace(exact=Fraction(value), source="the row")])


def _steady_state(
    replica: Profile, values: Mapping[str, Any], cluster: Cluster, copies: int
) -> Steady:
    """Simulate one replica's steady state by the row's batching, or else the chip's usual one."""
    prompt, output = values["prompt_tokens"], values["output_tokens"]
    proposed = values.get("speculate")  # as --speculate writes it, by a share of the model's time
    speculation = parse_speculation(proposed, _no_draft) if proposed else None
    neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    static = neuron if values.get("batching") is None else values["batching"] == "static"
    if arrives := values.get("arrivals_per_s"):
        return _arriving(replica, values, cluster, arrives / copies)
    users = -(-(values["concurrency"] or 0) // copies)
    users = users or (1 if static else _saturating(replica, values))
    if static and speculation is not None:
        raise InputError(f"speculate {values['speculate']}: a static batch has no proposals.")
    if static:
        _check_scheduler(values, "a static batch has no scheduler")
        buckets = _programs(values) if neuron else ()
        return static_batch(replica, prompt, output, users, buckets, values.get("slots") or 0)
    groups = values.get("attention_dp") or 1
    each = -(-users // groups)  # slots and tokens of an engine are those of a group
    batching = _batching(values, cluster, each, neuron=neuron).of_groups(groups)
    program = values.get("slots")
    batching = replace(batching, slots=program or users, runs_empty_slots=bool(program and neuron))
    shortest, rounds = values.get("shortest_lengths") or 1.0, values.get("rounds") or ROUNDS
    if values.get("requests"):
        rounds = values["requests"] / (users * copies)
    return benchmark(replica, (prompt, output), shortest, rounds, batching, speculation, users)


def _arriving(
    replica: Profile, values: Mapping[str, Any], cluster: Cluster, rate_per_s: float
) -> Steady:
    """Simulate requests that arrive at a rate, as ``serve`` draws them."""
    if values["concurrency"] is not None or values.get("speculate"):
        raise InputError(
            f"arrivals_per_s {rate_per_s:g} beside concurrency or speculate: requests arrive, or "
            "users send them, without proposals. Leave one empty."
        )
    neuron = chip_family(cluster.chip, cluster.catalogue).is_neuron
    slots = values.get("slots") or usual_slots(cluster, values.get("scheduler"))
    batching = _batching(values, cluster, slots, neuron=neuron)
    drawn = {
        "count": values.get("requests"), "shortest_lengths": values.get("shortest_lengths"),
        "prompt": values["prompt_tokens"], "output": values["output_tokens"],
    }  # fmt: skip
    stated = {name: value for name, value in drawn.items() if value is not None}
    requests = requests_from(f"poisson:{rate_per_s!r}", seed=0, **stated)
    return run_of(replica, requests, batching)


def _saturating(replica: Profile, values: Mapping[str, Any]) -> int:
    """Users of a row that states none: one, or, of a rate alone, as many as the cache holds."""
    if values.get("tokens_per_s") is None or values.get("ttft_s") or values.get("tpot_s"):
        return 1
    tokens: int = values["prompt_tokens"] + values["output_tokens"] + replica.state_tokens
    most = MOST_USERS * (values.get("attention_dp") or 1)
    return max(1, min(most, replica.kv_tokens // tokens))


def _batching(values: Mapping[str, Any], cluster: Cluster, users: int, *, neuron: bool) -> Batching:
    """Batching of a row's engine, or of pieces of prompts beside decode where it states none."""
    scheduler = values.get("scheduler")
    if scheduler is None:
        _check_scheduler(values, "the row states no scheduler")
        if neuron:
            return Batching(users, buckets=_programs(values))
        return engine_batching(cluster, "", users, chunk_tokens=max(GPU_CHUNK, users + 1))
    return engine_batching(
        cluster,
        scheduler,
        users,
        chunk_tokens=values.get("chunk_tokens"),
        overlapped=values.get("overlapped") != 0,
        mixed_chunk=bool(values.get("mixed_chunk")),
        poll_passes=values.get("poll_passes") or 1,
        gather=values.get("gather"),
    )


def _programs(values: Mapping[str, Any]) -> tuple[int, ...]:
    """Lengths of the Neuron programs of a row, which until NxD Inference had room for their own."""
    return tuple(size + before_nxd(values) for size in BUCKETS)


def before_nxd(values: Mapping[str, Any]) -> bool:
    """Return whether a row is of Neuron before NxD Inference, an engine that nobody runs today."""
    if not "" < release_month(values.get("date")) < NXD_FROM:
        return False
    cluster = machines_for(values["cluster"], 1)
    return chip_family(cluster.chip, cluster.catalogue).is_neuron


def _check_scheduler(values: Mapping[str, Any], why: str) -> None:
    for name in SCHEDULER:
        if values.get(name) is not None:
            raise InputError(f"{name} {values[name]}: {why}. Leave it empty.")


def _no_draft(name: str) -> Profile:
    raise InputError(
        f"speculate: the draft {name[:80]!r} is no share of the model's time. Write 3:0.7:0.03."
    )


NXD_FROM = "2024-12"  # month of Neuron's SDK 2.21, the first with NxD Inference
SLOW_BLOCK_SCALES = ("tensorrt-llm", "b200")
"""Engine and chip whose products take longer for weights with a scale for each block. TensorRT-LLM
1.3 is not slow; no shipped row was measured with it."""
