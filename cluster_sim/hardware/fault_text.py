"""Parsing of faults as users write them: ``link:0-1@0s:slow=1/2`` or ``tx:5@1ms:dead``."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from cluster_sim.engine.faults import LARGEST_TERM, Faults
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.table import Schedule
from topologies.clusters.cluster import Cluster
from topologies.errors import InputError, suggestion
from topologies.units import parse_ps

FORM = re.compile(
    r"([A-Za-z][A-Za-z-]*:(s?)(\d+)(?:-s?\d+)?(?:\.\d+)?)@([^:]+):(dead|slow=(\d+)/(\d+))",
    re.ASCII,
)
"""Fault as text. A node that begins with s is a switch, as in ``link:3-s0``."""
EXAMPLE = "engine:5@1ms:slow=1/2, link:0-1@0s:slow=1/2, or :dead"


@dataclass(frozen=True)
class Fault:
    """A fault: from an instant on, a resource runs at a part of its speed or not at all.

    ``resource``: name of the resource as a trace prints it.
    ``chip``: chip that owns the resource; -1 for a link that leaves a switch.
    ``time_ps``: instant of the fault [ps].
    ``numerator, denominator``: speed as a fraction of the nominal speed; 0/1 is dead.
    """

    resource: str
    chip: int
    time_ps: int
    numerator: int
    denominator: int


def parse_fault(text: str) -> Fault:
    """Parse ``RESOURCE@TIME:dead`` or ``RESOURCE@TIME:slow=P/Q``.

    Raises InputError for a text of another form, a time that is none, and a speed out of range.

    >>> parse_fault("engine:5@1us:slow=1/2")
    Fault(resource='engine:5', chip=5, time_ps=1000000, numerator=1, denominator=2)
    """
    parts = FORM.fullmatch(text.strip())
    if parts is None:
        raise InputError(
            f"fault {text[:60]!r} is not RESOURCE@TIME:dead|slow=P/Q. Write {EXAMPLE}."
        )
    resource, switch, node, instant, what, top, bottom = parts.groups()
    chip = -1 if switch else int(node)
    time_ps = parse_ps(instant, "fault time")
    if what == "dead":
        return Fault(resource, chip, time_ps, 0, 1)
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
    return Fault(resource, chip, time_ps, numerator, denominator)


def _remedy(kind: str, kinds: Sequence[str]) -> str:
    """Say where resources of a kind that this run does not have are found."""
    if kind in OF_MESSAGES and kind not in kinds:
        return (
            "A collective is one op at this level; use --level chunk, which has links and "
            "adapters, or cluster-sim collective --fault."
        )
    return "Take one from the trace."


OF_MESSAGES = ("link", "tx", "rx", "uplink", "switch", "down", "up", "port", "nic")
"""Kinds of resources that messages cross; only schedules of single messages have them."""


def fault_table(
    schedule: Schedule, faults: Sequence[Fault], cluster: Cluster | None = None
) -> Faults:
    """Return a table of faults, with the numbers of the schedule's resources for their names.

    ``cluster``: cluster of which the schedule may use a part. A fault of a link or adapter
    elsewhere has no effect, which a warning says.

    Raises InputError for a resource that the schedule does not have, or one with two faults at an
    instant.
    """
    names = schedule.resources.names()
    number = {name: place for place, name in enumerate(names)}
    elsewhere = [
        fault
        for fault in faults
        if cluster and fault.resource not in number and _stands_in(cluster, fault.resource)
    ]
    for fault in elsewhere:
        _tell_idle(fault.resource)
    faults = [fault for fault in faults if fault not in elsewhere]
    for fault in faults:
        if fault.resource not in number:
            kinds = sorted({name.split(":")[0] for name in names})
            kind = fault.resource.split(":")[0]
            raise InputError(
                f"no resource {fault.resource} in this run; kinds are {', '.join(kinds)}."
                f"{suggestion(fault.resource, names)} {_remedy(kind, kinds)}"
            )
    events = [(fault.resource, fault.time_ps) for fault in faults]
    for event in events:
        if events.count(event) > 1:
            raise InputError(f"{event[0]} has two faults at {event[1]:,} ps. State one of them.")
    return Faults.table(
        [fault.time_ps for fault in faults],
        [number[fault.resource] for fault in faults],
        [fault.numerator for fault in faults],
        [fault.denominator for fault in faults],
    )


def _stands_in(cluster: Cluster, resource: str) -> bool:
    """Return whether a cluster has a resource that messages cross, near its first chip."""
    chip = re.search(r"[:-]([0-9]{1,12})", resource)
    if chip is None or int(chip[1]) >= cluster.chips:
        return False
    domain = int(chip[1]) // cluster.chips_per_domain
    return resource in fabric(cluster, [domain]).resources.names()


@cache
def _tell_idle(resource: str) -> None:
    """Say once that a fault changes nothing; several runs of one command may meet it."""
    logging.getLogger("cluster_sim").warning(
        "cluster-sim: the fault of %s has no effect: nothing in this run uses it", resource
    )
