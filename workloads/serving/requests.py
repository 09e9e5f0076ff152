"""Requests of a replica, drawn or from a log, and the part of their prompts that a cache holds."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from topologies.support.arrays import FloatArray, IntArray
from topologies.support.errors import InputError, check_choice, shown, suggestion
from topologies.support.files.table import read_table
from topologies.support.units import share_of
from workloads.demand.bundled import data_file
from workloads.demand.read import MAX_BYTES, meanings, stated_times
from workloads.demand.request_logs import BLOCKS, HASHES, is_json_log, read_json_log

if TYPE_CHECKING:
    import pandas as pd

MAX_REQUESTS = 5_000_000
MAX_SPAN_S = 1e9
MOST_TOKENS = 10**8
"""Longest time that drawn requests may take; beyond, a float loses the microseconds [s]."""
MOST_PER_S = 1e9
"""Bound of a drawn rate [1/s]."""
AZURE_SERVICES = ("conv", "code")
BLOCK_TOKENS = 512  # tokens of one block of Mooncake's traces (FAST 2025)
COUNTS = {"cached_tokens": 1, "prefix_tokens": 1, "reused_prefix_blocks": BLOCK_TOKENS}
"""Columns of a log that count the part of a prompt that a cache held, with the tokens of one."""


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their arrival; all arrays are (requests,)."""

    arrival_s: FloatArray  # ascending [s]
    prompt: IntArray  # tokens, at least 1 each
    output: IntArray
    # Tokens at the beginning of each prompt whose keys and values are in a cache already; at least
    # one token of a prompt is processed
    cached: IntArray | None = None
    counted: FloatArray | None = None  # such tokens by a log's own count
    blocks: Sequence[Sequence[int]] | None = None  # blocks of each prompt that a log names

    def __len__(self) -> int:
        return len(self.arrival_s)

    def held(self, request: int) -> int:
        """Return the cached tokens of a request's prompt, which need not be processed."""
        if self.cached is None:
            return 0
        return min(int(self.cached[request]), int(self.prompt[request]) - 1)

    def first(self, count: int) -> Requests:
        """Return the first ``count`` requests."""
        kept = {name: each[:count] for name, each in vars(self).items() if each is not None}
        return Requests(**kept)


@dataclass(frozen=True, eq=False)
class Lengths:
    """A sample of pairs of lengths [tokens], (pairs,) each, from which requests are drawn."""

    prompt: IntArray
    output: IntArray

    def scaled(self, prompt: float, output: float) -> Lengths:
        """Return the lengths multiplied by two factors, at least one token each."""
        return Lengths(
            np.maximum(1, np.rint(self.prompt * prompt)).astype(np.int64),
            np.maximum(1, np.rint(self.output * output)).astype(np.int64),
        )

    def with_means(self, prompt: float, output: float) -> Lengths:
        """Return the lengths scaled to these means."""
        return self.scaled(prompt / self.prompt.mean(), output / self.output.mean())

    def draw(self, count: int, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
        """Draw pairs with replacement."""
        rows = rng.integers(len(self.prompt), size=count)
        return self.prompt[rows], self.output[rows]


def fixed_lengths(prompt: int, output: int) -> Lengths:
    """Return lengths that are the same for every request."""
    if prompt < 1 or output < 1:
        raise InputError(f"lengths of {prompt} and {output} tokens; both are at least 1.")
    return Lengths(np.array([prompt]), np.array([output]))


def even_lengths(
    prompt: int, output: int, shortest: float, count: int, rng: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Draw lengths evenly from ``shortest`` times the stated ones to these, at least one token."""
    prompts, outputs = (
        np.maximum(1, np.rint(most * rng.uniform(shortest, 1, count))).astype(np.int64)
        for most in (prompt, output)
    )
    return prompts, outputs


@cache
def azure_lengths(service: str = "conv") -> Lengths:
    """Return the lengths of Azure's 2023 traces, ``conv`` (19,366) or ``code`` (8,819 requests)."""
    check_choice("service", service, AZURE_SERVICES)
    # The shipped file is sorted by arrival and sound; read_requests would check it, slowly.
    lines = data_file("azure_llm_2023_requests.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.split(",")[-2:] for line in lines if line.startswith(f"{service},")]
    both = np.maximum(1, np.array(rows, np.int64)).T.copy()
    both.flags.writeable = False  # all callers have the same arrays
    return Lengths(*both)


def drawn_rate(text: str) -> float | None:
    """Return the rate of ``poisson:RATE`` [1/s]; None for other text, such as the path of a log."""
    kind, colon, rate = text.partition(":")
    if kind != "poisson" or not colon:
        if colon and (near := suggestion(kind, ["poisson"])) and not Path(text).exists():
            raise InputError(f"unknown requests {text!r}.{near.removesuffix('?')}:{rate}?")
        if re.fullmatch(r"[\d.]+(/s)?", text) and not Path(text).exists():
            raise InputError(f"--requests {text!r} is no log; write a rate as poisson:{text}.")
        return None
    try:
        per_s = float(rate.removesuffix("/s"))
    except ValueError:
        raise InputError(
            f"--requests {text!r}: {rate!r} is not a rate in requests/s. Write poisson:0.5."
        ) from None
    if not 0 < per_s < MOST_PER_S:
        raise InputError(
            f"--requests {text}: the rate must be above 0 and below {MOST_PER_S:g} requests/s."
        )
    return per_s


def poisson(rate_per_s: float, count: int, lengths: Lengths, rng: np.random.Generator) -> Requests:
    """Draw requests with exponential gaps; at an infinite rate all arrive at time 0."""
    arrival_s = _gaps_s(rate_per_s, count, rng)
    prompt, output = lengths.draw(count, rng)
    return Requests(arrival_s, prompt, output)


def _gaps_s(rate_per_s: float, count: int, rng: np.random.Generator) -> FloatArray:
    """Arrivals of a Poisson process [s]."""
    if not rate_per_s > 0 or not 1 <= count <= MAX_REQUESTS:
        raise InputError(
            f"{count} requests at {rate_per_s}/s; the rate is above 0 and the count 1 to "
            f"{MAX_REQUESTS:,}."
        )
    if count / rate_per_s > MAX_SPAN_S:
        raise InputError(
            f"{count:,} requests at {rate_per_s:g}/s take over {MAX_SPAN_S:,.0f} s; "
            "raise the rate or draw fewer."
        )
    gaps: FloatArray = np.cumsum(rng.exponential(1.0, count)) / rate_per_s
    return gaps


def read_requests(
    path: str | Path,
    *,
    service: str | None = None,
    rate_per_s: float | None = None,
    output_tokens: int | None = None,
    seed: int = 0,
) -> Requests:
    """Read a log of requests, each with its time, prompt and output tokens.

    A CSV file has the columns of :func:`workloads.demand.read_demand`, ``prompt_tokens`` and
    ``output_tokens`` among them; JSON and JSON lines are read as
    :mod:`workloads.demand.request_logs` describes (Mooncake, vLLM, ShareGPT). ``service`` keeps
    requests of one, ``rate_per_s`` is the rate at which those of a log without times are drawn
    [1/s], and ``output_tokens`` stands where a log has no length of an answer.
    """
    file = Path(path)
    table = read_json_log(file) if is_json_log(file) else _csv_log(file)
    if service is not None:
        table = _one_service(table, service, file)
    if len(table) > MAX_REQUESTS:
        raise InputError(f"{file}: {len(table):,} requests; at most {MAX_REQUESTS:,} are read.")
    prompt = _tokens(table, "prompt_tokens", file)
    output = _tokens(_with_outputs(table, output_tokens, file), "output_tokens", file)
    if is_json_log(file) and "time_s" not in table:
        if rate_per_s is None:
            raise InputError(
                f"{file} states no times; add --rate REQUESTS_PER_S and they are drawn."
            )
        rng = np.random.default_rng(seed)
        arrival = _gaps_s(rate_per_s, len(table), rng)
        return Requests(arrival, prompt, output, None, *_prefixes(table, file))
    if rate_per_s is not None:
        raise InputError(f"{file} states its times; leave --rate {rate_per_s:g} out.")
    times = stated_times(table, file)
    if not isinstance(times, np.ndarray):
        times = ((times - times.min()) / np.timedelta64(1, "s")).to_numpy(float)
    order = np.argsort(times, kind="stable")
    table = table.iloc[order]
    since = times[order] - times.min()
    return Requests(since, prompt[order], output[order], None, *_prefixes(table, file))


def _prefixes(
    table: pd.DataFrame, file: Path
) -> tuple[FloatArray | None, Sequence[Sequence[int]] | None]:
    """Return cached tokens that a log counts (NaN: no number), and blocks that it names."""
    import pandas as pd

    name = next((name for name in COUNTS if name in table), None)
    if name is None or is_json_log(file):
        return None, table[BLOCKS].tolist() if BLOCKS in table else None
    return COUNTS[name] * pd.to_numeric(table[name], errors="coerce").to_numpy(float), None


def _csv_log(file: Path) -> pd.DataFrame:
    table = read_table(
        file,
        "requests",
        remedy="give a log, poisson:RATE, or --concurrency USERS instead",
        limit_bytes=MAX_BYTES,
    )
    table = table.rename(columns=meanings([str(name) for name in table.columns], str(file)))
    for name in ("prompt_tokens", "output_tokens"):
        if name not in table:
            raise InputError(f"{file}: no column {name}; a log of requests states both lengths.")
    return table


def _with_outputs(table: pd.DataFrame, output_tokens: int | None, file: Path) -> pd.DataFrame:
    unknown = table["output_tokens"].isna() if is_json_log(file) else np.zeros(len(table), bool)
    if not unknown.any():
        if output_tokens is not None:
            raise InputError(
                f"{file} states the tokens of every answer; leave --output {output_tokens} out."
            )
        return table
    if output_tokens is None:
        raise InputError(
            f"{file}: {int(unknown.sum()):,} of {len(table):,} requests do not state the tokens of "
            "their answer; add --output TOKENS."
        )
    return table.assign(output_tokens=table["output_tokens"].fillna(output_tokens))


def _one_service(table: pd.DataFrame, service: str, file: Path) -> pd.DataFrame:
    if "service" not in table:
        raise InputError(f"{file} has no column service; leave --service {service} out.")
    kept = table[table["service"] == service]
    check_choice(f"{file}: service", service, sorted(set(table["service"].map(str))))
    return kept


def _tokens(table: pd.DataFrame, name: str, file: Path) -> IntArray:
    """Column of tokens as whole numbers, at least 1 each."""
    import pandas as pd

    values = pd.to_numeric(table[name], errors="coerce").to_numpy(float)
    bad = ~np.isfinite(values) | (values < 0) | (values > MOST_TOKENS)
    if bad.any():
        row = int(np.argmax(bad))
        raise InputError(
            f"{file}, row {row + 2}: {name} is {shown(str(table[name].iloc[row]))!r}; it must be a "
            f"number of tokens from 0 to {MOST_TOKENS:,}."
        )
    tokens: IntArray = np.maximum(1, np.rint(values)).astype(np.int64)
    return tokens


EVEN_PAIRS = 2**14  # pairs that stand for all between the shortest lengths and the longest
DRAWN = 2000
"""Default number of requests of a Poisson process."""


def requests_from(
    text: str,
    *,
    count: int | None = None,
    rate: float | None = None,
    prompt: int | None = None,
    output: int | None = None,
    shortest_lengths: float | None = None,
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
        for name, value in (("prompt", prompt), ("shortest-lengths", shortest_lengths)):
            if value is not None:
                raise InputError(
                    f"--{name} {value} is for poisson:RATE; {text} states its prompts. Leave it "
                    "out."
                )
        logged = read_requests(
            text, service=service, rate_per_s=rate, output_tokens=output, seed=seed
        )
        return logged if count is None else logged.first(count)
    if rate is not None:
        raise InputError(f"--rate {rate:g} is for a log without times; write poisson:RATE.")
    lengths = drawn_lengths(prompt, output, service, shortest_lengths)
    return poisson(per_s, count or DRAWN, lengths, np.random.default_rng(seed))


def drawn_lengths(
    prompt: int | None = None,
    output: int | None = None,
    service: str | None = None,
    shortest_lengths: float | None = None,
) -> Lengths:
    """Return the lengths of drawn requests: those of a trace, or stated ones."""
    lengths = azure_lengths(service or "conv")
    if prompt is None and output is None:
        if shortest_lengths is not None:
            raise InputError(
                f"--shortest-lengths {shortest_lengths:g} is a share of stated lengths, and those "
                "of a trace differ anyway; state --prompt and --output, or leave it out."
            )
        return lengths
    for name, tokens in (("prompt", prompt), ("output", output)):
        if tokens is not None and tokens < 1:
            raise InputError(f"--{name} {tokens}: a request has at least 1 token of each; use 1.")
    longest = fixed_lengths(
        round(lengths.prompt.mean()) if prompt is None else prompt,
        round(lengths.output.mean()) if output is None else output,
    )
    if shortest_lengths is None:
        return longest
    both = int(longest.prompt[0]), int(longest.output[0])
    return Lengths(*even_lengths(*both, shortest_lengths, EVEN_PAIRS, np.random.default_rng(0)))


# A prefix cache holds a share of every prompt, or follows a log. A log that names the blocks of its
# prompts is run through a least-recently-used cache, which is empty at the start: each of its
# ``hash_ids`` stands for 512 tokens in Mooncake's traces, and for 16 in those of Alibaba's Model
# Studio. A log that counts them gives the hits of a cache without limit.

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
    """Return the cached tokens of each prompt for a cached share, int64 (requests,)."""
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
    share = share_of(value)
    if share is None or not 0 <= share < 1 or state not in ("", COLD):
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
