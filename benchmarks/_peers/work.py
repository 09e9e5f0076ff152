"""The work that all simulators run: a collective along one axis after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

BANDWIDTH_BYTES_PER_S = 100 * 10**9
LATENCY_PS = 10**6
PS_PER_S = 10**12
SIZE_BYTES = 2**30


class Stage(NamedTuple):
    """Stage of an all-reduce in which all rings along one axis work at the same time."""

    axis: int
    steps: int  # messages that each rank sends to the next on its ring, one after the other
    message_bytes: int  # size of each message [B]


@dataclass(frozen=True)
class Work:
    """A collective of 1 GiB per rank on a ring, which has one side, or on a torus."""

    # Chips along each axis, powers of two, so that every message is a whole number of bytes
    sides: tuple[int, ...]
    # ``all-reduce`` by rings along each axis, or ``all-to-all`` straight along each axis
    kind: str = "all-reduce"

    @property
    def shape(self) -> str:
        """Text of the shape for the command line."""
        return ("ring:" if len(self.sides) == 1 else "torus:") + "x".join(map(str, self.sides))

    @property
    def ranks(self) -> int:
        """Number of chips, with one rank each."""
        return math.prod(self.sides)

    @property
    def hops(self) -> int:
        """Number of messages on links, each link of a message's way counted."""
        if self.kind == "all-reduce":
            return self.ranks * sum(stage.steps for stage in self.stages())
        distance = sum(min(step, side - step) for side in self.sides for step in range(side))
        return self.ranks * distance

    def stages(self) -> list[Stage]:
        """Stages of a reduce-scatter along each axis from the last, then of the all-gather back."""
        scatter, left = [], SIZE_BYTES
        for axis, side in reversed(list(enumerate(self.sides))):
            left //= side
            scatter.append(Stage(axis, side - 1, left))
        return scatter + scatter[::-1]

    def neighbour(self, rank: int, axis: int, step: int) -> int:
        """Rank that is ``step`` places along an axis from another rank."""
        stride = math.prod(self.sides[:axis])
        side = self.sides[axis]
        place = rank // stride % side
        return rank + ((place + step) % side - place) * stride
