"""Steady latency and throughput of a replica at a fixed concurrency, as published tables state.

Neuron's tables are measured with static batches: one program runs all prompts of a batch, another
one decodes a token for each, and no request comes in between. Tables of GPUs are measured with
continuous batching: each request that ends makes room for the next one. There, equal requests run
in lockstep and wait for each other's prompts, unless the benchmark draws their lengths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workloads.serving.batching import Batching
from workloads.serving.profile import Profile
from workloads.serving.replica import closed_loop
from workloads.serving.requests import Requests, fixed_lengths, poisson
from workloads.serving.speculation import Speculation

ROUNDS = 4
"""Requests of each user. The first one fills the batch and is left out of the results."""
GPU_CHUNK = 8192
"""Tokens of an iteration with chunked prefill on a GPU: the default of TensorRT-LLM."""


@dataclass(frozen=True)
class Steady:
    """Steady latencies and throughput of a replica.

    ``ttft_s, tpot_s``: time to first token and time per later token, each a median or mean [s].
    ``tokens_per_s``: output tokens per second.
    """

    ttft_s: float
    tpot_s: float
    tokens_per_s: float


def continuous(
    replica: Profile,
    prompt_tokens: int,
    output_tokens: int,
    concurrency: int,
    batching: Batching,
    speculation: Speculation | None = None,
) -> Steady:
    """Return medians of a closed loop, in which each request that ends is followed by another."""
    lengths = fixed_lengths(prompt_tokens, output_tokens)
    requests = poisson(1.0, ROUNDS * concurrency, lengths, np.random.default_rng(0))
    served = closed_loop(replica, requests, concurrency, batching, speculation=speculation)
    later_rounds = slice(concurrency, None)
    tpot = served.tpot_s[later_rounds]
    # By Little's law; the requests of the last round run beside ever fewer others.
    whole_rounds = slice(concurrency, -concurrency)
    each_s = served.ttft_s[whole_rounds] + (output_tokens - 1) * np.nan_to_num(tpot[:-concurrency])
    return Steady(
        ttft_s=float(np.median(served.ttft_s[later_rounds])),
        tpot_s=float(np.nanmedian(tpot)) if output_tokens > 1 else 0.0,
        tokens_per_s=float(concurrency * output_tokens / each_s.mean()),
    )


def benchmark(
    replica: Profile,
    longest: tuple[int, int],
    shortest: float,
    rounds: int,
    batching: Batching,
    speculation: Speculation | None = None,
) -> Steady:
    """Return means of a benchmark that draws lengths and includes its first burst of requests."""
    users, rng = batching.slots, np.random.default_rng(0)
    count = rounds * users
    prompt, output = (
        np.maximum(1, np.rint(most * rng.uniform(shortest, 1, count))).astype(np.int64)
        for most in longest
    )
    requests = Requests(np.zeros(count), prompt, output)
    served = closed_loop(replica, requests, users, batching, speculation=speculation)
    later = served.tpot_s[np.isfinite(served.tpot_s)]
    return Steady(
        ttft_s=float(served.ttft_s.mean()),
        tpot_s=float(later.mean()) if len(later) else 0.0,
        tokens_per_s=float(output.sum() / served.end_of_run_s),
    )


def static_batch(
    replica: Profile, prompt: int, output: int, batch: int, buckets: tuple[int, ...]
) -> Steady:
    """Return the times of a batch whose requests begin and end together.

    The time of a later token is the median over all tokens, as Neuron's tables state it.
    """
    padded = Batching(buckets=buckets).padded
    tokens = padded(prompt)
    first_s = replica.prompt_linear(batch * tokens) + batch * replica.prefill_extra_s(tokens, 0)
    later = np.arange(1, output)
    cached = np.array([padded(int(prompt + step)) for step in later], float)
    once = [replica.decode_s(batch, batch * size) for size in cached]
    return Steady(
        ttft_s=replica.request_s + first_s,
        tpot_s=float(np.median(once)) if once else 0.0,
        tokens_per_s=batch * output / (first_s + float(np.sum(once))),
    )
