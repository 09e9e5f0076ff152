"""The function ``share``: several jobs on one cluster, by name or as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster_sim.trace.trace import ENGINES
from topologies.arguments import checked
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import CLUSTER_REMEDY, as_cluster
from topologies.errors import InputError, suggestion
from workloads.sharing.jobs import jobs_from, read_jobs
from workloads.sharing.placements import PLACEMENTS
from workloads.sharing.sharing import Sharing, share_jobs


@checked(
    cluster=CLUSTER_REMEDY,
    jobs="Pass a list of dictionaries, each with name, model and fields of a plan, or a file.",
)
def share(
    cluster: Cluster | str,
    jobs: Sequence[Mapping[str, Any]] | str | Path,
    *,
    placement: str = "",
    study: bool = False,
    steps: int = 4,
    engine: str = "fast",
) -> Sharing:
    """Simulate training jobs side by side on one cluster, and each of them alone.

    All collectives of all jobs are flows on the links and adapters that they cross; where these are
    full, calls of one job slow those of another. All jobs start together and run on.

    Parameters
    ----------
    cluster : Cluster or str
        Object, or its name as :func:`cluster_sim.cluster` takes it.
    jobs : list of mappings, str or Path
        For each job ``name``, ``model``, fields of its plan such as ``tp``, or ``plan``, a file of
        them; ``chips`` or ``dp``; ``placement`` or ``start``. Or a YAML file with ``jobs``.
    placement : str, optional
        Placement of all jobs without a ``start`` of their own.
    study : bool, optional
        Whether every placement is simulated as well, into ``others`` of the result.
    steps : int, optional
        Steps of the slowest job; the others make as many as fit into this time.
    engine : {"fast", "reference"}, optional
        Compiled engine, or the one in SimPy; the times are the same.

    Returns
    -------
    Sharing
        ``jobs``, with ``alone_s``, ``beside_s``, ``slowdown``; ``links``; ``best`` placement.

    Raises
    ------
    InputError
        For unknown keys, too few chips, places that overlap, and a job too large for its memory.

    Examples
    --------
    >>> small = {"model": "llama-3.1-8b", "tp": 8, "dp": 1, "global_batch": 2, "seq": 1024}
    >>> jobs = [{"name": "left", **small}, {"name": "right", **small}]
    >>> [each.slowdown for each in share("trn2.48xlarge", jobs, steps=1).jobs]
    [1.0, 1.0]
    """
    if engine not in ENGINES:
        near = suggestion(engine, ENGINES)
        raise InputError(f"engine {engine!r} is none of {', '.join(ENGINES)}.{near}")
    if placement and placement not in PLACEMENTS:
        near = suggestion(placement, PLACEMENTS)
        raise InputError(f"placement {placement!r} is none of {', '.join(PLACEMENTS)}.{near}")
    machine = as_cluster(cluster)
    several = read_jobs(jobs, machine) if isinstance(jobs, str | Path) else jobs_from(jobs, machine)
    return share_jobs(
        machine, several, steps=steps, placement=placement, study=study, engine=engine
    )
