"""Labels of ops that the proof reads, such as the rank, the peer and the first chunk."""

from __future__ import annotations

from cluster_sim.schedule.table import Codes, Schedule
from topologies.arrays import IntArray


def op_label(schedule: Schedule, name: str) -> IntArray:
    """Return a label of every op; a label of few values as the numbers of these."""
    label = schedule.labels[name]
    return label.code if isinstance(label, Codes) else label
