"""Links of a scale-out fabric that carry less than the adapters below them can send.

Only oversubscribed fabrics have such links. In others traffic is spread evenly over all equal
paths, so that adapters are the bottleneck.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cluster_sim.schedule.table import Resources
from topologies.arrays import IntArray, distinct
from topologies.clusters.cluster import Cluster
from topologies.routing.scale_out import clos, scale_out_paths, shared_links


@dataclass(frozen=True, eq=False)
class Uplinks:
    """Up- and downlinks that groups of chips share."""

    row: IntArray  # of each link in SharedLinks of topologies.routing.scale_out, ascending
    tables: tuple[Resources, ...] = ()  # such as ToR-up:3, one for each kind

    def __len__(self) -> int:
        return len(self.row)

    def crossed(self, cluster: Cluster, src: IntArray, dst: IntArray) -> tuple[IntArray, IntArray]:
        """Find the links that pairs of chips cross, as numbers of pairs and places in ``row``."""
        paths = scale_out_paths(cluster, src, dst)
        pair = np.repeat(np.arange(len(paths)), np.diff(paths.ptr))
        place = np.minimum(np.searchsorted(self.row, paths.link), len(self.row) - 1)
        is_uplink = self.row[place] == paths.link
        return pair[is_uplink], place[is_uplink]


def uplinks(cluster: Cluster, chips: IntArray, adapter_bytes_per_s: int) -> Uplinks:
    """Return the links above some chips that carry less than all adapters below them can send.

    >>> from topologies.clusters.names import cluster
    >>> len(uplinks(cluster("trn2.48xlarge:64"), np.arange(1024), 20 * 10**9))
    0
    """
    none = Uplinks(np.empty(0, np.int32))
    if cluster.scale_out is None:
        return none
    layers = clos(cluster)[1][:-1]
    thin = [layer for layer in layers if layer.up_bytes_per_s < layer.chips * adapter_bytes_per_s]
    if not thin:
        return none
    links, rows, tables = shared_links(cluster), [], []
    for layer in thin:
        below = distinct(chips // layer.chips)
        for way in ("-up", "-down"):
            kind = links.kinds.index(layer.name + way)
            row = np.searchsorted(links.kind, kind) + below
            rows.append(row)
            rate = links.capacity_bytes_per_s[row]
            tables.append(Resources.table(layer.name + way, below, slots=0, capacity=rate))
    return Uplinks(np.concatenate(rows).astype(np.int32), tuple(tables))
