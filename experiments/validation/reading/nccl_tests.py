"""Reader of the output of ``nccl-tests`` and ``nccom-test``: sizes and times of a collective.

Only sizes and times are read as measurements. Printed bandwidths serve to find the operation and
the ranks only: GB/s means 10⁹ bytes in nccl-tests and 2³⁰ bytes in older nccom-test output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topologies.arrays import FloatArray
from topologies.errors import InputError
from topologies.files.reading import read_text

LARGEST_FILE_BYTES = 20_000_000
GIB_PER_GB = 2**30 / 10**9
ONLY_ALL_REDUCE_FROM = 1.1
"""Bus over algorithm bandwidth from which an operation is an all-reduce: 4/3 with three ranks, and
at most 1 in any other operation."""
OPERATIONS = {
    "all-reduce": ("all_reduce", "allreduce", "allr"),
    "all-gather": ("all_gather", "allgather", "allg"),
    "reduce-scatter": ("reduce_scatter", "reducescatter", "redsct"),
    "all-to-all": ("alltoall", "all_to_all", "alltoall_perf", "alltoallv"),
    "broadcast": ("broadcast", "bcast"),
    "permute": ("sendrecv", "permute"),
}
WORD_ENDS = re.compile(r"[-_ ]")
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, eq=False)
class Measured:
    """One measured series."""

    collective: str | None  # operation, if the text names it or the bandwidths imply it
    ranks: int | None  # likewise
    size_bytes: FloatArray  # (rows,): as the tool counts them
    time_s: FloatArray  # (rows,): out of place, where both are printed [s]
    # ``GB/s`` or ``GiB/s``: unit of the printed algorithm bandwidth, found from sizes and times;
    # empty if it is not printed
    bandwidth_unit: str
    failed: int

    def __len__(self) -> int:
        return len(self.size_bytes)


def operation(name: str) -> str:
    """Operation that a tool or library calls by this name; an unknown name is returned unchanged.

    >>> operation("AllReduce"), operation("all_gather"), operation("sendrecv"), operation("gather")
    ('all-reduce', 'all-gather', 'permute', 'gather')
    """
    plain = WORD_ENDS.sub("", name.lower())
    return next(
        (
            kind
            for kind, names in OPERATIONS.items()
            if plain in {WORD_ENDS.sub("", spelling) for spelling in (kind, *names)}
        ),
        name,
    )


def read_measured(path: Path | str, wanted: str | None = None) -> Measured:
    """Read a file of such output; from several tables, that of the operation wanted."""
    text = read_text(
        Path(path), limit_bytes=LARGEST_FILE_BYTES, remedy="Keep the table only.", lenient=True
    )
    return parse_measured(text, str(path), wanted)


def parse_measured(text: str, name: str = "the text", wanted: str | None = None) -> Measured:
    """Find the table in the printed text; all other lines are skipped."""
    lines = [_plain(line) for line in text.splitlines()]
    headers = [at for at, line in enumerate(lines) if _is_header(line)]
    if not headers:
        raise InputError(
            f"{name}: no table of nccl-tests or nccom-test in it; a header with size, time and "
            "algbw was looked for. Give the tool's own output."
        )
    before = [0, *headers[:-1]]
    after = [*headers[1:], len(lines)]
    named = [_operation("\n".join(lines[a:b])) for a, b in zip(before, headers, strict=True)]
    taken = named.index(wanted) if wanted in named else 0
    return _table(lines[before[taken] : after[taken]], headers[taken] - before[taken], name)


def _table(lines: Sequence[str], header: int, name: str) -> Measured:
    """Read the table whose header is in that line, and the text that was printed before it."""
    columns = _columns(lines[header], " ".join(lines[header + 1 : header + 2]))
    rows, failed = _rows(lines[header + 1 :], columns)
    if not len(rows):
        raise InputError(f"{name}: {failed} rows without a result, none with one. Run it again.")
    size, time_s, algbw, busbw = rows.T
    ratio = _ratio(algbw, busbw)
    implied = "all-reduce" if ratio is not None and ratio > ONLY_ALL_REDUCE_FROM else None
    collective = _operation("\n".join(lines[:header])) or implied
    return Measured(
        collective=collective,
        ranks=_stated_ranks(lines[:header]) or _ranks(collective, ratio),
        size_bytes=size,
        time_s=time_s,
        bandwidth_unit=_unit(size / time_s, algbw),
        failed=failed,
    )


PREFIX = re.compile(
    r"\s*(?:\[[\d,]+\]<std\w+>:?"
    r"|(?:\d{4}-\d\d-\d\d[T ][\d:.,]+Z?|\[[\w.:-]+\]:?|[\w.-]+:)(?=\s|#|$))"
)
"""Text that launchers and collectors of logs put before a line: rank, host, time."""


def _plain(line: str) -> str:
    """Drop colours, prefixes such as ``[1,0]<stdout>:`` or ``node-7:``, and the comment sign."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    while (prefix := PREFIX.match(line)) and prefix.end():
        line = line[prefix.end() :]
    return line.strip().lstrip("#").strip()


def _is_header(line: str) -> bool:
    words = line.lower().split()
    return any(word.startswith("size") for word in words) and any(
        word.startswith(("time", "algbw")) for word in words
    )


@dataclass(frozen=True)
class _Columns:
    """Positions of the columns of interest, and the unit of time."""

    size: int
    time: int
    algbw: int | None
    busbw: int | None
    time_unit: float


def _columns(header: str, units: str) -> _Columns:
    """Positions of the first column of each kind; in nccl-tests that is the out-of-place one."""
    words = header.lower().split()

    def first(*starts: str) -> int | None:
        return next((at for at, word in enumerate(words) if word.startswith(starts)), None)

    size, median, time = first("size"), first("time:p50", "time(p50"), first("time")
    at = median if median is not None else time
    if size is None or at is None:
        raise InputError(f"the header {header[:60]!r} names no size or no time. Add both.")
    named_unit = re.search(r"\((us|ms|s)\)", words[at]) or re.search(
        r"\((us|ms|s)\)", units.lower()
    )
    unit = TIMES[named_unit[1]] if named_unit else TIMES["us"]
    return _Columns(size, at, first("algbw"), first("busbw"), unit)


def _rows(lines: Sequence[str], columns: _Columns) -> tuple[FloatArray, int]:
    """Sizes, times and bandwidths of the rows under the header, and how many had no result."""
    measured, failed = [], 0
    for line in lines:
        words = line.split()
        if not words or not words[0].isdigit():
            continue
        row = [
            _number(words, at) for at in (columns.size, columns.time, columns.algbw, columns.busbw)
        ]
        if row[0] > 0 and row[1] > 0:
            measured.append([row[0], row[1] * columns.time_unit, row[2], row[3]])
        else:
            failed += 1
    return np.array(measured, float).reshape(-1, 4), failed


def _number(words: Sequence[str], at: int | None) -> float:
    try:
        value = float(words[at]) if at is not None else np.nan
    except (ValueError, IndexError):
        return np.nan
    return value if np.isfinite(value) else np.nan


def _operation(text: str) -> str | None:
    words = re.findall(r"[a-z_]+", text.lower())
    for word in words:
        stem = word.removesuffix("_perf").removesuffix("_perf_mpi")
        for name, spellings in OPERATIONS.items():
            if stem in spellings:
                return name
    return None


def _stated_ranks(lines: Sequence[str]) -> int | None:
    """Ranks that nccl-tests lists one a line, or that nccom-test was given."""
    listed = {match[1] for line in lines if (match := re.match(r"Rank\s+(\d+)\b", line))}
    if listed:
        return len(listed)
    pattern = r"nccom-test\b.*?(?:-r|--nworkers)[ =]+(\d+)"
    match = next((match for line in lines if (match := re.search(pattern, line))), None)
    return int(match[1]) if match else None


def _ratio(algbw: FloatArray, busbw: FloatArray) -> float | None:
    """Bus over algorithm bandwidth, from the row that prints the most digits."""
    good = (algbw > 0) & (busbw > 0)
    if not good.any():
        return None
    best = int(np.argmax(np.where(good, algbw, 0)))
    return float(busbw[best] / algbw[best])


def _ranks(collective: str | None, ratio: float | None) -> int | None:
    """Invert the factor of bus bandwidth, 2 (n − 1) / n or (n − 1) / n."""
    rounds = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1}
    if collective not in rounds or ratio is None or not 0 < ratio < rounds[collective]:
        return None
    ranks = 1 / (1 - ratio / rounds[collective])
    return round(ranks) if ranks > 1.5 and abs(ranks - round(ranks)) < 0.1 * ranks else None


def _unit(bytes_per_s: FloatArray, algbw: FloatArray) -> str:
    """Return the unit of printed bandwidths, 10⁹ or 2³⁰ bytes, by those with enough digits."""
    good = algbw >= 1
    if not good.any():
        return ""
    per_gb = float(np.median(bytes_per_s[good] / algbw[good])) / 1e9
    return "GiB/s" if per_gb > (1 + GIB_PER_GB) / 2 else "GB/s"
