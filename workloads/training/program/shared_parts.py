"""Parts that the programs of several training steps share: costs of groups, and ops of passes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from topologies.clusters.cluster import Cluster
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.group_costs import GroupCosts
from workloads.training.program.stage import BuiltPasses, LaidOut

NO_PART = ("global_batch", "order")
"""Fields of a plan that passes do not depend on, but only their number and the place of ranks."""
ALIKE = tuple(field.name for field in fields(ParallelPlan) if field.name not in NO_PART)
"""Fields in which plans with the same passes agree."""


class SharedParts:
    """Cache of parts that programs on one cluster share.

    Code that builds several programs, such as a search or the two runs of a long step, passes the
    same cache to all of them and drops it at the end. Results do not depend on it.

    Attributes
    ----------
    costs : GroupCosts
        Costs of the calls of groups.
    """

    def __init__(self, cluster: Cluster):
        self.costs = GroupCosts(cluster)
        self._laid_out: dict[Hashable, dict[Hashable, LaidOut]] = {}

    def passes(self, shapes: RankShapes) -> BuiltPasses:
        """Return the passes that plans share if they differ only in batch and order of the axes."""
        plan = shapes.plan
        # With several microbatches a pass also adds its gradients to those of earlier ones.
        several = plan.microbatches > 1
        alike = tuple(getattr(plan, name) for name in ALIKE)
        key = shapes.model, shapes.chip, shapes.catalogue, several, alike
        return BuiltPasses(self._laid_out.setdefault(key, {}))
