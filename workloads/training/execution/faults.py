"""Faults of a training run: the ranks that they affect, and their rows in a schedule."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cluster_sim.hardware.fault_text import Fault, parse_fault
from cluster_sim.hardware.fault_text import fault_table as table
from topologies.arrays import IntArray
from workloads.training.program.program import Program

__all__ = ["Fault", "affected_ranks", "parse_fault", "table"]


def affected_ranks(program: Program, faults: Sequence[Fault]) -> IntArray:
    """Rows of ranks on chips that a fault strikes, which stand for nobody but themselves."""
    return np.flatnonzero(np.isin(program.chip, [fault.chip for fault in faults]))
