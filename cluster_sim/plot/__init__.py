"""Figures of a trace, and files for timeline viewers; matplotlib loads with the first figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.support.registry import loader

if TYPE_CHECKING:
    from cluster_sim.plot.links import link_map
    from cluster_sim.plot.perfetto import write_timeline
    from cluster_sim.plot.timeline_figure import Legend, timeline

__all__ = ["Legend", "link_map", "timeline", "write_timeline"]

_MODULES = {
    "cluster_sim.plot.links": ("link_map",),
    "cluster_sim.plot.perfetto": ("write_timeline",),
    "cluster_sim.plot.timeline_figure": ("Legend", "timeline"),
}
__getattr__ = loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
