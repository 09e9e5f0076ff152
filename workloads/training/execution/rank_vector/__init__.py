"""The rank vector: a program evaluated for all ranks at once, as arrays of clocks."""

from workloads.training.execution.rank_vector.evaluation import Progress, RankVector, evaluate

__all__ = ["Progress", "RankVector", "evaluate"]
