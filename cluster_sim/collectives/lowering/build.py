"""A collective by name, built: the one front door to algorithms, fabric and lowering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.collectives.algorithms.footprint import check_op_count
from cluster_sim.collectives.algorithms.registry import ALGORITHMS, chosen, ops_foreseen
from cluster_sim.collectives.algorithms.scratchpad import check_scratchpad
from cluster_sim.collectives.group import Group
from cluster_sim.collectives.lowering.collective import Collective
from cluster_sim.collectives.lowering.lower import Facts, lower
from cluster_sim.collectives.messages import side_by_side
from cluster_sim.hardware.communication_costs import wire
from cluster_sim.hardware.fabric import fabric
from cluster_sim.schedule.table import Schedule
from topologies.errors import InputError

MAX_BYTES = 2**50


def compose(
    op: str,
    groups: Group | Sequence[Group],
    size_bytes: int,
    algorithm: str = "auto",
    *,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
) -> Collective:
    """Build a collective on one group, or on several disjoint ones at once.

    Parameters
    ----------
    op : str
        One of ``OPS``.
    groups : Group or sequence of Group
    size_bytes : int
        As in nccl-tests: all-reduce the buffer; all-gather the gathered buffer; reduce-scatter the
        whole input; all-to-all the whole buffer of one rank [B].
    algorithm : str
        A name from :func:`algorithms`, or ``auto``.
    ideal : bool
        Link rates and latencies only.
    sbuf : bool
        The buffers are in the scratchpads of the cores and nothing is drawn from memory.
    contended : bool
        Others may draw on the same memories (:mod:`cluster_sim.schedule.merge`): what is drawn
        from them is written out even where this collective by itself cannot fill them.

    Raises
    ------
    InputError
        For unknown names, an algorithm that makes no sense here, sizes out of range, and buffers
        that do not fit in a scratchpad or whose schedule does not fit in this machine.
    """
    many = [groups] if isinstance(groups, Group) else list(groups)
    _check(many, size_bytes)
    cluster = many[0].cluster
    if sbuf:
        for group in many:
            check_scratchpad(op, group, size_bytes)
    name = chosen(op, many[0], size_bytes, algorithm)
    for group in many[1:]:
        chosen(op, group, size_bytes, name)
    costs = wire(cluster, ideal=ideal, sbuf=sbuf)
    ops = ops_foreseen(op, many, size_bytes, name, costs)
    check_op_count(op, name, sum(group.ranks for group in many), ops)
    sends = side_by_side([ALGORITHMS[name].sends(op, one, size_bytes, costs) for one in many])
    chips = np.concatenate([group.chip_of_rank for group in many])
    domains = np.unique(chips // cluster.chips_per_domain)
    facts: Facts = {
        "collective": op,
        "algorithm": name,
        "cluster": cluster.name,
        "ranks": sends.ranks,
        "groups": len(many),
        "size_bytes": int(size_bytes),
        "ideal": ideal or cluster.plain,
        "sbuf": sbuf,
    }
    steps = int(sends.step.max(initial=-1)) + 1
    covered = fabric(cluster, domains, costs=costs)
    made = lower(sends, chips, covered, facts, contended=contended)
    owner = np.repeat(np.arange(len(many), dtype=np.int32), [group.ranks for group in many])
    return Collective(op, name, made, sends.chunks, chips, owner, steps)


def build(
    op: str,
    groups: Group | Sequence[Group],
    size_bytes: int,
    algorithm: str = "auto",
    *,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
) -> Schedule:
    """Schedule of a collective; see :func:`compose` for the parameters.

    Examples
    --------
    >>> from cluster_sim.collectives import whole
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    >>> build("all-reduce", whole(ring), 2**30, "ring").facts["ranks"]
    8
    """
    made = compose(op, groups, size_bytes, algorithm, ideal=ideal, sbuf=sbuf, contended=contended)
    return made.schedule


def _check(groups: Sequence[Group], size_bytes: int) -> None:
    if not groups:
        raise InputError("no group is given; a collective needs at least one")
    if not 0 <= size_bytes <= MAX_BYTES:
        raise InputError(f"a size of {size_bytes} B is not between 0 and {MAX_BYTES} B (1 PiB)")
    chips = np.concatenate([group.chips for group in groups])
    if len(np.unique(chips)) < len(chips):
        raise InputError("groups share a chip; replica groups must be disjoint")
    if any(group.cluster != groups[0].cluster for group in groups):
        raise InputError("groups of different clusters cannot run in one schedule")
