"""Faults as a user writes them: ``link:0-1@0s:slow=1/2``, ``tx:5@1ms:slow=1/4``, or ``:dead``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cluster_sim.engine.faults import LARGEST_TERM, Faults
from cluster_sim.schedule.table import Schedule
from topologies.errors import InputError, suggestion
from topologies.units import parse_ps

FORM = re.compile(
    r"([A-Za-z][A-Za-z-]*:(\d+)(?:-\d+)?(?:\.\d+)?)@([^:]+):(dead|slow=(\d+)/(\d+))", re.ASCII
)
EXAMPLE = "engine:5@1ms:slow=1/2, link:0-1@0s:slow=1/2, or :dead"


@dataclass(frozen=True)
class Fault:
    """A fault: from an instant on, a resource runs at a part of its speed or not at all.

    Attributes
    ----------
    resource : str
        As printed in the trace.
    chip : int
        That owns it.
    time_ps : int
    numerator, denominator : int
        Speed as a fraction of the nominal one; 0/1 is dead.
    """

    resource: str
    chip: int
    time_ps: int
    numerator: int
    denominator: int


def parse_fault(text: str) -> Fault:
    """Read ``RESOURCE@TIME:dead`` or ``RESOURCE@TIME:slow=P/Q``.

    Raises
    ------
    InputError

    Examples
    --------
    >>> parse_fault("engine:5@1us:slow=1/2")
    Fault(resource='engine:5', chip=5, time_ps=1000000, numerator=1, denominator=2)
    """
    parts = FORM.fullmatch(text.strip())
    if parts is None:
        raise InputError(
            f"fault {text[:60]!r} is not RESOURCE@TIME:dead|slow=P/Q. Write {EXAMPLE}."
        )
    resource, chip, instant, what, top, bottom = parts.groups()
    time_ps = parse_ps(instant, "fault time")
    if what == "dead":
        return Fault(resource, int(chip), time_ps, 0, 1)
    numerator, denominator = int(top), int(bottom)
    if not 1 <= numerator <= LARGEST_TERM or not 1 <= denominator <= LARGEST_TERM:
        raise InputError(
            f"fault {text[:60]!r}: P and Q of slow=P/Q must be from 1 to {LARGEST_TERM}. "
            "Use dead for a speed of 0."
        )
    if numerator > denominator:
        raise InputError(
            f"fault {text[:60]!r}: a speed of {top}/{bottom} is above nominal. Write at most 1/1."
        )
    return Fault(resource, int(chip), time_ps, numerator, denominator)


def _where(kind: str, kinds: Sequence[str]) -> str:
    """Describe where a resource of a kind is found."""
    if kind in OF_MESSAGES and kind not in kinds:
        return (
            "A collective is one op at this level; use --level chunk, which has links and "
            "adapters, or cluster-sim collective --fault."
        )
    return "Take one from the trace."


OF_MESSAGES = ("link", "tx", "rx", "uplink", "switch", "down", "up", "port", "nic")
"""Kinds of resources that messages cross, which only the chunk level has."""


def fault_table(schedule: Schedule, faults: Sequence[Fault]) -> Faults:
    """Return the faults of a schedule's resources by number.

    Raises
    ------
    InputError
        For a resource that the schedule does not have, or one struck twice at an instant.
    """
    names = schedule.resources.names()
    number = {name: place for place, name in enumerate(names)}
    for fault in faults:
        if fault.resource not in number:
            kinds = sorted({name.split(":")[0] for name in names})
            kind = fault.resource.split(":")[0]
            raise InputError(
                f"no resource {fault.resource} in this run; kinds are {', '.join(kinds)}."
                f"{suggestion(fault.resource, names)} {_where(kind, kinds)}"
            )
    when = [(fault.resource, fault.time_ps) for fault in faults]
    for part in when:
        if when.count(part) > 1:
            raise InputError(f"{part[0]} has two faults at {part[1]:,} ps. State one of them.")
    return Faults.table(
        [fault.time_ps for fault in faults],
        [number[fault.resource] for fault in faults],
        [fault.numerator for fault in faults],
        [fault.denominator for fault in faults],
    )
