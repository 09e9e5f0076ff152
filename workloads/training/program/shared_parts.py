"""Parts that the programs of several training steps share: costs, groups, ops of passes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from topologies.clusters.cluster import Cluster
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.placement import Placement
from workloads.training.plan.plan import PLAN_FIELDS, ParallelPlan
from workloads.training.program.by_value import ByValue
from workloads.training.program.group_costs import GroupCosts
from workloads.training.program.placed_groups import PlacedGroups
from workloads.training.program.stage import BuiltPasses, LaidOut

NO_PART = ("global_batch", "order")
"""Fields of a plan that passes do not depend on, but only their number and the place of ranks."""
ALIKE = tuple(name for name in PLAN_FIELDS if name not in NO_PART)
"""Fields in which plans with the same passes agree."""
PLANS = 64  # plans whose passes are kept
NUMBERS_OF_A_RANK = 16
"""Numbers that the groups of a placement have for each rank: its place on up to eight axes, and the
pairs of transfers between stages."""
MOST_PLACED = 16_000_000
"""Numbers of the placements that are kept: those of two orders of half a million ranks, of which a
search simulates plans by turns."""


def alike_in_passes(plan: ParallelPlan) -> tuple[Hashable, ...]:
    """Return the values in which plans with the same passes agree."""
    return tuple(getattr(plan, name) for name in ALIKE)


class SharedParts:
    """Cache of parts that programs on one cluster share.

    Code that builds several programs, such as a search or the two runs of a long step, passes the
    same cache to all of them and drops it at the end. Results do not depend on it.
    """

    def __init__(self, structures: ByValue | None = None):
        self._costs: dict[Cluster, GroupCosts] = {}
        self.structures = ByValue() if structures is None else structures
        self._placed = ByValue(MOST_PLACED)
        self._laid_out: OrderedDict[Hashable, dict[Hashable, LaidOut]] = OrderedDict()

    def costs(self, cluster: Cluster) -> GroupCosts:
        """Return the costs of the calls of groups on the cluster with a framework's numbers."""
        if cluster not in self._costs:
            self._costs[cluster] = GroupCosts(cluster)
        return self._costs[cluster]

    def passes(self, shapes: RankShapes) -> BuiltPasses:
        """Return the passes that plans share if they differ only in batch and order of the axes."""
        plan = shapes.plan
        # With several microbatches a pass also adds its gradients to those of earlier ones.
        several = plan.microbatches > 1
        key = shapes.model, shapes.chip, shapes.catalogue, several, alike_in_passes(plan)
        laid_out = self._laid_out.setdefault(key, {})
        self._laid_out.move_to_end(key)
        if len(self._laid_out) > PLANS:
            self._laid_out.popitem(last=False)
        return BuiltPasses(laid_out)

    def placed(self, placement: Placement) -> PlacedGroups:
        """Return the groups that placements share whose ranks are in the same places."""
        size = NUMBERS_OF_A_RANK * placement.plan.ranks
        key = PlacedGroups.key(placement)
        return self._placed.once(lambda: PlacedGroups(placement), size, *key)
