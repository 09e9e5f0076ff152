"""The rank vector: a program evaluated for all ranks at once, as arrays of clocks."""

from workloads.training.execution.rank_vector.evaluation import RankVector, evaluate
from workloads.training.execution.rank_vector.over_blocks import Progress

__all__ = ["Progress", "RankVector", "evaluate"]
