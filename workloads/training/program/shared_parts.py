"""Parts that the programs of several steps have in common: costs of groups, and passes."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

from topologies.clusters.cluster import Cluster
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.plan import ParallelPlan
from workloads.training.program.group_costs import GroupCosts
from workloads.training.program.stage import BuiltPasses, LaidOut

NO_PART = ("global_batch", "order")
"""Fields of a plan that say how many passes there are and where ranks are, not what a pass is."""
ALIKE = tuple(field.name for field in fields(ParallelPlan) if field.name not in NO_PART)
"""Fields that plans with the same passes have in common."""


class SharedParts:
    """Parts of the programs of one plan or of several on one cluster, each worked out once.

    Whoever builds several programs one after the other, as a search and the two runs of a long
    step do, hands the same parts to all of them and drops them at the end; results do not depend
    on it.

    Attributes
    ----------
    costs : GroupCosts
        Costs of the calls of groups.
    """

    def __init__(self, cluster: Cluster):
        self.costs = GroupCosts(cluster)
        self._laid_out: dict[Hashable, dict[Hashable, LaidOut]] = {}

    def passes(self, shapes: RankShapes) -> BuiltPasses:
        """Return the passes of plans that differ in batch and order of the axes alone."""
        plan = shapes.plan
        # Gradients are added to those of microbatches before, where there are any.
        several = plan.microbatches > 1
        alike = tuple(getattr(plan, name) for name in ALIKE)
        key = shapes.model, shapes.chip, shapes.catalogue, several, alike
        return BuiltPasses(self._laid_out.setdefault(key, {}))
