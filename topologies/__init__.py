"""Hardware catalogue, shapes of clusters, routes, graphs and their measures.

The names below can be imported from here as well as from their modules. A module is loaded at the
first use of one of its names, so that ``import topologies`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topologies.errors import InputError
from topologies.lazy import loader

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
    "topologies.shapes.clos": ("Clos",),
    "topologies.clusters.cluster": ("Cluster",),
    "topologies.drawing.cluster": ("draw",),
    "topologies.shapes.links": ("Links", "domain_links"),
    "topologies.clusters.names": ("cluster",),
    "topologies.views.measures": ("Measures", "measure"),
    "topologies.routing.domain": ("Routes", "routes"),
    "topologies.shapes.scale_out": ("ScaleOut",),
    "topologies.routing.scale_out": ("scale_out_paths",),
    "topologies.shapes.basic": ("Axis", "FullMesh", "Shape", "Switch", "Torus"),
    "topologies.shapes.tiered": ("Tier", "Tiered"),
}
__getattr__ = loader(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
