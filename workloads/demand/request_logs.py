"""Reader of request logs in JSON: Mooncake, Qwen's Bailian, vLLM, ShareGPT, plain, Prometheus.

The tokens of a text are its characters over :data:`CHARACTERS_PER_TOKEN`, as no log names a
tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from topologies.support.errors import InputError, shown
from topologies.support.files.reading import read_text

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".json", ".jsonl", ".ndjson")  # endings of the names of JSON files
LARGEST_BYTES = 700_000_000
"""Largest file that is read [B]; its text takes up to four times as much memory."""
CHARACTERS_PER_TOKEN = 4.0
"""Mean characters of a token of English text; assumed, a common rule of thumb."""
MOONCAKE_TIME_S = 1e-3
"""Seconds in one unit of ``timestamp`` beside ``input_length`` and without a ``chat_id``."""

TIME = ("time_s", "timestamp_s", "timestamp", "time", "arrival_s", "start_time")
PROMPT = ("prompt_tokens", "input_length", "input_tokens", "prompt_len", "input_len")
OUTPUT = ("output_tokens", "output_length", "completion_tokens", "output_len")
TEXT = ("prompt", "text_input")
TURNS = "conversations"
HASHES = "hash_ids"
CHAT = "chat_id"
BLOCKS = "blocks"
"""Column that holds the numbers of each prompt's blocks; equal first blocks are an equal prefix."""
LISTS = ("input_lens", "output_lens")


def is_json_log(path: str | Path) -> bool:
    """Return whether a file's name ends like that of a JSON file.

    >>> is_json_log("conversation_trace.jsonl"), is_json_log("azure.csv")
    (True, False)
    """
    return str(path).lower().endswith(ENDINGS)


def read_json_log(path: str | Path, *, rates: bool = False) -> pd.DataFrame:
    """Read a log of requests in JSON or JSON lines, or with ``rates`` an answer of Prometheus."""
    # Returns one row a request: ``prompt_tokens`` and ``output_tokens`` (float; NaN where the log
    # has none), ``time_s`` [s] if the log has times, and ``blocks`` if any request names the blocks
    # of its prompt (a list for each request, empty for one without). Requests without any text or
    # tokens, such as conversations of one turn, are left out.
    import pandas as pd

    file = Path(path)
    remedy = "Give a CSV file, JSON lines, or poisson:RATE."
    text = read_text(file, limit_bytes=LARGEST_BYTES, remedy=remedy)
    named = shown(str(file))
    rows = []
    for number, entry in enumerate(_entries(text, named), 1):
        if not isinstance(entry, dict):
            raise InputError(f"{named} entry {number}: it is no object with keys and values.")
        if all(name in entry for name in LISTS):
            return _benchmark(entry, named)
        if rates and isinstance(entry.get("data"), dict):
            return _rates(entry["data"], named)
        row = _request(entry, f"{named} entry {number}")
        if row is not None:
            rows.append(row)
    if not rows:
        raise InputError(f"{named} holds no requests; each needs a prompt's text or tokens.")
    table = pd.DataFrame(rows)
    if BLOCKS in table:
        table[BLOCKS] = [hashes if isinstance(hashes, list) else [] for hashes in table[BLOCKS]]
    if "time_s" in table and table["time_s"].isna().any():
        row_number = int(table["time_s"].isna().to_numpy().argmax()) + 1
        raise InputError(
            f"{named}: request {row_number} has no time, and others have one. State all or none."
        )
    return table


def _rates(data: Mapping[str, Any], named: str) -> pd.DataFrame:
    """Return the requests per second of an answer of Prometheus' query API, by Unix time."""
    import pandas as pd

    series = data.get("result")
    if not isinstance(series, list) or len(series) != 1:
        count = len(series) if isinstance(series, list) else "no"
        raise InputError(f"{named} has {count} series; ask for one, such as sum(rate(…)).")
    try:
        points = np.array(series[0]["values"], float).reshape(-1, 2)
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{named}: its series has no values by time; give an answer of query_range."
        ) from None
    return pd.DataFrame({"time": points[:, 0], "requests_per_s": points[:, 1]})


def _entries(text: str, named: str) -> Iterator[Any]:
    """Yield the entries of a JSON list or of JSON lines."""
    # They are decoded one at a time, so that an error can name its line.
    decoder, place, end = json.JSONDecoder(), 0, len(text)
    is_list = text.lstrip()[:1] == "["
    if is_list:
        place = text.index("[") + 1
    while True:
        while place < end and text[place] in " \t\r\n,":
            place += 1
        if place >= end or (is_list and text[place] == "]"):
            return
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as mistake:
            line = text.count("\n", 0, place) + 1
            why = "nested too deeply" if isinstance(mistake, RecursionError) else "no JSON"
            raise InputError(f"{named} line {line}: {why}. Give one object a request.") from None
        yield entry


def _request(entry: Mapping[str, Any], where: str) -> dict[str, Any] | None:
    """Return the tokens, time and blocks of one request; None for one without a prompt."""
    prompt = _number(entry, PROMPT, where, whole=True)
    output = _number(entry, OUTPUT, where, whole=True)
    if prompt is None:
        texts = _texts(entry, where)
        if not texts:
            return None
        prompt = _tokens(texts[0])
        output = _tokens(texts[1]) if output is None and len(texts) > 1 else output
    row: dict[str, Any] = {
        "prompt_tokens": prompt,
        "output_tokens": np.nan if output is None else output,
    }
    time = _number(entry, TIME, where)
    if time is not None:
        is_mooncake = "input_length" in entry and "timestamp" in entry and CHAT not in entry
        row["time_s"] = time * (MOONCAKE_TIME_S if is_mooncake else 1.0)
    blocks = entry.get(HASHES)
    if blocks is not None:
        if not isinstance(blocks, list) or not all(isinstance(block, int) for block in blocks):
            raise InputError(f"{where}: {HASHES} is {shown(repr(blocks), 40)}; give whole numbers.")
        row[BLOCKS] = blocks
    return row


def _texts(entry: Mapping[str, Any], where: str) -> list[str]:
    """Return the text of the prompt and, where there is one, that of the answer."""
    turns = entry.get(TURNS)
    if isinstance(turns, list):
        values = [turn.get("value") for turn in turns[:2] if isinstance(turn, dict)]
        texts = [value for value in values if isinstance(value, str)]
        return texts if len(texts) == 2 else []
    for name in TEXT:
        value = entry.get(name)
        if isinstance(value, str):
            return [value]
    raise InputError(
        f"{where}: neither {PROMPT[0]} nor {PROMPT[1]}, {TEXT[0]} or {TURNS} is in it; it has "
        f"{shown(', '.join(map(str, entry)) or 'no keys', 80)}."
    )


def _tokens(text: str) -> float:
    """Estimate the tokens of a text, at least one."""
    return max(1.0, float(round(len(text) / CHARACTERS_PER_TOKEN)))


def _number(
    entry: Mapping[str, Any], names: tuple[str, ...], where: str, *, whole: bool = False
) -> float | None:
    """Return the number under the first of several keys that an entry has; None without any."""
    for name in names:
        value = entry.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < 1e15 or (whole and value % 1):
            kind = "whole number" if whole else "number"
            raise InputError(
                f"{where}: {name} is {shown(repr(value), 40)}; it must be a {kind} of at least 0."
            )
        return float(value)
    return None


def _benchmark(entry: Mapping[str, Any], named: str) -> pd.DataFrame:
    """Return the requests of a result of vLLM's benchmark, which has a list for each quantity."""
    import pandas as pd

    columns = dict(zip(("prompt_tokens", "output_tokens"), LISTS, strict=True))
    if entry.get("start_times") is not None:
        columns["time_s"] = "start_times"
    first = entry[LISTS[0]]
    count = len(first) if isinstance(first, list) else 0
    for name in columns.values():
        values = entry[name]
        if not isinstance(values, list) or len(values) != count or not count:
            raise InputError(f"{named}: {name} is no list of {count or 'at least one'} numbers.")
        for number, value in enumerate(values, 1):
            tokens = name in LISTS
            _number({name: value}, (name,), f"{named} request {number}", whole=tokens)
    table = pd.DataFrame({column: np.array(entry[name], float) for column, name in columns.items()})
    return table[table["prompt_tokens"] > 0].reset_index(drop=True)
