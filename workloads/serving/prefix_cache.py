"""Prefix cache: the cached part of each prompt, from a share or from the blocks of a log.

A trace that names the blocks of its prompts is run through a least-recently-used cache, which is
empty at the start. Each of its ``hash_ids`` stands for 512 tokens in Mooncake's traces, and for 16
in those of Alibaba's Model Studio. A trace that counts the blocks (``prefix_blocks`` and
``reused_prefix_blocks``), or states ``cached_tokens``, gives the hits of a cache without limit. A
share is the same for every prompt, once the cache is full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from topologies.arrays import IntArray
from topologies.errors import InputError
from workloads.demand.request_logs import HASHES
from workloads.serving.requests import BLOCK_TOKENS, COUNTS, Requests

SMALL_BLOCK_TOKENS = 16
"""Tokens of one block of the Qwen-Bailian and ServeGen traces (their README files)."""
TRACE, COLD = "trace", "cold"


def lru_hits(blocks: Iterable[Sequence[int]], capacity: int) -> list[int]:
    """Count the leading blocks of each prompt that a least-recently-used cache holds.

    A block hits only if all blocks before it do, because its keys and values depend on them. The
    cache is empty at the start.

    >>> lru_hits([[1, 2, 3], [1, 2, 4], [9], [1, 2, 3]], capacity=4)
    [0, 2, 0, 2]
    """
    kept: OrderedDict[int, None] = OrderedDict()
    hits = []
    for prompt in blocks:
        leading = 0
        for block in prompt:
            if block not in kept:
                break
            leading += 1
        hits.append(leading)
        # Blocks are used from the last to the first, so that the end of a prompt is evicted first.
        for block in reversed(prompt):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > capacity:
            kept.popitem(last=False)
    return hits


def share_hits(prompt: IntArray, share: float, *, cold_tokens: int = 0) -> IntArray:
    """Return the cached tokens of each prompt for a cached share, int64 (requests,).

    >>> share_hits(np.array([100, 100, 100]), 0.5, cold_tokens=200).tolist()
    [0, 25, 50]
    """
    filled = np.ones(len(prompt))
    if cold_tokens:
        before = np.cumsum(prompt) - prompt
        filled = np.minimum(1.0, before / cold_tokens)
    return np.floor(prompt * share * filled).astype(np.int64)


def with_prefix_cache(requests: Requests, text: str, *, kv_tokens: int) -> Requests:
    """Return the requests with the tokens that a prefix cache holds of each prompt.

    ``text``: ``50%`` or ``0.5``, ``50%:cold``, or ``trace``. ``kv_tokens``: tokens that the
    replica's cache holds. Raises InputError for another text, and for a log that states nothing on
    prefixes.
    """
    if text.strip() == TRACE:
        return replace(requests, cached=_of_trace(requests, kv_tokens))
    value, _, state = text.strip().partition(":")
    whole = value.endswith("%")
    try:
        share = float(value.removesuffix("%")) / (100 if whole else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1 or state not in ("", COLD):
        raise InputError(
            f"--prefix-cache {text[:80]!r} must be a share of prompts' tokens below 1, such as 50% "
            "or 50%:cold, or trace."
        )
    cold = kv_tokens if state == COLD else 0
    return replace(requests, cached=share_hits(requests.prompt, share, cold_tokens=cold))


def _of_trace(requests: Requests, kv_tokens: int) -> IntArray:
    """Cached tokens by a log's own counts, or by its blocks in a cache of this size."""
    if requests.counted is not None:
        if not np.all(requests.counted >= 0):
            raise InputError(
                "--prefix-cache trace: the log counts cached tokens of which one is no number of "
                "at least 0. Correct it."
            )
        return np.minimum(requests.counted, requests.prompt).astype(np.int64)
    if requests.blocks is None:
        raise InputError(
            f"--prefix-cache trace needs --requests FILE, a log with {HASHES} or one of the "
            f"columns {', '.join(COUNTS)}; drawn requests share nothing. Give a share, such as "
            "--prefix-cache 50%."
        )
    # Blocks are small ones if every prompt fits into its number of them.
    counts = np.array([len(each) for each in requests.blocks])
    fits = requests.prompt <= SMALL_BLOCK_TOKENS * counts
    block_tokens = SMALL_BLOCK_TOKENS if fits[counts > 0].all() else BLOCK_TOKENS
    hits = lru_hits(requests.blocks, max(1, kv_tokens // block_tokens))
    return np.minimum(np.array(hits, np.int64) * block_tokens, requests.prompt)
