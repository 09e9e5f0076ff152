"""Options of ``cluster-sim collective`` that change nothing beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topologies.errors import InputError

if TYPE_CHECKING:
    from cluster_sim.collectives import Group
    from experiments.cli.commands.collective.inputs import CollectiveInputs, RankInputs
    from topologies.clusters.cluster import Cluster


def check_issued(cluster: Cluster, runtime: str) -> None:
    """Refuse a runtime of Trainium on a machine of another chip, which has none of them."""
    from cluster_sim.collectives.algorithms.neuron_runtime import is_trainium

    if runtime in ("eager", "xla") and not is_trainium(cluster):
        raise InputError(
            f"--runtime {runtime} is a way to issue work to Trainium, and {cluster.name} has "
            f"{cluster.chip or 'no chips'}. Leave --runtime out."
        )


def idle_options(
    inputs: CollectiveInputs, ranks: RankInputs, cluster: Cluster, groups: Sequence[Group]
) -> dict[str, str]:
    """Return each stated option that changes nothing, with the reason.

    >>> from cluster_sim.collectives import Group
    >>> from experiments.cli.commands.collective.inputs import CollectiveInputs, RankInputs
    >>> from topologies.clusters.names import cluster
    >>> ring = cluster("ring:4", bandwidth="1GB/s", latency="1us")
    >>> inputs = CollectiveInputs("all-reduce", ideal=True)
    >>> idle_options(inputs, RankInputs(), ring, [Group(ring, range(4))])
    {'ideal': 'a plain shape is ideal already'}
    """
    from cluster_sim.collectives.verify.neuron_limits import along_ring, check_restrictions

    reasons = {}
    if inputs.ideal and cluster.plain:
        reasons["ideal"] = "a plain shape is ideal already"
    if ranks.unrestricted:
        try:
            check_restrictions(inputs.op, groups)
            reordered = inputs.op == "permute" and [along_ring(each) for each in groups] != groups
        except InputError:
            return reasons
        if not reordered:
            reasons["unrestricted"] = "no limit of the Neuron runtime is exceeded"
    return reasons
