"""Reader of trace files whose size is bounded, also after decompression."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path

from topologies.errors import InputError, file_fault
from topologies.files.reading import open_regular

LARGEST_BYTES = 2**28  # largest trace that is read, after decompression [B]
GZIP = b"\x1f\x8b"


def read_bounded(path: Path, most_bytes: int = LARGEST_BYTES) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip."""
    # No more than the bound is decompressed, so that a decompression bomb is refused too.
    try:
        with open(path, "rb", opener=open_regular) as raw:
            zipped = raw.read(2) == GZIP
            raw.seek(0)
            if not zipped and os.fstat(raw.fileno()).st_size > most_bytes:
                raise InputError(_too_large(path, most_bytes, ""))
            stream = gzip.GzipFile(fileobj=raw) if zipped else raw
            content = stream.read(most_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as mistake:
        why = " ".join(str(mistake).split())[:80]
        raise InputError(
            f"{path}: the gzip is truncated or corrupt ({why}). Copy it again."
        ) from None
    except OSError as fault:
        raise InputError(file_fault(fault)) from None
    if len(content) > most_bytes:
        raise InputError(_too_large(path, most_bytes, " once it is decompressed" if zipped else ""))
    if not content:
        raise InputError(f"{path} is empty. Give a trace.")
    return bytes(content)


def _too_large(path: Path, most_bytes: int, how: str) -> str:
    return (
        f"{path} is over {most_bytes // 2**20:,} MiB{how}, the most that is read. Profile fewer "
        "iterations."
    )
