"""The cost of the slower third axis of Trn2's UltraServer for a collective.

A link along Z has half the bandwidth of one along X or Y. Every collective is simulated with Z as
it is and with Z as fast as the other two axes, each time with the fastest algorithm.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from cluster_sim.collectives import rows, whole
from cluster_sim.collectives.group_parsing import parse_sizes
from cluster_sim.progress import Watch, unwatched
from experiments.figures.training import lines
from experiments.scripts.support import with_collective_ends
from topologies.catalogue.catalogue import shipped_catalogue
from topologies.clusters.cluster import Cluster
from topologies.clusters.names import machine
from topologies.units import format_bytes


def run(
    cluster: str = "trn2-ultraserver",
    ops: tuple[str, ...] = ("all-reduce", "all-gather", "all-to-all"),
    sizes: str = "1MiB:1GiB:4",
    times: tuple[float, ...] = (1.0, 2.0),
    watch: Watch = unwatched,
) -> pd.DataFrame:
    """Simulate collectives of a whole domain for several bandwidths of the Z links.

    ``cluster``: Trainium2 machine with a Z axis. ``ops``: collective operations, such as
    ``all-reduce``. ``sizes``: first and last size of the buffer, and the factor between two sizes;
    links are the limit from 1 MiB on [B]. ``times``: factors on the bandwidth of a Z link: 1 for
    its real one, 2 for that of X and Y.

    Returns rows of :func:`cluster_sim.collectives.rows`, with ``z`` (the factor) and ``gain``, the
    share of time saved relative to the first factor.
    """

    catalogue = shipped_catalogue()
    entry = catalogue.entry("trn2", "z_link_bandwidth")

    def fabric(factor: float) -> Cluster:
        exact = entry.exact * int(factor * 4) / 4
        thicker = entry._replace(value=float(exact), exact=exact)
        return machine(cluster, catalogue=catalogue.with_rows([thicker]))

    fabrics = {factor: fabric(factor) for factor in times}

    def table(point: tuple[float, str]) -> pd.DataFrame:
        factor, op = point
        timed = rows(op, whole(fabrics[factor]), parse_sizes(sizes), "best", proof=False)
        return with_collective_ends(timed, fabrics[factor]).assign(z=factor)

    points = [(factor, op) for factor in times for op in ops]
    tables = [table(point) for point in watch(points, "collectives")]
    frame = pd.concat(tables, ignore_index=True)
    first = frame[frame.z == times[0]].set_index(["collective", "size_bytes"]).time_s
    keys = pd.MultiIndex.from_frame(frame[["collective", "size_bytes"]])
    return frame.assign(gain=1 - frame.time_s / first.reindex(keys).to_numpy())


def plot(frame: pd.DataFrame) -> Figure:
    """Draw the time that each collective would save with the fastest Z, over its size."""
    faster = frame[frame.z == frame.z.max()]
    large = faster[faster.size_bytes == faster.size_bytes.max()]
    gains = ", ".join(f"{row.collective} {row.gain:.0%}" for row in large.itertuples())
    size = format_bytes(int(faster.size_bytes.max()))
    title = (
        f"With Z {frame.z.max():g} times as fast, {size} would take less time by: {gains}\n"
        f"{faster.cluster.iloc[0]}, the fastest algorithm each"
    )
    shown = faster.assign(percent=100 * faster.gain, mib=faster.size_bytes // 2**20)
    labels = ("buffer of a chip [MiB]", "less time than with Z as it is [%]")
    return lines(shown, "mib", "percent", "collective", title, labels=labels)
