"""A search for plans in one call, with progress and a table of what it came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cluster_sim.progress import progress
from topologies.clusters.cluster import Cluster
from workloads.models.model import Model
from workloads.search.search import Search, search


def search_plans(
    model: Model,
    cluster: Cluster,
    global_batch: int,
    *,
    finalists: int = 10,
    each: Sequence[str] = (),
    quiet: bool = False,
    **stated: Any,
) -> Search:
    """Estimate every parallel plan that fits in memory and simulate the best in full.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    global_batch : int
        Sequences of one optimizer step.
    finalists : int
        Plans to simulate.
    each : sequence of str
        Keep the best plan of each combination of these fields, such as ``["tp", "pp"]``.
    quiet : bool
        Show no progress, which otherwise appears on terminals and in notebooks after two seconds.
    **stated
        Fields of a plan that are kept, such as ``seq=8192``; all others are varied.

    Raises
    ------
    InputError
        When no plan divides model, batch and cluster, or none fits in memory.
    """

    def watch(items: Sequence[Any], what: str) -> Iterable[Any]:
        return progress(items, what, quiet=quiet)

    return search(
        model, cluster, global_batch, stated=stated, finalists=finalists, each=each, watch=watch
    )
