"""Schedules of collective calls: an algorithm's messages, lowered to the links of the fabric."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster_sim.collectives.algorithms.algorithm import (
    Algorithm,
    check_op_count,
    fits,
    ops_foreseen,
)
from cluster_sim.collectives.algorithms.registry import AUTO, choose_algorithm, fits_by, suitable
from cluster_sim.collectives.call import CollectiveCall
from cluster_sim.collectives.group import Group, as_group
from cluster_sim.collectives.lowering import Facts, lower
from cluster_sim.collectives.messages import Chunks, Messages, check_messages, side_by_side
from cluster_sim.hardware.communication_costs import (
    CommunicationCosts,
    communication_costs,
    within_chip,
)
from cluster_sim.hardware.fabric import Fabric, fabric
from cluster_sim.hardware.faults import with_detours
from cluster_sim.schedule.table import Schedule
from topologies.clusters.cluster import Cluster
from topologies.support.arguments import checked
from topologies.support.arrays import IntArray, distinct
from topologies.support.errors import InputError
from topologies.support.units import as_bytes, format_bytes


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective as a schedule, with the result that it must achieve."""

    kind: str
    algorithm: str
    schedule: Schedule
    chunks: Chunks  # of all groups; ranks are numbered from group to group
    chip_of_rank: IntArray
    group_of_rank: IntArray
    steps: int  # rounds that follow one another


@checked()
def collective(
    kind: str,
    group: Group | Cluster | str,
    *,
    size_bytes: float | str,
    algorithm: str | Algorithm = AUTO,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
) -> Schedule:
    """Build the schedule of a collective operation on one group.

    Parameters
    ----------
    kind : str
        ``all-reduce``, ``all-gather``, ``reduce-scatter``, ``all-to-all``, ``broadcast`` or
        ``permute``.
    group : Group, Cluster or str
        Ranks that take part, such as ``Group(cluster, range(64))``; a cluster or its name stands
        for all its chips.
    size_bytes : int or str
        Size of the buffer as nccl-tests counts it, such as ``2**30`` or ``"1GiB"`` [B]; see
        :class:`CollectiveCall`.
    algorithm : str or Algorithm, default "auto"
        A name that ``cluster-sim list algorithms`` shows, or an algorithm of your own; ``auto``
        takes the one that the machine's own runtime would choose.
    ideal : bool, default False
        Count link rates and latencies only, without efficiencies, launches and memory.
    sbuf : bool, default False
        Keep the buffers in the scratchpads of the cores, so that no message accesses memory.
    contended : bool, default False
        Model the accesses to memory even where this collective by itself cannot saturate it, so
        that the schedule may be merged with others that do.

    Returns
    -------
    Schedule
        Ops in the order of the messages, for :func:`cluster_sim.simulate`; ``facts`` names the
        algorithm.

    Raises
    ------
    InputError
        For an unknown operation or algorithm, an algorithm that makes no sense on this group, and
        a schedule that does not fit in the memory of this machine.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:8", bandwidth="100GB/s", latency="1us")
    >>> schedule = collective("all-reduce", Group(ring, range(8)), size_bytes=2**30)
    >>> schedule.facts["algorithm"], len(schedule)
    ('multi-ring', 232)
    """
    call = CollectiveCall(kind, as_group(group), as_bytes(size_bytes))
    return compose(call, algorithm, ideal=ideal, sbuf=sbuf, contended=contended).schedule


def compose(
    calls: CollectiveCall | Sequence[CollectiveCall],
    algorithm: str | Algorithm = AUTO,
    *,
    ideal: bool = False,
    sbuf: bool = False,
    contended: bool = False,
    down: tuple[str, ...] = (),
) -> Collective:
    """Build the schedule of calls that run at once and go around links ``down``."""
    many = [calls] if isinstance(calls, CollectiveCall) else list(calls)
    _check(many)
    first, cluster = many[0], many[0].group.cluster
    picked = choose_algorithm(first, algorithm)
    for call in many[1:]:
        choose_algorithm(call, picked)  # refuses an algorithm that another group cannot run
    costs = _costs(many, ideal=ideal, sbuf=sbuf)
    _check_memory(many, picked, costs)
    tables = [picked.messages(call, costs) for call in many]
    for call, table in zip(many, tables, strict=True):
        check_messages(table, call.ranks, picked.name)
    messages = side_by_side(tables)
    facts = _facts(many, picked, ideal=ideal, sbuf=sbuf)
    groups = [call.group for call in many]
    domains = distinct(np.concatenate([group.domains for group in groups]))
    covered = _fabric_of_domains(cluster, tuple(domains.tolist()), costs, down)
    return lowered(messages, groups, covered, facts, contended=contended)


def lowered(
    messages: Messages,
    groups: Sequence[Group],
    fabric: Fabric,
    facts: Facts,
    *,
    contended: bool = False,
) -> Collective:
    """Lower messages between the ranks of groups, and state the result that they must achieve."""
    chips = np.concatenate([group.chip_of_rank for group in groups])
    return Collective(
        kind=str(facts["collective"]),
        algorithm=str(facts["algorithm"]),
        schedule=lower(messages, chips, fabric, facts, contended=contended),
        chunks=messages.chunks,
        chip_of_rank=chips,
        group_of_rank=np.repeat(
            np.arange(len(groups), dtype=np.int32), [group.ranks for group in groups]
        ),
        steps=int(messages.step.max(initial=-1)) + 1,
    )


@functools.lru_cache(maxsize=1)
def _fabric_of_domains(
    cluster: Cluster, domains: tuple[int, ...], costs: CommunicationCosts, down: tuple[str, ...]
) -> Fabric:
    """Return the fabric of some domains, built once for all groups of a training step on them."""
    return with_detours(fabric(cluster, np.array(domains), costs=costs), down)


def _facts(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, *, ideal: bool, sbuf: bool
) -> Facts:
    """Describe the calls of a schedule: operation, algorithm, cluster, size."""
    first, cluster = calls[0], calls[0].group.cluster
    return {
        "collective": first.kind,
        "algorithm": algorithm.name,
        "cluster": cluster.name,
        "ranks": sum(call.ranks for call in calls),
        "groups": len(calls),
        "size_bytes": first.size_bytes,
        "ideal": ideal or cluster.plain,
        "sbuf": sbuf,
    }


def _costs(calls: Sequence[CollectiveCall], *, ideal: bool, sbuf: bool) -> CommunicationCosts:
    """Return the costs of messages between the ranks of calls, which differ inside a chip."""
    first = calls[0]
    cluster = first.group.cluster
    if sbuf:
        for call in calls:
            check_scratchpad(call.kind, call.group, call.size_bytes)
    costs = communication_costs(cluster, ideal=ideal, sbuf=sbuf)
    if ideal or any(len(call.group.chips) > 1 for call in calls):
        return costs
    return within_chip(costs, cluster, first.kind, first.ranks)


def _check_memory(
    calls: Sequence[CollectiveCall], algorithm: Algorithm, costs: CommunicationCosts
) -> None:
    """Refuse a schedule that does not fit in memory, and name algorithms whose schedules do."""
    ops = ops_foreseen(calls, algorithm, costs)
    if fits(ops):
        return
    others = [each.name for each in suitable(calls[0]) if fits_by(calls, each)]
    ranks = sum(call.ranks for call in calls)
    check_op_count(calls[0].kind, algorithm.name, ranks, ops, others)


def _check(calls: Sequence[CollectiveCall]) -> None:
    """Refuse no calls, calls that differ in more than their group, and groups that overlap."""
    if not calls:
        raise InputError("no group is given; a collective needs at least one")
    first = calls[0]
    chips = np.concatenate([call.group.chips for call in calls])
    if len(distinct(chips)) < len(chips):
        raise InputError("groups share a chip; replica groups must be disjoint")
    if any(call.group.cluster != first.group.cluster for call in calls):
        raise InputError("groups of different clusters cannot run in one schedule")
    if any((call.kind, call.size_bytes) != (first.kind, first.size_bytes) for call in calls):
        raise InputError("calls that run at once differ in kind or size; give one of each")


FROM_MEMORY = ("all-to-all", "all-to-all-v")
"""Operations whose operands must be in HBM (nki/api/nki.collectives.rst)."""


def scratchpad_bytes(group: Group) -> int:
    """Return the size of the scratchpads of one rank [B], those of all its cores together.

    A rank is a logical NeuronCore. It consists of as many cores as the runtime joins by default or,
    with more ranks a chip, of an equal share of the chip's cores.

    >>> from topologies.clusters.names import cluster
    >>> [scratchpad_bytes(Group(cluster("trn2.48xlarge"), [0], each)) // 2**20 for each in (4, 8)]
    [56, 28]
    """
    catalogue, chip = group.cluster.catalogue, group.cluster.chip
    if catalogue is None or not chip or not catalogue.has(chip, "ranks_per_chip"):
        raise InputError(
            f"{group.cluster.name} has no scratchpads that collectives could run in; use Trainium"
        )
    ranks = max(catalogue.integer(chip, "ranks_per_chip"), group.ranks_per_chip)
    return max(1, catalogue.integer(chip, "cores") // ranks) * catalogue.integer(
        chip, "core_sbuf_bytes"
    )


def check_scratchpad(kind: str, group: Group, size_bytes: int) -> None:
    """Refuse an operation, or a buffer, for which scratchpads cannot be used."""
    room = scratchpad_bytes(group)
    if kind in FROM_MEMORY:
        raise InputError(f"{kind} in SBUF: the runtime wants its operands in HBM. Leave out --sbuf")
    if size_bytes > room:
        raise InputError(
            f"a buffer of {format_bytes(size_bytes)} does not fit in the SBUF of a rank, "
            f"{format_bytes(room)}. Use at most that, or leave out --sbuf"
        )
