"""The work that all simulators are given: a collective along one axis after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

BANDWIDTH_BYTES_PER_S = 100 * 10**9
LATENCY_PS = 10**6
PS_PER_S = 10**12
SIZE_BYTES = 2**30


class Stage(NamedTuple):
    """Rings along one axis, all at once.

    Attributes
    ----------
    axis : int
    steps : int
        Messages that each rank sends to the next on its ring, one after the other.
    message_bytes : int
    """

    axis: int
    steps: int
    message_bytes: int


@dataclass(frozen=True)
class Work:
    """A collective of 1 GiB a rank on a ring (one side) or a torus (several).

    Attributes
    ----------
    sides : tuple of int
        Powers of two, so that every message is a whole number of bytes.
    kind : str
        ``all-reduce`` by rings along each axis, or ``all-to-all`` straight along each axis.
    """

    sides: tuple[int, ...]
    kind: str = "all-reduce"

    @property
    def shape(self) -> str:
        """The shape as the command line takes it."""
        return ("ring:" if len(self.sides) == 1 else "torus:") + "x".join(map(str, self.sides))

    @property
    def ranks(self) -> int:
        """Chips, one rank each."""
        return math.prod(self.sides)

    @property
    def hops(self) -> int:
        """Messages on links."""
        if self.kind == "all-reduce":
            return self.ranks * sum(stage.steps for stage in self.stages())
        ways = sum(min(step, side - step) for side in self.sides for step in range(side))
        return self.ranks * ways

    def stages(self) -> list[Stage]:
        """Reduce-scatter along each axis, the last first, then all-gather the other way round."""
        scatter, left = [], SIZE_BYTES
        for axis, side in reversed(list(enumerate(self.sides))):
            left //= side
            scatter.append(Stage(axis, side - 1, left))
        return scatter + scatter[::-1]

    def neighbour(self, rank: int, axis: int, step: int) -> int:
        """The rank that is so many steps along an axis from another one."""
        stride = math.prod(self.sides[:axis])
        side = self.sides[axis]
        place = rank // stride % side
        return rank + ((place + step) % side - place) * stride
