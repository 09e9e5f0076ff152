"""Parts that the programs of several training steps share: costs, groups, ops of passes."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from topologies.clusters.cluster import Cluster
from workloads.training.layers.shapes import RankShapes
from workloads.training.plan.placement import Placement
from workloads.training.plan.plan import PLAN_FIELDS
from workloads.training.program.groups import GroupCosts, PlacedGroups
from workloads.training.program.ops import LaidOut

# Cache of results that follow from arrays and plain values, found again by their contents.
# Training steps of different models and sizes often have the same ops in the same order, and differ
# only in how long these take. What depends on the order alone is computed once for all of them.

Answer = TypeVar("Answer")
DIGEST_BYTES = 16  # length of the digest that stands for the contents of a key [B]
MOST_NUMBERS = 32_000_000
"""Sum of the sizes of results that one cache keeps, in numbers of at most eight bytes."""


class ByValue:
    """Cache of results by the contents of what they follow from.

    Code that builds several programs owns such a cache and drops it at the end. When it is full,
    the results that were not used for longest go.
    """

    def __init__(self, most: int = MOST_NUMBERS):
        self.most = most
        self._held = 0
        self._kept: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def once(
        self, make: Callable[[], Answer], size: int | Callable[[Answer], int], *parts: object
    ) -> Answer:
        """Return the result of ``make``, or that of an earlier call with equal parts."""
        # ``make``: function whose result follows from the parts. Nobody may change its arrays.
        key = digest(parts)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]  # type: ignore[no-any-return]
        answer = make()
        numbers = size(answer) if callable(size) else size
        if numbers <= self.most:
            self._kept[key] = answer, numbers
            self._held += numbers
            while self._held > self.most:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._held -= dropped
        return answer


def digest(parts: object) -> bytes:
    """Return a digest of arrays and plain values, equal for equal contents."""
    summed = hashlib.blake2b(digest_size=DIGEST_BYTES)
    text: list[str] = []
    _add(summed, text, parts)
    summed.update("".join(text).encode())
    return summed.digest()


def _add(summed: Any, text: list[str], part: object) -> None:
    """Add an array, a plain value, or a tuple of parts, each with its kind and length before it."""
    # Plain values are gathered in ``text`` until the next array, as each update takes a
    # microsecond.
    if isinstance(part, np.ndarray):
        text.append(f"{part.dtype.str}{part.shape}")
        summed.update("".join(text).encode())
        text.clear()
        summed.update(np.ascontiguousarray(part).data)
    elif isinstance(part, tuple):
        text.append(f"({len(part)}")
        for inner in part:
            _add(summed, text, inner)
    else:
        text.append(f"{part!r};")


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

    def passes(self, shapes: RankShapes) -> dict[Hashable, LaidOut]:
        """Return the passes that plans share if they differ only in batch and order of the axes."""
        plan = shapes.plan
        # With several microbatches a pass also adds its gradients to those of earlier ones.
        several = plan.microbatches > 1
        alike = tuple(getattr(plan, name) for name in ALIKE)
        key = shapes.model, shapes.chip, shapes.catalogue, several, alike
        laid_out = self._laid_out.setdefault(key, {})
        self._laid_out.move_to_end(key)
        if len(self._laid_out) > PLANS:
            self._laid_out.popitem(last=False)
        return laid_out

    def placed(self, placement: Placement) -> PlacedGroups:
        """Return the groups that placements share whose ranks are in the same places."""
        size = NUMBERS_OF_A_RANK * placement.plan.ranks
        key = PlacedGroups.key(placement)
        return self._placed.once(lambda: PlacedGroups(placement), size, *key)
