"""Steps of one rank for a layer, an embedding or an output layer, in program order.

A step is a kernel on the chip's engine or a communication on one of its streams. It waits for the
step before it on its own stream, and for the step that ``after`` names. By default that is the
step just before it, which makes a chain. A step that waits for an earlier one can run beside those
in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from workloads.kernels.chip_share import Timing

ENGINE, CC, CC_DP, SEND, RECEIVE, RECEIVE_BACK, HOST, RETURN, RETURN_BACK = range(9)
"""Streams of a rank, each of which runs one step at a time: the compute engine; collectives within
a replica; collectives between replicas; sends to other stages; receives from the previous and from
the next stage; the host that issues kernels; and receives of activations and of gradients where
the model is on its way back to the first stage."""

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
"""Kind of resource of each stream, and its number among the resources of that kind."""
CATEGORY = {"etp": "tp", "edp": "dp"}
"""Category of the communication of experts' own tensor-parallel groups and replicas."""
PREVIOUS = "previous"  # value of ``after`` for a step that waits for the one just before it
NOTHING = ""  # value of ``after`` for a step that waits for no other stream


class LayerOp(NamedTuple):
    """One kernel or communication of a rank."""

    # It is a tuple because programs find thousands of them by their contents.

    name: str  # name such as ``attention.qkv``
    what: str  # category: ``compute``, ``optimizer``, ``host``, or the axis that communicates
    stream: int
    seconds: float = 0.0  # time of a kernel [s]; communication is timed on the group that does it
    # Size of a communication as nccl-tests count it, or bytes that a kernel reads and writes [B]
    size_bytes: int = 0
    axis: str = ""  # axis of the groups that communicate; empty for a kernel
    collective: str = ""  # operation of a communication, such as ``all-reduce``
    # ``PREVIOUS``, ``NOTHING``, or the name of an earlier step of the same block
    after: str = PREVIOUS
    provenance: str = ""  # worst grade among the inputs of a kernel's time
    # Time that issuing the step takes on the host, in units of a plain kernel's: 0 where it is
    # issued together with an earlier step, more than 1 where it has a product for each expert
    issued: float = 1.0


def stream_kinds(steps: Sequence[LayerOp]) -> tuple[tuple[str, int], ...]:
    """Return the kinds of a rank's streams, without those that only returning chunks need."""
    highest = max((step.stream for step in steps), default=0)
    return STREAM_KINDS[: HOST + 1] if highest <= HOST else STREAM_KINDS


def kernel(name: str, timing: Timing, what: str = "compute", after: str = PREVIOUS) -> LayerOp:
    """Return a step on the engine."""
    seconds, size_bytes, provenance = timing.seconds, timing.size_bytes, timing.provenance
    return LayerOp(name, what, ENGINE, seconds, size_bytes, after=after, provenance=provenance)


def collective(
    name: str, axis: str, op: str, size_bytes: int, *, after: str = PREVIOUS, stream: int = CC
) -> LayerOp:
    """Return a step in which all ranks of the axis' group take part."""
    return LayerOp(name, CATEGORY.get(axis, axis), stream, 0.0, size_bytes, axis, op, after)


def length_s(steps: Sequence[LayerOp], time_s: Callable[[LayerOp], float]) -> float:
    """Time at which the last of the steps ends [s], where those of one stream run in order."""
    # The ranks are alike, so all start a communication at the same time, which takes ``time_s``.
    ended: dict[str, float] = {PREVIOUS: 0.0, NOTHING: 0.0}
    free: dict[int, float] = {}
    for step in steps:
        start = max(free.get(step.stream, 0.0), ended[step.after])
        end = start + (time_s(step) if step.axis else step.seconds)
        free[step.stream] = ended[PREVIOUS] = ended[step.name] = end
    return max(free.values(), default=0.0)


def prefixed(steps: Sequence[LayerOp], prefix: str) -> list[LayerOp]:
    """Return the same steps with a prefix before their names."""
    names = {step.after: prefix + step.after for step in steps}
    names |= {PREVIOUS: PREVIOUS, NOTHING: NOTHING}
    return [step._replace(name=prefix + step.name, after=names[step.after]) for step in steps]


def without(steps: Sequence[LayerOp], prefix: str, parts: tuple[str, ...]) -> list[LayerOp]:
    """Leave out the steps whose names begin with ``prefix`` and one of ``parts``."""
    # Steps that waited for one of them wait for the step before instead.
    starts = tuple(prefix + part for part in parts)
    dropped = {step.name for step in steps if step.name.startswith(starts)}
    return [
        step._replace(after=PREVIOUS) if step.after in dropped else step
        for step in steps
        if step.name not in dropped
    ]


def back(steps: Sequence[LayerOp]) -> list[int]:
    """Distance of each step to the step that its ``after`` names, in steps; 0 for none."""
    place: dict[str, int] = {}
    distances = []
    for number, step in enumerate(steps):
        if step.after == PREVIOUS:
            distances.append(1)
        else:
            distances.append(number - place[step.after] if step.after else 0)
        place[step.name] = number
    return distances
