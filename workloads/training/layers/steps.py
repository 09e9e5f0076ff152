"""Steps: what one rank does for a layer, an embedding or an output layer, in program order.

A step is a kernel on the chip's engine or a communication on one of its streams. ``after`` names
what it waits for besides the step before it on its own stream: the step just before it unless
said otherwise, which makes a chain; a step that waits for an earlier one only leaves those in
between to run beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workloads.kernels.chip_share import Timing

ENGINE, CC, CC_DP, SEND, RECEIVE, RECEIVE_BACK, HOST, RETURN, RETURN_BACK = range(9)
"""Streams of a rank: its compute engine, collectives of the model and of dp, sending to other
stages, receiving from the stage before and from the stage after, the host that issues, and
receiving forward and backward where the model is on its way back to the first stage."""

STREAM_KINDS = (
    ("engine", 0),
    ("cc", 0),
    ("cc", 1),
    ("send", 0),
    ("receive", 0),
    ("receive", 1),
    ("host", 0),
    ("receive", 2),
    ("receive", 3),
)
"""Kind of resource of each stream, and its number among those of a kind."""
TOLD_AS = {"etp": "tp", "edp": "dp"}
"""Category of communication in groups of experts that have a counterpart outside of them."""
PREVIOUS = "previous"
NOTHING = ""


@dataclass(frozen=True)
class LayerOp:
    """One op of a rank.

    Attributes
    ----------
    name : str
        Such as ``attention.qkv``.
    what : str
        Category: ``compute``, ``optimizer``, ``host``, or the axis that communicates.
    stream : int
    seconds : float
        Time of a kernel [s]; communication is timed on the group that does it.
    size_bytes : int
        Size of a communication as nccl-tests count it; bytes that a kernel reads and writes [B].
    axis : str
        Exchange that a communication belongs to, ``""`` for a kernel.
    collective : str
        Operation of a communication.
    after : str
        ``PREVIOUS``, ``NOTHING``, or the name of an earlier step of the same block.
    provenance : str
        Worst input of the time of a kernel.
    issued : float
        Steps of the host that issuing it takes: 1, 0 where it is issued with an earlier step, more
        where there is a product for each expert.
    """

    name: str
    what: str
    stream: int
    seconds: float = 0.0
    size_bytes: int = 0
    axis: str = ""
    collective: str = ""
    after: str = PREVIOUS
    provenance: str = ""
    issued: float = 1.0


def stream_kinds(steps: Sequence[LayerOp]) -> tuple[tuple[str, int], ...]:
    """Kinds of the streams of ranks; two are only there where steps take what returns."""
    most = max((step.stream for step in steps), default=0)
    return STREAM_KINDS[: HOST + 1] if most <= HOST else STREAM_KINDS


def kernel(name: str, timing: Timing, what: str = "compute", after: str = PREVIOUS) -> LayerOp:
    """Return a step on the engine."""
    seconds, size_bytes, provenance = timing.seconds, timing.size_bytes, timing.provenance
    return LayerOp(name, what, ENGINE, seconds, size_bytes, after=after, provenance=provenance)


def collective(
    name: str, axis: str, op: str, size_bytes: int, *, after: str = PREVIOUS, stream: int = CC
) -> LayerOp:
    """Return a step in which all ranks of the axis' group take part."""
    return LayerOp(name, TOLD_AS.get(axis, axis), stream, 0.0, size_bytes, axis, op, after)


def prefixed(steps: Sequence[LayerOp], prefix: str) -> list[LayerOp]:
    """Return the same steps with longer names."""
    return [
        replace(step, name=prefix + step.name, after=_renamed(step.after, prefix)) for step in steps
    ]


def without(steps: Sequence[LayerOp], prefix: str, parts: tuple[str, ...]) -> list[LayerOp]:
    """Leave out steps named ``prefix`` and one of these parts; who waited for them waits no more.

    Examples
    --------
    >>> sums = collective("mlp.reduce", "tp", "all-reduce", 8)
    >>> [step.name for step in without([sums, replace(sums, name="mlp.up")], "mlp.", ("reduce",))]
    ['mlp.up']
    """
    starts = tuple(prefix + part for part in parts)
    dropped = {step.name for step in steps if step.name.startswith(starts)}
    return [
        replace(step, after=PREVIOUS) if step.after in dropped else step
        for step in steps
        if step.name not in dropped
    ]


def _renamed(after: str, prefix: str) -> str:
    return after if after in (PREVIOUS, NOTHING) else prefix + after


def back(steps: Sequence[LayerOp]) -> list[int]:
    """Number of steps back of each one's ``after``; 0 for nothing."""
    place: dict[str, int] = {}
    distances = []
    for number, step in enumerate(steps):
        if step.after == PREVIOUS:
            distances.append(1)
        else:
            distances.append(number - place[step.after] if step.after else 0)
        place[step.name] = number
    return distances
