"""Hardware catalogue, shapes of clusters, routes, graphs and their measures.

The names below can be imported from here as well as from their modules. A module is loaded at the
first use of one of its names, so that ``import topologies`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError

if TYPE_CHECKING:
    from topologies.clusters.cluster import Cluster
    from topologies.clusters.names import cluster
    from topologies.drawing.cluster import draw
    from topologies.routing.domain import Routes, routes
    from topologies.routing.scale_out import scale_out_paths
    from topologies.shapes.basic import Axis, FullMesh, Shape, Switch, Torus
    from topologies.shapes.clos import Clos
    from topologies.shapes.links import Links, domain_links
    from topologies.shapes.scale_out import ScaleOut
    from topologies.shapes.tiered import Tier, Tiered
    from topologies.views.measures import Measures, measure

__all__ = [
    "Axis",
    "Clos",
    "Cluster",
    "FullMesh",
    "InputError",
    "Links",
    "Measures",
    "Routes",
    "ScaleOut",
    "Shape",
    "Switch",
    "Tier",
    "Tiered",
    "Torus",
    "cluster",
    "domain_links",
    "draw",
    "measure",
    "routes",
    "scale_out_paths",
]

_MODULES = {
    "shapes.clos": ("Clos",),
    "clusters.cluster": ("Cluster",),
    "drawing.cluster": ("draw",),
    "shapes.links": ("Links", "domain_links"),
    "clusters.names": ("cluster",),
    "views.measures": ("Measures", "measure"),
    "routing.domain": ("Routes", "routes"),
    "shapes.scale_out": ("ScaleOut",),
    "routing.scale_out": ("scale_out_paths",),
    "shapes.basic": ("Axis", "FullMesh", "Shape", "Switch", "Torus"),
    "shapes.tiered": ("Tier", "Tiered"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"topologies.{module}"), name)
    raise AttributeError(f"module 'topologies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
