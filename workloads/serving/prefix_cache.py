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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.arrays import IntArray
from topologies.errors import InputError
from topologies.files.table import read_table
from workloads.demand.read import MAX_BYTES
from workloads.demand.request_logs import BLOCKS as JSON_BLOCKS
from workloads.demand.request_logs import HASHES, is_json_log, read_json_log
from workloads.serving.requests import Requests

if TYPE_CHECKING:
    import pandas as pd

BLOCK_TOKENS = 512  # tokens of one block of Mooncake's traces (FAST 2025)
SMALL_BLOCK_TOKENS = 16
"""Tokens of one block of the Qwen-Bailian and ServeGen traces (their README files)."""
COUNTS = ("cached_tokens", "prefix_tokens")
BLOCKS = "reused_prefix_blocks"
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


def with_prefix_cache(
    requests: Requests, text: str, *, kv_tokens: int, path: Path | None = None
) -> Requests:
    """Return the requests with the tokens that a prefix cache holds of each prompt.

    Parameters
    ----------
    requests : Requests
    text : str
        ``50%`` or ``0.5``, ``50%:cold``, or ``trace``.
    kv_tokens : int
        Tokens that the replica's cache holds.
    path : Path, optional
        Log that the requests were read from.

    Raises
    ------
    InputError
        For another text, and for a log that states nothing on prefixes.
    """
    if text.strip() == TRACE:
        return replace(requests, cached=_of_trace(requests, path, kv_tokens))
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


def _of_trace(requests: Requests, path: Path | None, kv_tokens: int) -> IntArray:
    if path is None:
        raise InputError(
            "--prefix-cache trace needs --requests FILE; drawn requests share nothing."
        )
    times, hits = _json_hits(path, kv_tokens) if is_json_log(path) else _csv_hits(path)
    order = np.argsort(times, kind="stable")[: len(requests)]  # --count keeps the first
    return np.minimum(hits[order], requests.prompt)


def _json_hits(path: Path, kv_tokens: int) -> tuple[npt.NDArray[np.float64], IntArray]:
    """Times and cached tokens of a JSON log, whose blocks are run through a cache of this size."""
    table = read_json_log(path)
    if JSON_BLOCKS not in table:
        raise InputError(
            f"{path} has no {HASHES}, so it does not say which prompts begin alike. "
            "Give a share, such as --prefix-cache 50%."
        )
    times = table["time_s"].to_numpy(float) if "time_s" in table else np.arange(float(len(table)))
    order = np.argsort(times, kind="stable")
    blocks = [table[JSON_BLOCKS].iloc[row] for row in order]
    # Blocks are small ones if every prompt fits into its number of them.
    counts = table[JSON_BLOCKS].map(len).to_numpy(float)
    fits = table["prompt_tokens"].to_numpy(float) <= SMALL_BLOCK_TOKENS * counts
    block_tokens = SMALL_BLOCK_TOKENS if fits[counts > 0].all() else BLOCK_TOKENS
    capacity = max(1, kv_tokens // block_tokens)
    hits = np.zeros(len(table), np.int64)
    hits[order] = np.array(lru_hits(blocks, capacity), np.int64) * block_tokens
    return times, hits


def _csv_hits(path: Path) -> tuple[npt.NDArray[np.float64], IntArray]:
    """Times and cached tokens of a CSV log, which counts them itself."""
    import pandas as pd

    table = read_table(
        path,
        "requests",
        remedy="give a log, poisson:RATE, or --concurrency USERS instead",
        limit_bytes=MAX_BYTES,
    )
    column = next((name for name in (*COUNTS, BLOCKS) if name in table), None)
    if column is None:
        raise InputError(
            f"{path} has none of the columns {', '.join((*COUNTS, BLOCKS))}. "
            "Give a share, such as --prefix-cache 50%."
        )
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(float)
    if not np.all(values >= 0):
        raise InputError(f"{path}: {column} holds what is no number of at least 0. Correct it.")
    hits = (values * (BLOCK_TOKENS if column == BLOCKS else 1)).astype(np.int64)
    clock = next((name for name in table if str(name).startswith("time")), None)
    times = np.arange(len(table), dtype=float) if clock is None else _moments(table[clock])
    return times, hits


def _moments(column: pd.Series[Any]) -> npt.NDArray[np.float64]:
    """Times of a column as numbers; dates become nanoseconds."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    if numbers.isna().any():
        numbers = pd.to_datetime(column, utc=True, format="ISO8601").astype("int64")
    return numbers.to_numpy(float)
