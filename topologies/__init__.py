"""Hardware catalogue, cluster graphs, routing and graph measures.

The names below are found here as well as in their modules; a module is loaded with the first use
of one of its names, so that ``import topologies`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from topologies.errors import InputError

if TYPE_CHECKING:
    from topologies.clos import Clos
    from topologies.clusters import Cluster
    from topologies.drawing import draw
    from topologies.links import Links, domain_links
    from topologies.machines import cluster
    from topologies.measures import Measures, measure
    from topologies.routing import Routes, routes
    from topologies.scale_out import ScaleOut
    from topologies.scale_out_routing import scale_out_paths
    from topologies.shapes import Axis, FullMesh, Shape, Switch, Torus
    from topologies.tiered import Tier, Tiered

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
    "clos": ("Clos",),
    "clusters": ("Cluster",),
    "drawing": ("draw",),
    "links": ("Links", "domain_links"),
    "machines": ("cluster",),
    "measures": ("Measures", "measure"),
    "routing": ("Routes", "routes"),
    "scale_out": ("ScaleOut",),
    "scale_out_routing": ("scale_out_paths",),
    "shapes": ("Axis", "FullMesh", "Shape", "Switch", "Torus"),
    "tiered": ("Tier", "Tiered"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"topologies.{module}"), name)
    raise AttributeError(f"module 'topologies' has no attribute {name!r}")
