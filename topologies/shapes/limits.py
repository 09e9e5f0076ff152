"""Limits of the sizes, rates and latencies of shapes, and checks against them."""

from __future__ import annotations

import math

from topologies.errors import InputError

MAX_CHIPS = 2**24
"""Most chips of a cluster; arrays of links and routes are in 32-bit integers."""

MAX_MESH = 2**12
"""Most chips of a full mesh, whose links grow with the square of its chips."""

MAX_RATE = 2**53
"""Largest rate of a link [B/s]: exact both as an integer and as a float."""


def check_size(what: str, size: int, limit: int = MAX_CHIPS) -> None:
    """Refuse a number below 1 or above a limit; ``what`` names it in the message."""
    if not 1 <= size <= limit:
        raise InputError(f"{what} of {size:,} is not between 1 and {limit:,}")


def check_chips(what: str, sizes: tuple[int, ...]) -> None:
    """Refuse sizes whose product is above the limit of chips."""
    chips = math.prod(sizes)
    if chips > MAX_CHIPS:
        text = "x".join(map(str, sizes))
        raise InputError(
            f"{what} {text} has {chips:,} chips; at most {MAX_CHIPS:,} are possible. "
            "Make it smaller."
        )


def check_link(what: str, bandwidth_bytes_per_s: int, latency_ps: int) -> None:
    """Refuse a link without a positive rate, or with a negative latency."""
    if not 1 <= bandwidth_bytes_per_s <= MAX_RATE:
        raise InputError(
            f"{what}: a bandwidth of {bandwidth_bytes_per_s} B/s is not between 1 and 2^53 B/s"
        )
    if not 0 <= latency_ps < 2**62:
        raise InputError(f"{what}: a latency of {latency_ps} ps is not between 0 and 2^62 ps")
