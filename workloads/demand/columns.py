"""Columns that a demand file may have, and the meaning of their spellings."""

from __future__ import annotations

from topologies.errors import InputError, suggestion

TIME_S = {
    "time_s": 1.0,
    "timestamp_s": 1.0,
    "window_start_s": 1.0,
    "timestamp_ms": 1e-3,
    "minute": 60.0,
    "minute_from_start": 60.0,
    "hour_index": 3600.0,
}
"""Columns of relative times, with the seconds in one unit of each."""

CLOCK = ("time", "timestamp", "minute_utc", "hour_utc", "time_utc")
"""Columns of absolute times in ISO 8601, UTC; a bare number counts as seconds."""

ALIASES = {
    "model": "service",
    "contexttokens": "prompt_tokens",
    "generatedtokens": "output_tokens",
    "request tokens": "prompt_tokens",
    "response tokens": "output_tokens",
    "input_tokens": "prompt_tokens",
    "num_prefill_tokens": "prompt_tokens",
    "num_decode_tokens": "output_tokens",
    "arrived_at": "time_s",
    "prompt_tokens_est": "prompt_tokens",
    "output_tokens_est": "output_tokens",
    "load_share_of_peak": "load_share",
    "load": "load_share",
    "rate": "load_share",
    "rps": "requests_per_s",
    "qps": "requests_per_s",
    "input_tokens_mean": "prompt_tokens_mean",
    "input_tokens_sum": "prompt_tokens_sum",
    "datetime": "time",
    "date": "time",
}
"""Spellings of public traces, in lower case, and the columns that they stand for."""

LOAD = (
    "requests",
    "requests_per_s",
    "load_share",
    "prompt_tokens",
    "output_tokens",
    "prompt_tokens_mean",
    "output_tokens_mean",
    "prompt_tokens_sum",
    "output_tokens_sum",
    "requests_with_lengths",
    "input_tokens_covered",
    "output_tokens_covered",
)
"""Columns of requests, loads and tokens."""

IGNORED = (
    "clock_utc8",
    "inference_nodes",
    "inference_nodes_mean",
    "theoretical_income_usd",
    "active_clients",
    "mean_client_cv",
    "prefix_blocks",
    "reused_prefix_blocks",
    "total tokens",
    "log type",
    "session id",
    "elapsed time",
    "request_id",
    "client_id",
    "num_total_tokens",
    "pd_ratio",
)
"""Columns of public traces that are not read."""

WIDE = "_requests"
"""Ending of a column with the requests of one service: ``chat_requests`` for service ``chat``."""


def meanings(header: list[str], path: str) -> dict[str, str]:
    """Map every column of a file to its plain name; columns that are ignored have none.

    Raises
    ------
    InputError
        For an unknown column, and for two with the same meaning.

    Examples
    --------
    >>> meanings(["service", "minute_utc", "requests"], "a.csv")["minute_utc"]
    'minute_utc'
    >>> meanings(["TIMESTAMP", "ContextTokens", "GeneratedTokens"], "a.csv")["ContextTokens"]
    'prompt_tokens'
    """
    columns = {*TIME_S, *CLOCK, *LOAD, "service", "day", "hour"}
    result: dict[str, str] = {}
    for column in header:
        plain = column.strip().lower()
        plain = ALIASES.get(plain, plain)
        if plain in IGNORED:
            continue
        if plain not in columns and not plain.endswith(WIDE):
            raise InputError(
                f"{path}: unknown column {column!r}; a demand file has a time ({', '.join(CLOCK)}, "
                f"{', '.join(TIME_S)}), optionally service, and requests, requests_per_s, "
                f"load_share or one row a request, with prompt_tokens_mean or prompt_tokens_sum "
                f"and the same of output_tokens."
                + suggestion(plain, sorted(columns | set(ALIASES)))
            )
        if plain in result.values():
            raise InputError(f"{path}: two columns mean {plain}; keep one of them.")
        result[column] = plain
    return result
