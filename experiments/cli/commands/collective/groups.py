"""Groups of ranks of ``cluster-sim collective``, and the function that measures one size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiments.cli.commands.collective.inputs import CollectiveInputs, RankInputs
from topologies.errors import InputError, suggestion

if TYPE_CHECKING:
    from cluster_sim.collectives import Group
    from cluster_sim.trace.trace import Trace
    from topologies.clusters.cluster import Cluster

    Measure = Callable[[int], tuple[dict[str, Any], Trace]]
    """Function from a size to the row and the trace."""


def groups_for(machine: Cluster, inputs: RankInputs) -> list[Group]:
    """Return the groups of the options, by default one of all chips.

    Raises InputError for options that contradict each other, and for chips outside the cluster.
    """
    from cluster_sim.collectives.group_parsing import ordered, parse_groups
    from cluster_sim.collectives.results import first_ranks

    from_the_first = first_ranks(
        machine, None if inputs.group else inputs.ranks, inputs.ranks_per_chip
    )
    if inputs.group is None:
        groups = [from_the_first]
    elif inputs.ranks is not None:
        raise InputError(
            f"--ranks {inputs.ranks} and --group {inputs.group[:40]} both say who takes part; "
            "give one of them"
        )
    else:
        groups = parse_groups(inputs.group, machine, inputs.ranks_per_chip)
    if inputs.order is None:
        return groups
    if len(groups) > 1:
        raise InputError(
            f"--order is for one group, --group names {len(groups)}; "
            "write each group's chips in their order instead"
        )
    return [ordered(groups[0], inputs.order)]


def check_op(inputs: CollectiveInputs) -> None:
    """Check the operation, and that all-to-all-v, and no other, has the bytes of its pairs."""
    from cluster_sim.collectives import KINDS
    from cluster_sim.collectives.measure_all_to_all_v import KIND

    op, size, matrix, skew = inputs.op, inputs.size, inputs.matrix, inputs.skew
    operations = (*KINDS, KIND)
    if op not in operations:
        raise InputError(
            f"unknown collective {op[:40]!r}.{suggestion(op, operations)} "
            f"There are {', '.join(operations)}."
        )
    option = "--bytes" if matrix is not None else "--skew" if skew is not None else None
    if op != KIND and option:
        raise InputError(f"{option} is for {KIND}, not for {op}; leave it out or ask for {KIND}")
    if matrix is not None and (skew is not None or size is not None):
        other = "--skew" if skew is not None else "--size"
        raise InputError(f"--bytes {matrix} and {other} both say how much is sent; give one")
    if op == KIND and matrix is None and skew is None:
        raise InputError(f"{KIND} needs --bytes FILE, or --size with --skew 0 (even) or more")


def how_to_measure(
    inputs: CollectiveInputs, groups: list[Group], engine: str, *, watched: bool = False
) -> tuple[list[int], Measure]:
    """Return the sizes that a matrix of bytes determines, if any, and the function for one size."""
    from cluster_sim.collectives import CollectiveCall, measure
    from cluster_sim.collectives.builder import check_scratchpad
    from cluster_sim.collectives.measure_all_to_all_v import (
        KIND,
        buffer_bytes,
        measure_v,
        read_matrix,
    )
    from cluster_sim.collectives.measure_all_to_all_v import skewed as skewed_matrix
    from cluster_sim.hardware.fault_text import parse_fault

    faults = [parse_fault(text) for text in inputs.fault]
    if inputs.op != KIND:
        return [], lambda size: measure(
            [CollectiveCall(inputs.op, group, size) for group in groups],
            inputs.algorithm,
            ideal=inputs.ideal,
            sbuf=inputs.sbuf,
            engine=engine,
            faults=faults,
            watched=watched,
        )
    if len(groups) > 1:
        raise InputError(f"{KIND} runs in one group, --group names {len(groups)}; give one")
    group = groups[0]
    if inputs.sbuf:
        check_scratchpad(inputs.op, group, 0)
    matrix = None if inputs.matrix is None else read_matrix(inputs.matrix)

    def measured(size: int) -> tuple[dict[str, Any], Trace]:
        """Row and trace of one size."""
        sent = skewed_matrix(group.ranks, size, inputs.skew or 0.0) if matrix is None else matrix
        return measure_v(
            group, sent, inputs.algorithm, ideal=inputs.ideal, engine=engine, faults=faults
        )

    return ([] if matrix is None else [buffer_bytes(matrix)]), measured
