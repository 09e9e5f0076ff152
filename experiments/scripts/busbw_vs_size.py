"""Bus bandwidth of a collective against its size, with one line for each algorithm.

All chips of the machine take part. Bus bandwidth is that of nccl-tests, and the line without losses
is the lower bound of the time, with links at their full rate.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.collectives import CollectiveCall, rows, suitable
from cluster_sim.collectives.group_parsing import parse_sizes
from cluster_sim.collectives.results import first_ranks
from cluster_sim.progress import Watch, unwatched
from experiments.figures.collective import bandwidth
from experiments.scripts.support import with_collective_ends
from topologies.clusters.names import cluster as named

ALL = "all"


def run(
    op: str = "all-reduce",
    cluster: str = "trn2.48xlarge",
    sizes: str = "1KiB:1GiB:4",
    algorithms: tuple[str, ...] = (ALL,),
    ranks_per_chip: int = 1,
    ideal: bool = False,
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate every size with every algorithm.

    ``cluster``: named machine, of which all chips take part. ``algorithms``: names, or ``all`` for
    every suitable algorithm.

    Returns rows of :func:`cluster_sim.collectives.rows`, algorithm by algorithm, with ``low_s`` and
    ``high_s`` (ends of the interval of the time [s]).
    """
    whole = named(cluster)
    group, steps = first_ranks(whole, None, ranks_per_chip), parse_sizes(sizes)
    every = [algorithm.name for algorithm in suitable(CollectiveCall(op, group, steps[0]))]
    names = every if ALL in algorithms else list(algorithms)
    tables = [rows(op, group, steps, name, ideal=ideal) for name in watch(names, "algorithms")]
    return with_collective_ends(pd.concat(tables, ignore_index=True), whole, ideal=ideal)


def plot(frame: pd.DataFrame) -> Figure:
    """Draw bus bandwidth against size, with the upper limit for any algorithm."""
    return bandwidth(frame)
