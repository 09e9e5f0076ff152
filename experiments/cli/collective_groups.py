"""Groups of ``cluster-sim collective``, and the bytes of an all-to-all-v."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    from cluster_sim.collectives import Group
    from cluster_sim.trace.trace import Trace
    from topologies.clusters.cluster import Cluster

    Measure = Callable[[int], tuple[dict[str, Any], Trace]]
    """From a size to the row and the trace."""


def groups_for(
    machine: Cluster,
    ranks: int | None,
    ranks_per_chip: int,
    group: str | None,
    order: str | None,
) -> list[Group]:
    """Groups that the options name: by default one of all chips.

    Raises
    ------
    InputError
        When the options contradict each other, or name chips that are not there.
    """
    from cluster_sim.collectives.group_parsing import ordered, parse_groups
    from cluster_sim.collectives.results import first_ranks

    everybody = first_ranks(machine, None if group else ranks, ranks_per_chip)
    if group is None:
        found = [everybody]
    elif ranks is not None:
        raise InputError(
            f"--ranks {ranks} and --group {group[:40]} both say who takes part; give one of them"
        )
    else:
        found = parse_groups(group, machine, ranks_per_chip)
    if order is None:
        return found
    if len(found) > 1:
        raise InputError(
            f"--order is for one group, --group names {len(found)}; "
            "write each group's chips in their order instead"
        )
    return [ordered(found[0], order)]


def check_op(op: str, size: str | None, matrix: Path | None, skew: float | None) -> None:
    """Refuse an unknown operation, bytes of pairs for others than all-to-all-v, and it without."""
    from cluster_sim.collectives import KINDS
    from cluster_sim.collectives.measure_all_to_all_v import KIND

    known = (*KINDS, KIND)
    if op not in known:
        raise InputError(
            f"unknown collective {op[:40]!r}.{suggestion(op, known)} There are {', '.join(known)}."
        )
    given = "--bytes" if matrix is not None else "--skew" if skew is not None else None
    if op != KIND and given:
        raise InputError(f"{given} is for {KIND}, not for {op}; leave it out or ask for {KIND}")
    if matrix is not None and (skew is not None or size is not None):
        other = "--skew" if skew is not None else "--size"
        raise InputError(f"--bytes {matrix} and {other} both say how much is sent; give one")
    if op == KIND and matrix is None and skew is None:
        raise InputError(f"{KIND} needs --bytes FILE, or --size with --skew 0 (even) or more")


def how_to_measure(
    op: str,
    groups: list[Group],
    algorithm: str,
    *,
    matrix: Path | None,
    skew: float | None,
    ideal: bool,
    sbuf: bool,
    engine: str,
    faults: Sequence[str] = (),
) -> tuple[list[int], Measure]:
    """Return the function that measures one size, and the sizes that a byte matrix gives."""
    from cluster_sim.collectives import CollectiveCall, measure
    from cluster_sim.collectives.algorithms.scratchpad import check_scratchpad
    from cluster_sim.collectives.measure_all_to_all_v import (
        KIND,
        buffer_bytes,
        measure_v,
        read_matrix,
    )
    from cluster_sim.collectives.measure_all_to_all_v import skewed as skewed_matrix
    from cluster_sim.hardware.fault_text import parse_fault

    struck = [parse_fault(text) for text in faults]
    if op != KIND:
        return [], lambda size: measure(
            [CollectiveCall(op, group, size) for group in groups],
            algorithm,
            ideal=ideal,
            sbuf=sbuf,
            engine=engine,
            faults=struck,
        )
    if len(groups) > 1:
        raise InputError(f"{KIND} runs in one group, --group names {len(groups)}; give one")
    group = groups[0]
    if sbuf:
        check_scratchpad(op, group, 0)
    given = None if matrix is None else read_matrix(matrix)

    def measured(size: int) -> tuple[dict[str, Any], Trace]:
        sent = skewed_matrix(group.ranks, size, skew or 0.0) if given is None else given
        return measure_v(group, sent, algorithm, ideal=ideal, engine=engine, faults=struck)

    return ([] if given is None else [buffer_bytes(given)]), measured
