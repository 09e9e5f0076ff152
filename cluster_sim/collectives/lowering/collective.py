"""A collective that has been built: its schedule, and the result that it must achieve."""

from __future__ import annotations

from dataclasses import dataclass

from cluster_sim.collectives.chunks import Chunks
from cluster_sim.schedule.table import Schedule
from topologies.arrays import IntArray


@dataclass(frozen=True, eq=False)
class Collective:
    """A collective as a schedule, with the result that it must achieve.

    ``chunks``: chunks of all groups; ranks are numbered from group to group.
    ``chip_of_rank, group_of_rank`` (ranks,): global chip, and number of the group, of each rank.
    ``steps``: rounds that follow one another.
    """

    kind: str
    algorithm: str
    schedule: Schedule
    chunks: Chunks
    chip_of_rank: IntArray
    group_of_rank: IntArray
    steps: int
