"""The pictures of one collective: bandwidth against size, load of the links, who works when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cluster_sim.plot.bars import Legend, timeline
from cluster_sim.plot.links import link_map
from experiments.scripts.busbw_vs_size import plot
from topologies.shapes.basic import Torus
from topologies.units import format_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from cluster_sim.trace.trace import Trace
    from topologies.clusters.cluster import Cluster


WORDS = {
    "issue": "issue: a CC-Core starts a message",
    "pass": "pass: a message crosses a link to a chip\non its way, or leaves by an adapter",
    "copy": "copy: it arrives and replaces\nwhat the receiver holds",
    "reduce": "reduce: it arrives and is added\nto what the receiver holds",
}
"""What the timeline's colours mean."""
LANES = (
    "A lane for each link, CC-Core and adapter; and for each memory (hbm) between the ranks of its "
    "chip, where messages share it."
)


def figures(
    frame: pd.DataFrame, trace: Trace, cluster: Cluster
) -> dict[str, tuple[Figure, str, str]]:
    """Draw all that there is to see.

    Parameters
    ----------
    frame : DataFrame
        Rows of all sizes, as :func:`cluster_sim.collectives.rows` returns them.
    trace : Trace
        Of the last of them.
    cluster : Cluster

    Returns
    -------
    dict of str to (Figure, str, str)
        Figure, title and note by file name. Links are drawn of rings, grids and tori only.
    """
    last = frame.iloc[-1]
    what = f"{last.collective} of {format_bytes(int(last.size_bytes))}, {last.algorithm}"
    found = {"busbw": (plot(frame), "Bus bandwidth against size", "")}
    if not len(trace) or trace.total_ps == 0:
        return found
    if isinstance(cluster.shape, Torus) and "link" in trace.schedule.resources.kinds:
        drawn = link_map(trace, cluster, title=f"Load of the links: {what} on {cluster.name}")
        found["links"] = (drawn, "Load of the links", f"{what}: one line each way of a cable.")
    if (trace.schedule.resource >= 0).any():
        title = f"{what} on {cluster.name}: what links, CC-Cores and memories do when"
        found["timeline"] = (
            timeline(trace, legend=Legend(words=WORDS), title=title),
            "Links, CC-Cores and memories over time",
            LANES,
        )
    return found
