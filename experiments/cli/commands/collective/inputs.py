"""Options of ``cluster-sim collective``: operation, ranks, and measurements to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from topologies.options import option, setting


def _algorithms() -> tuple[str, ...]:
    """Names that ``--algorithm`` takes."""
    from cluster_sim.collectives.algorithms.registry import ALGORITHMS, AUTO, BEST

    return (AUTO, BEST, *ALGORITHMS)


@dataclass(frozen=True)
class CollectiveInputs:
    """A collective: operation, sizes, algorithm."""

    op: str = field(
        metadata=option(
            "Operation: all-reduce, all-gather, reduce-scatter, all-to-all, all-to-all-v, "
            "broadcast or permute",
            metavar="OP",
            argument=True,
        )
    )
    size: str | None = setting(
        None,
        "Bytes of the buffer as nccl-tests counts them: 1GiB, a list, or a geometric range "
        "such as 1KiB:1GiB:4",
        metavar="SIZE[,SIZE…]",
    )
    algorithm: str = setting(
        "auto",
        "Algorithm by name; auto for the runtime's choice, best for the fastest of all",
        choices=_algorithms,
    )
    runtime: str = setting(
        "compiled",
        "Way in which Trainium's host issues the collective: inside a compiled graph, by "
        "itself, or through torch-xla",
        choices=("compiled", "eager", "xla"),
    )
    matrix: Path | None = setting(
        None,
        "Bytes that each rank (row) sends to each other (column) in an all-to-all-v",
        name="bytes",
        metavar="FILE.csv",
    )
    skew: float | None = setting(
        None,
        "Skew of an all-to-all-v: rank j receives bytes in proportion to (j + 1)^-SKEW; 0 is even",
    )
    ideal: bool = setting(False, "Use the rates and latencies of links alone, without efficiencies")
    fault: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "Cable, link, adapter or other resource that dies or slows down, such as "
            "cable:0-1@5us:dead or tx:5@0s:slow=1/2; may be repeated",
            metavar="RESOURCE@TIME:dead|slow=P/Q",
        ),
    )
    sbuf: bool = setting(False, "Keep buffers in the cores' scratchpads (SBUF) instead of in HBM")


@dataclass(frozen=True)
class RankInputs:
    """Ranks that take part."""

    ranks: int | None = setting(None, "Number of ranks, on the first chips", default="all chips")
    ranks_per_chip: int = setting(1, "Logical cores of a chip that take part as ranks")
    group: str | None = setting(
        None,
        "Chips that take part, such as 0-15,32-47; semicolons separate groups that run at the "
        "same time: 0-3;4-7",
        metavar="CHIPS",
    )
    order: str | None = setting(None, "Chips in the order of their ranks", metavar="FILE|LIST")
    unrestricted: bool = setting(False, "Also run groups that the Neuron runtime refuses")


@dataclass(frozen=True)
class CompareInputs:
    """Measured times beside the simulated ones."""

    compare: Path | None = setting(
        None, "Output of nccom-test or nccl-tests to compare the simulation with", metavar="FILE"
    )
