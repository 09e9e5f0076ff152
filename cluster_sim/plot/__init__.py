"""Figures of a trace, and files for timeline viewers.

matplotlib takes its time to import, so it is loaded with the first figure.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster_sim.plot.links import link_map
    from cluster_sim.plot.perfetto import write_timeline
    from cluster_sim.plot.timeline_figure import Legend, timeline

__all__ = ["Legend", "link_map", "timeline", "write_timeline"]

# Module of each name, for __getattr__.
_MODULES = {
    "Legend": "timeline_figure",
    "link_map": "links",
    "timeline": "timeline_figure",
    "write_timeline": "perfetto",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'cluster_sim.plot' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cluster_sim.plot.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
