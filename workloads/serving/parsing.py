"""Requests and batching from the texts of options of ``cluster-sim serve``."""

from __future__ import annotations

import numpy as np

from topologies.catalogue.families import chip_family
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from workloads.serving.batching import BUCKETS, CHUNK_TOKENS, Batching
from workloads.serving.engines import engine_batching, read_gather
from workloads.serving.requests import (
    Lengths,
    Requests,
    azure_lengths,
    drawn_rate,
    fixed_lengths,
    poisson,
    read_requests,
)

PREFILLS = ("auto", "separate", "chunked")
DRAWN = 2000
"""Default number of requests of a Poisson process."""


def requests_from(
    text: str,
    *,
    count: int | None = None,
    rate: float | None = None,
    prompt: int | None = None,
    output: int | None = None,
    service: str | None = None,
    seed: int = 0,
) -> Requests:
    """Return the requests that a text names, drawn or read from a log.

    ``text``: ``poisson:RATE``, or the path of a log. ``count``: number of requests that are drawn,
    or read from the beginning of a log. ``rate``: rate of arrivals for a log without times [1/s].
    ``prompt, output``: tokens of drawn requests; ``output`` also for requests of a log that state
    none. ``service``: service of a log of several, or service whose lengths are drawn.

    Raises InputError for a word that does not apply to this source of requests, and for a log that
    cannot be read.
    """
    per_s = drawn_rate(text)
    if per_s is None:
        if prompt is not None:
            raise InputError(
                f"--prompt {prompt} is for poisson:RATE; {text} states its prompts. Leave it out."
            )
        logged = read_requests(
            text, service=service, rate_per_s=rate, output_tokens=output, seed=seed
        )
        return logged if count is None else logged.first(count)
    if rate is not None:
        raise InputError(f"--rate {rate:g} is for a log without times; write poisson:RATE.")
    lengths = drawn_lengths(prompt, output, service)
    return poisson(per_s, count or DRAWN, lengths, np.random.default_rng(seed))


def drawn_lengths(
    prompt: int | None = None, output: int | None = None, service: str | None = None
) -> Lengths:
    """Return the lengths of drawn requests: those of a trace, or stated ones."""
    lengths = azure_lengths(service or "conv")
    if prompt is None and output is None:
        return lengths
    return fixed_lengths(
        round(lengths.prompt.mean()) if prompt is None else prompt,
        round(lengths.output.mean()) if output is None else output,
    )


def batching_from(
    cluster: Cluster,
    prefill: str = "auto",
    chunk: int | None = None,
    slots: int = 64,
    *,
    scheduler: str | None = None,
    poll: int = 1,
    gather: str | None = None,
) -> Batching:
    """Return the batching that these options describe.

    ``prefill``: ``separate`` (whole prompts while decoding waits), ``chunked`` (chunks of prompts
    together with decoding), or ``auto``, which is separate on Trainium and chunked elsewhere.
    ``chunk``: tokens of an iteration with chunked prefill. ``slots``: requests that decode at once.
    ``scheduler``: serving engine whose scheduler runs the replica: ``vllm``, ``sglang`` or
    ``tensorrt-llm`` (:mod:`workloads.serving.engines`). ``poll``: passes of decode between two
    looks for new requests. ``gather``: ``PASSES:SHARE``: passes of decode for which prompts wait
    for others, unless they fill this share of an iteration's tokens.

    Raises InputError for an unknown kind of prefill or scheduler, and for a chunk size or a gather
    of separate prefill.
    """
    if scheduler is not None:
        if prefill != "auto":
            raise InputError(
                f"--scheduler {scheduler} states how prompts run; leave --prefill {prefill} out."
            )
        return engine_batching(
            cluster, scheduler, slots, chunk_tokens=chunk, poll_passes=poll, gather=gather
        )
    trainium = chip_family(cluster.chip, cluster.catalogue).is_neuron
    if prefill not in PREFILLS:
        raise InputError(
            f"unknown prefill {prefill!r}; choose from {', '.join(PREFILLS)}."
            + suggestion(prefill, PREFILLS)
        )
    if prefill == "chunked" or (prefill == "auto" and not trainium):
        tokens = chunk or CHUNK_TOKENS
        passes, share = read_gather(gather) if gather else (0, 0.0)
        return Batching(
            slots, tokens, poll_passes=poll, gather_passes=passes, gather_tokens=int(share * tokens)
        )
    _check_separate(chunk, gather)
    return Batching(slots, 0, BUCKETS if trainium else (), poll_passes=poll)


def _check_separate(chunk: int | None, gather: str | None) -> None:
    """Refuse settings of prompts in pieces where prompts run one at a time."""
    if chunk is not None:
        raise InputError(
            f"--chunk {chunk} cuts prompts, but prefill is separate here; "
            "add --prefill chunked, or leave --chunk out."
        )
    if gather is not None:
        raise InputError(
            f"--gather {gather} collects prompts, but they run one at a time here; "
            "add --prefill chunked, or leave --gather out."
        )
