"""Disaggregated serving in the fleet: groups of prefill and decode replicas that fill units.

A group is the deployment of ``serve --disaggregate P:D``: P replicas process prompts, D replicas
decode, and keys and values move from the former to the latter. A unit holds whole groups, or a
group takes whole units; any other division would leave chips without work.
"""

from __future__ import annotations

from collections.abc import Sequence

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from workloads.fleet.state.services import Service, pools_from
from workloads.serving import Pools, Profile, parse_pools, pools


def groups_in_units(text: str, cluster: Cluster, served: Profile) -> Pools:
    """Return the pools of a group of prefill and decode replicas that fills units of a cluster.

    Keys and values go over the scale-up links of a unit where the group lies within one, and else
    over the adapters of the replicas' chips.

    Parameters
    ----------
    text : str
        ``P:D``, the numbers of prefill and decode replicas.
    cluster : Cluster
        Its scale-up domains are the units.
    served : Profile
        One replica; both kinds are alike.

    Raises
    ------
    InputError
        For a group that neither divides the replicas of a unit nor fills whole units, and for one
        that is larger than the cluster.

    Examples
    --------
    >>> from topologies.clusters.names import cluster
    >>> from workloads.models.huggingface import named
    >>> from workloads.serving import profile
    >>> fleet = cluster("trn2-ultraserver:8")
    >>> group = groups_in_units("1:3", fleet, profile(named("llama-3.1-70b"), fleet))
    >>> group.prefill, group.decode, group.transfer_bytes_per_s / 1e9
    (1, 3, 10240.0)
    """
    group = pools(cluster, served, *parse_pools(text))
    size, per_unit = group.prefill + group.decode, cluster.chips_per_domain // served.chips
    if per_unit % size and size % per_unit:
        sizes = [count for count in range(2, per_unit + 1) if per_unit % count == 0]
        sizes = sizes or [2 * per_unit]
        splits = ", ".join(f"1:{count - 1}" for count in sizes)
        raise InputError(
            f"--disaggregate {text}: groups of {size} replicas of {served.chips} chips leave chips "
            f"of a unit of {cluster.chips_per_domain} idle. Use a split of as many replicas as "
            f"divide a unit's {per_unit}, or of whole units, such as {splits}."
        )
    return group


def block_of(services: Sequence[Service]) -> int:
    """Return the number of units that change role together so that every group stays whole.

    Raises
    ------
    InputError
        For groups of several units where the fleet serves several models.
    """
    block = max((service.units_together for service in services), default=1)
    if block > 1 and len(pools_from(services)) > 1:
        raise InputError(
            f"--disaggregate with groups of {block} units serves one model, and the fleet serves "
            f"{len(pools_from(services))}. Choose a split that fits into a unit, or one --model."
        )
    return block
