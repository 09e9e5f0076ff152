"""DataFrames of the links of a cluster, for display and for files."""

from __future__ import annotations

import numpy as np
import pandas as pd

from topologies.clusters.cluster import Cluster
from topologies.errors import InputError
from topologies.routing import clos
from topologies.shapes.links import domain_links
from topologies.units import PS_PER_S
from topologies.views.measures import measure

LARGEST_TABLE = 2**22


def link_table(cluster: Cluster) -> pd.DataFrame:
    """Return the directed links of one scale-up domain; all domains are equal.

    Returns one row for each link: ``src, dst`` (the number of a chip, or ``switch:`` and a number),
    ``tier, lane, links, bandwidth_bytes_per_s, latency_s``.

    >>> from topologies.clusters.names import cluster
    >>> link_table(cluster("trn2.48xlarge")).head(2)[["src", "dst", "tier"]].values.tolist()
    [['0', '4', 'Y'], ['0', '12', 'Y']]
    """
    rows = measure(cluster).links // cluster.domains
    if rows > LARGEST_TABLE:
        raise InputError(
            f"a domain of {cluster.name} has {rows:,} links, more than the {LARGEST_TABLE:,} "
            "that a table may have; ask for a smaller domain"
        )
    links = domain_links(cluster.shape, fold=False)
    chips = cluster.chips_per_domain
    switches = links.nodes - chips
    names = np.array([*map(str, range(chips)), *(f"switch:{k}" for k in range(switches))], object)
    return pd.DataFrame(
        {
            "src": names[links.src],
            "dst": names[links.dst],
            "tier": np.array(links.tiers, object)[links.tier],
            "lane": links.lane,
            "links": links.links,
            "bandwidth_bytes_per_s": links.bandwidth_bytes_per_s,
            "latency_s": links.latency_ps / PS_PER_S,
        }
    )


def layer_table(cluster: Cluster) -> pd.DataFrame:
    """Return the layers of the scale-out Clos, from the top-of-rack switches upwards.

    Returns one row for each layer: ``layer, groups, chips_per_group, up_bytes_per_s`` (of one group
    in one direction; 0 at the top) and ``up_links``.

    >>> from topologies.clusters.names import cluster
    >>> layer_table(cluster("rainier"))["groups"].tolist()
    [7812, 123, 1]
    """
    _, layers = clos(cluster)
    return pd.DataFrame(
        [
            {
                "layer": layer.name,
                "groups": layer.groups,
                "chips_per_group": layer.chips,
                "up_bytes_per_s": layer.up_bytes_per_s,
                "up_links": layer.up_links,
            }
            for layer in layers
        ]
    )
