"""Plain shapes from text: ``ring:8``, ``torus:4x4x4``, ``mesh:8``, ``switch:64``."""

from __future__ import annotations

import re

from topologies.checks import check_size
from topologies.errors import InputError
from topologies.quantities import parse_ps, parse_rate
from topologies.shapes import Axis, FullMesh, Shape, Switch, Torus

PLAIN = {"ring": "ring:8", "torus": "torus:4x4x4", "mesh": "mesh:8", "switch": "switch:64"}
"""Kinds of plain shape, each with an example."""

AXIS_NAMES = "XYZWVU"
"""From the fastest axis to the slowest."""


def plain_shape(text: str, bandwidth: str | None, latency: str | None) -> Shape:
    """Read a plain shape whose directed links are all alike.

    Parameters
    ----------
    text : str
        ``ring:N``, ``torus:AxBx…`` (slowest axis first, all wrap), ``mesh:N`` or ``switch:N``.
    bandwidth, latency : str
        Of each directed link, such as ``100GB/s`` and ``1us``.

    Raises
    ------
    InputError
        For sizes that are not whole numbers of at least 1, or a missing bandwidth or latency.

    Examples
    --------
    >>> plain_shape("torus:2x4", "100GB/s", "1us").sizes
    (2, 4)
    """
    kind, _, dims = text.partition(":")
    sizes = _sizes(text, dims, PLAIN[kind])
    if kind != "torus" and len(sizes) > 1:
        raise InputError(f"{text}: a {kind} has one size, as {PLAIN[kind]}")
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
    names = [*AXIS_NAMES[: len(sizes)]][::-1]
    return Torus(
        tuple(Axis(name, size, rate, hop_ps) for name, size in zip(names, sizes, strict=True))
    )


def _sizes(text: str, dims: str, example: str) -> list[int]:
    if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", dims, re.ASCII):
        raise InputError(f"{text[:80]}: sizes must be whole numbers of at least 1, as {example}")
    sizes = [int(size) for size in dims.split("x")]
    if len(sizes) > len(AXIS_NAMES):
        raise InputError(
            f"{text}: {len(sizes)} dimensions; at most {len(AXIS_NAMES)}, as {example}"
        )
    for size in sizes:
        check_size(text, size)
    return sizes
