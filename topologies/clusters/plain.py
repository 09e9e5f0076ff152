"""Parsing of plain shapes: ``ring:8``, ``torus:4x4``, ``mesh:8``, ``switch:64``, ``clos:64:16``."""

from __future__ import annotations

import re
from fractions import Fraction

from topologies.errors import InputError
from topologies.shapes.basic import Axis, FullMesh, Shape, Switch, Torus
from topologies.shapes.clos import Clos
from topologies.shapes.limits import MAX_CHIPS, check_size
from topologies.units import parse_ps, parse_rate

PLAIN = {
    "ring": "ring:8",
    "torus": "torus:4x4x4",
    "mesh": "mesh:8",
    "switch": "switch:64",
    "clos": "clos:64:16",
}
"""Kinds of plain shape, each with an example."""

AXIS_NAMES = "XYZWVU"
"""Names of axes, from the fastest to the slowest."""


def plain_shape(text: str, bandwidth: str | None, latency: str | None) -> Shape:
    """Parse a plain shape, whose directed links are all equal.

    ``text``: ``ring:N``, ``torus:AxBx…`` (slowest axis first, all wrap), ``mesh:N``, ``switch:N``,
    or ``clos:N:RADIX`` and ``clos:N:RADIX:OVERSUBSCRIPTION``. ``bandwidth, latency``: rate and
    latency of each directed link, such as ``100GB/s`` and ``1us``.

    Raises InputError for sizes that are not whole numbers of at least 1, or a missing bandwidth or
    latency.

    >>> plain_shape("torus:2x4", "100GB/s", "1us").sizes
    (2, 4)
    """
    kind, _, dims = text.partition(":")
    sizes, more = _sizes(text, kind, dims)
    if kind != "torus" and len(sizes) > 1:
        raise InputError(f"{text}: a {kind} has one size, as {PLAIN[kind]}.")
    if bandwidth is None or latency is None:
        raise InputError(
            f"{text} needs the bandwidth and latency of a directed link; "
            "give --bandwidth 100GB/s --latency 1us"
        )
    rate, hop_ps = parse_rate(bandwidth), parse_ps(latency)
    if kind == "mesh":
        return FullMesh(sizes[0], rate, hop_ps)
    if kind == "switch":
        return Switch(sizes[0], rate, hop_ps)
    if kind == "clos":
        return Clos(sizes[0], more[0], rate, hop_ps, Fraction(more[1] if len(more) > 1 else 1))
    names = [*AXIS_NAMES[: len(sizes)]][::-1]
    return Torus(
        tuple(Axis(name, size, rate, hop_ps) for name, size in zip(names, sizes, strict=True))
    )


def _sizes(text: str, kind: str, dims: str) -> tuple[list[int], list[int]]:
    """Return the sizes of the dimensions, and the radix and oversubscription of a Clos."""
    example = PLAIN[kind]
    numbers = r"\d{1,9}(x\d{1,9})*" + (r":\d{1,9}(:\d{1,9})?" if kind == "clos" else "")
    if not re.fullmatch(numbers, dims, re.ASCII):
        raise InputError(
            f"{text[:80]}: sizes must be whole numbers of 1 to {MAX_CHIPS:,}, as {example}"
        )
    along, *more = dims.split(":")
    sizes = [int(size) for size in along.split("x")]
    if len(sizes) > len(AXIS_NAMES):
        raise InputError(
            f"{text[:80]}: {len(sizes)} dimensions; at most {len(AXIS_NAMES)}, as {example}"
        )
    for size in sizes:
        check_size(f"{text}: a size", size)
    return sizes, [int(number) for number in more]
