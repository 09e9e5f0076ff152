"""Parsing of buffer sizes as users write them: a size, a list, or a geometric range."""

from __future__ import annotations

import re

from topologies.errors import InputError
from topologies.units import parse_bytes

MOST = 1000
"""Most sizes in a list."""


def parse_sizes(text: str) -> list[int]:
    """Parse ``1GiB``, ``1KiB,1MiB`` or ``1KiB:1GiB:4``, which is 1 KiB, 4 KiB, … up to 1 GiB [B].

    Raises InputError for a text that is no size or range, and for too many sizes.

    >>> parse_sizes("1KiB:64KiB:4,1MB")
    [1024, 4096, 16384, 65536, 1000000]
    """
    sizes: list[int] = []
    for part in text.split(","):
        sizes += _range(part) if ":" in part else [parse_bytes(part.strip())]
        if len(sizes) > MOST:
            raise InputError(f"--size {text[:80]} is more than {MOST} sizes; make it coarser")
    return sizes


def _range(text: str) -> list[int]:
    ends = text.split(":")
    if len(ends) != 3 or not re.fullmatch(r"[0-9]{1,18}", ends[2].strip()):
        raise InputError(f"--size {text[:80]} is no range; write it as 1KiB:1GiB:4")
    low, high, factor = parse_bytes(ends[0].strip()), parse_bytes(ends[1].strip()), int(ends[2])
    if low < 1 or high < low or factor < 2:
        raise InputError(
            f"--size {text[:80]}: a range needs 1 B ≤ low ≤ high and a factor of at least 2"
        )
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return sizes
